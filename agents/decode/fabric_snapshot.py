"""What one file says about its ports, gathered from lines that come in any order, and given out port by port.

Guarantees: ports keep their order of appearance and priorities their numeric one; a statement of null never
replaces a number; a priority without a pause counter gives no record. It parses nothing and knows no source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agents.decode.record import Record

View = Literal["host", "switch"]
"""Whose counters they are: what one side received, the other sent."""

Value = int | float | str | None

_PFC_FIELDS = ("rx_pause_frames", "tx_pause_frames", "rx_pause_us", "tx_pause_us")


@dataclass(slots=True)
class Port:
    """One port while its counters are gathered.

    Attributes:
        view: Whose port it is.
        device: As the source names it; None where it does not.
        port: Likewise.
        counters: What has no field of its own, by the source's name.
        stated: Fields of the port record that the source states.
    """

    view: View
    device: str | None
    port: str | None
    counters: dict[str, int | None] = field(default_factory=dict)
    stated: dict[str, Value] = field(default_factory=dict)
    _pfc: dict[int, dict[str, Value]] = field(default_factory=dict)

    def put_pfc(self, priority: int, name: str, value: Value) -> None:
        """States one field of the PFC record of a priority."""
        _put(self._pfc.setdefault(priority, {}), name, value)

    def put_state(self, name: str, value: Value) -> None:
        """States one field of the port record."""
        _put(self.stated, name, value)

    def put_counter(self, name: str, value: int | None) -> None:
        """States a counter under the source's own name."""
        if value is not None or name not in self.counters:
            self.counters[name] = value

    def pfc_records(self) -> Iterator[Record]:
        """One `pfc` record for each priority that has a counter."""
        for priority, stated in sorted(self._pfc.items()):
            record: Record = {
                "kind": "pfc",
                "view": self.view,
                "device": self.device,
                "port": self.port,
                "priority": priority,
            }
            yield record | dict.fromkeys(_PFC_FIELDS) | stated

    def port_record(self) -> Record | None:
        """The `port` record, None where the source tells of nothing but PFC."""
        if not self.counters and not self.stated:
            return None
        record: Record = {"kind": "port", "view": self.view, "device": self.device, "port": self.port}
        stated = dict(self.stated)
        if stated.get("link_state") != "active":
            # A port that is down still prints the rate of its last or default link.
            stated |= {name: None for name in ("rate_gbps", "link_lanes") if name in stated}
        return record | stated | {"counters": self.counters}


@dataclass(slots=True)
class Snapshot:
    """The ports and watchdog rows of one file."""

    watchdogs: list[Record] = field(default_factory=list)
    _ports: dict[tuple[View, str | None, str | None, object], Port] = field(default_factory=dict)

    def port(self, view: View, device: str | None, port: str | None, scope: object = None) -> Port:
        """The port of that name, made at its first mention.

        Args:
            view: Whose port it is.
            device: Device, None where the source names none.
            port: Port of the device or switch, None likewise.
            scope: Tells ports apart whose names do not: blocks without a name, objects of several ASICs.
        """
        return self._ports.setdefault((view, device, port, scope), Port(view, device, port))

    def records(self) -> Iterator[Record]:
        """All `pfc` records, then all `port` records, then the watchdog's rows."""
        for port in self._ports.values():
            yield from port.pfc_records()
        for port in self._ports.values():
            record = port.port_record()
            if record is not None:
                yield record
        yield from self.watchdogs


def _put(stated: dict[str, Value], name: str, value: Value) -> None:
    if value is not None or name not in stated:
        stated[name] = value

"""Link state, speed and flaps of Ethernet interfaces: the small files of `/sys/class/net`.

Guarantees: the state is the kernel's operational one; an interface that does not say is unknown, not down. Flaps are
counted by the kernel (`carrier_down_count`), so a dip between two readings is not missed; where the driver counts them at
the port itself, that count is left to stand. The speed is asked for seldom, and when the link changed: each question
stops other changes to interfaces for a moment. InfiniBand interfaces state no link here: their ports do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.attribute_files import AttributeFiles
from agents.collectors.base import Row
from agents.decode.quantity import Unreadable, integer

__all__ = ["EthernetLink"]

_ETHERNET = "1"  # ARPHRD_ETHER

_STATES = {
    "up": "active",
    "down": "down",
    "lowerlayerdown": "down",
    "notpresent": "down",
    "dormant": "init",
    "testing": "init",
}
"""Operational states (RFC 2863, Documentation/ABI/testing/sysfs-class-net) in the words of a port's state."""

_DOWN_COUNT = "carrier_down_count"
_FLAPS = ("carrier_changes", "carrier_up_count", _DOWN_COUNT)
_TOTALS = (
    *("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
    *("rx_crc_errors", "rx_missed_errors", "rx_fifo_errors", "tx_carrier_errors"),
)
"""Files of `statistics` that are read where the driver's own statistics have no counter of that name."""

_SPEED_EVERY = 60
_LIST_EVERY = 600


@dataclass(slots=True)
class EthernetLink:
    """One interface. For one thread.

    Attributes:
        sysfs_root: where sysfs is mounted.
        interface: its name.
        counted: names and fields that the driver's own statistics have, which are left to them; None while that is not
            known, and then whatever they may have is left out.
    """

    sysfs_root: Path
    interface: str
    counted: Collection[str] | None
    _files: AttributeFiles = field(init=False)
    _speed: float | None = None
    _changes: tuple[Any, ...] = ()
    _readings: int = 0
    _is_ethernet: bool = field(init=False)

    def __post_init__(self) -> None:
        """List the files."""
        self._is_ethernet = self._once("type") in {_ETHERNET, ""}
        self._files = AttributeFiles(self._list, list_every=_LIST_EVERY)

    def row(self) -> Row | None:
        """The interface's `port` row, None if none of its files can be read."""
        texts = {path.rpartition("/")[2]: content.strip() for path, content in self._files.read()}
        if not texts:
            return None
        counters = {name: _count(texts[name]) for name in (*_FLAPS, *_TOTALS) if name in texts}
        row: dict[str, Any] = {"kind": "port", "view": "host", "device": self.interface, "port": None}
        if self._is_ethernet:
            row["link_state"] = _STATES.get(texts.get("operstate", ""))
            row["rate_gbps"] = self._rate(row["link_state"], counters)
            if self._is_left_to_us("link_down_events") and _DOWN_COUNT in counters:
                row["link_down_events"] = counters[_DOWN_COUNT]
        return {**row, "counters": counters}

    def close(self) -> None:
        """Let go of all files."""
        self._files.close()

    def _rate(self, state: str | None, counters: dict[str, int | None]) -> float | None:
        changes = (state, *(counters.get(name) for name in _FLAPS))
        if changes != self._changes or self._readings % _SPEED_EVERY == 0:
            self._changes = changes
            megabits = _count(self._once("speed")) if state == "active" else None
            self._speed = megabits / 1000 if megabits is not None and megabits > 0 else None
        self._readings += 1
        return self._speed

    def _list(self) -> Iterator[Path]:
        directory = self.sysfs_root / "class/net" / self.interface
        names = [*(["operstate"] if self._is_ethernet else []), *_FLAPS]
        names += [f"statistics/{name}" for name in _TOTALS if self._is_left_to_us(name)]
        return (directory / name for name in names if (directory / name).is_file())

    def _is_left_to_us(self, name: str) -> bool:
        return self.counted is not None and name not in self.counted

    def _once(self, name: str) -> str:
        """A file that is not kept open; empty if it cannot be read, as the speed of a link that is down."""
        try:
            return (self.sysfs_root / "class/net" / self.interface / name).read_text("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""


def _count(text: str) -> int | None:
    """A number of a file; None for what is none."""
    try:
        value = integer(text)
    except Unreadable:
        return None
    return value if value is None or value >= 0 else None

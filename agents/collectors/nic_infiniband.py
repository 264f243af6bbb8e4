"""State and counters of InfiniBand and RoCE ports: the files under `/sys/class/infiniband`.

Guarantees: files are placed as the decoder places them; a counter that refuses to be read stays unknown; a device that
is gone has no row, and one that came back is listed anew. The rate is asked for seldom, and when the state changes:
each answer about state or rate is a command to the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.attribute_files import AttributeFiles
from agents.collectors.base import Row
from agents.collectors.nic_hardware import Hardware, PhysicalPorts
from agents.decode import fabric_sysfs
from agents.decode.fabric_snapshot import Port, Snapshot
from agents.decode.fabric_sysfs import Attribute, Place
from agents.decode.quantity import Unreadable, integer, times

__all__ = ["InfinibandPorts"]

_COUNTER_DIRECTORIES = ("counters", "hw_counters")
_RATE_EVERY = 10
"""Readings between two of the rate."""


@dataclass(frozen=True, slots=True)
class _File:
    """What is known of a file before it is read; without a place it is the state."""

    device: str
    port: str
    place: Place | None


class InfinibandPorts:
    """Reads all ports of all devices. For one thread.

    Args:
        sysfs_root: where sysfs is mounted.
    """

    def __init__(self, sysfs_root: str | Path = "/sys") -> None:
        self._malformed = 0
        self._directory = Path(sysfs_root) / "class/infiniband"
        self._hardware = PhysicalPorts(sysfs_root, "infiniband")
        self._listed: tuple[Hardware, ...] = ()
        self._known: dict[str, _File] = {}
        self._files = AttributeFiles(self._list_files)
        self._rate_files = AttributeFiles(self._list_rates)
        self._states: list[str] = []
        self._rates: list[tuple[str, str]] = []
        self._readings = 0

    def is_here(self) -> bool:
        """Whether there is a port."""
        self._listed = self._hardware.list()
        return any(self._ports())

    def rows(self) -> list[Row]:
        """A `port` row for each port."""
        now_here = self._hardware.list()
        if now_here != self._listed:
            self._listed = now_here
            self.close()
            self._files = AttributeFiles(self._list_files)
            self._rate_files = AttributeFiles(self._list_rates)
            self._states = []
        snapshot = Snapshot()
        states: list[str] = []
        port: Port | None = None
        for path, content in self._files.read():
            file = self._known[path]
            if port is None or (port.device, port.port) != (file.device, file.port):
                port = snapshot.port("host", file.device, file.port)
            if file.place is None:
                states.append(content)
                attribute = Attribute(file.device, file.port, "state", content.strip())
                fabric_sysfs.put_attribute(snapshot, attribute, path, None)
            else:
                self._put_counter(port, file.place, content)
        self._put_rates(snapshot, states)
        return list(snapshot.records())

    def take_malformed(self) -> int:
        """How many counters held no number since this was last asked."""
        malformed, self._malformed = self._malformed, 0
        return malformed

    def close(self) -> None:
        """Let go of all files; a later reading opens them again."""
        self._files.close()
        self._rate_files.close()

    def _put_counter(self, port: Port, place: Place, content: str) -> None:
        try:
            value = integer(content)
        except Unreadable:
            self._malformed += 1
            return
        if place.is_stated:
            port.put_state(place.field, times(value, place.unit_bytes))
        else:
            port.put_counter(place.field, value)

    def _put_rates(self, snapshot: Snapshot, states: list[str]) -> None:
        if states != self._states or self._readings % _RATE_EVERY == 0:
            self._states = states
            self._rates = list(self._rate_files.read())
        self._readings += 1
        for path, content in self._rates:
            attribute = fabric_sysfs.attribute_at(path, content)
            if attribute is not None:
                fabric_sysfs.put_attribute(snapshot, attribute, path, None)

    def _ports(self) -> Iterator[Path]:
        for one in self._listed:
            ports = (self._directory / one.name / "ports").glob("*")
            yield from sorted(port for port in ports if port.name.isdecimal())

    def _list_files(self) -> Iterator[Path]:
        self._known = {}
        for port in self._ports():
            device = port.parent.parent.name
            self._known[str(port / "state")] = _File(device, port.name, None)
            yield port / "state"
            for directory in _COUNTER_DIRECTORIES:
                for path in sorted((port / directory).glob("*")):
                    place = fabric_sysfs.place_of(f"{directory}/{path.name}")
                    if place is not None:
                        self._known[str(path)] = _File(device, port.name, place)
                        yield path

    def _list_rates(self) -> Iterator[Path]:
        return (port / "rate" for port in self._ports())

"""Ports of a node's NICs: InfiniBand and RoCE ports, Ethernet statistics with pause by priority, link state and flaps.

Guarantees: every source is placed by the decoders, so a counter that a driver does not have stays unknown; one interface
that cannot be read does not cost the others; a port that is gone has no row, and one that comes back is read again. Of a
counter that two sources know the same one states it at every reading. Pause counters are the driver's alone: where it
has none there are none, which is not zero pauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Readings, Row
from agents.collectors.ethtool import EthtoolIoctl, EthtoolRunner, run_ethtool
from agents.collectors.nic_ethernet import EthernetStatistics
from agents.collectors.nic_hardware import Hardware, PhysicalPorts
from agents.collectors.nic_infiniband import InfinibandPorts
from agents.collectors.nic_link import EthernetLink
from agents.collectors.program import ProgramError

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["NicCollector"]

_KINDS = ("port", "pfc")


@dataclass(slots=True)
class _Interface:
    """What is kept of one interface between readings.

    Attributes:
        statistics: the driver's own.
        link: files of sysfs; None until the first reading.
        counted: counters that the driver's statistics have; None until they were read once.
    """

    statistics: EthernetStatistics
    link: EthernetLink | None = None
    counted: frozenset[str] | None = None


class NicCollector:
    """Reads ports and their counters.

    Args:
        sysfs_root: where sysfs is mounted.
        interfaces: network interfaces to read; None takes the physical ones.
        ethtool: runs `ethtool -S` where the ioctl is not to be had.
        ioctl: asks the kernel for statistics; None runs the program instead.
    """

    name = "nic"

    def __init__(
        self,
        sysfs_root: str | Path = "/sys",
        interfaces: Sequence[str] | None = None,
        ethtool: EthtoolRunner = run_ethtool,
        ioctl: EthtoolIoctl | None = None,
    ) -> None:
        self.failed: dict[str, str] = {}
        """Interfaces whose statistics could not be read the last time, and why."""
        self.malformed = 0
        """Counters so far that held no number."""
        self._root = Path(sysfs_root)
        self._infiniband = InfinibandPorts(sysfs_root)
        self._hardware = PhysicalPorts(sysfs_root, "net", None if interfaces is None else tuple(interfaces))
        self._ethtool = ethtool
        self._ioctl = ioctl
        self._interfaces: dict[Hardware, _Interface] = {}

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> NicCollector:  # noqa: ARG003 - the same for every node
        """The collector of the interfaces that the settings name, else of all with hardware behind them."""
        return cls(settings.sysfs_root, settings.nic_interfaces or None, ioctl=EthtoolIoctl())

    def is_supported(self) -> str | None:
        """None if there is a port to read, else why not."""
        if self._infiniband.is_here() or self._hardware.list():
            return None
        return f"neither an InfiniBand device nor a network card under {self._root}/class"

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - counters are of the moment at which they are read
        """Read all ports.

        Raises:
            CollectorError: not one could be read.
        """
        self.failed = {}
        rows = self._infiniband.rows()
        here = self._hardware.list()
        for gone in self._interfaces.keys() - here:
            link = self._interfaces.pop(gone).link
            if link is not None:
                link.close()
        for name in self._hardware.missing:
            self.failed[name] = f"there is no such interface under {self._root}/class/net"
        for hardware in here:
            rows += self._ethernet_rows(hardware)
        self.malformed += self._infiniband.take_malformed() + sum(row["kind"] == "malformed" for row in rows)
        ports = tuple(row for row in rows if row["kind"] in _KINDS)
        if not ports and self.failed:
            interface, reason = next(iter(self.failed.items()))
            raise CollectorError(f"no port could be read; {interface}: {reason}")
        return Readings(ports=ports)

    def _ethernet_rows(self, hardware: Hardware) -> list[Row]:
        name = hardware.name
        kept = self._interfaces.get(hardware)
        if kept is None:
            kept = self._interfaces[hardware] = _Interface(EthernetStatistics(name, self._ioctl, self._ethtool))
        rows: list[Row] = []
        try:
            rows = kept.statistics.rows()
        except (OSError, ProgramError) as error:
            self.failed[name] = str(error)
        else:
            self._note_counted(kept, rows)
        if kept.link is None:
            kept.link = EthernetLink(self._root, name, kept.counted)
        link = kept.link.row()
        return rows if link is None else [*rows, link]

    @staticmethod
    def _note_counted(kept: _Interface, rows: list[Row]) -> None:
        """What the driver counts is not read from the kernel's own statistics, or two counts would take turns."""
        counted = frozenset(name for row in rows if row["kind"] == "port" for name in (*row, *row["counters"]))
        if kept.counted != counted:
            kept.counted = counted
            if kept.link is not None:
                kept.link.close()
            kept.link = None

"""The driver's own statistics of an Ethernet interface: pause by priority, and the counters that say something of a link.

Guarantees: what is a pause frame and what a counter decides the decoder, once for each name: a reading is one system
call and no parsing. Statistics of single rings and channels are left out (a card has thousands), and so is the
bookkeeping of offloads. Where the kernel does not answer the ioctl, `ethtool -S` is run instead. A driver that gives its
counters other names and keeps their number is found out within ten readings.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.collectors.base import Row
from agents.collectors.ethtool import EthtoolIoctl, EthtoolRunner, names_in, run_ethtool
from agents.decode import fabric_ethtool

__all__ = ["EthernetStatistics", "is_of_the_link"]

_NAMES_EVERY = 10
"""Readings between two looks at the names."""

# One ring, channel or queue: mlx5 `rx3_packets` `ch0_poll`, bnxt `[0]: rx_ucast_packets`, ena `queue_0_tx_cnt`, ice
# `tx_queue_0_bytes` `rx-0.packets`, gve `rx_packets[0]`, virtio_net `rx_queue_0_drops`, mana `rx_0_packets`.
_OF_A_RING = re.compile(
    r"(?:(?:rx|tx|ch|xdp|xsk|txq|rxq|ptp_\w+?)[-_]?[0-9]+[-_.:].*|\[[0-9]+\].*|.*\[[0-9]+\]|.*queue_?[0-9]+_.*"
    r"|tc[0-9]+[-_.].*|cpu[0-9]+_.*)",
    re.ASCII,
)
_OF_THE_LINK = re.compile(
    r"(?:port\.)?(?:rx|tx)_(?:bytes|packets|errors|dropped)|.*(?:pause|pfc|xoff|ecn|cnp|marked|discard|drop|err|crc|fec|symbol"
    r"|corrected|link|carrier|out_of_buffer|no_buf|congest|timeout|stall|overrun|overflow|miss|retrans|rdma|roce|exceeded"
    r"|storm|reset|prio[0-9]_(?:bytes|packets)|(?:bytes|packets)_phy)",
    re.ASCII | re.IGNORECASE,
)
_BOOKKEEPING = re.compile(r"(?:rx|tx)_(?:xdp|xsk|pp|tls|cqe_compress|cache|arfs)_.*|.*_xdp_.*|ptp_.*", re.ASCII)
_NO_IOCTL = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTTY, errno.EAFNOSUPPORT})

# mlx5: percent of the last second, which is no counter.
_GAUGES = frozenset({"outbound_pci_stalled_rd", "outbound_pci_stalled_wr"})


def is_of_the_link(name: str) -> bool:
    """Whether a counter without a field of its own is worth its place in a frame."""
    if name in _GAUGES or _OF_A_RING.fullmatch(name) or _BOOKKEEPING.fullmatch(name):
        return False
    return _OF_THE_LINK.match(name) is not None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the numbers of one interface go, each by its position.

    Attributes:
        name_block: the names, to see whether they are still the same.
        count: how many numbers there are.
        pfc: by priority, field and position.
        stated: by field.
        counters: by name.
    """

    name_block: bytes
    count: int
    pfc: Mapping[int, Mapping[str, int]]
    stated: Mapping[str, int]
    counters: Mapping[str, int]


class EthernetStatistics:
    """Reads one interface. For one thread.

    Args:
        interface: its name.
        ioctl: asks the kernel; None runs the program only.
        program: runs `ethtool -S`.
    """

    def __init__(self, interface: str, ioctl: EthtoolIoctl | None, program: EthtoolRunner = run_ethtool) -> None:
        self._interface = interface
        self._ioctl = ioctl
        self._program = program
        self._plan: _Plan | None = None
        self._readings = 0

    def rows(self) -> list[Row]:
        """The `pfc` rows by priority and the `port` row; nothing where the driver has no statistics.

        Raises:
            OSError: there is no such interface any more.
            ProgramError: the ioctl is not to be had, and the program failed.
        """
        if self._ioctl is not None:
            try:
                return self._from_ioctl(self._ioctl)
            except OSError as error:
                if error.errno not in _NO_IOCTL:
                    raise
                self._ioctl = None
        return [_chosen(row) for row in fabric_ethtool.parse(self._program(self._interface), self._interface)]

    def _from_ioctl(self, ioctl: EthtoolIoctl) -> list[Row]:
        plan = self._plan
        if plan is None or self._readings % _NAMES_EVERY == 0:
            plan = self._planned(ioctl, plan)
        self._readings += 1
        numbers = ioctl.numbers(self._interface, plan.count) if plan.count else ()
        if numbers is None:  # the driver has more or fewer of them since
            plan = self._planned(ioctl, None)
            numbers = ioctl.numbers(self._interface, plan.count) if plan.count else ()
        self._plan = plan
        return _rows(self._interface, plan, numbers) if numbers else []

    def _planned(self, ioctl: EthtoolIoctl, before: _Plan | None) -> _Plan:
        block = ioctl.name_block(self._interface)
        return before if before is not None and before.name_block == block else _plan(block)


def _plan(block: bytes) -> _Plan:
    names = names_in(block)
    pfc: dict[int, dict[str, int]] = {}
    stated: dict[str, int] = {}
    counters: dict[str, int] = {}
    for position, name in enumerate(names):
        place = fabric_ethtool.place_of(name)
        if place is None or not name:
            continue
        if place.priority is not None:
            pfc.setdefault(place.priority, {})[place.field] = position
        elif place.is_stated:
            stated[place.field] = position
        elif is_of_the_link(name):
            counters[place.field] = position
    return _Plan(block, len(names), dict(sorted(pfc.items())), stated, counters)


def _rows(interface: str, plan: _Plan, numbers: tuple[int, ...]) -> list[Row]:
    port: dict[str, Any] = {"view": "host", "device": interface, "port": None}
    rows: list[Row] = [
        {"kind": "pfc", **port, "priority": priority, **{name: numbers[at] for name, at in fields.items()}}
        for priority, fields in plan.pfc.items()
    ]
    stated = {name: numbers[at] for name, at in plan.stated.items()}
    counters = {name: numbers[at] for name, at in plan.counters.items()}
    return [*rows, {"kind": "port", **port, **stated, "counters": counters}]


def _chosen(row: Row) -> Row:
    """A decoded row without the counters that are left out."""
    if row["kind"] != "port":
        return row
    return {**row, "counters": {name: value for name, value in row["counters"].items() if is_of_the_link(name)}}

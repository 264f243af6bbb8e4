"""Pause frames a second that ports receive, for the metrics page: told by two successive frames of one publisher.

All priorities of a port are added. A port has a series only while it receives at least one frame a second, and only the
`MAX_PORTS` worst have one; what is left out is counted. Repeated and reordered frames are passed over. No verdict: the
rule on pause reads the frames itself, in their order.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from schemas.frames import FabricFrame

__all__ = ["LEAST_FRAMES_PER_S", "MAX_PORTS", "PauseRates"]

LEAST_FRAMES_PER_S = 1.0
"""Below this a port has no series: nearly all ports of a healthy fabric."""

MAX_PORTS = 1024
"""Series of one worker at most."""

_MAX_PUBLISHERS = 16_384
_GAP_NS = 60_000_000_000
_SILENT_S = 60.0

_Counts = tuple[int | None, ...]


@dataclass(slots=True)
class _Reading:
    """A publisher's last frame, as far as pause goes."""

    session: str
    event_time_ns: int
    taken_at: float
    rows: tuple[tuple[int, ...], tuple[int, ...]]
    counts: _Counts
    link_level: _Counts | None
    rates: dict[str, float]


class PauseRates(Collector):
    """The ports of the publishers of one worker.

    Args:
        clock: seconds; a publisher that was silent for a minute of it has no series.
        max_ports: series at most.
    """

    def __init__(self, clock: Callable[[], float], max_ports: int = MAX_PORTS) -> None:
        self._clock = clock
        self._max_ports = max_ports
        self._lock = threading.Lock()
        self._publishers: OrderedDict[tuple[str, str], _Reading] = OrderedDict()

    def take(self, frame: FabricFrame) -> None:
        """A frame has come."""
        key = (frame.view, frame.publisher_id)
        with self._lock:
            last = self._publishers.get(key)
            if last is not None and last.session == frame.agent_session and frame.event_time_ns <= last.event_time_ns:
                return
            rows = (frame.pfc_port, frame.pfc_priority)
            rates: dict[str, float] = {}
            if last is not None and last.session == frame.agent_session:
                elapsed_ns = frame.event_time_ns - last.event_time_ns
                if elapsed_ns <= _GAP_NS:
                    rates = _rates(frame, last, rows, elapsed_ns)
            self._publishers[key] = _Reading(
                frame.agent_session,
                frame.event_time_ns,
                self._clock(),
                rows,
                frame.rx_pause_frames,
                frame.rx_global_pause_frames,
                rates,
            )
            self._publishers.move_to_end(key)
            while len(self._publishers) > _MAX_PUBLISHERS:
                self._publishers.popitem(last=False)

    def collect(self) -> Iterator[Metric]:
        """The page's part: rates of the worst ports, and how many are left out."""
        silent_since = self._clock() - _SILENT_S
        with self._lock:
            ports = [
                (rate, port, view)
                for (view, _), reading in self._publishers.items()
                if reading.taken_at >= silent_since
                for port, rate in reading.rates.items()
            ]
        rate_of = GaugeMetricFamily(
            "switch_pfc_pause_rx_rate",
            "Pause frames a second that a port receives, all priorities.",
            labels=["port_id", "view"],
        )
        for rate, port, view in heapq.nlargest(self._max_ports, ports):
            rate_of.add_metric([port, view], rate)
        yield rate_of
        left_out = GaugeMetricFamily("paceline_pause_ports_left_out", "Ports that receive pause and have no series.")
        left_out.add_metric([], max(0, len(ports) - self._max_ports))
        yield left_out


def _rates(
    frame: FabricFrame, last: _Reading, rows: tuple[tuple[int, ...], tuple[int, ...]], elapsed_ns: int
) -> dict[str, float]:
    """Rates by port id of those that reach the least. Equal columns, the healthy case, cost two comparisons."""
    frames: dict[int, int] = {}
    if rows == last.rows and frame.rx_pause_frames != last.counts:
        _add(frames, frame.pfc_port, last.counts, frame.rx_pause_frames)
    link_level = frame.rx_global_pause_frames
    if link_level is not None and last.link_level is not None and link_level != last.link_level:
        _add(frames, tuple(range(len(link_level))), last.link_level, link_level)
    rates = {}
    for port, count in frames.items():
        rate = count * 1e9 / elapsed_ns
        if rate >= LEAST_FRAMES_PER_S:
            rates[_port_id(frame, port)] = rate
    return rates


def _add(frames: dict[int, int], ports: tuple[int, ...], before: _Counts, after: _Counts) -> None:
    # A count that fell was reset: what it was at is not known. Columns of another length are of other ports.
    if len(before) != len(after):
        return
    for port, old, new in zip(ports, before, after, strict=True):
        if old is not None and new is not None and new > old:
            frames[port] = frames.get(port, 0) + new - old


def _port_id(frame: FabricFrame, port: int) -> str:
    # Some switches name themselves as the device of their ports.
    parts = dict.fromkeys((frame.publisher_id, frame.device[port], frame.port[port]))
    return "/".join(part for part in parts if part)

"""The way to the broker: delay, duplicates, reordering, loss, and reversal in windows.

Draws are keyed by publisher, topic and sequence number, so one publisher more changes nobody else's luck. Records of one
publisher and topic keep their order but for those drawn late. What registers jobs and nodes comes through at once.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agents.simulation.errors import ScenarioError
from agents.simulation.noise import entity_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agents.simulation.benchmark.case import DeliveryPlan
    from agents.simulation.noise import Noise
    from schemas.base import Record

__all__ = ["Sent", "arrivals"]

_P99_SIGMAS = 2.3263478740408408
"""The 99th percentile of a normal distribution: log of p99 over p50 of a log-normal one is so many sigma."""

_CHUNK = 128


class Sent(NamedTuple):
    """A record on its way.

    Attributes:
        at_ns: when it was sent.
        source: whose order it keeps; empty for registrations.
        number: of the record from that source.
        record: what is sent.
    """

    at_ns: int
    source: str
    number: int
    record: Record


class _Luck:
    """Draws of each source by the number of the record."""

    def __init__(self, plan: DeliveryPlan, noise: Noise) -> None:
        self._noise = noise
        self._median_ns = plan.delay_p50_ms * 1e6
        self._sigma = math.log(plan.delay_p99_ms / plan.delay_p50_ms) / _P99_SIGMAS
        self._chunks: dict[str, tuple[int, dict[str, list[float]]]] = {}

    def of(self, source: str, number: int) -> tuple[dict[str, list[float]], int]:
        """Draws by name, and the place among them."""
        chunk, place = divmod(number, _CHUNK)
        held = self._chunks.get(source)
        if held is None or held[0] != chunk:
            key = np.array([entity_key(source)], dtype=np.uint64)
            numbers = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK)
            draws = {
                name: self._noise.uniform_steps(f"way-{name}", key, numbers)[:, 0].tolist()
                for name in ("loss", "late", "duplicate", "again")
            }
            delay = np.exp(self._sigma * self._noise.normal_steps("way-delay", key, numbers)[:, 0])
            draws["delay"] = (self._median_ns * delay).tolist()
            held = self._chunks[source] = (chunk, draws)
        return held[1], place


def arrivals(sent: Iterable[Sent], plan: DeliveryPlan, noise: Noise) -> Iterator[tuple[int, Record]]:
    """(arrival_ns, record) by arrival.

    Args:
        sent: what was sent, by time.
        plan: how it travels.
        noise: of the seed.

    Raises:
        ScenarioError: delays that do not rise, or a share outside 0 to 1.
    """
    shares = (plan.duplicates, plan.out_of_order, plan.loss)
    if not 0 < plan.delay_p50_ms <= plan.delay_p99_ms or not all(0 <= share <= 1 for share in shares):
        raise ScenarioError("delivery: delays rise from p50 to p99, shares lie between 0 and 1")
    came = _travelled(sent, plan, noise)
    return _reversed(came, round(plan.reverse_window_s * 1e9)) if plan.reverse_window_s > 0 else came


def _travelled(sent: Iterable[Sent], plan: DeliveryPlan, noise: Noise) -> Iterator[tuple[int, Record]]:
    luck = _Luck(plan, noise)
    late_ns = round(plan.late_ms * 1e6)
    last: dict[str, int] = {}
    waiting: list[tuple[int, int, Record]] = []
    order = 0
    for at_ns, source, number, record in sent:
        while waiting and waiting[0][0] <= at_ns:
            arrival, _, arrived = heapq.heappop(waiting)
            yield arrival, arrived
        order += 1
        if not source:
            heapq.heappush(waiting, (at_ns, order, record))
            continue
        draws, place = luck.of(source, number)
        if draws["loss"][place] < plan.loss:
            continue
        arrival = at_ns + int(draws["delay"][place])
        if draws["late"][place] < plan.out_of_order:
            arrival += late_ns
        else:
            arrival = last[source] = max(arrival, last.get(source, 0))
        heapq.heappush(waiting, (arrival, order, record))
        if draws["duplicate"][place] < plan.duplicates:
            for copy in range(plan.duplicate_copies):
                order += 1
                again = arrival + int((copy + draws["again"][place]) * 500e6)
                heapq.heappush(waiting, (again, order, record))
    while waiting:
        arrival, _, arrived = heapq.heappop(waiting)
        yield arrival, arrived


def _reversed(came: Iterable[tuple[int, Record]], window_ns: int) -> Iterator[tuple[int, Record]]:
    """What came within a window, in reverse order at its end; registrations keep their place."""
    held: list[Record] = []
    end_ns: int | None = None
    for arrival, record in came:
        if end_ns is not None and arrival >= end_ns:
            yield from ((end_ns + place, late) for place, late in enumerate(reversed(held)))
            held, end_ns = [], None
        if "seq" not in type(record).model_fields and "kmsg_seq" not in type(record).model_fields:
            yield arrival, record
            continue
        if end_ns is None:
            end_ns = (arrival // window_ns + 1) * window_ns
        held.append(record)
    if end_ns is not None:
        yield from ((end_ns + place, late) for place, late in enumerate(reversed(held)))

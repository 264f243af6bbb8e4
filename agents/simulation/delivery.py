"""What the network does to a stream: delay, duplicates, reordering and loss, drawn from a seed.

Records of one key and topic arrive in the order in which they were sent, as an idempotent producer guarantees, except
those that are drawn to be late; a duplicate comes some time after its original. A pure function of its arguments.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.noise import Noise
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.base import Record

__all__ = ["Delivery", "deliver"]

# log of the 99th over the 50th percentile of a log-normal distribution is this many sigma.
_P99_SIGMAS = 2.3263478740408408
_CHUNK = 4096


@dataclass(frozen=True)
class Delivery:
    """How records travel. Shares are 0..1 of all records; `late_ms` is added to a record that is out of order."""

    delay_p50_ms: float = 20.0
    delay_p99_ms: float = 200.0
    duplicates: float = 0.005
    duplicate_after_ms: float = 500.0
    out_of_order: float = 0.0
    late_ms: float = 2_000.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no delay or no share."""
        if not 0 < self.delay_p50_ms <= self.delay_p99_ms:
            raise ValueError(f"delays must rise: p50 {self.delay_p50_ms} ms, p99 {self.delay_p99_ms} ms")
        for name in ("duplicates", "out_of_order", "loss"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {getattr(self, name)}")
        if self.late_ms < 0 or self.duplicate_after_ms < 0:
            raise ValueError("late_ms and duplicate_after_ms cannot be negative")


def deliver(
    events: Iterable[tuple[int, Record]], delivery: Delivery | None = None, seed: int = 0
) -> Iterator[tuple[int, Record]]:
    """Records with the time at which they arrive, by arrival.

    Args:
        events: (published at, record), by time of publication.
        delivery: how they travel; small delays and half a per cent of duplicates by default.
        seed: of the delays and of who is hit.
    """
    delivery = delivery or Delivery()
    noise = Noise(seed)
    median_ns = delivery.delay_p50_ms * 1e6
    sigma = math.log(delivery.delay_p99_ms / delivery.delay_p50_ms) / _P99_SIGMAS
    last_arrival: dict[tuple[str, str], int] = {}
    waiting: list[tuple[int, int, Record]] = []
    draws: dict[str, list[float]] = {}
    for number, (sent_ns, record) in enumerate(events):
        place = number % _CHUNK
        if place == 0:
            keys = np.arange(number, number + _CHUNK, dtype=np.uint64)
            delays = median_ns * np.exp(sigma * noise.normal("delay", keys))
            draws = {name: noise.uniform(name, keys).tolist() for name in ("loss", "late", "duplicate", "again")}
            draws["delay"] = delays.tolist()
        while waiting and waiting[0][0] <= sent_ns:
            arrival, _, arrived = heapq.heappop(waiting)
            yield arrival, arrived
        if draws["loss"][place] < delivery.loss:
            continue
        arrival = sent_ns + round(draws["delay"][place])
        if draws["late"][place] < delivery.out_of_order:
            arrival += round(delivery.late_ms * 1e6)
        else:
            topic = topic_of(record)
            source = topic.name, topic.key(record)
            arrival = max(arrival, last_arrival.get(source, 0))
            last_arrival[source] = arrival
        heapq.heappush(waiting, (arrival, 2 * number, record))
        if draws["duplicate"][place] < delivery.duplicates:
            again = arrival + round(delivery.duplicate_after_ms * 1e6 * draws["again"][place])
            heapq.heappush(waiting, (again, 2 * number + 1, record))
    while waiting:
        arrival, _, arrived = heapq.heappop(waiting)
        yield arrival, arrived

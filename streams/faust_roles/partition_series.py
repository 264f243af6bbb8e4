"""What the metrics page says of a worker's partitions: event time and its lag, unread records, age of the snapshot.

Lag and age are reckoned when the page is read, so they grow while nothing is processed. A partition at rest (all read,
nothing new for `REST_S`) has neither: without input its time stands still, and no snapshot is due. What is unread is
known only when the client says where a partition ends; a broker's answers tell it, so a client that gets none shows the
last it heard.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from schemas.errors import SchemaError
from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

__all__ = ["REST_S", "PartitionSeries"]

REST_S = 60.0
"""A partition without a new record for this long, and with none unread, is at rest."""


@dataclass(slots=True)
class _Partition:
    taken_at: float
    time_ns: int | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    snapshot_at: float | None = None


class PartitionSeries(Collector):
    """The partitions of one worker.

    Args:
        role: the worker's role.
        clock: seconds since the epoch.
    """

    def __init__(self, role: str, clock: Callable[[], float]) -> None:
        self.end_of: Callable[[str, int], int | None] | None = None
        """Where a topic's partition ends: the offset that its next record will have; None where that is not known."""
        self._role = role
        self._clock = clock
        self._lock = threading.Lock()
        self._partitions: dict[int, _Partition] = {}

    def taken(self, topic: str, partition: int, offset: int) -> None:
        """A record is being processed."""
        state = self._of(partition)
        state.taken_at = self._clock()
        state.offsets[topic] = offset

    def reached(self, partition: int, time_ns: int) -> None:
        """A partition has reached an event time."""
        self._of(partition).time_ns = time_ns

    def advanced(self, partition: int, time_ns: int) -> None:
        """A record with an event time was processed, in a role whose engine keeps no time of its own."""
        state = self._of(partition)
        state.time_ns = max(time_ns, state.time_ns or 0)

    def snapshot_due(self, partition: int) -> None:
        """The worker keeps snapshots of the partition: their age counts from here when there is none yet."""
        state = self._of(partition)
        if state.snapshot_at is None:
            state.snapshot_at = self._clock()

    def snapshot_whole(self, partition: int) -> None:
        """A snapshot is whole."""
        self._of(partition).snapshot_at = self._clock()

    def forget(self, partitions: set[int]) -> None:
        """The partitions went to another worker."""
        with self._lock:
            for partition in partitions:
                self._partitions.pop(partition, None)

    def collect(self) -> Iterator[Metric]:
        """The page's part."""
        labels = ["role", "partition"]
        time = GaugeMetricFamily("paceline_event_time_seconds", "Event time of a partition.", labels=labels)
        lag = GaugeMetricFamily(
            "paceline_event_time_lag_seconds",
            "Wall clock minus the partition's event time; absent at rest.",
            labels=labels,
        )
        age = GaugeMetricFamily(
            "paceline_snapshot_age_seconds", "Time since the last whole snapshot; absent at rest.", labels=labels
        )
        unread = GaugeMetricFamily(
            "paceline_unread_records",
            "Records of a partition behind the last processed one.",
            labels=[*labels, "family"],
        )
        now = self._clock()
        with self._lock:
            partitions = sorted(self._partitions.items())
        for partition, state in partitions:
            place = [self._role, str(partition)]
            waiting = 0
            for topic, offset in list(state.offsets.items()):
                count = self._unread(topic, partition, offset)
                if count is not None:
                    unread.add_metric([*place, _family(topic)], count)
                    waiting += count
            rests = not waiting and now - state.taken_at > REST_S
            if state.time_ns is not None:
                time.add_metric(place, state.time_ns / 1e9)
                if not rests:
                    lag.add_metric(place, now - state.time_ns / 1e9)
            if state.snapshot_at is not None and not rests:
                age.add_metric(place, now - state.snapshot_at)
        yield from (time, lag, age, unread)

    def _of(self, partition: int) -> _Partition:
        state = self._partitions.get(partition)
        if state is None:
            with self._lock:
                state = self._partitions.setdefault(partition, _Partition(self._clock()))
        return state

    def _unread(self, topic: str, partition: int, offset: int) -> int | None:
        if self.end_of is None:
            return None
        try:
            end = self.end_of(topic, partition)
        except Exception:  # noqa: BLE001 (a client that is being rebalanced or closed answers with whatever it likes)
            return None
        return max(0, end - offset - 1) if end is not None else None


def _family(topic: str) -> str:
    try:
        return topic_named(topic).family
    except SchemaError:
        return "unknown"

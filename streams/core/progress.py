"""Event time of a partition and the marks that promise it.

Partition time is the 10th percentile over live sources, so that one node that lags or replays its spool does not hold
back the others. A source that is `idle_ns` behind the fastest is not live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import Any

__all__ = ["MarkPacer", "PartitionClock"]


class PartitionClock:
    """Event time over the sources of one partition.

    Args:
        idle_ns: how far behind the fastest source a source may be and still count.
        percentile: share of the live sources that may be behind the partition's time.
    """

    def __init__(self, idle_ns: int = 60_000_000_000, percentile: float = 0.10) -> None:
        self._idle_ns = idle_ns
        self._percentile = percentile
        self._latest: dict[str, int] = {}
        self._times = array("q")
        """The same times in order: sorting them anew for every record costs more than all else about it. Side by side in
        memory, because most of them have left the processor's cache when they are looked at again."""
        self._fastest_ns = 0
        self._time_ns = 0
        self._stale = True

    def observe(self, source: str, event_time_ns: int) -> None:
        """A source has reached an event time."""
        last = self._latest.get(source, -1)
        if event_time_ns <= last:
            return
        times = self._times
        if last >= 0:
            del times[bisect_left(times, last)]
        insort(times, event_time_ns)
        self._latest[source] = event_time_ns
        if event_time_ns > self._fastest_ns:
            self._fastest_ns = event_time_ns
        self._stale = True

    def leave(self, source: str) -> None:
        """A source is known to have stopped: it holds the time back no more, until it reaches another event time."""
        last = self._latest.pop(source, None)
        if last is not None:
            del self._times[bisect_left(self._times, last)]
            self._stale = True

    @property
    def time_ns(self) -> int:
        """The partition's time: never falls."""
        if self._stale and self._times:
            times = self._times
            oldest_ns = self._fastest_ns - self._idle_ns
            first = 0 if times[0] >= oldest_ns else bisect_left(times, oldest_ns)
            time_ns = times[first + int((len(times) - first) * self._percentile)]
            if time_ns > self._time_ns:
                self._time_ns = time_ns
            self._stale = False
        return self._time_ns

    @property
    def live(self) -> int:
        """How many sources are live."""
        return len(self._times) - bisect_left(self._times, self._fastest_ns - self._idle_ns)

    def forget_idle(self) -> None:
        """Drop sources that have not been live for ten times the idle span; their number stays bounded."""
        oldest = self._fastest_ns - 10 * self._idle_ns
        if self._times and self._times[0] < oldest:
            self._latest = {name: at for name, at in self._latest.items() if at >= oldest}
            self._times = self._times[bisect_left(self._times, oldest) :]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {"latest": dict(sorted(self._latest.items())), "time_ns": self._time_ns}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._latest = dict(snapshot["latest"])
        self._times = array("q", sorted(self._latest.values()))
        self._fastest_ns = max(self._latest.values(), default=0)
        self._time_ns = snapshot["time_ns"]
        self._stale = True


class MarkPacer:
    """Paces the marks of one partition: at most one per `every_ns` of its own time, and never one that falls.

    Attributes:
        next_ns: before which time no mark is due.
    """

    def __init__(self, every_ns: int = 1_000_000_000) -> None:
        self._every_ns = every_ns
        self.next_ns = 0

    def is_early(self, mark_ns: int) -> bool:
        """Whether a mark at this time would come too soon after the last one."""
        return mark_ns < self.next_ns

    def due(self, mark_ns: int) -> bool:
        """Whether a mark at this time is to be published now; remembers it."""
        if mark_ns < self.next_ns:
            return False
        self.next_ns = mark_ns + self._every_ns
        return True

    def snapshot(self) -> int:
        """Plain data that `restore` takes: the time of the last mark."""
        return self.next_ns - self._every_ns

    def restore(self, snapshot: int) -> None:
        """Replace the state by a snapshot's."""
        self.next_ns = snapshot + self._every_ns

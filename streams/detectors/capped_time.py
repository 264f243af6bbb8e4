"""For how much of its working time a GPU was under the power cap, over a trailing span: what the rule `power` compares.

Most frames of a node say of its GPUs what the last one said, and only time goes by: that is added up once for the node,
and given to each GPU when something is to be judged, or a snapshot is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.core.counters import Reading
    from streams.detectors.power import PowerThresholds

__all__ = ["CappedTime", "SteadyNode"]

_LONGEST_SAMPLE_NS = 60_000_000_000
_BUCKETS = 10


class CappedTime:
    """Working time and capped working time of the last span, in buckets: ten pairs of numbers, whatever the tick."""

    __slots__ = ("_buckets", "_capped_ns", "_last_ns", "_worked_ns", "since_ns")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []
        self._last_ns: int | None = None
        self.since_ns: int | None = None
        """Nanoseconds between the last two samples; None after the first, and after a restart until the next."""
        # Sums over the buckets, which are read in every frame.
        self._worked_ns = 0
        self._capped_ns = 0

    def add(self, now_ns: int, busy: bool, capped: bool, limits: PowerThresholds) -> float | None:
        """Take a sample, and return the capped share of the working time (ratio); None at rest or below the least time.

        A sample speaks for the time since the one before it; one that is over a minute after it, for none.
        """
        self.since_ns = now_ns - self._last_ns if self._last_ns is not None else None
        since_ns = self.since_ns or 0
        self._last_ns = now_ns
        buckets = self._buckets
        while buckets and buckets[0][0] <= now_ns - limits.cap_span_ns:
            _, worked_ns, capped_ns = buckets.pop(0)
            self._worked_ns -= worked_ns
            self._capped_ns -= capped_ns
        if not busy:
            return None
        if 0 < since_ns <= _LONGEST_SAMPLE_NS:
            start_ns = now_ns - now_ns % max(1, limits.cap_span_ns // _BUCKETS)
            if not buckets or buckets[-1][0] < start_ns:
                buckets.append([start_ns, 0, 0])
            last = buckets[-1]
            last[1] += since_ns
            self._worked_ns += since_ns
            if capped:
                last[2] += since_ns
                self._capped_ns += since_ns
        if self._worked_ns < max(1, limits.cap_busy_ns):
            return None
        return self._capped_ns / self._worked_ns

    @property
    def worked_ns(self) -> int:
        """Working time of the span."""
        return self._worked_ns

    def steady_until_ns(self, now_ns: int, busy: bool, limits: PowerThresholds) -> int:
        """Before which time samples like the last one, of `now_ns`, only add to its bucket, and no share comes to count."""
        buckets = self._buckets
        until_ns = buckets[0][0] + limits.cap_span_ns if buckets else 2**63
        if not busy:
            return until_ns
        length_ns = max(1, limits.cap_span_ns // _BUCKETS)
        start_ns = now_ns - now_ns % length_ns
        if not buckets or buckets[-1][0] != start_ns:
            return now_ns
        missing_ns = max(1, limits.cap_busy_ns) - self._worked_ns
        return min(until_ns, start_ns + length_ns, now_ns + missing_ns if missing_ns > 0 else 2**63)

    def go_on(self, now_ns: int, since_ns: int, added_ns: int, busy: bool, capped: bool) -> None:
        """Take samples like the last one, before `steady_until_ns`.

        Args:
            now_ns: time of the last of them.
            since_ns: since the one before it.
            added_ns: since the last that was taken.
            busy: whether all of them were at work.
            capped: likewise under the power cap.
        """
        self._last_ns, self.since_ns = now_ns, since_ns
        if busy:
            last = self._buckets[-1]
            last[1] += added_ns
            self._worked_ns += added_ns
            if capped:
                last[2] += added_ns
                self._capped_ns += added_ns

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [self._last_ns, [list(bucket) for bucket in self._buckets]]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._last_ns = snapshot[0]
        self._buckets = [list(bucket) for bucket in snapshot[1]]
        self._worked_ns = sum(bucket[1] for bucket in self._buckets)
        self._capped_ns = sum(bucket[2] for bucket in self._buckets)


class SteadyNode:
    """A node whose samples go on like the last ones, at work or at rest, capped or not: their time is added up for all.

    Args:
        reading: of the frame that those were in, which moves on with the samples.
        gpus: the node's GPUs.
        busy: which of them were at work.
        capped: which were under the power cap.
        shares: capped share of the working time (ratio), by index, where it counts.
        each: thresholds by GPU.
    """

    __slots__ = ("_before_ns", "_busy", "_capped", "_gpus", "_last_ns", "_reading", "_taken_ns", "_until_ns")

    def __init__(
        self,
        reading: Reading,
        gpus: list[CappedTime],
        busy: list[bool],
        capped: list[bool],
        shares: dict[int, float],
        each: tuple[PowerThresholds, ...],
    ) -> None:
        self._reading = reading
        self._gpus = gpus
        self._busy = busy
        self._capped = capped
        self._last_ns = self._taken_ns = now_ns = reading.at_ns
        self._before_ns = 0
        untils_ns = [
            gpu.steady_until_ns(now_ns, is_busy, limits) for gpu, is_busy, limits in zip(gpus, busy, each, strict=True)
        ]
        if shares:
            least = min(shares.values())
            margin = min(each[index].cap_share_above - (share - least) for index, share in shares.items())
            worked_ns = min(gpus[index].worked_ns for index in shares)
            # In a time t no share moves by more than t / worked time, two of them by twice that; a little is kept back.
            untils_ns.append(now_ns + int(0.49 * margin * worked_ns))
        self._until_ns = min(untils_ns, default=now_ns)
        """Before which time every sample only adds to its bucket, and no share is above the least by more than its limit."""

    def goes_on(self, now_ns: int) -> bool:
        """Take a sample, unless it is to be judged."""
        last_ns = self._last_ns
        if not 0 < now_ns - last_ns <= _LONGEST_SAMPLE_NS or now_ns >= self._until_ns:
            return False
        self._before_ns, self._last_ns = last_ns, now_ns
        return True

    def settle(self) -> None:
        """Give each GPU its time, and the reading that of the last sample."""
        added_ns = self._last_ns - self._taken_ns
        if added_ns:
            since_ns = self._last_ns - self._before_ns
            for gpu, busy, capped in zip(self._gpus, self._busy, self._capped, strict=True):
                gpu.go_on(self._last_ns, since_ns, added_ns, busy, capped)
            self._reading.at_ns = self._taken_ns = self._last_ns

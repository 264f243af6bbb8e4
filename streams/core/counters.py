"""Cumulative counters read as increases.

The first value after a session start, a reset or a gap of over 60 s is a baseline, never an increase; a counter of 32
bits that ran over is told from a reset by where it stood. Absence is not zero: an unknown value leaves the baseline
where it is. All counters of a frame share one `Reading`: those that stand still from frame to frame need not be read one
by one, it is enough to move the time of the reading.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CounterIncrease", "Reading"]

_GAP_NS = 60_000_000_000

_WRAP = 1 << 32
_MOST_BEYOND = 1 << 28
"""Increase across a wrap at most. A counter of 64 bits that is reset while it stands in this sixteenth of the range below
2^32 is taken for one: seldom, and then the increase is below this."""
_WRAP_GAP_NS = 10_000_000_000
"""In a longer gap a counter that is fast enough to wrap may have done so more than once."""


class Reading:
    """When counters were read, and in which session of their publisher.

    Attributes:
        session: the publisher's session; a new one makes baselines.
        at_ns: event time, not before that of the last reading.
    """

    __slots__ = ("at_ns", "session")

    def __init__(self, session: str, at_ns: int) -> None:
        self.session = session
        self.at_ns = at_ns


class CounterIncrease:
    """Increase of one cumulative counter between two readings of one source.

    Args:
        gap_ns: readings further apart than this are no longer compared.
    """

    __slots__ = ("_gap_ns", "_last", "_reading")

    def __init__(self, gap_ns: int = _GAP_NS) -> None:
        self._gap_ns = gap_ns
        self._last: int | None = None
        self._reading: Reading | None = None

    def read(self, session: str, now_ns: int, value: int | None) -> tuple[int, int] | None:
        """Take a reading of this counter alone.

        Args:
            session: the publisher's session; a new one makes a baseline.
            now_ns: event time of the reading, not before the last one.
            value: the counter, or None when the source did not say.

        Returns:
            (increase, nanoseconds since the last reading), or None when this reading is a baseline or unknown.
        """
        return self.read_in(Reading(session, now_ns), value)

    def read_in(self, reading: Reading, value: int | None) -> tuple[int, int] | None:
        """Take a value of a reading that other counters share; returns as `read` does."""
        if value is None:
            return None
        last, before = self._last, self._reading
        self._last, self._reading = value, reading
        if last is None or before is None:
            return None
        since_ns = reading.at_ns - before.at_ns
        if reading.session != before.session or since_ns > self._gap_ns:
            return None
        if value >= last:
            return value - last, since_ns
        # A decrease is a driver reload or a clear, and then a new baseline. Only a counter that stood just below 2^32 a
        # moment ago and has barely begun anew is known to have 32 bits and to have gone on from 0.
        beyond = value + _WRAP - last
        if last < _WRAP and beyond <= _MOST_BEYOND and since_ns <= _WRAP_GAP_NS:
            return beyond, since_ns
        return None

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes: session, value, event time in nanoseconds."""
        if self._reading is None:
            return [None, None, 0]
        return [self._reading.session, self._last, self._reading.at_ns]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        session, self._last, at_ns = snapshot
        self._reading = Reading(session, at_ns) if self._last is not None else None

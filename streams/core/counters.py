"""Cumulative counters read as increases.

The first value after a session start, a reset or a gap of over 60 s is a baseline, never an increase. Absence is not
zero: an unknown value leaves the baseline where it is.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CounterIncrease"]

_GAP_NS = 60_000_000_000


class CounterIncrease:
    """Increase of one cumulative counter between two readings of one source.

    Args:
        gap_ns: readings further apart than this are no longer compared.
    """

    __slots__ = ("_gap_ns", "_last", "_last_ns", "_session")

    def __init__(self, gap_ns: int = _GAP_NS) -> None:
        self._gap_ns = gap_ns
        self._session: str | None = None
        self._last: int | None = None
        self._last_ns = 0

    def read(self, session: str, now_ns: int, value: int | None) -> tuple[int, int] | None:
        """Take a reading.

        Args:
            session: the publisher's session; a new one makes a baseline.
            now_ns: event time of the reading, not before the last one.
            value: the counter, or None when the source did not say.

        Returns:
            (increase, nanoseconds since the last reading), or None when this reading is a baseline or unknown.
        """
        if value is None:
            return None
        last, last_ns, known_session = self._last, self._last_ns, self._session
        self._session, self._last, self._last_ns = session, value, now_ns
        if last is None or session != known_session or now_ns - last_ns > self._gap_ns:
            return None
        # A decrease is a driver reload, a clear or a wrap: which one cannot be told, so it is a new baseline.
        if value < last:
            return None
        return value - last, now_ns - last_ns

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [self._session, self._last, self._last_ns]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._session, self._last, self._last_ns = snapshot

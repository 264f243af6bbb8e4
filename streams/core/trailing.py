"""Trailing windows over one source's event time.

A rule fires at the first sample at which its trailing window passes the limit, not at the end of an aligned window.
"""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["TrailingHits", "TrailingSum", "span_at_pace"]

_LONGEST_PACE_NS = 60_000_000_000
"""Samples further apart are a gap and no pace: a baseline follows them, as for counters."""


class TrailingSum:
    """Sum of the values of the last `span_ns` of event time; the window is (now - span, now]."""

    __slots__ = ("_entries", "_span_ns", "total")

    def __init__(self, span_ns: int) -> None:
        self._span_ns = span_ns
        self._entries: deque[tuple[int, int]] = deque()
        self.total = 0

    def add(self, now_ns: int, value: int) -> int:
        """Add a value at a time not before the last one, and return the sum of the window that ends there."""
        if value:
            self._entries.append((now_ns, value))
            self.total += value
        oldest = now_ns - self._span_ns
        while self._entries and self._entries[0][0] <= oldest:
            self.total -= self._entries.popleft()[1]
        return self.total

    def snapshot(self) -> list[tuple[int, int]]:
        """Plain data that `restore` takes."""
        return list(self._entries)

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._entries = deque((int(at), int(value)) for at, value in snapshot)
        self.total = sum(value for _, value in self._entries)


class TrailingHits:
    """Whether a condition held in at least `needed` of the samples of the last `span_ns`.

    Time counts, not samples alone: a sample older than the span no longer speaks for the present.
    """

    __slots__ = ("_hits", "_needed", "_span_ns")

    def __init__(self, needed: int, span_ns: int) -> None:
        self._needed = needed
        self._span_ns = span_ns
        self._hits: deque[int] = deque()

    def configure(self, needed: int, span_ns: int) -> None:
        """Take thresholds that may have changed with the policy."""
        self._needed = needed
        self._span_ns = span_ns

    def add(self, now_ns: int, hit: bool) -> bool:
        """Add a sample, and return whether enough of the window's samples hit."""
        oldest = now_ns - self._span_ns
        while self._hits and self._hits[0] <= oldest:
            self._hits.popleft()
        if hit:
            self._hits.append(now_ns)
        return len(self._hits) >= self._needed

    @property
    def is_quiet(self) -> bool:
        """Whether no sample of the window hit, so that one more without a hit changes nothing."""
        return not self._hits and self._needed > 0

    @property
    def first_ns(self) -> int | None:
        """Time of the oldest hit in the window."""
        return self._hits[0] if self._hits else None

    def snapshot(self) -> list[int]:
        """Plain data that `restore` takes."""
        return list(self._hits)

    def restore(self, snapshot: list[int]) -> None:
        """Replace the state by a snapshot's."""
        self._hits = deque(snapshot)


def span_at_pace(hits: int, span_ns: int, since_ns: int | None) -> int:
    """The span in which so many samples must hit: that of the policy, or as many readings of a source that is read seldom.

    Args:
        hits: samples that must hit.
        span_ns: the span of the policy, in nanoseconds.
        since_ns: nanoseconds between the last two readings; None if that is not known.
    """
    if since_ns is None or since_ns > _LONGEST_PACE_NS:
        return span_ns
    return max(span_ns, hits * since_ns)

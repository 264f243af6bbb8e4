"""Unions of intervals: how long at least one of many things went on, whatever order they come in.

Guarantees: exact, in integer nanoseconds; 16 bytes an interval, not the objects that a sort of all of them would
need: intervals are sorted a block at a time, and blocks are merged as streams. An interval reaches from its start up to
its end, which is not part of it; one of no length adds nothing.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

BLOCK: Final = 1 << 15
"""Intervals that are sorted at a time."""

_Pairs = Iterator[tuple[int, int]]


class Cover:
    """Disjoint intervals in ascending order.

    Attributes:
        starts: Nanoseconds; `ends` has the matching ends, each below the next start.
        ends: See `starts`.
    """

    __slots__ = ("_before", "ends", "starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        """Takes intervals in ascending order of start, overlapping or not."""
        self.starts = array("q")
        self.ends = array("q")
        self._before: array[int] | None = None
        add_start, add_end = self.starts.append, self.ends.append
        last = None
        for start, end in pairs:
            if last is None or start > last:
                if last is not None:
                    add_end(last)
                add_start(start)
                last = end
            elif end > last:
                last = end
        if last is not None:
            add_end(last)

    def __len__(self) -> int:
        return len(self.starts)

    def pairs(self) -> _Pairs:
        """The intervals, in ascending order."""
        return zip(self.starts, self.ends, strict=True)

    def length(self) -> int:
        """Nanoseconds in all."""
        return sum(self.ends) - sum(self.starts)

    def within(self, start: int, end: int) -> int:
        """Nanoseconds of it that lie between two times."""
        return max(0, self._until(end) - self._until(start)) if end > start else 0

    def _until(self, time: int) -> int:
        if self._before is None:
            self._before = array("q", [0])
            total = 0
            for first, last in self.pairs():
                total += last - first
                self._before.append(total)
        index = bisect_right(self.starts, time)
        if index == 0:
            return 0
        return self._before[index] - max(0, self.ends[index - 1] - time)


class Intervals:
    """Intervals as they come, in any order and overlapping."""

    __slots__ = ("_blocks", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._blocks: list[Cover] = []

    def add(self, start: int, end: int) -> None:
        """Takes one interval; one that ends before it starts is none."""
        if end <= start:
            return
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) >= BLOCK:
            self._close_block()

    def cover(self) -> Cover:
        """What they cover together."""
        if self._starts:
            self._close_block()
        if len(self._blocks) > 1:
            self._blocks = [union(self._blocks)]
        return self._blocks[0] if self._blocks else Cover()

    def _close_block(self) -> None:
        self._blocks.append(Cover(sorted(zip(self._starts, self._ends, strict=True))))
        self._starts = array("q")
        self._ends = array("q")


def union(covers: Sequence[Cover]) -> Cover:
    """What at least one of the covers covers."""
    return Cover(_merged(covers))


def _merged(covers: Sequence[Cover]) -> _Pairs:
    """The intervals of all covers by start. Blocks of one stream mostly follow each other, and then need no merge."""
    filled = [cover for cover in covers if len(cover)]
    streams = [cover.pairs() for cover in filled]
    if all(before.ends[-1] <= after.starts[0] for before, after in pairwise(filled)):
        return chain.from_iterable(streams)
    return heapq.merge(*streams)

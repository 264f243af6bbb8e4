"""Items released in event-time order once every detector partition has passed them.

An item is taken when the lowest mark is `settle_ns` past its time, in order of (event time, id). A mark that stays away
for `absent_ns` of the others' time is left out, and the caller is told so. What comes for a time already released is
released at once: late, in order of arrival.
"""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

__all__ = ["SettledOrder"]

T = TypeVar("T")


class SettledOrder(Generic[T]):
    """Holds items until the marks have passed them.

    Args:
        settle_ns: how far the lowest mark must be past an item.
        absent_ns: how far a mark may be behind the highest before it is left out.
    """

    def __init__(self, settle_ns: int, absent_ns: int = 60_000_000_000) -> None:
        self.settle_ns = settle_ns
        self._absent_ns = absent_ns
        self._marks: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._lowest_ns = -1
        self._heap: list[tuple[int, str, T]] = []
        self._ids: set[str] = set()
        self.newly_left_out: list[str] = []

    def add(self, event_time_ns: int, identity: str, item: T) -> bool:
        """Hold an item; false when one of the same identity is already held."""
        if identity in self._ids:
            return False
        self._ids.add(identity)
        heapq.heappush(self._heap, (event_time_ns, identity, item))
        return True

    def mark(self, source: str, mark_ns: int) -> None:
        """A detector partition promises that nothing at or before `mark_ns` will follow."""
        if mark_ns <= self._marks.get(source, -1):
            return
        self._marks[source] = mark_ns
        highest = max(self._marks.values())
        for name, at in sorted(self._marks.items()):
            absent = highest - at > self._absent_ns
            if absent and name not in self._left_out:
                self._left_out.add(name)
                self.newly_left_out.append(name)
            elif not absent:
                self._left_out.discard(name)
        self._find_lowest()

    def _find_lowest(self) -> None:
        """Asked for at every record, and changed by marks alone."""
        self._lowest_ns = min((at for name, at in self._marks.items() if name not in self._left_out), default=-1)

    @property
    def settled_ns(self) -> int:
        """Event time up to which items are released; -1 before the first mark."""
        return self._lowest_ns - self.settle_ns if self._marks else -1

    @property
    def lowest_ns(self) -> int:
        """Event time up to which every live partition has told what it has; -1 before the first mark."""
        return self._lowest_ns

    def release(self, everything: bool = False) -> list[T]:
        """Items that have settled, in order; all of them when the input has ended."""
        if not self._heap:
            return []
        settled_ns = self.settled_ns
        released = []
        while self._heap and (everything or self._heap[0][0] <= settled_ns):
            _, identity, item = heapq.heappop(self._heap)
            self._ids.discard(identity)
            released.append(item)
        return released

    def held(self) -> list[T]:
        """Items that have not settled, in order."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2])]

    def snapshot(self, with_held: bool = True) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_held: whether items that are held are part of it, as they are; false where they will come again.
        """
        return {
            "marks": dict(sorted(self._marks.items())),
            "left_out": sorted(self._left_out),
            "held": sorted(self._heap, key=lambda entry: entry[:2]) if with_held else [],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._marks = dict(snapshot["marks"])
        self._left_out = set(snapshot["left_out"])
        self._find_lowest()
        self._heap = [(at, identity, item) for at, identity, item in snapshot["held"]]
        heapq.heapify(self._heap)
        self._ids = {identity for _, identity, _ in self._heap}

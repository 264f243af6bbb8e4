"""Delivery order of one source restored: repeats dropped, small reorderings undone, losses passed over.

A source numbers its records from 0 without gaps, so the next number is passed on at once and costs no latency. A gap
is waited for until the source's own event time has moved on by `patience_ns`; what comes for a number already passed
is a repeat. Kernel lines have numbers with legitimate gaps: for them `SeenNumbers` only tells repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["OrderedSources", "SeenNumbers", "SourceOrder"]

T = TypeVar("T")


@dataclass(slots=True)
class SourceOrder(Generic[T]):
    """How far one source has come, and what waits for a lost number of its."""

    next_seq: int = 0
    latest_ns: int = 0
    waiting: dict[int, tuple[int, T]] = field(default_factory=dict)
    passed_over: set[int] = field(default_factory=set)

    def is_next(self, seq: int, event_time_ns: int) -> bool:
        """Whether nothing is missing before a record, as before nearly every one: it is then taken in, and in order."""
        if seq != self.next_seq or self.waiting:
            return False
        self.next_seq = seq + 1
        if event_time_ns > self.latest_ns:
            self.latest_ns = event_time_ns
        return True


class OrderedSources(Generic[T]):
    """Restores the order of many sources, each by its own sequence numbers.

    Args:
        patience_ns: how far a source's event time may move on before a missing number is passed over. A number that
            comes after that is late, not a repeat.
        remembered: how many passed-over numbers a source remembers, to tell late records from repeats.
    """

    def __init__(self, patience_ns: int = 10_000_000_000, remembered: int = 1024) -> None:
        self._patience_ns = patience_ns
        self._remembered = remembered
        self._sources: dict[str, SourceOrder[T]] = {}
        self.repeats = 0
        self.late: list[T] = []

    def of(self, source: str) -> SourceOrder[T]:
        """A source's order; the same object until `forget` or `restore`."""
        state = self._sources.get(source)
        if state is None:
            state = self._sources[source] = SourceOrder()
        return state

    def offer(self, source: str, seq: int, event_time_ns: int, item: T) -> list[T]:
        """Take one record in, and return those that are now in order, oldest first.

        Late records (a number that was passed over) are put on `late`, which the caller empties.
        """
        state = self.of(source)
        if state.is_next(seq, event_time_ns):
            return [item]
        if seq < state.next_seq:
            if seq in state.passed_over:
                state.passed_over.discard(seq)
                self.late.append(item)
            else:
                self.repeats += 1
            return []
        if seq in state.waiting:
            self.repeats += 1
            return []
        state.waiting[seq] = (event_time_ns, item)
        state.latest_ns = max(state.latest_ns, event_time_ns)
        return self._release(state)

    def flush(self) -> list[T]:
        """All that still waits, by source and number: the input has ended."""
        released = []
        for name in sorted(self._sources):
            state = self._sources[name]
            for seq in sorted(state.waiting):
                released.append(state.waiting.pop(seq)[1])
                state.next_seq = seq + 1
        return released

    def forget(self, older_than_ns: int) -> None:
        """Drop sources that have been silent since before the given event time."""
        for name in [name for name, state in self._sources.items() if state.latest_ns < older_than_ns]:
            if not self._sources[name].waiting:
                del self._sources[name]

    def _release(self, state: SourceOrder[T]) -> list[T]:
        released = []
        while state.waiting:
            ready = state.waiting.pop(state.next_seq, None)
            if ready is not None:
                released.append(ready[1])
                state.next_seq += 1
                continue
            lowest = min(state.waiting)
            if state.latest_ns - state.waiting[lowest][0] < self._patience_ns:
                break
            # A worker that starts in the middle of a topic passes over all that came before: remember only the last.
            first_remembered = max(state.next_seq, lowest - self._remembered)
            state.passed_over.update(range(first_remembered, lowest))
            while len(state.passed_over) > self._remembered:
                state.passed_over.discard(min(state.passed_over))
            state.next_seq = lowest
        return released

    def waiting(self) -> list[T]:
        """Items that are held for a missing number, by source and number."""
        return [
            self._sources[name].waiting[seq][1]
            for name in sorted(self._sources)
            for seq in sorted(self._sources[name].waiting)
        ]

    def snapshot(self, with_waiting: bool = True) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_waiting: whether items that wait are part of it, as they are; false where they will come again.
        """
        return {
            name: [
                state.next_seq,
                state.latest_ns,
                sorted((seq, at, item) for seq, (at, item) in state.waiting.items()) if with_waiting else [],
                sorted(state.passed_over),
            ]
            for name, state in sorted(self._sources.items())
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._sources = {
            name: SourceOrder(next_seq, latest_ns, {seq: (at, item) for seq, at, item in waiting}, set(passed_over))
            for name, (next_seq, latest_ns, waiting, passed_over) in snapshot.items()
        }


class SeenNumbers:
    """Tells repeats among numbers with legitimate gaps, per source, within the last `capacity` numbers of each.

    Args:
        capacity: numbers remembered per source. A repeat of a number older than all of them counts as seen.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._seen: dict[str, set[int]] = {}
        self._floor: dict[str, int] = {}
        self.repeats = 0

    def is_new(self, source: str, number: int) -> bool:
        """Whether the number comes for the first time; remembers it."""
        seen = self._seen.setdefault(source, set())
        if number in seen or number < self._floor.get(source, -1):
            self.repeats += 1
            return False
        seen.add(number)
        if len(seen) > 2 * self._capacity:
            keep = sorted(seen)[-self._capacity :]
            self._floor[source] = keep[0]
            self._seen[source] = set(keep)
        return True

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {name: [self._floor.get(name, -1), sorted(seen)] for name, seen in sorted(self._seen.items())}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._seen = {name: set(seen) for name, (_, seen) in snapshot.items()}
        self._floor = {name: floor for name, (floor, _) in snapshot.items() if floor >= 0}

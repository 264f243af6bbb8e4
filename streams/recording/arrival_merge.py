"""Messages of many partitions in one order: by arrival, then by topic, partition and offset.

Guarantees: of fixed ranges the order depends on the messages alone, not on which was fetched first; a partition's own order
is kept even where its times go back. What it holds is bounded by its caller, which is told who is ahead.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from schemas.topics import REFERENCE_FAMILIES, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from streams.recording.taken import Taken

__all__ = ["ArrivalMerge", "Place"]

Place = tuple[str, int]
"""Topic and partition."""

_RANK = {
    topic.name: (-1 if topic.family in REFERENCE_FAMILIES else number, number) for number, topic in enumerate(TOPICS)
}
"""What shares a millisecond: reference records first, since the others are judged by them; then the table's order."""


class ArrivalMerge:
    """Puts messages of several partitions in order.

    Args:
        places: the partitions; nothing is given out while one of them is empty, unless it waits at its end.
        latest: by place, the latest arrival of what was given out before, of an order that goes on.
    """

    def __init__(self, places: Iterable[Place], latest: Mapping[Place, int] | None = None) -> None:
        self._held: dict[Place, deque[tuple[int, Taken]]] = {place: deque() for place in places}
        self._latest: dict[Place, int] = {**dict.fromkeys(self._held, 0), **(latest or {})}
        self._silent: set[Place] = set(self._held)
        self._waiting: set[Place] = set()
        self._heads: list[tuple[int, tuple[int, int], Place, int, Taken]] = []

    def add(self, taken: Taken) -> None:
        """Take the next message of its partition."""
        place = (taken.topic, taken.partition)
        # Within a partition time does not fall: a producer's own stamps may, and its order counts all the same.
        self._latest[place] = max(self._latest[place], taken.timestamp_ms)
        self._silent.discard(place)
        self._waiting.discard(place)
        held = self._held[place]
        held.append((self._latest[place], taken))
        if len(held) == 1:
            self._push(place)

    def waits(self, place: Place) -> None:
        """A partition has no further message now, or none ever: others need not wait for it until one comes."""
        self._silent.discard(place)
        self._waiting.add(place)

    def held(self, place: Place) -> int:
        """How many messages of a partition are held."""
        return len(self._held[place])

    def ready(self) -> Iterator[Taken]:
        """Messages whose turn it is; when a partition that has more to come runs empty, all wait for it."""
        while self._heads and not self._silent:
            *_, place, _, taken = heapq.heappop(self._heads)
            held = self._held[place]
            held.popleft()
            if held:
                self._push(place)
            elif place not in self._waiting:
                self._silent.add(place)
            yield taken

    def _push(self, place: Place) -> None:
        at_ms, taken = self._held[place][0]
        heapq.heappush(self._heads, (at_ms, _RANK.get(place[0], (len(_RANK), 0)), place, taken.offset, taken))

"""Events on their way from the sources to the publisher, held while that has no room for them.

Guarantees: events are handed on in order and each once; a place in a source's log is kept only when the publisher has
taken, or given up for good, all that was read before it, so that a crash repeats events and loses none; a source whose
events are held is to rest, so that its log, not memory, holds what comes after. It drops nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from agents.sources import Tick

if TYPE_CHECKING:
    from agents.publisher import Publisher
    from schemas.events import KernelEvent

__all__ = ["HeldEvents"]

_LOG = logging.getLogger(__name__)


class HeldEvents:
    """What the publisher had no room for; empty as a rule.

    Args:
        publisher: where events go.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._events: list[KernelEvent] = []
        self._cursors: dict[str, object] = {}
        self._sources: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def sources(self) -> frozenset[str]:
        """Sources that are not to be read on."""
        return self._sources

    def hand_on(self, tick: Tick) -> Tick:
        """Offer what is held and then the tick's events.

        Returns:
            The tick with the events that are dealt with, and the places that may be kept now.
        """
        was_held = bool(self._events)
        events = [*self._events, *tick.events]
        dealt = self._publisher.offer(events) if events else 0
        cursors = {**self._cursors, **tick.cursors}
        self._events = events[dealt:]
        if self._events:
            self._sources |= tick.event_sources
            self._cursors = {name: cursor for name, cursor in cursors.items() if name in self._sources}
            cursors = {name: cursor for name, cursor in cursors.items() if name not in self._sources}
        else:
            self._sources, self._cursors = frozenset(), {}
        if was_held != bool(self._events):
            self._say(was_held)
        return replace(tick, events=tuple(events[:dealt]), cursors=cursors)

    def _say(self, was_held: bool) -> None:
        if was_held:
            _LOG.info("the publisher has room again: kernel events go on")
        else:
            _LOG.warning(
                "the publisher has no room for %d kernel events: they are held, and %s is not read on",
                len(self._events),
                ", ".join(sorted(self._sources)),
            )

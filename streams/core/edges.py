"""Edges of a condition: when a statement about a subject opens, and when it is cleared.

A statement is published when it becomes true and when it has been false for long enough, not while it lasts. It opens
at most once a minute: a subject that flaps stays open until it has been quiet for the minute.
"""

from __future__ import annotations

from typing import Literal

from streams.core.keyed import SubjectState

__all__ = ["Edge", "EdgeState"]

Edge = Literal["open", "cleared"]
_QUIET_NS = 60_000_000_000
_AGAIN_NS = 60_000_000_000
"""At most one opening per subject in this time, however often it flaps."""


class EdgeState(SubjectState):
    """Open or not, since when, and when the condition last held."""

    __slots__ = ("last_true_ns", "onset_ns", "opened_ns")

    def __init__(self) -> None:
        self.onset_ns: int | None = None
        self.last_true_ns = 0
        self.opened_ns: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the statement stands."""
        return self.onset_ns is not None

    def is_quiet(self, now_ns: int) -> bool:
        """Whether nothing stands, and the condition did not hold at `now_ns`, the time of the last update."""
        return self.onset_ns is None and self.last_true_ns != now_ns

    def update(self, now_ns: int, holds: bool, onset_ns: int | None = None, quiet_ns: int = _QUIET_NS) -> Edge | None:
        """Take the condition at a time, and return the edge that it makes, if any.

        Args:
            now_ns: event time, not before the last one.
            holds: whether the condition holds now.
            onset_ns: when it began, where that is known to be earlier than now.
            quiet_ns: how long it must not have held before the statement is cleared.
        """
        if holds:
            self.last_true_ns = now_ns
            too_soon = self.opened_ns is not None and now_ns - self.opened_ns < _AGAIN_NS
            if self.onset_ns is None and not too_soon:
                self.opened_ns = now_ns
                self.onset_ns = now_ns if onset_ns is None else onset_ns
                return "open"
        elif self.onset_ns is not None and now_ns - self.last_true_ns >= quiet_ns:
            return "cleared"
        return None

    def tell(self, edge: Edge) -> int:
        """The onset of the statement whose edge is published now; a `cleared` one ends it."""
        if edge == "cleared":
            return self.close()
        assert self.onset_ns is not None
        return self.onset_ns

    def close(self) -> int:
        """End the statement after its `cleared` edge was published; returns its onset."""
        assert self.onset_ns is not None
        onset_ns, self.onset_ns = self.onset_ns, None
        return onset_ns

"""A condition over recorded steps: open after n in a row, cleared after m in a row without it."""

from __future__ import annotations

from typing import Any

from streams.core.edges import Edge

__all__ = ["StandingCondition"]


class StandingCondition:
    """Counts consecutive recorded steps on which a condition held, whatever their numbers.

    Args:
        needed: steps in a row before it opens.
        quiet: steps in a row without it before it is cleared.
    """

    __slots__ = ("_first_ns", "_held", "_needed", "_quiet", "_without", "onset_ns")

    def __init__(self, needed: int, quiet: int) -> None:
        self._needed = needed
        self._quiet = quiet
        self._held = 0
        self._without = 0
        self._first_ns = 0
        self.onset_ns: int | None = None

    def update(self, now_ns: int, holds: bool) -> tuple[Edge, int] | None:
        """Take one step, and return (edge, onset) when it makes one."""
        if holds:
            self._without = 0
            self._held += 1
            if self._held == 1:
                self._first_ns = now_ns
            if self.onset_ns is None and self._held >= self._needed:
                self.onset_ns = self._first_ns
                return "open", self.onset_ns
            return None
        self._held = 0
        self._without += 1
        if self.onset_ns is not None and self._without >= self._quiet:
            onset_ns, self.onset_ns = self.onset_ns, None
            return "cleared", onset_ns
        return None

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [self._held, self._without, self._first_ns, self.onset_ns]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._held, self._without, self._first_ns, self.onset_ns = snapshot

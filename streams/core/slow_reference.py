"""What one figure of a job usually is: learnt from its first 20 recorded steps, then following slowly."""

from __future__ import annotations

from typing import Any

__all__ = ["FOLLOW", "REFERENCE_STEPS", "SlowReference"]

REFERENCE_STEPS = 20
"""Recorded steps that a reference is learnt from."""

FOLLOW = 0.01
"""Share of the way to the present figure that a reference goes each step."""


class SlowReference:
    """What a figure of a job usually is: the median of its first steps, then an average that moves by 1 % a step."""

    __slots__ = ("_first", "value")

    def __init__(self) -> None:
        self._first: list[float] = []
        self.value: float | None = None

    def take(self, figure: float, frozen: bool) -> float | None:
        """The ratio of a figure to the reference, or None while the reference is still being learnt.

        Args:
            figure: of this step.
            frozen: whether the reference stands still.
        """
        if self.value is None:
            self._first.append(figure)
            if len(self._first) >= REFERENCE_STEPS:
                self.value = sorted(self._first)[len(self._first) // 2]
                self._first = []
            return None
        ratio = figure / self.value if self.value > 0 else None
        if not frozen:
            self.value += FOLLOW * (figure - self.value)
        return ratio

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [list(self._first), self.value]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._first, self.value = list(snapshot[0]), snapshot[1]

"""Conditions over recorded steps: so many in a row open, so many without clear."""

from __future__ import annotations

from streams.core.standing import StandingCondition


def edges(needed: int, quiet: int, pattern: str) -> list[tuple[int, str, int]]:
    """(step, edge, onset) over a pattern of steps: `x` holds, `.` does not."""
    condition = StandingCondition(needed, quiet)
    found: list[tuple[int, str, int]] = []
    for step, mark in enumerate(pattern):
        edge = condition.update(step, mark == "x")
        if edge is not None:
            found.append((step, *edge))
    return found


def test_it_opens_with_the_last_of_the_needed_steps_and_begins_with_the_first() -> None:
    assert edges(3, 2, ".xxxx") == [(3, "open", 1)]


def test_one_step_without_starts_the_count_again() -> None:
    assert edges(3, 2, "xx.xx.xx") == []


def test_it_is_cleared_after_the_quiet_steps_in_a_row() -> None:
    assert edges(2, 3, "xx..x...x") == [(1, "open", 0), (7, "cleared", 0)]


def test_it_opens_again_after_it_was_cleared() -> None:
    assert edges(1, 1, "x.x.") == [(0, "open", 0), (1, "cleared", 0), (2, "open", 2), (3, "cleared", 2)]

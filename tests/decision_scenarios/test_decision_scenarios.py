"""Every story holds; every row of the failure table and every guard is what makes at least one of them hold."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from decision_runner import Story, load, outputs_of, unmet_of

from schemas.fleet import FailurePolicy, RulePolicy
from streams.core.failure_table import known_failures
from streams.core.guard_limits import known_guards

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = sorted(Path(__file__).parent.glob("*.toml"))


@cache
def stories(path: Path) -> tuple[Story, Story]:
    return load(path)


@pytest.mark.parametrize("part", [0, 1], ids=["fires", "look-alike"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_story_expects_comes_out(path: Path, part: int) -> None:
    story = stories(path)[part]
    assert unmet_of(story, outputs_of(story)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_look_alike_says_what_must_not_be(path: Path) -> None:
    assert any(name.startswith("no_") for name in stories(path)[1].told["expect"])


def noticed(name: str, unmet: Callable[[Story], list[str]]) -> str | None:
    """The first story that does not hold, those that are named for it first."""
    ordered = sorted(FILES, key=lambda path: (name not in path.stem, path.stem))
    return next((story.name for path in ordered for story in stories(path) if unmet(story)), None)


@pytest.mark.parametrize("row", sorted(known_failures()))
def test_switching_off_any_one_row_makes_a_story_fail(row: str) -> None:
    def unmet(story: Story) -> list[str]:
        failures = {**story.policy.failures, row: FailurePolicy(enabled=False)}
        return unmet_of(story, outputs_of(story, failures=failures))

    assert noticed(row, unmet) is not None


@pytest.mark.parametrize("guard", sorted(known_guards()))
def test_switching_off_any_one_guard_makes_a_story_fail(guard: str) -> None:
    def unmet(story: Story) -> list[str]:
        guards = {**story.policy.guards, guard: RulePolicy(enabled=False)}
        return unmet_of(story, outputs_of(story, guards=guards))

    assert noticed(guard, unmet) is not None

"""Uneven work: a hot expert, uneven batches; not work that costs no time, not one uneven step, and never a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, step_timing

from schemas.findings import BLAMELESS_KINDS
from streams.core.roster import Roster
from streams.core.step_join import StepJoin
from streams.detectors.straggler import Straggler
from streams.detectors.uneven_work import UnevenWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.findings import Finding

WORLD = 32
TOKENS = 8_192


def follow(
    steps: int,
    load_of: Callable[[int], Any],
    *,
    costs: bool = True,
    expert: int = 4,
    slow: dict[int, float] | None = None,
) -> tuple[list[Finding], list[Finding]]:
    """Findings of the rule, and of stragglers beside it, when ranks are given `load_of(step)` times the tokens."""
    rule, straggler, rng = UnevenWork(SITE), Straggler(SITE), np.random.default_rng(6)
    roster = Roster()
    roster.take(job(WORLD, layout={"data": WORLD, "expert": expert}))
    known = roster.job("job-1", 0)
    found: list[Finding] = []
    beside: list[Finding] = []
    for step in range(steps):
        load = np.broadcast_to(load_of(step), WORLD)
        own = 200_000 * np.exp(rng.normal(0, 0.004, WORLD)) * (load if costs else 1.0)
        for rank, factor in (slow or {}).items():
            own[rank] *= factor
        join = StepJoin()
        tokens = tuple(round(TOKENS * share) for share in load)
        join.add(step_timing(step, 10.0 * step, [round(us) for us in own], tokens=tokens))
        (closed,) = join.close(at(10.0 * step), WORLD, frozenset(range(WORLD)), final=True)
        beside += [f for f in straggler.on_step(closed, known, None) if f.kind == "straggler"]
        found += list(rule.on_step(closed, known, straggler.explained, None))
    assert {finding.kind for finding in found} <= {"expert_imbalance", "token_imbalance"} <= BLAMELESS_KINDS
    return found, beside


def hot(more: float, begin: int = 20, end: int = 10**6, moves: int = 0) -> Callable[[int], Any]:
    """Every fourth rank has the hot expert; which, moves every so many steps."""

    def load_of(step: int) -> Any:
        member = (step // moves) % 4 if moves else 1
        is_hot = np.arange(WORLD) % 4 == member
        return np.where(is_hot, more, 1 - (more - 1) / 3) if begin <= step < end else 1.0

    return load_of


@pytest.mark.parametrize("more", [1.1, 1.2, 2.0])
def test_a_hot_expert_is_the_workload_and_nobody_is_slow(more: float) -> None:
    (finding,), stragglers = follow(60, hot(more))
    assert (finding.kind, finding.step, finding.severity) == ("expert_imbalance", 29, "info")
    assert (finding.subject.level, finding.subject.rank) == ("job", None)
    values: dict[str, Any] = finding.values
    assert values["given_more"] == 8
    assert values["largest_factor"] == pytest.approx(more / (1 - (more - 1) / 3), rel=0.03)
    assert values["lost_us"] > 0
    assert "routing" in finding.explanation
    assert stragglers == []


def test_a_hot_expert_that_moves_is_one_matter_and_nobody_is_slow() -> None:
    found, stragglers = follow(160, hot(1.3, moves=25))
    assert [finding.state for finding in found] == ["open"]
    assert stragglers == []


def test_a_slow_rank_beside_a_hot_expert_is_named() -> None:
    _, stragglers = follow(60, hot(1.3), slow={6: 1.2})
    assert {f.subject.rank for f in stragglers} == {6}
    _, stragglers = follow(60, hot(1.3), slow={1: 1.2})
    assert {f.subject.rank for f in stragglers} == {1}


def test_without_experts_it_is_how_tokens_are_dealt_out() -> None:
    (finding,), _ = follow(60, hot(1.3), expert=1)
    assert finding.kind == "token_imbalance"
    assert "batching" in finding.explanation


def test_tokens_that_cost_no_time_are_nothing_to_tell() -> None:
    assert follow(60, hot(1.3), costs=False) == ([], [])


def test_even_work_says_nothing() -> None:
    assert follow(60, lambda _: 1.0) == ([], [])


def test_a_twentieth_more_is_the_limit() -> None:
    assert follow(60, hot(1.03))[0] == []


def test_nine_uneven_steps_are_not_enough_and_twenty_even_ones_clear_it() -> None:
    assert follow(60, hot(1.3, end=29))[0] == []
    found, _ = follow(80, hot(1.3, end=40))
    assert [(finding.state, finding.step) for finding in found] == [("open", 29), ("cleared", 59)]

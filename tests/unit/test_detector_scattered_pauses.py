"""Scattered pauses: garbage collection of every rank on its own; not one rank's, not compute, not a stand-still of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, step_timing

from schemas.findings import BLAMELESS_KINDS
from streams.core.roster import Roster
from streams.core.step_join import StepJoin
from streams.detectors.scattered_pauses import ScatteredPauses
from streams.detectors.straggler import Straggler

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.findings import Finding

WORLD = 32
PAUSE_US = 40_000

Paused = "Callable[[int], set[int]]"


def follow(
    steps: int,
    paused: Callable[[int], Any],
    *,
    part: str = "host_us",
    tell_host: bool = True,
    rule: ScatteredPauses | None = None,
) -> list[Finding]:
    """Findings of steps of 200 ms compute and 4 ms host time in which the ranks that `paused(step)` gives pause."""
    rule, rng, found = rule or ScatteredPauses(SITE), np.random.default_rng(2), []
    straggler = Straggler(SITE)
    roster = Roster()
    roster.take(job(WORLD))
    known = roster.job("job-1", 0)
    for step in range(steps):
        times = {
            "compute_us": 200_000 * np.exp(rng.normal(0, 0.003, WORLD)),
            "host_us": np.full(WORLD, 4_000.0),
        }
        times[part][sorted(paused(step))] += PAUSE_US
        compute, host = (tuple(round(us) for us in times[name]) for name in ("compute_us", "host_us"))
        join = StepJoin()
        if tell_host:
            join.add(step_timing(step, 10.0 * step, compute, host_us=host))
        else:
            join.add(step_timing(step, 10.0 * step, [c + h for c, h in zip(compute, host, strict=True)]))
        (closed,) = join.close(at(10.0 * step), WORLD, frozenset(range(WORLD)), final=True)
        list(straggler.on_step(closed, known, None))
        found += list(rule.on_step(closed, known, straggler.pauses, None))
    assert {finding.kind for finding in found} <= {"scattered_pauses"} <= BLAMELESS_KINDS
    return found


def each_on_its_own(period: int, begin: int = 10, end: int = 10**6) -> Callable[[int], Any]:
    """Every rank pauses once in `period` steps, at its own moment."""

    def paused(step: int) -> set[int]:
        phases = (11 * np.arange(WORLD) + step) % period
        return set(np.flatnonzero(phases == 0).tolist()) if begin <= step < end else set()

    return paused


@pytest.mark.parametrize("period", [40, 100])
def test_ranks_that_collect_garbage_each_on_its_own_are_said_of_the_job(period: int) -> None:
    (finding,) = follow(120, each_on_its_own(period))
    assert (finding.state, finding.severity, finding.subject.level) == ("open", "info", "job")
    assert finding.subject.rank is None
    values: dict[str, Any] = finding.values
    assert values["distinct_ranks"] >= 5
    assert values["mean_excess_us"] == pytest.approx(PAUSE_US, rel=0.05)
    assert values["share_of_steps"] >= 0.25
    assert values["lost_us_per_step"] == pytest.approx(values["share_of_steps"] * PAUSE_US, rel=0.05)
    assert 0.02 < values["lost_share"] < 0.2
    assert "in the same step" in finding.explanation


def test_it_is_cleared_after_sixty_four_quiet_steps() -> None:
    found = follow(260, each_on_its_own(40, end=80))
    assert [finding.state for finding in found] == ["open", "cleared"]
    assert found[0].finding_id == found[1].finding_id
    # 56 steps after the last pause but seven are left in the window, and then 64 more.
    assert found[1].step in range(80 + 50 + 64, 80 + 64 + 64)


def test_a_pause_in_every_fifth_step_is_a_matter_of_course() -> None:
    assert follow(200, lambda step: {7 * step % WORLD} if step % 5 == 0 else set()) == []


def test_the_pauses_of_one_rank_or_of_a_few_are_not_scattered() -> None:
    assert follow(200, lambda step: {3 * (step // 3 % 4)} if step % 3 == 0 else set()) == []
    often = {0: {3}, 3: {3}}
    assert follow(200, lambda step: often.get(step % 8, {step % 7} if step % 8 == 6 else set())) == []


def test_when_all_pause_in_the_same_step_nobody_is_waited_for() -> None:
    assert follow(200, lambda step: set(range(WORLD)) if step % 3 == 0 else set()) == []


def test_pauses_in_compute_are_something_else() -> None:
    assert follow(120, each_on_its_own(40), part="compute_us") == []


def test_without_host_time_nothing_is_said() -> None:
    assert follow(120, each_on_its_own(40), tell_host=False) == []


def test_a_node_whose_host_is_always_busy_is_a_straggler() -> None:
    assert follow(200, lambda step: set(range(8)) if step >= 10 else set()) == []


def test_what_is_kept_is_bounded() -> None:
    rule = ScatteredPauses(SITE)
    follow(150, each_on_its_own(4), rule=rule)
    steps = rule.snapshot()["steps"]
    assert len(steps) == 64
    assert max(len(ranks) for _, ranks, _, _ in steps) <= 8

"""Slowness without a slow rank: of the job, a stage, the lengths; and missing ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, step_timing, without

from schemas.findings import BLAMELESS_KINDS
from streams.core.roster import JobRoster, Roster
from streams.core.step_join import ClosedStep, StepJoin
from streams.detectors.job_pace import JobPace, MissingRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.findings import Finding


def roster_of(world: int = 8, layout: dict[str, int] | None = None) -> JobRoster:
    roster = Roster()
    roster.take(job(world, layout=layout))
    return roster.job("job-1", 0)


def closed(number: int, own: Sequence[int], expected: int | None = None) -> ClosedStep:
    join = StepJoin()
    join.add(step_timing(number, number, list(own)))
    count = expected or len(own)
    (step,) = join.close(at(number), count, frozenset(range(count)), final=True)
    return step


def said(
    steps: int,
    own_of: Callable[[int], Sequence[int]],
    *,
    roster: JobRoster | None = None,
    noise: float = 0.005,
) -> list[Finding]:
    rule, found = JobPace(SITE), []
    for number in range(steps):
        step = closed(number, own_of(number))
        found += list(rule.on_step(step, roster or roster_of(), noise))
    assert {finding.kind for finding in found} <= BLAMELESS_KINDS
    return found


def kinds(findings: list[Finding]) -> list[tuple[str, str, int | None]]:
    return [(finding.kind, finding.state, finding.step) for finding in findings]


def test_a_job_that_slows_down_as_a_whole_is_said_so_after_ten_steps_and_blames_nobody() -> None:
    found = said(60, lambda n: [200_000 if n < 30 else 216_000] * 8)
    assert kinds(found) == [("job_slowdown", "open", 39)]
    assert (found[0].subject.level, found[0].subject.rank) == ("job", None)
    # The reference moves a little in the ten steps before anything stands.
    assert found[0].values["own_ratio"] == pytest.approx(1.075, abs=0.005)


def test_a_power_cap_that_costs_a_steady_job_four_percent_is_said() -> None:
    found = said(60, lambda n: [200_000 if n < 30 else 208_000] * 8)
    assert kinds(found) == [("job_slowdown", "open", 39)]
    assert found[0].values["limit_ratio"] == 1.03


def test_a_drift_of_a_day_and_three_percent_are_no_slowdown() -> None:
    assert said(200, lambda n: [round(200_000 * (1 + 0.03 * n / 200))] * 8) == []
    assert said(60, lambda n: [200_000 if n < 30 else 206_000] * 8) == []


def test_an_unsteady_job_must_be_further_off() -> None:
    rng = np.random.default_rng(5)
    wobble = np.exp(rng.normal(0, 0.02, 60))

    def own(shift: float) -> list[Finding]:
        return said(60, lambda n: [round(200_000 * wobble[n] * (1 if n < 30 else shift))] * 8)

    assert own(1.04) == []
    (found,) = own(1.15)
    assert (found.kind, found.values["limit_ratio"]) == ("job_slowdown", 1.05)


def test_one_slow_rank_does_not_slow_the_median() -> None:
    assert said(60, lambda n: [200_000] * 7 + [200_000 if n < 30 else 400_000]) == []


def test_a_heavy_stage_is_advice_on_the_partition() -> None:
    found = said(20, lambda _: [200_000] * 4 + [230_000] * 4, roster=roster_of(8, {"data": 4, "pipeline": 2}))
    assert kinds(found) == [("stage_imbalance", "open", 9)]
    assert (found[0].subject.level, found[0].subject.stage, found[0].severity) == ("stage", 1, "info")


def test_stages_within_a_tenth_are_balanced() -> None:
    assert said(20, lambda _: [200_000] * 4 + [215_000] * 4, roster=roster_of(8, {"data": 4, "pipeline": 2})) == []


def test_uneven_lengths_move_the_longest_rank_about() -> None:
    rng = np.random.default_rng(3)
    noisy = [[int(200_000 * value) for value in np.exp(rng.normal(0, 0.1, 8))] for _ in range(60)]
    assert "length_imbalance" in {f.kind for f in said(60, lambda n: noisy[n], noise=0.1)}
    assert "length_imbalance" not in {f.kind for f in said(60, lambda n: noisy[n], noise=0.01)}
    steady = [[*row[:7], 400_000] for row in noisy]
    assert "length_imbalance" not in {f.kind for f in said(60, lambda n: steady[n], noise=0.1)}


def test_a_job_that_recovers_is_said_to() -> None:
    found = said(90, lambda n: [216_000 if 30 <= n < 45 else 200_000] * 8)
    assert [(kind, state) for kind, state, _ in kinds(found)] == [("job_slowdown", "open"), ("job_slowdown", "cleared")]


def missing(reporting: Sequence[int], policy: Any = None) -> list[Finding]:
    rule = MissingRanks(SITE)
    steps = [closed(number, [1000] * count, expected=8) for number, count in enumerate(reporting)]
    return [finding for step in steps for finding in rule.on_step(step, policy)]


def test_missing_ranks_are_counted_and_named_once() -> None:
    (finding,) = missing([8, 6, 6, 6])
    assert (finding.kind, finding.state, finding.severity, finding.step) == ("missing_ranks", "open", "info", 1)
    assert (finding.values["missing"], finding.values["first_missing"]) == (2, [6, 7])


def test_after_three_whole_steps_all_report_again() -> None:
    assert kinds(missing([8, 6, 8, 8, 8])) == [("missing_ranks", "open", 1), ("missing_ranks", "cleared", 4)]


def test_a_site_may_switch_it_off() -> None:
    assert missing([6, 6], without("missing_ranks")) == []

"""Barrier wait: the 99th percentile of waiting above 40 % of the step, for three steps, of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factories import SITE, at, policy, step_timing

from schemas.fleet import RulePolicy
from streams.core.step_join import ClosedStep, StepJoin
from streams.detectors.barrier_wait import BarrierWait, wait_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.fleet import Policy


def closed(number: int, wait_us: Sequence[int | None], step_us: int = 1000) -> ClosedStep:
    join = StepJoin()
    join.add(step_timing(number, number, [500] * len(wait_us), step_us=step_us, wait_us=tuple(wait_us)))
    (step,) = join.close(at(number), len(wait_us), frozenset(range(len(wait_us))), final=True)
    return step


def said(waits: Sequence[Sequence[int | None]], told: Policy | None = None) -> list[Finding]:
    rule = BarrierWait(SITE)
    return [finding for number, wait in enumerate(waits) for finding in rule.on_step(closed(number, wait), told)]


def test_it_is_said_of_the_job_after_three_steps_and_names_nobody() -> None:
    (finding,) = said([[600] * 7 + [20]] * 6)
    assert (finding.kind, finding.severity, finding.step, finding.subject.level) == ("barrier_wait", "info", 2, "job")
    assert (finding.subject.rank, finding.subject.node_id) == (None, None)
    assert finding.onset_ns == at(0)
    assert finding.values["wait_share_p99"] == 0.6


def test_forty_percent_is_not_above_forty() -> None:
    assert said([[400] * 8] * 10) == []
    assert len(said([[401] * 8] * 10)) == 1


def test_two_steps_in_a_row_are_not_three() -> None:
    assert said([[600] * 8, [600] * 8, [100] * 8] * 5) == []


def test_of_a_large_job_one_rank_in_a_thousand_does_not_count() -> None:
    assert said([[100] * 999 + [900]] * 5) == []
    assert len(said([[100] * 980 + [900] * 20] * 5)) == 1


def test_ranks_that_do_not_say_are_left_out() -> None:
    assert wait_shares(closed(0, [500, None, 300, 400])) == (0.4, 0.5)
    assert wait_shares(closed(0, [None, None])) is None
    assert said([[None] * 4] * 5) == []


def test_it_is_cleared_after_ten_steps_without() -> None:
    findings = said([[600] * 8] * 4 + [[100] * 8] * 12)
    assert [(f.state, f.step) for f in findings] == [("open", 2), ("cleared", 13)]
    assert findings[0].finding_id == findings[1].finding_id


def test_a_site_sets_the_share() -> None:
    told = policy({"barrier_wait": RulePolicy(thresholds={"share": 0.7})})
    assert said([[600] * 8] * 5, told) == []

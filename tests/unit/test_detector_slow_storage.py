"""Slow storage: all ranks wait for data; not one host's loader, not more work, not a hiccup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, policy, step_timing

from schemas.findings import BLAMELESS_KINDS
from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.core.step_join import StepJoin
from streams.detectors.job_pace import JobPace
from streams.detectors.slow_storage import SlowStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.findings import Finding
    from schemas.fleet import Policy

WORLD = 32


def follow(
    steps: int,
    data_us_of: Callable[[int], Any],
    compute_factor_of: Callable[[int], float] = lambda _: 1.0,
    force: Policy | None = None,
    tell: bool = True,
) -> tuple[list[Finding], list[Finding]]:
    """Findings of the rule, and of the job's pace beside it, over steps of 200 ms compute and 1 ms of data or so."""
    rule, pace, rng = SlowStorage(SITE), JobPace(SITE), np.random.default_rng(4)
    roster = Roster()
    roster.take(job(WORLD))
    known = roster.job("job-1", 0)
    found: list[Finding] = []
    beside: list[Finding] = []
    for step in range(steps):
        compute = 200_000 * compute_factor_of(step) * np.exp(rng.normal(0, 0.003, WORLD))
        data = np.broadcast_to(data_us_of(step), WORLD) * np.exp(rng.normal(0, 0.3, WORLD))
        columns: dict[str, Any] = {"data_us": tuple(round(us) for us in data)} if tell else {}
        join = StepJoin()
        join.add(step_timing(step, 10.0 * step, [round(us) for us in compute], **columns))
        (closed,) = join.close(at(10.0 * step), WORLD, frozenset(range(WORLD)), final=True)
        found += list(rule.on_step(closed, force))
        beside += list(pace.on_step(closed, known, 0.005, None, rule.excess_us))
    assert {finding.kind for finding in found} <= {"storage_slowdown"} <= BLAMELESS_KINDS
    return found, beside


def stalled(us: float, begin: int = 40, end: int = 10**6, ranks: int = WORLD) -> Callable[[int], Any]:
    mask = np.arange(WORLD) < ranks
    return lambda step: np.where(mask & (begin <= step < end), 1_000.0 + us, 1_000.0)


@pytest.mark.parametrize("us", [8_000, 40_000, 200_000])
def test_data_that_comes_late_to_all_ranks_is_said_of_the_job_at_the_fifth_step(us: float) -> None:
    (finding,), beside = follow(80, stalled(us))
    assert (finding.step, finding.state, finding.severity) == (44, "open", "warning")
    assert (finding.subject.level, finding.subject.rank, finding.onset_ns) == ("job", None, at(400))
    assert finding.values["excess_us"] == pytest.approx(us, rel=0.25)
    assert "storage" in finding.explanation
    # What storage accounts for is not power, heat or code as well.
    assert beside == []


def test_a_job_that_slows_in_compute_too_is_told_of_both() -> None:
    found, beside = follow(80, stalled(40_000), lambda step: 1.1 if step >= 40 else 1.0)
    assert [finding.kind for finding in found] == ["storage_slowdown"]
    assert [finding.kind for finding in beside] == ["job_slowdown"]


def test_it_is_cleared_after_twenty_steps_at_the_old_pace() -> None:
    found, _ = follow(120, stalled(40_000, end=60))
    assert [(finding.state, finding.step) for finding in found] == [("open", 44), ("cleared", 79)]
    assert found[0].finding_id == found[1].finding_id


def test_it_stands_for_as_long_as_it_lasts() -> None:
    assert [finding.state for finding in follow(400, stalled(20_000))[0]] == ["open"]


@pytest.mark.parametrize("ranks", [1, 8, 20])
def test_some_hosts_loaders_are_not_the_storage_of_all(ranks: int) -> None:
    assert follow(100, stalled(60_000, ranks=ranks))[0] == []


def test_four_slow_steps_are_a_hiccup() -> None:
    assert follow(100, stalled(60_000, end=44))[0] == []


def test_a_growth_below_a_fiftieth_of_the_step_is_left_alone() -> None:
    assert follow(100, stalled(2_000))[0] == []
    looser = policy({"slow_storage": RulePolicy(thresholds={"share": 0.004})})
    assert [finding.state for finding in follow(100, stalled(2_000), force=looser)[0]] == ["open"]


def test_more_work_that_brings_more_data_is_not_slow_storage() -> None:
    found, _ = follow(100, lambda step: 15_000.0 if step >= 40 else 5_000.0, lambda step: 3.0 if step >= 40 else 1.0)
    assert found == []


def test_a_job_that_does_not_tell_data_time_is_not_judged() -> None:
    assert follow(100, stalled(60_000), tell=False)[0] == []


def test_storage_that_was_slow_from_the_start_is_usual() -> None:
    assert follow(100, stalled(60_000, begin=0))[0] == []

"""MFU per step: its tokens and its peak, low for more than three steps, impossible once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from factories import A100, SITE, START_NS, at, job, placement, policy, step_timing, without

from schemas.fleet import RulePolicy
from streams.core.roster import JobRoster, Roster
from streams.core.step_join import ClosedStep, StepJoin
from streams.detectors.mfu import MfuRules, step_utilisation

PEAK_TFLOPS = 1000
HALF_TOKENS = 95_238  # 6 * 7e9 * tokens in a second on 8 GPUs is 50 % of 8 PFLOP/s


def roster_of(world: int = 8, **fields: Any) -> JobRoster:
    roster = Roster()
    defaults = {"model": {"parameters": 7e9}, "tokens_per_step": HALF_TOKENS, "peak_tflops": PEAK_TFLOPS}
    skus = fields.pop("skus", None)
    roster.take(job(world, **{**defaults, **fields}))
    for index, sku in enumerate(skus or ()):
        roster.take(placement([index], node_id=f"node-{index}", sku=sku))
    return roster.job("job-1", 0)


def closed(
    number: int, step_s: float = 1.0, ranks: int = 8, seconds: float | None = None, **columns: Any
) -> ClosedStep:
    join = StepJoin()
    when = float(number) if seconds is None else seconds
    join.add(step_timing(number, when, [1000] * ranks, step_us=round(step_s * 1e6), **columns))
    (step,) = join.close(0, 8, frozenset(range(8)), final=True)
    return step


def mfu(step: ClosedStep, roster: JobRoster) -> float | None:
    result = step_utilisation(step, roster)[0]
    return result.mfu if result is not None else None


def said(roster: JobRoster, step_times_s: list[float], told: Any = None) -> list[tuple[int | None, str, str, str]]:
    rule = MfuRules(SITE)
    found: list[tuple[int | None, str, str, str]] = []
    for number, step_s in enumerate(step_times_s):
        step = closed(number, step_s)
        for finding in rule.on_step(step, roster, step_utilisation(step, roster)[0], told):
            found.append((finding.step, finding.kind, finding.state, finding.severity))
    return found


def test_tokens_are_the_jobs_own_where_it_says_so() -> None:
    assert mfu(closed(0), roster_of()) == pytest.approx(0.5, abs=1e-4)


def test_counted_tokens_of_a_data_parallel_job_add_up() -> None:
    step = closed(0, tokens=(HALF_TOKENS // 8,) * 8)
    assert step_utilisation(step, roster_of(tokens_per_step=None))[1] == HALF_TOKENS // 8 * 8


def test_ranks_of_one_replica_count_the_same_batch_once() -> None:
    step = closed(0, tokens=(1000,) * 8)
    roster = roster_of(tokens_per_step=None, layout={"tensor": 4, "data": 2})
    assert step_utilisation(step, roster)[1] == 2000


def test_a_step_with_missing_counts_has_no_tokens_and_no_mfu() -> None:
    assert step_utilisation(closed(0, ranks=6, tokens=(1000,) * 6), roster_of(tokens_per_step=None)) == (
        None,
        None,
        None,
    )
    partly = closed(0, tokens=(1000,) * 7 + (None,))
    assert step_utilisation(partly, roster_of(tokens_per_step=None)) == (None, None, None)


def test_all_gpus_of_the_job_are_its_denominator_whoever_reports() -> None:
    assert mfu(closed(0, ranks=2), roster_of(reporting_ranks=2)) == pytest.approx(0.5, abs=1e-4)


def test_the_peak_is_that_of_the_part_and_unlike_parts_have_none() -> None:
    step = closed(0)
    on_a100 = roster_of(peak_tflops=None, skus=[A100] * 8)
    assert mfu(step, on_a100) == pytest.approx(0.5 * PEAK_TFLOPS / 312, abs=1e-3)
    mixed = roster_of(peak_tflops=None, skus=[A100] * 7 + ["NVIDIA H100 80GB HBM3"])
    assert mfu(step, mixed) is None


def test_a_job_without_a_model_or_a_step_without_a_time_has_no_mfu() -> None:
    assert step_utilisation(closed(0), roster_of(model=None)) == (None, None, None)
    timed = closed(0)
    timeless = replace(timed, columns={**timed.columns, "step_us": np.full(len(timed.rank), np.nan)})
    assert step_utilisation(timeless, roster_of()) == (None, None, None)


def test_what_is_wrong_with_a_description_is_told() -> None:
    result, tokens, reason = step_utilisation(closed(0), roster_of(flop_convention="palm"))
    assert (result, tokens) == (None, HALF_TOKENS)
    assert reason
    assert step_utilisation(closed(0), roster_of(flop_convention="no-such"))[2]


def test_a_workload_without_a_backward_pass_recomputes_nothing() -> None:
    result, _, _ = step_utilisation(closed(0), roster_of(workload="forward_only", recompute="full"))
    assert result is not None
    assert result.waste == 0


def test_low_needs_more_than_three_steps_and_is_said_once() -> None:
    assert said(roster_of(), [1.5] * 3) == []
    assert said(roster_of(), [1.5] * 30) == [(3, "low_mfu", "open", "info")]


def test_exactly_the_target_is_not_below_it() -> None:
    exact = roster_of(mfu_target=0.5, tokens_per_step=40_000, model={"parameters": 1e9}, peak_tflops=60)
    assert mfu(closed(0, 1.0), exact) == 0.5
    assert said(exact, [1.0] * 10) == []


def test_low_is_cleared_by_one_step_at_the_target() -> None:
    assert said(roster_of(), [1.5] * 5 + [1.0]) == [(3, "low_mfu", "open", "info"), (5, "low_mfu", "cleared", "info")]


def test_below_the_own_best_hour_it_is_a_warning() -> None:
    assert said(roster_of(), [1.0] * 15 + [1.5] * 5) == [(18, "low_mfu", "open", "warning")]
    assert said(roster_of(mfu_target=0.6), [1.0] * 15 + [1.05] * 5) == [(3, "low_mfu", "open", "info")]


def test_the_jobs_target_goes_before_the_sites() -> None:
    told = policy({"low_mfu": RulePolicy(thresholds={"target": 0.2})})
    assert said(roster_of(), [1.5] * 10, told) == []
    assert said(roster_of(mfu_target=0.45), [1.5] * 10, told) == [(3, "low_mfu", "open", "info")]


def test_impossible_is_said_once_and_low_is_not_said_beside_it() -> None:
    assert said(roster_of(), [0.1] * 20) == [(0, "impossible_mfu", "open", "warning")]


def test_when_it_is_possible_again_that_is_said() -> None:
    assert said(roster_of(), [0.1, 1.0, 1.0]) == [
        (0, "impossible_mfu", "open", "warning"),
        (1, "impossible_mfu", "cleared", "warning"),
    ]


def test_each_of_the_two_rules_is_switched_off_by_itself() -> None:
    assert said(roster_of(), [1.5] * 10, without("low_mfu")) == []
    assert said(roster_of(), [0.1] * 10, without("impossible_mfu")) == []
    assert said(roster_of(), [0.1] * 10, without("low_mfu")) == [(0, "impossible_mfu", "open", "warning")]


def test_the_best_hour_is_an_hour_of_event_time() -> None:
    rule, roster, found = MfuRules(SITE), roster_of(mfu_target=0.3), []
    to_full_hour = -(START_NS // 10**9) % 3600
    hours = [(to_full_hour + h * 3600 + n * 60, 1.0 if h == 0 else 1.8) for h in (0, 1) for n in range(12)]
    for number, (seconds, step_s) in enumerate(hours):
        step = closed(number, step_s, seconds=seconds)
        found += list(rule.on_step(step, roster, step_utilisation(step, roster)[0], None))
    ((severity, best),) = [(f.severity, f.values["best_hour_mfu"]) for f in found]
    assert severity == "warning"
    assert isinstance(best, float)
    assert best == pytest.approx(0.5, abs=1e-4)
    assert found[0].onset_ns == at(to_full_hour + 3600)

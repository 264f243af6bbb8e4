"""Plain rules on small steps: what each names, and the real traces on which they are known to fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.evaluation.baselines import (
    BASELINES,
    Baselines,
    highest_wait,
    last_arriver,
    max_compute,
    relative_score,
    robust_z,
    three_sigma,
)
from schemas.fleet import Job
from schemas.steps import CollectiveTiming, StepTiming
from streams.core.step_join import ClosedStep, Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

TRACES = Path(__file__).parents[3] / "shared" / "data" / "step_traces"


def step(own: Sequence[float], wait: Sequence[float] | None = None, groups: Sequence[int] | None = None) -> ClosedStep:
    count = len(own)
    nothing = np.full(count, np.nan)
    columns = dict.fromkeys(("compute_us", "host_us", "data_us", "wait_us"), nothing)
    columns["own_us"] = np.array(own, dtype=np.float64)
    columns["step_us"] = np.full(count, 1000.0)
    collectives = {}
    if wait is not None:
        columns["wait_us"] = np.array(wait, dtype=np.float64)
        instance = np.array(groups if groups is not None else [0] * count, dtype=np.int64)
        collectives["dp"] = Collective("dp", instance, columns["wait_us"] + 10.0)
    rank = np.arange(count, dtype=np.int64)
    return ClosedStep("j", 0, 5, "train", 10**9, rank, ("n",) * count, columns, collectives, (), count)


def hit(rule: Callable[[ClosedStep], NDArray[np.bool_]], of: ClosedStep) -> list[int]:
    return np.flatnonzero(rule(of)).tolist()


SLOW = step([900, 500, 510, 490, 505, 495, 500, 502], wait=[0, 400, 390, 410, 395, 405, 700, 398])
EVEN = step([500, 502, 498, 501, 499, 500, 503, 497], wait=[5, 3, 7, 4, 6, 5, 2, 8])


def test_highest_wait_names_the_victim() -> None:
    assert hit(highest_wait, SLOW) == [6]
    assert hit(highest_wait, EVEN) == []


def test_max_compute_names_the_longest_and_nobody_where_all_are_even() -> None:
    assert hit(max_compute, SLOW) == [0]
    assert hit(max_compute, EVEN) == []


def test_max_compute_names_the_heavy_stage_though_nothing_is_wrong_with_it() -> None:
    assert hit(max_compute, step([500, 500, 500, 500, 750, 751])) == [5]


def test_the_robust_z_is_not_masked_by_the_slow_one_and_the_sigma_is() -> None:
    assert hit(robust_z, SLOW) == [0]
    assert hit(three_sigma, SLOW) == []  # one of eight cannot be three of its own sigma away
    assert hit(three_sigma, step([500.0] * 63 + [900.0])) == [63]


def test_the_last_arriver_is_the_shortest_in_each_communicator() -> None:
    two = step([500] * 6, wait=[0, 400, 410, 0, 300, 310], groups=[0, 0, 0, 1, 1, 1])
    assert hit(last_arriver, two) == [0, 3]
    assert hit(last_arriver, EVEN) == []


def test_the_relative_score_is_of_the_fastest_and_its_threshold_three_quarters() -> None:
    assert hit(relative_score, step([300, 399, 401])) == [2]
    assert hit(relative_score, step([300, 330, 340])) == []


@pytest.mark.parametrize("rule", [rule for rule in BASELINES.values() if rule is not None])
def test_a_step_without_figures_hits_nobody(rule: Callable[[ClosedStep], NDArray[np.bool_]]) -> None:
    assert hit(rule, step([np.nan, np.nan])) == []


def timings(steps: int, slow_from: int, slow_until: int) -> list[tuple[int, StepTiming]]:
    told = []
    for number in range(steps):
        own = [500_000] * 8
        if slow_from <= number < slow_until:
            own[3] = 700_000
        record = StepTiming(
            job_id="j",
            node_id="n",
            agent_session="s",
            seq=number,
            event_time_ns=(number + 1) * 10**9,
            step=number,
            rank=tuple(range(8)),
            step_us=(max(own),) * 8,
            own_us=tuple(own),
            collectives=(CollectiveTiming(group="dp", duration_us=tuple(max(own) - us + 1000 for us in own)),),
        )
        told.append((record.event_time_ns + 10**8, record))
    return told


def test_a_rule_speaks_at_the_fourth_slow_step_and_once() -> None:
    rules = Baselines()
    rules.take([(0, Job(job_id="j", effective_from_ns=0, world_size=8)), *timings(80, 30, 45)])
    rules.finish()
    for name in ("B1", "B2-robust", "B3", "B4"):
        (said,) = rules.alerts(name)
        assert said.subject is not None
        assert (said.subject.rank, said.step, said.is_naming) == (3, 33, True), name
        assert said.closed_ns is not None
    assert [said.subject.rank for said in rules.alerts("B0") if said.subject is not None] == []
    (job,) = rules.alerts("B5")
    assert (job.is_naming, job.step) == (False, 33)


def test_three_slow_steps_are_not_enough() -> None:
    rules = Baselines()
    rules.take([(0, Job(job_id="j", effective_from_ns=0, world_size=8)), *timings(60, 30, 33)])
    rules.finish()
    assert all(rules.alerts(name) == () for name in BASELINES)


def traced(name: str) -> dict[str, set[int]]:
    pytest.importorskip("pyarrow")
    from agents.importers.op_trace import op_trace_records

    if not (TRACES / f"trace-{name}.parquet").exists():
        pytest.skip(f"reference data absent: {TRACES / f'trace-{name}.parquet'}")
    rules = Baselines()
    rules.take(list(op_trace_records(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml")))
    rules.finish()
    return {
        rule: {said.subject.rank for said in rules.alerts(rule) if said.subject and said.subject.rank is not None}
        for rule in BASELINES
    }


def test_on_a_trace_with_one_slow_worker_the_plain_rules_fail_as_published() -> None:
    named = traced("AR")
    assert 0 not in named["B0"]
    assert named["B1"] == {0}
    assert len(named["B2-robust"] - {0}) == 4
    assert len(named["B3"] - {0}) == 3


def test_on_a_healthy_trace_of_varying_lengths_the_relative_score_blames_many() -> None:
    named = traced("SE")
    assert len(named["B4"]) > 10
    assert all(not ranks for rule, ranks in named.items() if rule != "B4")

"""Whole steps are what the join makes of the reports, and a fault-free run of them is judged as any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.simulation.benchmark import DeliveryPlan, FaultPlan, NoisePlan, cases, generate
from agents.simulation.benchmark.shapes import SHAPES, healthy_case
from agents.simulation.errors import ScenarioError
from paceline.evaluation.case_run import run_case
from paceline.evaluation.whole_steps import closed_steps
from schemas.fleet import Job
from schemas.steps import StepTiming
from streams.core.step_join import StepJoin

AT_ONCE = DeliveryPlan(duplicates=0.0, out_of_order=0.0, loss=0.0)
SAME_CLOCK = NoisePlan(clock_offset_ms=0.0, clock_drift_ppm=0.0)


@pytest.mark.parametrize("name", ["tp8-dp8", "tp4-pp2-ep4-dp8"])
def test_whole_steps_are_what_the_join_makes_of_the_reports(name: str) -> None:
    case = healthy_case("X", "whole", SHAPES[name], "", steps=7, delivery=AT_ONCE, noise=SAME_CLOCK)
    join = StepJoin()
    for _, record in generate(case, 4):
        if isinstance(record, StepTiming):
            join.add(record)
    joined = join.close(0, SHAPES[name].ranks, frozenset(range(SHAPES[name].ranks)), final=True)
    whole = list(closed_steps(generate(case, 4).whole_steps()))
    assert len(joined) == len(whole) == 7
    for one, other in zip(joined, whole, strict=True):
        for field in ("job_id", "epoch", "step", "phase", "event_time_ns", "node_id", "missing", "expected"):
            assert getattr(one, field) == getattr(other, field), field
        assert (one.rank == other.rank).all()
        assert one.columns.keys() == other.columns.keys()
        for column, values in one.columns.items():
            assert np.array_equal(values, other.columns[column], equal_nan=True), column
        assert one.collectives.keys() == other.collectives.keys()
        for group, collective in one.collectives.items():
            twin = other.collectives[group]
            assert (collective.names, collective.op) == (twin.names, twin.op)
            assert (collective.instance == twin.instance).all()
            assert (collective.duration_us == twin.duration_us).all()


def test_registrations_name_the_job_and_all_its_ranks() -> None:
    records = list(generate(healthy_case("X", "whole", SHAPES["tp8-dp8"], ""), 0).registrations())
    assert [record.world_size for record in records if isinstance(record, Job)] == [64]
    assert len(records) == 8 + 1 + 8


def test_a_fault_free_run_of_whole_steps_is_silent_and_counts_its_gpu_days() -> None:
    case = healthy_case("X", "whole", SHAPES["tp8-dp8"], "nothing", steps=60, form="whole_steps", level="L2")
    [outcome] = run_case(case, 11)
    assert outcome.is_right
    assert outcome.rank_steps == 60 * 64
    assert outcome.gpu_days == pytest.approx(60 * 64 * 2.5 / 86_400, rel=0.2)
    assert outcome.cost.cpu_s > 0
    assert outcome.verdict_sha256 == run_case(case, 11)[0].verdict_sha256


def test_whole_steps_with_a_fault_are_refused() -> None:
    case = healthy_case("X", "whole", SHAPES["tp8-dp8"], "", form="whole_steps")
    with pytest.raises(ScenarioError, match="without a fault"):
        run_case(replace(case, faults=(FaultPlan("gpu_compute", 0.5, 40, 90),)), 0)


def test_the_soak_has_thirty_thousand_gpu_days_of_whole_steps() -> None:
    pairs = cases("soak", tuple(range(10)))
    days = [float(case.tags["gpu_days"]) for case, _ in pairs if case.form == "whole_steps"]
    assert sum(days) >= 30_000
    assert {case.form for case, _ in pairs} == {"records", "whole_steps"}
    assert {case.ranks for case, _ in pairs} == {4096, 16384}

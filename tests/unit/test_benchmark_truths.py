"""Truths of the benchmark: complete, and in agreement with memberships, jobs and what a run costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmark_readings import (
    END,
    ONSET,
    RAIL,
    STEPS,
    faulty,
    frames,
    only,
    per_rank,
    published,
    timings,
)

from agents.simulation.benchmark import CAUSE_CLASSES, cases, generate
from agents.simulation.benchmark.case import FaultKind, FaultPlan, SamplingPlan
from agents.simulation.benchmark.shapes import SHAPES, healthy_case, one_fault, slow_gpu
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, Node, RankPlacement
from schemas.frames import GpuFrame
from schemas.remediation import COMMAND_KINDS
from schemas.steps import RankProgress


def test_two_culprits_are_two_truths_with_an_impact_each() -> None:
    two = (slow_gpu(0.3, ONSET, END), slow_gpu(0.3, ONSET, END, same_peers_as=0))
    run = generate(healthy_case("X", "two", SHAPES["tp4-pp4-dp4"], "", steps=STEPS, faults=two), 1)
    first, second = run.truths
    assert first.culprits[0].stage == second.culprits[0].stage
    assert first.culprits[0].node_id != second.culprits[0].node_id
    assert min(first.impact_S, second.impact_S) > 1.1


@pytest.mark.parametrize(("pattern", "share"), [("three_of_ten", 0.3), ("bursts", 1 / 3), ("every_37", 20 / 60)])
def test_intermittent_faults_come_and_go(pattern: str, share: float) -> None:
    fault = slow_gpu(0.5, ONSET, ONSET + 60, pattern=pattern)
    run = generate(healthy_case("X", pattern, RAIL, "", steps=ONSET + 62, faults=(fault,)), 2)
    rank = only(run).culprits[0].rank
    own = per_rank(run, "own_us")
    slow = own[ONSET : ONSET + 60, rank] > 1.3 * np.median(own[8:ONSET, rank])
    assert slow.mean() == pytest.approx(share, abs=0.03)


def test_a_renumbered_job_keeps_its_culprit_and_a_spare_is_innocent() -> None:
    chosen = {case.scenario: case for case, _ in cases("ci", (0,)) if case.scenario in ("B13", "B14")}
    shrunk = generate(chosen["B13"], 1)
    truth = only(shrunk)
    jobs = [record for record in published(shrunk) if isinstance(record, Job) and record.state == "running"]
    assert [job.epoch for job in jobs] == [0, 1]
    assert jobs[1].world_size < jobs[0].world_size
    ranks = {
        record.epoch: dict(zip(record.gpu_uuid, record.rank, strict=True))
        for record in published(shrunk)
        if isinstance(record, RankPlacement) and record.node_id == truth.culprits[0].node_id
    }
    uuid = truth.culprits[0].gpu_uuid
    assert ranks[0][uuid] != ranks[1][uuid]
    late = [record for record in timings(shrunk) if record.epoch == 1 and record.step < truth.end_step - 1]
    slowest: list[int] = []
    for record in late:
        assert record.own_us is not None
        slowest += [rank for rank, value in zip(record.rank, record.own_us, strict=True) if (value or 0) > 3e6]
    assert set(slowest) <= {ranks[1][uuid]}

    swapped = generate(chosen["B14"], 1)
    truth = only(swapped)
    node_id = truth.culprits[0].node_id
    uuids = [
        set(record.gpu_uuid) for record in published(swapped) if isinstance(record, Node) and record.node_id == node_id
    ]
    assert len(uuids) == 2
    assert not uuids[0] & uuids[1]
    assert {place.gpu_uuid for place in truth.innocents} == uuids[1]
    sessions = [
        record.agent_session
        for record in published(swapped)
        if isinstance(record, NodeStatus) and record.node_id == node_id
    ]
    assert len(set(sessions)) == 2


def test_two_jobs_share_the_leaf_that_is_slow() -> None:
    [case] = [case for case, _ in cases("ci", (0,)) if case.case_id.startswith("B31/50pct")]
    run = generate(case, 1)
    leaf = only(run).culprits[0].id
    places = {record.node_id: record.leaf for record in published(run) if isinstance(record, Node)}
    on_leaf = {
        record.job_id
        for record in published(run)
        if isinstance(record, RankPlacement) and places[record.node_id] == leaf
    }
    assert on_leaf == {"job-0", "job-1"}
    for job in on_leaf:
        steps = per_rank(run, "step_us", job)
        assert np.median(steps[45:85]) > 1.3 * np.median(steps[10:38])


def test_a_hot_expert_moves_and_takes_tokens_from_the_others() -> None:
    shape = SHAPES["tp4-pp2-ep4-dp8"]
    fault = FaultPlan("hot_expert", 0.3, 10, 90, period_steps=40)
    run = generate(one_fault("X", "hot", shape, fault, "", steps=95), 5)
    tokens = per_rank(run, "tokens")
    hot = [frozenset(np.flatnonzero(tokens[step] > 1.2 * tokens[0].max()).tolist()) for step in (20, 60)]
    assert hot[0] != hot[1]
    assert all(len(ranks) == 8 for ranks in hot)
    assert tokens[20].sum() == pytest.approx(tokens[0].sum(), rel=1e-4)
    own = per_rank(run, "own_us")
    assert np.median(own[20, sorted(hot[0])]) > 1.2 * np.median(own[20])
    assert only(run).advisory


@pytest.mark.parametrize("factor", [1.06, 1.5, 2.07])
def test_a_heavy_last_stage_is_advice(factor: float) -> None:
    shape = SHAPES["tp4-pp4-dp4"]
    run = generate(healthy_case("X", "heavy", shape, "", steps=30, jobs=(shape.job(last_stage_factor=factor),)), 1)
    truth = only(run)
    assert truth.culprits[0].id == "job-0/3"
    assert truth.advisory == (truth.impact_S < 1.1)
    forward = np.median(per_rank(run, "forward_us")[8:], axis=0).reshape(4, -1).mean(axis=1)
    assert forward[3] / forward[:3].mean() == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("gpu_memory_error", 48),
        ("cuda_error", 31),
        ("gpu_execution_error", 13),
        ("nvlink_error", 74),
        ("machine_unreachable", None),
    ],
)
def test_after_a_fatal_fault_the_job_stands(kind: FaultKind, code: int | None) -> None:
    case = faulty(kind, look_alikes=())
    run = generate(case, 2)
    truth = only(run)
    assert max(record.step for record in timings(run)) == ONSET - 1
    assert run.end_ns - truth.onset_ns > 30 * 2_000_000_000
    events = [record for record in published(run) if isinstance(record, KernelEvent)]
    assert [record.code for record in events] == ([] if code is None else [code])
    node_id = truth.culprits[0].node_id
    late = [record for record in frames(run, GpuFrame, True, truth) if record.node_id == node_id]
    assert bool(late) == (code is not None)
    if late:
        place = late[0].gpu_uuid.index(truth.culprits[0].gpu_uuid)
        assert {record.gpu_util_pct[place] for record in late} == {0}
        others = [record.gpu_util_pct for record in frames(run, GpuFrame, True, truth) if record.node_id != node_id]
        assert {value for row in others for value in row} == {100}
    standing = [
        record
        for record in published(run)
        if isinstance(record, RankProgress) and record.event_time_ns > truth.onset_ns + 10**10
    ]
    assert standing
    assert {step for record in standing for step in record.last_step} == {ONSET - 1}


def test_one_rank_of_2048_makes_the_others_wait_for_seven_tenths_of_a_step() -> None:
    [(case, seed)] = cases("barrier", (0,))
    seldom = SamplingPlan(60.0, 60.0, 60.0, 60.0, 60.0)
    run = generate(replace(case, steps=46, faults=(replace(case.faults[0], end_step=46),), sampling=seldom), seed)
    spent = np.array(run.step_seconds())
    healthy, slow = spent[10:34].mean(), spent[36:45].mean()
    planned = case.jobs[0].step_s
    assert 52 * planned / healthy == pytest.approx(52, abs=1)
    assert 52 * planned / slow == pytest.approx(19, abs=0.5)
    shares = [
        (collective.duration_us[place] or 0) / (record.step_us[place] or 1)
        for record in timings(run)
        if record.step == 40
        for collective in record.collectives
        for place in range(len(record.rank))
    ]
    assert len(shares) == 2048
    assert np.median(shares) == pytest.approx(0.70, abs=0.01)


def test_truths_of_all_rows_are_complete() -> None:
    for case, seed in cases("ci", (4,), largest_ranks=100):
        run = generate(case, seed)
        faults = [fault for fault in case.faults if not fault.is_look_alike]
        assert len(run.truths) >= len(faults)
        assert len({truth.truth_id for truth in run.truths}) == len(run.truths)
        for truth in run.truths:
            assert truth.cause_class in CAUSE_CLASSES
            assert truth.culprits
            assert truth.right_action in (*COMMAND_KINDS, "none")
            assert truth.onset_step <= truth.visible_from_step <= truth.end_step
            assert case.start_ns <= truth.onset_ns < truth.end_ns <= run.end_ns
            assert truth.impact_S > 0.99
            node_id = truth.culprits[0].node_id
            if truth.right_action in ("drain_node", "cordon_node"):
                assert truth.allows(truth.right_action, node_id)
            assert not truth.allows("cordon_node", "somebody-else")
            assert set(truth.as_dict()) >= {"class", "culprits", "impact_S", "forbidden_actions", "identifiable"}
    healthy = [case for case, _ in cases("ci", (0,)) if case.scenario in ("A0", "B9", "B22", "B23", "B26")]
    assert healthy
    assert not any(generate(case, 0).truths for case in healthy if case.ranks <= 100)


def test_faults_below_what_can_be_seen_are_told_as_such() -> None:
    shape = SHAPES["tp8-dp8"]
    for severity, told, wanted in ((0.03, True, False), (0.1, True, True), (0.1, False, False), (0.5, False, True)):
        job = shape.job(lengths="variable", lengths_reported=told)
        case = one_fault("X", "seen", shape, FaultPlan("gpu_compute", severity, 20, 40), "", steps=50, jobs=(job,))
        assert generate(case, 0).truths[0].identifiable == wanted
    assert not only(generate(faulty("silent_corruption", 0.0), 0)).identifiable
    assert only(generate(faulty("gpu_compute", 0.03), 0)).identifiable

"""Runs of the benchmark: pure, valid, in order, and the same for those whom a change does not concern."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.simulation.benchmark import BenchmarkCase, DeliveryPlan, cases, generate
from agents.simulation.benchmark.case import FaultKind, FaultPlan, FleetPlan, JobPlan, NoisePlan, SamplingPlan
from agents.simulation.benchmark.shapes import SHAPES, healthy_case, one_fault, slow_gpu
from agents.simulation.errors import ScenarioError
from schemas.base import Record
from schemas.codec import decode, encode
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, Node, RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import RankProgress, StepTiming
from schemas.topics import topic_of

SMALL = SHAPES["tp8-dp8"]


def short(**changes: object) -> BenchmarkCase:
    case = one_fault("X", "short", SMALL, slow_gpu(0.3, onset=10, end=20), "", steps=24)
    return replace(case, **changes)  # type: ignore[arg-type]


def lines(case: BenchmarkCase, seed: int) -> list[tuple[int, bytes]]:
    return [(arrival, encode(record)) for arrival, record in generate(case, seed)]


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others() -> None:
    case = short()
    run = generate(case, 7)
    first = [(arrival, encode(record)) for arrival, record in run]
    assert first == [(arrival, encode(record)) for arrival, record in run]
    assert first == lines(case, 7)
    assert first != lines(case, 8)
    assert run.truths == generate(case, 7).truths


def test_a_run_has_every_family_of_records() -> None:
    families = Counter(type(record) for _, record in generate(short(), 1).published())
    wanted = {Job, Node, RankPlacement, StepTiming, RankProgress, GpuFrame, FabricFrame, KernelEvent, NodeStatus}
    assert set(families) == wanted
    assert {record.view for _, record in generate(short(), 1).published() if isinstance(record, FabricFrame)} == {
        "host",
        "switch",
    }


def each_kind() -> list[BenchmarkCase]:
    """One small case of every kind of fault and of every way in which a stream or a membership changes."""
    chosen: dict[object, BenchmarkCase] = {}
    for suite in ("ci", "minder", "greyhound_detection", "what_if"):
        for case, _ in cases(suite, (0,)):
            if case.ranks <= 100:
                job = case.jobs[0]
                resize = job.resize.kind if job.resize else None
                key = (tuple(fault.kind for fault in case.faults)[:1], resize, job.tensor_view, job.missing_share > 0)
                chosen.setdefault(key, case)
    return list(chosen.values())


@pytest.mark.parametrize("case", each_kind(), ids=lambda case: case.case_id)
def test_records_are_such_as_a_reader_accepts(case: BenchmarkCase) -> None:
    last = 0
    counts: Counter[str] = Counter()
    for arrival, record in generate(case, 3):
        assert arrival >= last
        last = arrival
        family = type(record).__name__
        counts[family] += 1
        if counts[family] % 23 == 1:
            assert decode(topic_of(record).name, encode(record)) == record


def test_sequence_numbers_count_by_publisher_and_topic_in_the_order_of_publication() -> None:
    seen: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    times = []
    for published, record in generate(short(), 2).published():
        times.append(published)
        if isinstance(record, (GpuFrame, FabricFrame, NodeStatus, StepTiming, RankProgress)):
            publisher = record.publisher_id if isinstance(record, FabricFrame) else record.node_id
            seen[topic_of(record).name, publisher, record.agent_session].append(record.seq)
    assert times == sorted(times)
    assert seen
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())


def by_node(case: BenchmarkCase, seed: int) -> dict[str, list[bytes]]:
    """What each node publishes, without what tells of the fleet as a whole."""
    published: dict[str, list[bytes]] = defaultdict(list)
    for _, record in generate(case, seed).published():
        if not isinstance(record, Job) and getattr(record, "node_id", None) is not None:
            published[record.node_id].append(encode(record))  # type: ignore[attr-defined]
    return published


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5))
def test_a_node_more_changes_nothing_that_others_publish(seed: int, more: int) -> None:
    case = short(look_alikes=())
    larger = replace(case, fleet=replace(case.fleet, nodes=case.fleet.nodes + more))
    before, after = by_node(case, seed), by_node(larger, seed)
    assert len(after) == len(before) + more
    for node_id, records in before.items():
        assert records == after[node_id]


def test_how_often_ports_are_read_does_not_change_a_step() -> None:
    case = short()
    often = replace(case, sampling=SamplingPlan(fabric_s=1.0, switch_s=2.0))
    timings = [
        [encode(record) for _, record in generate(each, 4).published() if isinstance(record, StepTiming)]
        for each in (case, often)
    ]

    def without_sequence(payloads: list[bytes]) -> list[Record]:
        return [decode("step-timings", payload).model_copy(update={"seq": 0}) for payload in payloads]

    assert without_sequence(timings[0]) == without_sequence(timings[1])


def test_a_fault_changes_no_draw_of_anybody() -> None:
    case = short()
    healthy = replace(case, faults=())
    with_fault, without = generate(case, 5), generate(healthy, 5)
    before = case.faults[0].onset_step
    assert with_fault.step_seconds()[:before] == without.step_seconds()[:before]
    culprit = with_fault.truths[0].culprits[0].rank
    own: list[dict[tuple[int, int], int]] = []
    for run in (with_fault, without):
        own.append(
            {
                (record.step, rank): value
                for _, record in run.published()
                if isinstance(record, StepTiming) and record.own_us is not None
                for rank, value in zip(record.rank, record.own_us, strict=True)
                if value is not None
            }
        )
    changed = {rank for (step, rank), value in own[0].items() if own[1][step, rank] != value}
    assert changed == {culprit}


def test_duplicates_reversal_and_loss_touch_the_way_only() -> None:
    case = short(delivery=DeliveryPlan(duplicates=0.0, out_of_order=0.0, loss=0.0))
    clean = lines(case, 6)
    payloads = Counter(payload for _, payload in clean)
    doubled = lines(replace(case, delivery=replace(case.delivery, duplicates=1.0, duplicate_copies=9)), 6)
    counts = Counter(payload for _, payload in doubled)
    assert set(counts) == set(payloads)
    assert Counter(counts.values())[10] > 0.9 * len(counts)
    backwards = lines(replace(case, delivery=replace(case.delivery, reverse_window_s=60.0)), 6)
    assert Counter(payload for _, payload in backwards) == payloads
    assert [payload for _, payload in backwards] != [payload for _, payload in clean]
    assert all(before <= after for (before, _), (after, _) in pairwise(backwards))
    lossy = lines(replace(case, delivery=replace(case.delivery, loss=0.1)), 6)
    assert 0.85 * len(clean) < len(lossy) < 0.95 * len(clean)
    assert {payload for _, payload in lossy} < set(payloads)


def test_clocks_are_off_and_one_of_them_jumps() -> None:
    def skews(noise: NoisePlan) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for published, record in generate(short(noise=noise), 1).published():
            if isinstance(record, NodeStatus) and record.state == "heartbeat":
                found[record.node_id].append(record.event_time_ns - published)
        return found

    true = skews(NoisePlan(clock_offset_ms=0.0, clock_drift_ppm=0.0))
    assert all(set(values) == {0} for values in true.values())
    far = skews(NoisePlan(clock_offset_ms=100.0))
    assert max(abs(value) for values in far.values() for value in values) > 50e6
    jumping = skews(NoisePlan(clock_offset_ms=0.0, clock_drift_ppm=0.0, clock_step_s=5.0))
    assert sum(max(values) - min(values) == 5_000_000_000 for values in jumping.values()) == 1


def test_missing_ranks_are_in_no_timing_and_never_the_culprit() -> None:
    job = replace(SMALL.job(), missing_share=0.3)
    run = generate(short(jobs=(job,)), 2)
    ranks = {rank for _, record in run.published() if isinstance(record, StepTiming) for rank in record.rank}
    assert len(ranks) == 64 - round(0.3 * 64)
    assert run.truths[0].culprits[0].rank in ranks


def test_two_jobs_run_side_by_side_in_order() -> None:
    fleet = FleetPlan(nodes=4, shape="lingjun", nodes_per_leaf=4)
    jobs = tuple(JobPlan(f"job-{index}", 2, step_s=2.0 + index, microbatches=2) for index in range(2))
    case = healthy_case("X", "two", SMALL, "", fleet=fleet, jobs=jobs, steps=20)
    times = []
    steps: Counter[str] = Counter()
    for published, record in generate(case, 0).published():
        times.append(published)
        if isinstance(record, StepTiming):
            steps[record.job_id] += 1
    assert times == sorted(times)
    assert steps == {"job-0": 40, "job-1": 40}


def test_large_runs_are_made_block_by_block() -> None:
    case = healthy_case("X", "long", SMALL, "", steps=200)
    seen = [record.step for _, record in generate(case, 0).published() if isinstance(record, StepTiming)]
    assert Counter(seen) == dict.fromkeys(range(200), 8)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": ()}, "needs a job"),
        ({"steps": 0}, "a step at least"),
        ({"fleet": FleetPlan(nodes=4)}, "more nodes than its fleet"),
        ({"jobs": (JobPlan("job-0", 8, tensor=3),)}, "whole nodes"),
        ({"jobs": (JobPlan("job-0", 8, tensor=8, expert=3),)}, "expert members"),
        ({"faults": (FaultPlan("gpu_compute", 0.1, 9, 9),)}, "no rising range"),
        ({"faults": (FaultPlan("gpu_compute", 0.1, 5, 9, stage=3),)}, "no stage 3"),
        ({"delivery": DeliveryPlan(loss=2.0)}, "between 0 and 1"),
    ],
)
def test_a_case_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        list(generate(short(**changes), 0))


def test_every_kind_of_fault_is_in_some_suite() -> None:
    used = {fault.kind for suite in ("ci", "minder") for case, _ in cases(suite, (0,)) for fault in case.faults}
    assert used == set(FaultKind.__args__)  # type: ignore[attr-defined]

"""The engines: same input, same output bytes, for permuted (within lateness), doubled and restarted input.

Permuted means: every record arrives less than 10 s of event time after it happened. Kernel lines of one node keep their
order, as one producer to one partition keeps it: fatal codes are taken at once, in the order of the log.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from factories import (
    A100,
    SITE,
    gpu_frame,
    job,
    nic_frame,
    placement,
    position_of,
    progress,
    step_timing,
    switch_frame,
    xid_event,
)
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_engine_restart_changes_nothing
from scenario_runner import load

from schemas.codec import encode
from schemas.events import KernelEvent
from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, RankPlacement
from schemas.steps import StepTiming
from schemas.topics import topic_of
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.decisions import DecisionsEngine
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from schemas.base import Record

Stream = list[tuple["Record", "Position"]]

LATENESS_NS = 10_000_000_000
SEEDS = st.integers(0, 2**32)
SPLIT = st.integers(0, 10_000)
ROSTER = Roster()
for name in ("job-1", "job-2"):
    ROSTER.take(job(4, job_id=name, model={"parameters": 7e9}, tokens_per_step=45_000, peak_tflops=1000))
    for node in (0, 1):
        ROSTER.take(placement([2 * node, 2 * node + 1], node_id=f"node-{node}", job_id=name))


def placed(records: list[Record]) -> Stream:
    """Records in order of event time, with the offsets that they keep however they are shuffled."""
    ordered = sorted(records, key=lambda record: record.event_time_ns)  # type: ignore[attr-defined]
    return [(record, position_of(record, offset)) for offset, record in enumerate(ordered)]


def shuffled(stream: Stream, seed: int, doubled: float) -> Stream:
    """The stream as it may arrive: each record less than the lateness after its time, some of them twice."""
    rng = random.Random(seed)
    arrivals: list[tuple[float, int, Record, Position]] = []
    last_kernel_line: dict[str, float] = {}
    for record, position in stream:
        at_ns: int = record.event_time_ns  # type: ignore[attr-defined]
        for _ in range(1 + (rng.random() < doubled)):
            arrival = at_ns + rng.random() * (LATENESS_NS - 1)
            if isinstance(record, KernelEvent):
                arrival = max(arrival, last_kernel_line.get(record.node_id, 0.0))
                last_kernel_line[record.node_id] = arrival
            arrivals.append((arrival, len(arrivals), record, position))
    return [(record, position) for _, _, record, position in sorted(arrivals, key=lambda entry: entry[:2])]


@st.composite
def telemetry(draw: st.DrawFn) -> Stream:
    """Two nodes and a switch: clocks, heat, errors and pause that come and go; kernel lines; a lost frame."""
    records: list[Record] = []
    for node in (0, 1):
        heat, errors, paused = 0, 0, 0
        for second in range(draw(st.integers(5, 30))):
            if draw(st.sampled_from([True] * 19 + [False])):
                records.append(
                    gpu_frame(
                        second,
                        node_id=f"node-{node}",
                        gpus=2,
                        seq=second,
                        sku=(A100, A100),
                        sm_clock_mhz=[1410, 1000 if second > 12 else 1410],
                        gpu_util_pct=99,
                        thermal_violation_ns=[heat, 0],
                        ecc_dbe_volatile_count=[errors, 0],
                    )
                )
                records.append(nic_frame(second + 0.25, paused, 0, node_id=f"node-{node}", seq=second))
            heat += draw(st.sampled_from([0, 0, 90_000_000]))
            errors += draw(st.sampled_from([0] * 15 + [1]))
            paused += draw(st.sampled_from([0, 3000]))
        for second in draw(st.lists(st.integers(0, 30), max_size=3, unique=True)):
            code = draw(st.sampled_from([63, 79, 92]))
            records.append(xid_event(second + 0.5, code, node_id=f"node-{node}", gpu=draw(st.integers(0, 1))))
    records += [switch_frame(s + 0.75, ["Ethernet0", "Ethernet1"], [4000 * s, 0], [0, 90 * s]) for s in range(20)]
    return placed(records)


@st.composite
def steps(draw: st.DrawFn) -> Stream:
    """Two jobs on two nodes: a slow rank, a lost report, a jump of step numbers, and progress."""
    records: list[Record] = []
    for name in ("job-1", "job-2"):
        slow = draw(st.sampled_from([None, 0, 3]))
        jump_at, jump = draw(st.integers(2, 14)), draw(st.sampled_from([0, 0, 7]))
        for step in range(draw(st.integers(3, 16))):
            for node in (0, 1):
                compute = [200_000 + draw(st.sampled_from([0, 200, 500])) for _ in range(2)]
                if slow is not None and slow // 2 == node:
                    compute[slow % 2] += 50_000
                if draw(st.sampled_from([True] * 15 + [False])):
                    records.append(
                        step_timing(
                            step + (jump if step >= jump_at else 0),
                            20 + 2.5 * step + 0.2 * node,
                            compute,
                            node_id=f"node-{node}",
                            first_rank=2 * node,
                            job_id=name,
                            step_us=270_000,
                            wait_us=(60_000,) * 2,
                        )
                    )
        records += [progress(second, node_id=f"node-{n}", job_id=name) for second in range(0, 90, 5) for n in (0, 1)]
    return placed(records)


def encoded(records: list[Record]) -> list[bytes]:
    return [encode(record) for record in records]


def heard(engine: TelemetryEngine | JobsEngine, record: Record, position: Position) -> list[bytes]:
    return encoded(engine.on_record(record, position))


@LAW
@given(telemetry(), SEEDS, SPLIT)
def test_the_telemetry_engine_survives_a_restart(stream: Stream, seed: int, split: int) -> None:
    arriving = shuffled(stream, seed, doubled=0.1)
    assert_engine_restart_changes_nothing(lambda: TelemetryEngine(SITE, 0, ROSTER), heard, arriving, split)


@LAW
@given(steps(), SEEDS, SPLIT)
def test_the_jobs_engine_survives_a_restart(stream: Stream, seed: int, split: int) -> None:
    arriving = shuffled(stream, seed, doubled=0.1)
    assert_engine_restart_changes_nothing(lambda: JobsEngine(SITE, 0, ROSTER), heard, arriving, split)


@LAW
@given(steps(), SEEDS, SPLIT)
def test_the_jobs_engine_survives_a_restart_beside_a_clock_that_is_an_hour_behind(
    stream: Stream, seed: int, split: int
) -> None:
    def told(record: Record) -> Record:
        if getattr(record, "node_id", None) != "node-1":
            return record
        return record.model_copy(update={"event_time_ns": record.event_time_ns - 3_600_000_000_000})  # type: ignore[attr-defined]

    arriving = [(told(record), position) for record, position in shuffled(stream, seed, doubled=0.1)]
    assert_engine_restart_changes_nothing(lambda: JobsEngine(SITE, 0, ROSTER), heard, arriving, split)


DECIDED = (
    "teaching_example",
    "cause_reversed_devices",
    "cause_rank_known_by_address",
    "pfc_pause_storm",
    "pfc_pause_slow_victims",
    "straggler_recovers",
    "uncorrectable_ecc",
    "xid_48_of_an_idle_node",
    "xid_63_then_79",
)


@cache
def found_in(name: str) -> tuple[Roster, Stream]:
    """What the detectors publish on the findings topic in a scenario, and who runs where."""
    scenario = load(Path(__file__).parents[1] / "scenarios" / f"{name}.toml")
    roster = Roster()
    telemetry_engine, jobs_engine = TelemetryEngine(SITE, 0, roster), JobsEngine(SITE, 0, roster)
    published: list[Record] = []
    for record, position in scenario.records:
        if isinstance(record, Job | RankPlacement):
            roster.take(record)
        elif isinstance(record, StepTiming):
            published += jobs_engine.on_record(record, position)
        else:
            published += telemetry_engine.on_record(record, position)
    published += telemetry_engine.flush() + jobs_engine.flush()
    taken = [record for record in published if isinstance(record, Finding | ProgressMark)]
    # A detector that was restarted says again what it said.
    taken += [record for record in taken if isinstance(record, Finding)]
    return roster, [(record, Position(topic_of(Finding).name, 0, 0, 0)) for record in taken]


@pytest.mark.parametrize("name", DECIDED)
@LAW
@given(split=st.integers(0, 10_000))
def test_the_decisions_engine_survives_a_restart(name: str, split: int) -> None:
    roster, arriving = found_in(name)

    def decided(engine: DecisionsEngine, record: Record, position: Position) -> list[bytes]:
        return encoded(engine.on_record(record, position))

    assert_engine_restart_changes_nothing(lambda: DecisionsEngine(SITE, roster), decided, arriving, split)


def findings_of_telemetry(stream: Stream) -> list[bytes]:
    engine = TelemetryEngine(SITE, 0, ROSTER)
    found = [record for item in stream for record in engine.on_record(*item)] + engine.flush()
    assert not engine.take_late()
    return sorted(encode(record) for record in found if isinstance(record, Finding))


@LAW
@given(telemetry(), SEEDS)
def test_order_and_repeats_change_no_finding_about_devices(stream: Stream, seed: int) -> None:
    assert findings_of_telemetry(shuffled(stream, seed, doubled=0.1)) == findings_of_telemetry(stream)


def said_of_jobs(stream: Stream) -> dict[str, list[bytes]]:
    """In order by job; what is said of its standstills apart, which waits for no step and may come before or after one."""
    engine = JobsEngine(SITE, 0, ROSTER)
    said: dict[str, list[bytes]] = {}
    for record in [record for item in stream for record in engine.on_record(*item)] + engine.flush():
        if not isinstance(record, ProgressMark):
            about = "hang" if isinstance(record, Finding) and record.rule == "hang" else "steps"
            said.setdefault(f"{getattr(record, 'job_id', None)} {about}", []).append(encode(record))
    assert not engine.take_late()
    return said


@LAW
@given(steps(), SEEDS)
def test_order_and_repeats_change_nothing_said_of_a_job(stream: Stream, seed: int) -> None:
    assert said_of_jobs(shuffled(stream, seed, doubled=0.1)) == said_of_jobs(stream)


@LAW
@given(steps(), SEEDS)
def test_a_mark_is_ahead_of_what_follows_by_no_more_than_the_lateness(stream: Stream, seed: int) -> None:
    engine = JobsEngine(SITE, 0, ROSTER)
    mark_ns = 0
    for item in shuffled(stream, seed, doubled=0.1):
        for record in engine.on_record(*item):
            if isinstance(record, ProgressMark):
                assert record.mark_ns > mark_ns
                mark_ns = record.mark_ns
            elif isinstance(record, Finding):
                assert record.event_time_ns > mark_ns - LATENESS_NS


@LAW
@given(steps())
def test_in_order_no_finding_is_older_than_the_last_mark(stream: Stream) -> None:
    engine = JobsEngine(SITE, 0, ROSTER)
    mark_ns = 0
    for item in stream:
        for record in engine.on_record(*item):
            if isinstance(record, ProgressMark):
                mark_ns = record.mark_ns
            elif isinstance(record, Finding):
                assert record.event_time_ns > mark_ns

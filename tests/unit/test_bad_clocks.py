"""Nodes whose clocks are an hour ahead, an hour behind, or jump: refused or set right, said, and nobody else's business."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
from bad_clocks import AHEAD, BEHIND, CLEAN_JOB, JUMP_S, JUMPING, arrivals, with_bad_clocks
from factories import SITE, START_NS, at, gpu_frame, position_of, progress

from schemas.codec import encode, message
from schemas.findings import Finding
from schemas.remediation import Command, Incident
from schemas.results import StepResult
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine
from streams.engines.pipeline import Pipeline
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from schemas.base import Record

BAD_NODES = {BEHIND, AHEAD, JUMPING}


def judged(arriving: list[tuple[int, Record]], partitions: int) -> tuple[list[Record], Counter[str]]:
    pipeline, offsets, outputs = Pipeline("clocks"), Counter[tuple[str, int]](), []
    for arrival_ns, record in arriving:
        wire = message(record)
        place = (wire.topic, sum(wire.key) % partitions)
        outputs += pipeline.on_record(record, Position(*place, offsets[place], arrival_ns // 1_000_000))
        offsets[place] += 1
    return outputs + pipeline.flush(), pipeline.counts


@cache
def runs(partitions: int) -> tuple[tuple[list[Record], Counter[str]], tuple[list[Record], Counter[str]]]:
    """(without, with) the bad clocks."""
    return judged(list(arrivals(START_NS)), partitions), judged(with_bad_clocks(START_NS), partitions)


def of_others(outputs: list[Record]) -> list[bytes]:
    """What is said of nodes and jobs whose clocks are right, in order."""
    said = []
    for record in outputs:
        subject = record.subject if isinstance(record, Finding) else None
        job_id = getattr(record, "job_id", None) or (subject.job_id if subject is not None else None)
        node_id = subject.node_id if subject is not None else None
        if isinstance(record, Command):
            job_id, node_id = record.target.job_id, record.target.node_id
        elif isinstance(record, Incident) and record.culprit is not None:
            job_id, node_id = record.culprit.job_id, record.culprit.node_id
        if node_id not in BAD_NODES and job_id in {CLEAN_JOB, None}:
            said.append(encode(record))
    return said


def findings(outputs: list[Record], node_id: str) -> list[Finding]:
    return [r for r in outputs if isinstance(r, Finding) and r.subject.node_id == node_id]


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_is_said_of_others_is_equal_to_the_byte(partitions: int) -> None:
    (good, _), (bad, _) = runs(partitions)
    expected = of_others(good)
    assert sum(b'"record":"command"' in line for line in expected) >= 2
    assert sum(b'"record":"step_result"' in line for line in expected) > 100
    assert of_others(bad) == expected


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_node_an_hour_ahead_is_refused_and_its_clock_is_said_to_be_ahead(partitions: int) -> None:
    _, (outputs, counts) = runs(partitions)
    told = findings(outputs, AHEAD)
    assert [(f.kind, f.state) for f in told] == [("clock_skew", "open")]
    assert told[0].values["skew_s"] == pytest.approx(-3600, abs=1)
    assert "ahead" in told[0].explanation
    assert told[0].event_time_ns < START_NS + 100_000_000_000
    assert counts["refused_future"] > 250


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_node_an_hour_behind_is_taken_its_clock_is_said_to_be_behind_and_its_job_is_whole(partitions: int) -> None:
    (good, _), (bad, _) = runs(partitions)
    told = [f for f in findings(bad, BEHIND) if f.kind == "clock_skew"]
    assert [f.state for f in told] == ["open"]
    assert told[0].values["skew_s"] == pytest.approx(3600, abs=1)

    def steps(outputs: list[Record]) -> list[StepResult]:
        return [r for r in outputs if isinstance(r, StepResult) and r.job_id == "job-behind"]

    assert len(steps(good)) > 100
    for told_step, step in zip(steps(bad), steps(good), strict=True):
        # The time of a step is that of its last report, and now that of the other node alone.
        assert abs(told_step.event_time_ns - step.event_time_ns) < 2_000_000_000
        assert told_step.model_copy(update={"event_time_ns": step.event_time_ns}) == step


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_clock_that_jumps_is_said_while_it_is_wrong_and_cleared_when_it_is_back(partitions: int) -> None:
    _, (outputs, _) = runs(partitions)
    told = [f for f in findings(outputs, JUMPING) if f.kind == "clock_skew"]
    assert [f.state for f in told][:1] == ["open"]
    onset_s = (told[0].onset_ns - START_NS) / 1e9
    assert JUMP_S[0] - 30 <= onset_s <= JUMP_S[0] + 30
    # While it is ahead nothing of it is taken: it counts as silent, and is back with the first heartbeat that is right.
    silent = [f for f in findings(outputs, JUMPING) if f.kind == "node_silent"]
    assert [f.state for f in silent] == ["open", "cleared"]
    assert JUMP_S[1] <= (silent[1].event_time_ns - START_NS) / 1e9 <= JUMP_S[1] + 20
    others = {f.kind for f in findings(outputs, JUMPING)} - {"clock_skew", "node_silent"}
    assert others == set(), "nothing about the device comes of its clock"


@pytest.mark.parametrize("engine_of", [JobsEngine, TelemetryEngine])
def test_a_clock_that_is_almost_a_minute_ahead_does_not_run_away_with_the_time_of_a_partition(engine_of: type) -> None:
    engine = engine_of(SITE, 0, Roster())
    for second in range(0, 120, 5):
        for node, ahead_s in (("node-4", 59), ("node-1", 0), ("node-2", 0), ("node-3", 0)):
            said_s = second + ahead_s
            record = (
                progress(said_s, node_id=node) if engine_of is JobsEngine else gpu_frame(said_s, node_id=node, gpus=1)
            )
            engine.on_record(record, position_of(record, second, arrival_s=second + 0.1))
        assert engine.time_ns < at(second + 1)
    assert engine.time_ns == at(115)

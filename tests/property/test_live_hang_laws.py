"""The live hang keeps the laws of engines: order, repeats and restarts change nothing that is said.

Order means here: the records of one node's agent keep theirs, as one producer to one partition keeps it; records of several nodes,
and digests, come in any order within the lateness bound.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from factories import SITE, at, job, placement, position_of, progress, step_timing
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_engine_restart_changes_nothing
from recorder_dumps import digest_of, world

from schemas.codec import encode
from schemas.findings import Finding, ProgressMark
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.core.position import Position

Stream = list[tuple["Record", "Position"]]

NODES = 3
ROSTER = Roster()
ROSTER.take(job(2 * NODES))
for _node in range(NODES):
    ROSTER.take(placement([2 * _node, 2 * _node + 1], node_id=f"node-{_node}"))


@st.composite
def hangs(draw: st.DrawFn) -> Stream:
    """Steps, a stop, digests of most ranks, and perhaps more steps after it."""
    records: list[Record] = []
    step, now_s = 0, 0.0

    def go(steps: int) -> None:
        nonlocal step, now_s
        for _ in range(steps):
            now_s += 2.0
            for node in range(NODES):
                at_s = now_s + draw(st.sampled_from([0.0, 0.1, 0.4]))
                columns = {"node_id": f"node-{node}", "first_rank": 2 * node, "step_us": 2_000_000}
                records.append(step_timing(step, at_s, [1000, 1000], **columns))
            step += 1

    def stop(seconds: int, dumped: list[int], culprit: int) -> None:
        nonlocal now_s
        for second in range(1, seconds):
            for node in range(NODES):
                gone = draw(st.sampled_from([(True, True)] * 30 + [(False, True)])) if second == seconds - 1 else None
                told = progress(now_s + second + 0.3 * node, node_id=f"node-{node}", ranks=(2 * node, 2 * node + 1))
                records.append(told.model_copy(update={"last_step": (step - 1,) * 2, "connected": gone}))
        for rank in dumped:
            dump = world(2 * NODES, enqueued=8 if rank == culprit else 9, completed=8)
            found = digest_of(rank, dump).model_copy(update={"job_id": "job-1", "node_id": f"node-{rank // 2}"})
            written_s = now_s + min(18, seconds - 1) + draw(st.sampled_from([0, 0.5]))
            records.append(found.model_copy(update={"event_time_ns": at(written_s)}))
        now_s += seconds

    ranks = st.lists(st.integers(0, 2 * NODES - 1), unique=True, max_size=2 * NODES)
    go(draw(st.integers(5, 8)))
    stop(draw(st.sampled_from([12, 25, 60])), draw(ranks), draw(st.integers(0, 2 * NODES - 1)))
    go(draw(st.sampled_from([0, 2])))
    stop(draw(st.sampled_from([12, 25])), draw(ranks), 0)
    ordered = sorted(records, key=lambda record: record.event_time_ns)  # type: ignore[attr-defined]
    return [(record, position_of(record, offset)) for offset, record in enumerate(ordered)]


def shuffled(stream: Stream, seed: int, spread_s: float) -> Stream:
    """As it may arrive: every node's records in their order, each less than the spread after its time."""
    rng = random.Random(seed)
    last: dict[str, float] = {}
    arrivals = []
    for number, (record, position) in enumerate(stream):
        source = f"{position.topic}/{record.node_id}"  # type: ignore[attr-defined]
        arrival = max(record.event_time_ns + rng.random() * spread_s * 1e9, last.get(source, 0.0))  # type: ignore[attr-defined]
        last[source] = arrival
        arrivals += [(arrival, number, record, position)] * (1 + (rng.random() < 0.1))
    return [(record, position) for _, _, record, position in sorted(arrivals, key=lambda entry: entry[:2])]


def heard(engine: JobsEngine, record: Record, position: Position) -> list[bytes]:
    return [encode(said) for said in engine.on_record(record, position)]


@LAW
@given(hangs(), st.integers(0, 2**32), st.integers(0, 10_000))
def test_a_restart_at_any_place_changes_nothing(stream: Stream, seed: int, split: int) -> None:
    arriving = shuffled(stream, seed, 5.0)
    assert_engine_restart_changes_nothing(lambda: JobsEngine(SITE, 0, ROSTER), heard, arriving, split)


def findings(stream: Stream) -> list[Finding]:
    engine = JobsEngine(SITE, 0, ROSTER)
    said = [record for item in stream for record in engine.on_record(*item)] + engine.flush()
    return [record for record in said if isinstance(record, Finding)]


def suspicions(stream: Stream) -> list[bytes]:
    return sorted(encode(finding) for finding in findings(stream) if finding.kind == "hang_suspected")


@LAW
@given(hangs(), st.integers(0, 2**32))
def test_order_and_repeats_within_the_lateness_change_no_suspicion(stream: Stream, seed: int) -> None:
    assert suspicions(shuffled(stream, seed, 9.9)) == suspicions(stream)


def verdicts(stream: Stream) -> list[bytes]:
    return sorted(encode(finding) for finding in findings(stream) if finding.rule == "hang")


@LAW
@given(hangs(), st.integers(0, 2**32))
def test_the_order_of_digests_that_come_in_time_changes_no_verdict(stream: Stream, seed: int) -> None:
    assert verdicts(shuffled(stream, seed, 0.4)) == verdicts(stream)


@LAW
@given(hangs())
def test_in_order_no_suspicion_is_older_than_the_last_mark(stream: Stream) -> None:
    engine = JobsEngine(SITE, 0, ROSTER)
    mark_ns = 0
    for item in stream:
        for record in engine.on_record(*item):
            if isinstance(record, ProgressMark):
                mark_ns = record.mark_ns
            elif isinstance(record, Finding) and record.kind == "hang_suspected":
                assert record.event_time_ns > mark_ns

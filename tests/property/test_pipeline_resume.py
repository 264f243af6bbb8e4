"""The pipeline restored from a snapshot at any place goes on with the same bytes and counts, whatever waits at that place.

Records come late, twice, or never, so that others wait for them; policies, placements and jobs change on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factories import SITE, job, placement, policy, position_of
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import LAW
from test_engine_laws import shuffled, steps, telemetry
from test_live_hang_laws import NODES, hangs

from schemas.codec import encode
from schemas.fleet import RulePolicy
from streams.core.position import Position
from streams.core.snapshot_codec import pack, unpack
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from schemas.base import Record

Stream = list[tuple["Record", "Position"]]

SPLITS = st.lists(st.integers(0, 10_000), min_size=1, max_size=3)
FEWER = settings(LAW, max_examples=12)


def registered(world_size: int, nodes: int, *names: str) -> list[Record]:
    told: list[Record] = []
    for name in names:
        told.append(job(world_size, job_id=name, model={"parameters": 7e9}, tokens_per_step=45_000, peak_tflops=1000))
        told += [placement([2 * node, 2 * node + 1], node_id=f"node-{node}", job_id=name) for node in range(nodes)]
    return told


CHANGES: list[Record] = [
    policy(settle_ns=2_000_000_000),
    policy({"straggler": RulePolicy(thresholds={"floor": 0.9}), "thermal_violation": RulePolicy(enabled=False)}),
    placement([0, 1], node_id="node-2", job_id="job-1").model_copy(update={"version": 2}),
    job(6, job_id="job-1").model_copy(update={"version": 3}),
]


def in_partitions(stream: Stream) -> Stream:
    """The same over two partitions: what one node publishes stays in one."""
    return [
        (
            record,
            Position(place.topic, "node-1" in (getattr(record, "node_id", None) or ""), place.offset, place.append_ms),
        )
        for record, place in stream
    ]


def assert_a_snapshot_changes_nothing(stream: Stream, splits: list[int]) -> None:
    whole = Pipeline(SITE)
    said: list[bytes] = []
    snapshots = []
    places = {split % (len(stream) + 1) for split in splits}
    for number, (record, position) in enumerate(stream):
        if number in places:
            snapshots.append((number, len(said), pack(whole.snapshot())))
        said += map(encode, whole.on_record(record, position))
    snapshots.append((len(stream), len(said), pack(whole.snapshot())))
    said += map(encode, whole.flush())
    for number, before, packed in snapshots:
        after = Pipeline(SITE)
        after.restore(unpack(packed.chunks, packed.digest))
        found = [encode(output) for item in stream[number:] for output in after.on_record(*item)]
        found += map(encode, after.flush())
        assert found == said[before:], number
        assert after.counts == whole.counts, number


@FEWER
@given(telemetry(), steps(), st.integers(0, 2**32), SPLITS, st.lists(st.sampled_from(CHANGES), max_size=3))
def test_frames_and_steps_go_on_from_a_snapshot(
    frames: Stream, timings: Stream, seed: int, splits: list[int], changes: list[Record]
) -> None:
    stream = in_partitions(shuffled(frames + timings, seed, doubled=0.1))
    for number, record in enumerate(changes):
        stream.insert((seed + number * 17) % (len(stream) + 1), (record, position_of(record, number)))
    told = [(record, position_of(record, at)) for at, record in enumerate(registered(4, 2, "job-1", "job-2"))]
    assert_a_snapshot_changes_nothing(told + stream, splits)


@FEWER
@given(hangs(), st.integers(0, 2**32), SPLITS)
def test_a_standstill_and_its_digests_go_on_from_a_snapshot(stream: Stream, seed: int, splits: list[int]) -> None:
    told = [(record, position_of(record, at)) for at, record in enumerate(registered(2 * NODES, NODES, "job-1"))]
    assert_a_snapshot_changes_nothing(told + in_partitions(shuffled(stream, seed, doubled=0.1)), splits)

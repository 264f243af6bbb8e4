"""Recording without a broker: the line of a message, the order of many partitions, what belongs to a job, bounds in words."""

from __future__ import annotations

import base64
import io
import random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import BlockWriter, marks_of
from streams.recording.arrival_merge import ArrivalMerge
from streams.recording.bounds import Bound, BoundError, parse_bound, parse_span_s
from streams.recording.recorder import Recorder, positions_of, summed_up
from streams.recording.selection import Selection
from streams.recording.taken import Taken, archive_line, line_of

if TYPE_CHECKING:
    from pathlib import Path

FRAMES, STEPS, JOBS = "paceline.gpu-frames.v1", "paceline.step-timings.v1", "paceline.jobs.v1"
NOW_MS = 1_767_225_600_000


def taken(value: Any, topic: str = FRAMES, offset: int = 0, at_ms: int = NOW_MS, **fields: Any) -> Taken:
    raw = value if isinstance(value, bytes) or value is None else orjson.dumps(value)
    return Taken(
        topic, fields.get("partition", 0), offset, at_ms, fields.get("key", b"node-1"), raw, fields.get("headers", ())
    )


# --- Lines ------------------------------------------------------------------------------------------------------------


@given(
    st.one_of(st.none(), st.binary(max_size=40), st.just(b'{"a": 1.50}')), st.one_of(st.none(), st.binary(max_size=9))
)
def test_every_message_becomes_one_line_and_no_byte_is_lost(value: bytes | None, key: bytes | None) -> None:
    message = taken(value, key=key, headers=(("schema", b"x"), ("raw", b"\xff"), ("schema", b"y")))
    line = line_of(message)
    assert line.count(b"\n") == 1
    fields = orjson.loads(line)
    packed = fields.get("value_base64")
    assert (base64.b64decode(packed) if packed is not None else value) == value
    assert packed is not None or line.endswith(b',"value":' + (value or b"null") + b"}\n")
    found = fields["key"].encode() if fields["key"] is not None else fields.get("key_base64")
    assert (base64.b64decode(found) if isinstance(found, str) else found) == key
    assert [(name, base64.b64decode(raw)) for name, raw in fields["headers_base64"]] == list(message.headers)


def test_a_line_reads_as_the_message_did(tmp_path: Path) -> None:
    message = taken({"n": 1}, offset=7, headers=(("schema", b"paceline.gpu-frame.v1"),))
    (tmp_path / "one.jsonl").write_bytes(line_of(message))
    assert list(read_archive(tmp_path / "one.jsonl")) == [archive_line(message, 1)]


# --- Order ------------------------------------------------------------------------------------------------------------


def merged(
    order: list[Taken], places: list[tuple[str, int]], latest: dict[tuple[str, int], int] | None = None
) -> list[Taken]:
    merge, left = (
        ArrivalMerge(places, latest),
        {place: sum((m.topic, m.partition) == place for m in order) for place in places},
    )
    found: list[Taken] = []
    for place in places:
        if not left[place]:
            merge.waits(place)
    for message in order:
        place = (message.topic, message.partition)
        merge.add(message)
        left[place] -= 1
        if not left[place]:
            merge.waits(place)
        found += merge.ready()
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=30), st.randoms(use_true_random=False))
def test_of_fixed_ranges_the_order_does_not_depend_on_who_was_fetched_first(
    draws: list[tuple[int, int]], chance: random.Random
) -> None:
    places = [(topic, number) for topic in (FRAMES, STEPS) for number in (0, 1)]
    queues: dict[tuple[str, int], list[Taken]] = {place: [] for place in places}
    for which, at_ms in draws:
        place = places[which]
        queues[place].append(taken({}, place[0], len(queues[place]), at_ms, partition=place[1]))
    arrivals = []
    for _ in range(2):
        rest = {place: list(queue) for place, queue in queues.items() if queue}
        order = []
        while rest:
            place = chance.choice(sorted(rest))
            order.append(rest[place].pop(0))
            if not rest[place]:
                del rest[place]
        arrivals.append(merged(order, places))
    assert arrivals[0] == arrivals[1]
    assert len(arrivals[0]) == len(draws)
    for place, queue in queues.items():
        assert [m for m in arrivals[0] if (m.topic, m.partition) == place] == queue


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=30), st.integers(0, 30))
def test_an_order_goes_on_where_it_was_left(draws: list[tuple[int, int]], left_at: int) -> None:
    places = [(topic, number) for topic in (FRAMES, STEPS) for number in (0, 1)]
    arrived = [
        taken({}, places[which][0], offset, at_ms, partition=places[which][1])
        for offset, (which, at_ms) in enumerate(draws)
    ]
    whole = merged(arrived, places)
    before = whole[:left_at]
    latest = {
        place: max([m.timestamp_ms for m in before if (m.topic, m.partition) == place], default=0) for place in places
    }
    assert merged([m for m in arrived if m not in before], places, latest) == whole[left_at:]


def test_nothing_is_given_out_while_a_partition_has_more_to_come() -> None:
    merge = ArrivalMerge([(FRAMES, 0), (STEPS, 0)])
    merge.add(taken({}, at_ms=5))
    assert list(merge.ready()) == []
    merge.waits((STEPS, 0))
    assert [m.timestamp_ms for m in merge.ready()] == [5]


def test_of_one_millisecond_reference_records_come_first() -> None:
    merge = ArrivalMerge([(FRAMES, 0), (JOBS, 0)])
    merge.add(taken({}, FRAMES))
    merge.add(taken({}, JOBS))
    merge.waits((FRAMES, 0))
    merge.waits((JOBS, 0))
    assert [m.topic for m in merge.ready()] == [JOBS, FRAMES]


# --- Choice -----------------------------------------------------------------------------------------------------------


def placement(job_id: str, node_id: str) -> Taken:
    return taken({"record": "rank_placement", "job_id": job_id, "node_id": node_id}, JOBS)


def test_of_a_job_its_nodes_and_all_switches_are_recorded() -> None:
    selection = Selection(job_ids=("a",))
    assert selection.unseen() == ["a"]
    assert selection.wants(placement("a", "node-1"))
    assert selection.unseen() == []
    assert selection.wants(placement("b", "node-2"))
    assert [selection.wants(taken({"node_id": node})) for node in ("node-1", "node-2")] == [True, False]
    assert selection.wants(taken({"switch_id": "leaf"}, "paceline.fabric-frames.v1"))
    assert [selection.wants(taken({"job_id": job}, STEPS)) for job in "ab"] == [True, False]


def test_of_a_node_the_whole_of_its_jobs_is_recorded() -> None:
    selection = Selection(node_ids=("node-1",))
    for message in (placement("a", "node-1"), placement("a", "node-2"), placement("b", "node-2")):
        selection.wants(message)
    assert [selection.wants(taken({"job_id": job, "node_id": "node-2"}, STEPS)) for job in "ab"] == [True, False]
    assert [selection.wants(taken({"node_id": node})) for node in ("node-1", "node-2")] == [True, False]


@pytest.mark.parametrize(
    ("family", "value", "wanted"),
    [
        ("findings", {"record": "finding", "subject": {"node_id": "node-1"}}, True),
        ("findings", {"record": "finding", "subject": {"node_id": "node-2"}}, False),
        ("findings", {"record": "finding", "subject": {"zone": "z"}}, True),
        ("findings", {"record": "progress_mark"}, False),
        ("incidents", {"job_id": "a", "culprit": None}, True),
        ("incidents", {"job_id": "b", "culprit": {"node_id": "node-2"}}, False),
        ("decisions", {"record": "decision"}, False),
        ("dead-letter", b"no JSON", True),
    ],
)
def test_statements_are_recorded_by_what_they_are_about(family: str, value: Any, wanted: bool) -> None:
    selection = Selection(job_ids=("a",))
    selection.wants(placement("a", "node-1"))
    assert selection.wants(taken(value, f"paceline.{family}.v1")) is wanted


def test_what_came_of_a_command_goes_with_it() -> None:
    selection = Selection(node_ids=("node-1",))
    for node, command in (("node-1", "c1"), ("node-2", "c2")):
        selection.wants(taken({"target": {"node_id": node}, "command_id": command}, "paceline.actions.v1"))
    results = [taken({"command_id": command}, "paceline.action-results.v1") for command in ("c1", "c2")]
    assert [selection.wants(result) for result in results] == [True, False]


# --- Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (None, Bound()),
        ("earliest", Bound()),
        ("-15m", Bound(NOW_MS - 900_000)),
        ("2026-01-01T00:00:00Z", Bound(NOW_MS)),
        ("2026-01-01T01:00:00+01:00", Bound(NOW_MS)),
        ("2026-01-01", Bound(NOW_MS)),
        ("1767225600.5", Bound(NOW_MS + 500)),
        ("gpu-frames/0:12, step-timings/3:4", Bound(offsets={(FRAMES, 0): 12, (STEPS, 3): 4})),
    ],
)
def test_a_bound_is_read(text: str | None, bound: Bound) -> None:
    assert parse_bound(text, NOW_MS) == bound


@pytest.mark.parametrize("text", ["yesterday", "-5y", "gpu/0:1", "gpu-frames/0:1,x"])
def test_a_bound_that_is_none_says_what_is_understood(text: str) -> None:
    with pytest.raises(BoundError, match=r"write|no topic"):
        parse_bound(text, NOW_MS)


def test_spans_are_in_words_or_seconds() -> None:
    assert [parse_span_s(text) for text in ("90s", "1.5m", "2h", "7")] == [90.0, 90.0, 7200.0, 7.0]
    with pytest.raises(BoundError):
        parse_span_s("soon")


# --- The recorder -----------------------------------------------------------------------------------------------------


def test_notes_add_up_to_a_manifest(tmp_path: Path) -> None:
    stream = io.BytesIO()
    writer = BlockWriter(stream, {})
    recorder = Recorder(writer, Selection(node_ids=("node-1",)))
    policy = taken({"policy_version": "one"}, "paceline.policy.v1")
    for message in (policy, taken({"node_id": "node-1"}, offset=3), taken({"node_id": "node-2"}, offset=4)):
        recorder.take(message)
    recorder.gap((FRAMES, 0), 0, 2)
    recorder.tick(0.0)
    assert writer.blocks == []
    recorder.tick(10.0)
    recorder.take(taken({"node_id": "node-1"}, offset=5, at_ms=NOW_MS + 9, headers=(("schema", b"s"),)))
    recorder.take(policy)
    writer.end(summed_up([*writer.blocks]))
    (tmp_path / "a.zst").write_bytes(stream.getvalue())
    marks = marks_of(tmp_path / "a.zst")
    found = summed_up(marks.blocks)
    assert found["places"] == {f"{FRAMES}/0": [3, 5, 2], "paceline.policy.v1/0": [0, 0, 2]}
    assert found["gaps"] == [[f"{FRAMES}/0", 0, 2]]
    assert found["schemas"] == {"s": 1, "without schema header": 3}
    assert [policy["value"] for policy in found["policies"]] == [{"policy_version": "one"}]
    assert (found["first_ms"], found["last_ms"]) == (NOW_MS, NOW_MS + 9)
    assert positions_of(marks.blocks)[FRAMES, 0] == 6
    assert [line.offset for line in read_archive(tmp_path / "a.zst") if isinstance(line, ArchiveLine)] == [0, 3, 5, 0]

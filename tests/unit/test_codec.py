"""The codec: records to bytes and back, one line of text for what is no record, headers of CloudEvents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from factories import (
    START_NS,
    at,
    finding,
    gpu_frame,
    job,
    nic_frame,
    placement,
    policy,
    progress,
    step_timing,
    xid_event,
)
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import deterministic_id, round_significant
from schemas.codec import MAX_RECORD_BYTES, decode, decode_value, encode, message, schema_name
from schemas.errors import InvalidRecordError, UnknownTopicError
from schemas.findings import ProgressMark, Subject
from schemas.fleet import Layout
from schemas.remediation import Cause, Command, Incident, Target
from schemas.steps import StepTiming
from schemas.topics import topic_of

if TYPE_CHECKING:
    from schemas.base import Record

COMMAND = Command(
    command_id="cmd-1",
    site_id="site-1",
    kind="drain_node",
    target=Target(level="node", node_id="node-1"),
    audience="actuators/site-1",
    cause=Cause(incident_id="inc-1"),
    decided_at_ns=at(1),
    expires_at_ns=at(2),
    sequence=0,
    mode="observe",
)
RECORDS: list[Record] = [
    gpu_frame(1, sm_clock_mhz=1755, power_w=651.5),
    nic_frame(1, 5, None),
    xid_event(1, 79, raw="NVRM: Xid (PCI:0000:10:00): 79, é"),
    step_timing(7, 1, [100, None], wait_us=(1, 2), dp_us=[5, 6]),
    progress(1),
    job(8, model={"parameters": 7e9}),
    placement([0, 1]),
    policy(mode="auto"),
    finding("xid", 1, Subject(level="gpu", node_id="node-1"), values={"code": 79, "list": [1, 2]}),
    ProgressMark(site_id="site-1", role="jobs", partition=3, mark_ns=at(1)),
    COMMAND,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    topic = topic_of(record)
    assert decode(topic.name, encode(record)) == record
    assert decode(topic.family, encode(record)) == record
    assert decode_value(topic.name, json.loads(encode(record))) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_bytes_are_compact_and_leave_out_what_is_null(record: Record) -> None:
    payload = encode(record)
    assert b": " not in payload.replace(b"NVRM: Xid", b"").replace(b"): 79", b"")
    assert None not in json.loads(payload).values()
    assert encode(decode(topic_of(record).name, payload)) == payload


@given(
    st.lists(st.integers(0, 2**40) | st.none(), min_size=1, max_size=9),
    st.integers(0, 2**40),
    st.sampled_from(["train", "warmup", "checkpoint", "evaluation", "compile"]),
)
def test_any_timing_comes_back_as_it_was(own: list[int | None], step: int, phase: str) -> None:
    timing = step_timing(step, 1, own, phase=phase, step_us=5)
    assert decode("step-timings", encode(timing)) == timing


def test_a_field_that_a_newer_writer_added_is_ignored() -> None:
    fields = json.loads(encode(RECORDS[0]))
    assert decode("gpu-frames", json.dumps({**fields, "moon_phase": 3}).encode()) == RECORDS[0]


def test_a_field_that_an_older_writer_did_not_know_has_its_default() -> None:
    fields = json.loads(encode(step_timing(1, 1, [5])))
    del fields["phase"]
    assert decode("step-timings", json.dumps(fields).encode()).phase == "train"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "record:"),
        (b"not json", "record:"),
        (b"[]", "record"),
        (b'{"record":"gpu_frame"}', "and"),
        (b"\xff\xfe", "record:"),
    ],
)
def test_what_is_no_record_is_told_in_one_line(payload: bytes, told: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        decode("gpu-frames", payload)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"event_time_ns": -1}, "event_time_ns"),
        ({"event_time_ns": 2**63}, "event_time_ns"),
        ({"node_id": ""}, "node_id"),
        ({"seq": "x"}, "seq"),
        ({"sm_clock_mhz": [1, 2]}, "column sm_clock_mhz has 2 entries for 8 GPUs"),
        ({"power_w": [float("nan")] * 8}, "power_w"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], place: str) -> None:
    fields = {**json.loads(encode(RECORDS[0])), **change}
    with pytest.raises(InvalidRecordError, match=place):
        decode("gpu-frames", json.dumps(fields).encode())


def test_a_topic_takes_its_own_families_alone() -> None:
    with pytest.raises(InvalidRecordError):
        decode("step-timings", encode(RECORDS[0]))
    with pytest.raises(InvalidRecordError):
        decode("gpu-frames", encode(xid_event(1, 79)))
    with pytest.raises(UnknownTopicError, match="no topic 'frames'"):
        decode("frames", b"{}")
    with pytest.raises(InvalidRecordError, match="original bytes"):
        decode("dead-letter", b"{}")


def test_a_record_that_is_too_large_is_refused_on_both_ways() -> None:
    with pytest.raises(InvalidRecordError, match="above the limit"):
        decode("gpu-frames", b" " * (MAX_RECORD_BYTES + 1))
    huge = step_timing(1, 1, list(range(200_000)))
    with pytest.raises(InvalidRecordError, match="above the limit"):
        encode(huge)


def test_frames_carry_the_name_of_their_schema_alone() -> None:
    wire = message(RECORDS[0])
    assert (wire.topic, wire.key) == ("paceline.gpu-frames.v1", b"node-1")
    assert wire.headers == (("schema", b"paceline.gpu-frame.v1"),)
    assert schema_name(StepTiming) == "paceline.step-timing.v1"


def test_findings_and_commands_carry_cloud_event_headers() -> None:
    statement = finding(
        "xid", 1.000000001, Subject(level="gpu", node_id="node-1"), finding_id="find-1", state="cleared"
    )
    headers = dict(message(statement).headers)
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"] == b"find-1:cleared"
    assert headers["ce_source"] == b"/paceline/site-1"
    assert headers["ce_type"] == headers["schema"] == b"paceline.finding.v1"
    moment = datetime.fromtimestamp(START_NS // 10**9 + 1, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    assert headers["ce_time"] == f"{moment}.000000001Z".encode()
    command = dict(message(COMMAND).headers)
    assert command["ce_id"] == b"cmd-1"
    assert message(COMMAND).key == b"node-1"


def test_each_transition_of_an_incident_is_an_event_of_its_own() -> None:
    incident = Incident(
        incident_id="inc-1",
        site_id="site-1",
        state="open",
        cause_class="thermal",
        culprit=None,
        event_time_ns=1,
        onset_ns=1,
    )
    resolved = incident.model_copy(update={"state": "resolved"})
    assert dict(message(incident).headers)["ce_id"] != dict(message(resolved).headers)["ce_id"]


def test_marks_are_told_apart_by_partition_and_time() -> None:
    mark = ProgressMark(site_id="site-1", role="jobs", partition=3, mark_ns=at(1))
    assert dict(message(mark).headers)["ce_id"] == f"jobs-3-{at(1)}".encode()


def test_what_travels_inside_others_has_no_message() -> None:
    with pytest.raises(UnknownTopicError, match="Layout"):
        message(Layout())


def test_ids_depend_on_their_parts_and_on_where_those_end() -> None:
    assert deterministic_id("find", "a", 1) == deterministic_id("find", "a", 1)
    assert deterministic_id("find", "ab", "c") != deterministic_id("find", "a", "bc")
    assert deterministic_id("find", "a", None) != deterministic_id("find", "a")
    assert deterministic_id("inc", "x").startswith("inc-")
    assert len(deterministic_id("inc", "x")) == len("inc-") + 20


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_six_digits_and_is_done_once(value: float) -> None:
    rounded = round_significant(value)
    assert round_significant(rounded) == rounded
    assert rounded == pytest.approx(value, rel=5e-6)


@pytest.mark.parametrize("name", ["length", "port", "names", "columns", "np_cnp_sent"])
def test_a_counter_may_have_any_name(name: str) -> None:
    fields = json.loads(encode(nic_frame(1, 5, None)))
    frame = decode("fabric-frames", json.dumps({**fields, "counters": {name: [3]}}).encode())
    assert frame.counters == {name: (3,)}  # type: ignore[attr-defined]
    with pytest.raises(InvalidRecordError, match=f"column {name} has 2 entries for 1 subjects"):
        decode("fabric-frames", json.dumps({**fields, "counters": {name: [3, 4]}}).encode())


@pytest.mark.parametrize("name", ["length", "last_step", "connected"])
def test_a_group_may_have_any_name(name: str) -> None:
    fields = json.loads(encode(progress(1)))
    groups = {name: [[1, 1, 1]] * len(fields["rank"])}
    told = decode("step-timings", json.dumps({**fields, "groups": groups}).encode())
    assert list(told.groups) == [name]  # type: ignore[attr-defined]

"""What the edge takes: no record that passes it may break the judging of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factories import JOB, SITE, at, finding, gpu_frame, job, pci_of, placement, position_of, step_timing

from schemas.codec import decode, message
from schemas.errors import InvalidRecordError, SchemaError
from schemas.findings import Evidence, ProgressMark, Subject
from streams.core.admission import refusal
from streams.core.position import Position
from streams.core.reference import take_reference
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack
from streams.engines.decisions import DecisionsEngine
from streams.engines.jobs import JobsEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.base import Record

# --- Whole numbers ----------------------------------------------------------------------------------------------------


def frame_with(text: str) -> bytes:
    return message(gpu_frame(1, gpus=1)).value[:-1] + text.encode() + b"}"


@pytest.mark.parametrize("digits", ["9" * 20, "-" + "9" * 20, "9" * 400, "9" * 5000, "18446744073709551616"])
def test_a_whole_number_of_more_than_64_bits_is_refused_wherever_it_stands(digits: str) -> None:
    with pytest.raises(InvalidRecordError, match="64 bits"):
        decode("gpu-frames", frame_with(f',"energy_millijoules":[{digits}]'))
    with pytest.raises(InvalidRecordError, match="64 bits"):
        decode("gpu-frames", frame_with(f',"somebody_elses":[[{digits}]]'))


@pytest.mark.parametrize(
    "text",
    [
        ',"energy_millijoules":[18446744073709551615]',
        ',"energy_millijoules":[-9223372036854775808]',
        ',"power_w":[0.' + "3" * 40 + "]",
        ',"driver_version":"' + "7" * 40 + '"',
        ',"' + "8" * 40 + '":1',
    ],
)
def test_many_digits_in_a_fraction_a_text_or_a_name_are_no_such_number(text: str) -> None:
    assert decode("gpu-frames", frame_with(text)).record == "gpu_frame"  # type: ignore[attr-defined]


# --- Key, header, time ------------------------------------------------------------------------------------------------


def test_a_record_under_its_own_key_in_its_time_is_taken() -> None:
    frame = gpu_frame(1)
    for schema in (None, "paceline.gpu-frame.v1"):
        assert refusal(frame, b"node-1", schema, position_of(frame)) is None


@pytest.mark.parametrize(
    ("key", "schema", "arrival_s", "told"),
    [
        (None, None, 1, "without a key"),
        (b"", None, 1, "under the key"),
        (b"node-2", None, 1, "under the key b'node-2'"),
        (b"node-1", "paceline.gpu-frame.v2", 1, "its schema header is 'paceline.gpu-frame.v2'"),
        (b"node-1", "", 1, "schema header"),
        (b"node-1", None, -60, "61 s ahead"),
    ],
)
def test_what_is_not_its_own_is_refused_in_one_short_line(
    key: bytes | None, schema: str | None, arrival_s: int, told: str
) -> None:
    frame = gpu_frame(1)
    text = refusal(frame, key, schema, position_of(frame, arrival_s=arrival_s)) or ""
    assert told in text
    assert len(refusal(frame, b"k" * 9999, "s" * 9999, position_of(frame)) or "") < 300


def test_a_mark_that_promises_the_future_is_refused() -> None:
    mark = ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(100))
    place = Position("paceline.findings.v1", 0, 0, at(39) // 1_000_000)
    assert "61 s ahead" in (refusal(mark, SITE.encode(), None, place) or "")


def test_a_reference_record_under_another_key_changes_nothing() -> None:
    roster, place = Roster(), Evidence(topic="paceline.jobs.v1", partition=0, offset=4)
    with pytest.raises(InvalidRecordError, match="under the key"):
        take_reference(roster, job(4), b"job-2", None, place)
    assert roster.jobs == {}
    assert take_reference(roster, job(4), JOB.encode(), None, place)
    assert roster.taken_up_to == {"paceline.jobs.v1/0": 5}


def test_a_world_beyond_any_fleet_is_not_counted_out() -> None:
    roster = Roster()
    roster.take(job(10**15))
    roster.take(placement([0, 1]))
    assert roster.job(JOB, 0).members == {0, 1}


# --- What passes breaks nothing ---------------------------------------------------------------------------------------

_OTHERS = [None, "x", "", [], {}, True, -1, 0, 1.5, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1e308]
_NAMES = {"record", "job_id", "node_id", "site_id", "event_time_ns"}


def damaged(record: Record) -> Iterator[Record]:
    """The record with one value replaced, as often as the edge takes it."""
    wire = message(record)

    def walk(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for step, entry in entries:
            yield (*path, step)
            yield from walk(entry, (*path, step))

    for path in list(walk(json.loads(wire.value), ())):
        if path[0] in _NAMES:
            continue
        for other in _OTHERS:
            fields = json.loads(wire.value)
            node = fields
            for step in path[:-1]:
                node = node[step]
            node[path[-1]] = other
            try:
                yield decode(wire.topic, json.dumps(fields).encode())
            except SchemaError:
                continue


def timing(step: int, node: int, job_id: str = JOB) -> Record:
    columns = dict.fromkeys(("own_us", "forward_us", "host_us", "data_us", "wait_us", "tokens"), (1000, 1000))
    compute, dp = [200_000, 200_100], [3000, 2500]
    at_s = step / 2
    return step_timing(
        step, at_s, compute, node_id=f"node-{node}", first_rank=2 * node, job_id=job_id, dp_us=dp, **columns
    )


def test_no_step_report_that_is_taken_breaks_the_steps_after_it() -> None:
    before = [timing(step, node) for step in range(4) for node in (0, 1)]
    after = [timing(4, 1)] + [timing(step, node, name) for step in range(5, 45) for name, node in ((JOB, 0), ("j", 1))]
    taken = 0
    for record in damaged(timing(4, 0)):
        roster = Roster()
        roster.take(job(4, model={"parameters": 7e9}, tokens_per_step=45_000, peak_tflops=1000))
        engine = JobsEngine(SITE, 0, roster)
        for offset, item in enumerate([*before, record, *after]):
            for output in engine.on_record(item, position_of(item, offset)):
                message(output)
        pack(engine.snapshot())
        taken += 1
    assert taken > 200


@pytest.mark.parametrize("kind", ["straggler", "xid", "thermal_violation", "pfc_pause", "pfc_pause_transmit"])
def test_a_finding_that_breaks_something_is_refused_itself_and_breaks_nothing_for_others(kind: str) -> None:
    figures = {"excess_us": 90_000, "step_time_us": 300_000, "host_excess_us": 1, "code": 63, "trusted": True}
    figures |= {"rx_pause_frames_per_s": 5.0, "tx_pause_frames_per_s": 5.0, "limit_frames_per_s": 1.0}
    subject = Subject(level="gpu", node_id="node-0", pci_bus_id=pci_of(0), rank=1, job_id=JOB)
    evidence = (Evidence(topic="t", partition=0, offset=1),)
    good = finding(kind, 5, subject, values=figures, slowdown=1.5, job_id=JOB, evidence=evidence)
    lost = finding(
        "xid", 62, Subject(level="gpu", node_id="n", pci_bus_id=pci_of(1)), urgent=True, values=figures | {"code": 79}
    )
    marks = [
        ProgressMark(site_id=SITE, role=role, partition=0, mark_ns=at(second))
        for second in range(6, 60, 3)
        for role in ("telemetry", "jobs")
    ]
    refused = 0
    for record in damaged(good):
        roster = Roster()
        roster.take(job(4))
        engine = DecisionsEngine(SITE, roster)
        try:
            engine.on_record(record, Position("paceline.findings.v1", 0, 0, 0))
        except InvalidRecordError:
            refused += 1
        outputs = []
        for offset, item in enumerate([*marks, lost], 1):
            outputs += engine.on_record(item, Position("paceline.findings.v1", 0, offset, 0))
        assert [message(output).topic for output in outputs].count("paceline.actions.v1") >= 1
        pack(engine.snapshot())
    assert refused > 10

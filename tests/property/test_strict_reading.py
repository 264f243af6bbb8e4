"""Laws of strict reading: with it and without it, the same records come of the same bytes, and the same words of others."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import orjson
import pytest
from factories import at, gpu_frame, job, nic_frame, placement, progress, step_timing, xid_event
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from schemas import archive, codec
from schemas.archive import BadLine
from schemas.base import Record
from schemas.errors import InvalidRecordError, SchemaError
from schemas.events import HostLoad, NodeStatus
from schemas.findings import ProgressMark
from schemas.fleet import Node, RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.payload_forms import Forms
from schemas.steps import RankProgress, StepTiming
from schemas.strict_reading import ReadingByName, StrictReading, strict_reading
from schemas.strict_types import family_types
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STATUS = {"node_id": "node-1", "agent_session": "s", "seq": 0, "event_time_ns": at(1)}
LOAD = HostLoad(observed_ns=at(1), cpu_busy_ratio=0.5, disk_free_ratio={"/": 0.25, "/scratch": 1.0})
RECORDS: list[Record] = [
    gpu_frame(1, gpus=2, sm_clock_mhz=1755, power_w=651.5),
    gpu_frame(1, gpus=2, mig_uuids=(("MIG-1",), None)),
    nic_frame(1, 5, None),
    nic_frame(2, 5, None).model_copy(update={"counters": {"port": (3,), "length": (None,)}}),
    xid_event(1, 79, raw='NVRM: Xid (PCI:0000:10:00): 79, "e"'),
    NodeStatus(state="heartbeat", host=LOAD, sources=("nvml",), **STATUS),
    NodeStatus(state="start", **STATUS),
    step_timing(7, 1, [100, None], wait_us=(1, 2), dp_us=[5, 6]),
    progress(1),
    job(8, model={"parameters": 7e9}),
    placement([0, 1]),
    Node(node_id="node-1", effective_from_ns=at(0), labels={"a": "b"}),
    ProgressMark(site_id="site-1", role="jobs", partition=3, mark_ns=at(1)),
]
HOT = (GpuFrame, FabricFrame, NodeStatus, StepTiming, RankProgress, RankPlacement)


class Token(bytes):
    """A piece of JSON text that no Python value would be written as."""


class Pairs(list[Any]):
    """A JSON object as its pairs, in order, so that a key may come twice."""


ODD: list[Any] = [
    *(True, False, None, 0, -1, 3, 255, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1),
    *(0.0, -0.5, 1.0, 2.5, 1e19, 1.8e19, -1e19, 1e300, 5e-324, 0.1 + 0.2),
    *(
        "",
        "5",
        "1.5",
        "true",
        "é",
        "\ud83d\ude00",
        "\x7f",
        "x" * 64,
        "x" * 96,
        "x" * 97,
        "é" * 254,
        "x" * 2001,
        "gpu_frame",
    ),
    *(
        [],
        [1],
        [None],
        ["a"],
        [1.5],
        [True],
        [[1, 1, 1]],
        Pairs(),
        Pairs([("a", 1)]),
        Pairs([("a", [1]), ("a", ["x"])]),
    ),
    *map(
        Token,
        [
            *(
                b"-0",
                b"-0.0",
                b"1E2",
                b"0.1e1",
                b"1e400",
                b"1e-400",
                b"NaN",
                b"Infinity",
                b"-Infinity",
                b"01",
                b"1.",
                b"tru",
            ),
            *(
                b"1" * 20,
                b"1" * 21,
                b"-" + b"9" * 19,
                b"0." + b"1" * 30,
                b"1" * 400,
                b"123456789012345678.5",
                b"'a'",
                b"\x00",
            ),
            *(
                rb'"\ud800"',
                rb'"\u0041"',
                rb'"\x"',
                b'"\xff"',
                b'"\xed\xa0\x80"',
                b'"\xc0\x80"',
                b'"\x01"',
                b'"\n"',
                b"",
            ),
            *(
                b"[" * 150 + b"]" * 150,
                b"[" * 250 + b"]" * 250,
                b'{"a":' * 190 + b"1" + b"}" * 190,
                b"[1,]",
                b" 1 ",
                b"[\t1\n]",
            ),
        ],
    ),
]
odd = st.sampled_from(ODD) | st.floats() | st.integers(-(2**70), 2**70) | st.text(max_size=3)


def tree(value: object) -> Any:
    """A value with objects as pairs."""
    if isinstance(value, dict):
        return Pairs((key, tree(entry)) for key, entry in value.items())
    return [tree(entry) for entry in value] if isinstance(value, list) else value


def written(value: Any) -> bytes:
    if isinstance(value, Token):
        return bytes(value)
    if isinstance(value, Pairs):
        return b"{" + b",".join(written(key) + b":" + written(entry) for key, entry in value) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def places(value: Any) -> Iterator[tuple[Any, int]]:
    """Every place in a tree where a value stands."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield value, index
            yield from places(entry[1] if isinstance(value, Pairs) else entry)


def changed(data: st.DataObject, told: Any) -> None:
    """Change one thing in a tree."""
    container, index = data.draw(st.sampled_from(list(places(told))))
    value = deepcopy(data.draw(odd))
    entry = container[index]
    if not isinstance(container, Pairs):
        action = data.draw(st.sampled_from(["value", "drop", "twice"]))
        container[index : index + 1] = {"value": [value], "drop": [], "twice": [entry, entry]}[action]
        return
    key = entry[0]
    container[index : index + 1] = {
        "value": [(key, value)],
        "drop": [],
        "null": [(key, None)],
        "twice": [entry, (key, value)],
        "twice before": [(key, value), entry],
        "unknown": [entry, ("moon_phase", value)],
        "odd key": [entry, (data.draw(st.sampled_from([Token(rb'"\ud800"'), Token(b'"\xff"'), "é", ""])), value)],
    }[data.draw(st.sampled_from(["value", "value", "drop", "null", "twice", "twice before", "unknown", "odd key"]))]


@st.composite
def payloads(draw: st.DrawFn) -> tuple[str, bytes]:
    """A topic, and what may be a record of it."""
    record = draw(st.sampled_from(RECORDS))
    told = tree(json.loads(codec.encode(record)))
    data = draw(st.data())
    for _ in range(draw(st.integers(0, 2))):
        changed(data, told)
    if draw(st.integers(0, 5)) == 0:
        told[:] = draw(st.permutations(told))
    payload = written(told)
    if draw(st.integers(0, 7)) == 0:
        cut = draw(st.integers(0, len(payload)))
        payload = (
            payload[:cut] + draw(st.sampled_from([b"", b" ", b"\n", b",", b'"', b"\xff", b"]", b"0"])) + payload[cut:]
        )
    topic = topic_of(record)
    return draw(st.sampled_from([topic.name, topic.family])), payload


def told_of(value: Any) -> Any:
    """A value with the types of all that it holds: 1, 1.0 and true are equal in Python."""
    if isinstance(value, Record):
        fields = [(name, told_of(entry)) for name, entry in value.__dict__.items()]
        return type(value), fields, value.model_fields_set, value.__pydantic_extra__, value.__pydantic_private__
    if isinstance(value, dict):
        return dict, [(told_of(key), told_of(entry)) for key, entry in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [told_of(entry) for entry in value]
    return type(value), repr(value)


def outcome(read: Callable[[], Any]) -> Any:
    try:
        found = read()
    except SchemaError as error:
        return type(error), str(error)
    try:
        return told_of(found), codec.encode(found)
    except PydanticSerializationError as error:
        # Python's own reader takes half a surrogate pair, of which no bytes can be made.
        return told_of(found), str(error)


class Without:
    """The forms of a family that never learns one."""

    known = ()

    def learn(self, *_: Any) -> None:
        pass


def formless(reading: Any) -> Any:
    """A reading that goes by the family's types alone."""
    if isinstance(reading, ReadingByName):
        return ReadingByName({name: formless(one) for name, one in reading._by_name.items()})
    alone = object.__new__(StrictReading)
    for name in StrictReading.__slots__:
        setattr(alone, name, getattr(reading, name))
    alone._forms = Without()  # type: ignore[assignment]
    return alone


TOPIC_NAMES = sorted({topic_of(record).name for record in RECORDS} | {topic_of(record).family for record in RECORDS})
LEARNED = {name: codec._reader(name) for name in TOPIC_NAMES}
FORMLESS = {name: replace(reader, strict=formless(reader.strict)) for name, reader in LEARNED.items()}
PYDANTIC = {name: replace(reader, strict=ReadingByName({})) for name, reader in LEARNED.items()}


def in_all_ways(read: Callable[[], Any]) -> list[Any]:
    """What comes of a reading by pydantic alone, by the types, and by learned forms."""
    found = []
    for readers in (PYDANTIC, FORMLESS, LEARNED):
        with patch.object(codec, "_reader", readers.__getitem__):
            found.append(outcome(read))
    return found


@pytest.fixture(scope="module", autouse=True)
def _every_form_is_learned() -> None:
    for record in RECORDS:
        for _ in range(70):
            codec.decode(topic_of(record).name, codec.encode(record))


@pytest.mark.parametrize("family", HOT)
def test_the_families_that_come_often_are_read_strictly(family: type[Record]) -> None:
    assert strict_reading(family) is not None


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_form_that_comes_often_is_read_by_itself(record: Record) -> None:
    reading = strict_reading(type(record))
    assert reading is not None
    read = reading.of_json(codec.encode(record))
    assert told_of(read) == told_of(codec.decode(topic_of(record).name, codec.encode(record)))


def test_what_is_not_given_and_can_be_changed_is_each_records_own() -> None:
    first, second = (codec.decode("fabric-frames", codec.encode(RECORDS[2])) for _ in range(2))
    assert isinstance(first, FabricFrame)
    assert isinstance(second, FabricFrame)
    assert first.counters == {}
    assert first.counters is not second.counters


@given(payloads())
def test_a_payload_is_read_as_pydantic_alone_reads_it(told: tuple[str, bytes]) -> None:
    topic, payload = told
    alone, formless, learned = in_all_ways(lambda: codec.decode(topic, payload))
    assert formless == alone
    assert learned == alone


@pytest.mark.parametrize(
    "name", ["moon_phase", "seq", "node_id", "boot_id", "power_w", "sm_clock_mhz", "sku", "mig_uuids"]
)
@pytest.mark.parametrize("is_column", [False, True])
def test_an_odd_value_is_read_as_pydantic_alone_reads_it(name: str, is_column: bool) -> None:
    fields = json.loads(codec.encode(RECORDS[0]))
    for value in ODD:
        told = tree({**fields, name: None})
        told[[key for key, _ in told].index(name)] = (name, [value, value] if is_column else value)
        payload = written(told)
        alone, formless, learned = in_all_ways(lambda payload=payload: codec.decode("gpu-frames", payload))
        assert formless == alone
        assert learned == alone


@given(payloads())
def test_a_parsed_value_is_read_as_pydantic_alone_reads_it(told: tuple[str, bytes]) -> None:
    topic, payload = told
    for parse in (orjson.loads, json.loads):
        try:
            value = parse(payload)
        except (ValueError, RecursionError):
            continue
        alone, formless, learned = in_all_ways(lambda value=value: codec.decode_value(topic, value))
        assert formless == alone
        assert learned == alone


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_half_a_surrogate_pair_in_a_parsed_value_is_left_to_pydantic(record: Record) -> None:
    fields = json.loads(codec.encode(record))
    for name in (name for name, entry in fields.items() if isinstance(entry, str)):
        value = {**fields, name: "\ud800"}
        alone, formless, learned = in_all_ways(lambda value=value: codec.decode_value(topic_of(record).name, value))
        assert formless == alone
        assert learned == alone


@given(payloads(), st.data())
def test_an_archives_line_is_read_as_its_value_is(told: tuple[str, bytes], data: st.DataObject) -> None:
    topic, payload = told
    line = Pairs(
        [
            ("topic", topic),
            ("partition", 1),
            ("offset", 7),
            ("timestamp_ms", 1_767_225_600_000),
            ("key", "node-1"),
            ("headers", Pairs([("schema", "paceline.gpu-frame.v1")])),
            ("value", Token(payload)),
        ]
    )
    if data.draw(st.integers(0, 2)) == 0:
        changed(data, line)
    raw = written(line) + b"\n"
    parsed, read = archive._parsed(3, raw), archive._line(3, raw)
    assert read == parsed
    if isinstance(read, BadLine) or read.record is None:
        return
    assert told_of(read.headers) == told_of(parsed.headers)
    with patch.object(codec, "_reader", PYDANTIC.__getitem__):
        assert told_of(read.record) == told_of(codec.decode_value(parsed.topic, parsed.value))


def test_a_line_of_a_known_form_is_read_with_its_record() -> None:
    record = RECORDS[0]
    raw = b'{"topic":"%s","value":%s}' % (topic_of(record).name.encode(), codec.encode(record))
    read = archive._line(1, raw)
    assert not isinstance(read, BadLine)
    assert read.record == record
    assert read.value == json.loads(codec.encode(record))
    assert replace(read, offset=5).record is None
    with pytest.raises(AttributeError):
        _ = read.nothing  # type: ignore[attr-defined]


def test_a_mixed_crowd_of_forms_costs_a_bounded_number_of_types() -> None:
    reading = StrictReading(family_types(NodeStatus))
    optional = ["boot_id", "agent_version", "note", "dropped_records", "sources"]
    for number in range(2**5 * 70):
        given_fields = {name: "x" for bit, name in enumerate(optional) if (number % 32) >> bit & 1}
        fields = {**STATUS, "state": "start", **given_fields}
        if "dropped_records" in fields:
            fields["dropped_records"] = 1
        if "sources" in fields:
            fields["sources"] = ["x"]
        assert reading.of_value(fields) == NodeStatus.model_validate(fields)
    assert len(reading._forms._made) <= 16
    assert len(reading._forms.known) <= 3


def test_a_form_that_comes_once_among_hundreds_is_not_learned() -> None:
    forms = Forms(family_types(GpuFrame))
    columns = list(GpuFrame.model_fields)[-9:]
    for number in range(2**9):
        given_fields = {name: None for bit, name in enumerate(columns) if number >> bit & 1}
        for _ in range(16):
            forms.learn(given_fields, lambda _: True)
    assert not forms._made


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (RECORDS[2], {"pfc_port": [9]}),
        (RECORDS[3], {"counters": {"port": [3, 3]}}),
        (RECORDS[2], {"view": "switch"}),
        (step_timing(7, 1, [100, None]), {"rank": [4, 4]}),
        (placement([0, 1]), {"rank": [4, 4]}),
    ],
)
def test_what_a_form_does_not_settle_is_checked_of_each_record(record: Record, change: dict[str, Any]) -> None:
    payload = codec.encode(record)
    for _ in range(70):
        codec.decode(topic_of(record).name, payload)
    with pytest.raises(InvalidRecordError):
        codec.decode(topic_of(record).name, json.dumps({**json.loads(payload), **change}).encode())

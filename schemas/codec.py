"""The only place where bytes become records and records become bytes.

Payloads are JSON. A record is validated in full when it is decoded: read strictly first, and by pydantic where that does
not take it. What fails raises one error with one line of text, fit for a dead letter. Findings, incidents, commands and results carry CloudEvents headers (binary mode), all others the
`schema` header alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from schemas.base import Record
from schemas.errors import InvalidRecordError
from schemas.strict_reading import ReadingByName, StrictReading, reading_of
from schemas.topics import TOPICS, topic_named, topic_of

__all__ = ["MAX_RECORD_BYTES", "Message", "decode", "decode_value", "encode", "message", "read_line", "schema_name"]

_DIGITS_ALIKE = bytes(ord("0") if ord("0") <= code <= ord("9") else ord(" ") for code in range(256))
_TWENTY_DIGITS = b"0" * 20
"""The longest integer of 64 bits has 19 or 20 digits; times in nanoseconds have 19."""

_LINE_OF = b'{"topic":"'
_TOPIC_OF = {topic.name.encode(): topic.name for topic in TOPICS if topic.records}

MAX_RECORD_BYTES = 1_000_000
"""Largest payload that is read or written; below Kafka's default `max.message.bytes` of 1,048,588."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record as it goes on the wire."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the records of one topic are read."""

    strict: StrictReading | ReadingByName
    validator: Any
    """pydantic's, which says what is a record and what is wrong with one."""


@cache
def _reader(topic: str) -> _Reader:
    """The reader of a topic by its name: to find it otherwise costs a tenth of a record's validation."""
    carries = topic_named(topic)
    if not carries.records:
        raise InvalidRecordError(f"{carries.name} carries original bytes, not records")
    if len(carries.records) == 1:
        return _Reader(reading_of(carries.records), TypeAdapter(carries.records[0]).validator)
    union: Any = Union[carries.records]  # noqa: UP007
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[union, Field(discriminator="record")])
    return _Reader(reading_of(carries.records), adapter.validator)


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "record"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{place}: {first['msg']}{more}"


def decode(topic: str, payload: bytes) -> Record:
    """The record in a payload of a topic.

    Args:
        topic: full name or family.
        payload: JSON bytes.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRecordError: too large, no JSON, a whole number of more than 64 bits, or no record of the topic's families.
    """
    if len(payload) > MAX_RECORD_BYTES:
        raise InvalidRecordError(f"{len(payload)} bytes are above the limit of {MAX_RECORD_BYTES}")
    reader = _reader(topic)
    record = reader.strict.of_json(payload)
    if record is not None:
        return record
    if _TWENTY_DIGITS in payload.translate(_DIGITS_ALIKE):
        _check_whole_numbers(payload)
    record = reader.strict.of_any_json(payload)
    if record is not None:
        return record
    try:
        record = reader.validator.validate_json(payload)
    except ValidationError as error:
        raise InvalidRecordError(_first_error(error)) from None
    assert isinstance(record, Record)
    return record


def _check_whole_numbers(payload: bytes) -> None:
    """Refuse whole numbers that no array and no store holds: behind the edge they would break the sums and the state of others.

    Twenty digits in a row may as well be text or a fraction, so the payload is read for it.
    """

    def bounded(digits: str) -> int:
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
            raise InvalidRecordError(f"a whole number of {len(digits)} digits is above 64 bits")
        return int(digits)

    try:
        json.loads(payload, parse_int=bounded)
    except (ValueError, RecursionError):
        # No JSON, or none that is to be read: the validator says what is wrong with it.
        return


def decode_value(topic: str, value: object) -> Record:
    """The record in an already parsed JSON value, as archives hold it.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRecordError: no record of the topic's families.
    """
    reader = _reader(topic)
    record = reader.strict.of_value(value)
    if record is not None:
        return record
    try:
        record = reader.validator.validate_python(value)
    except ValidationError as error:
        raise InvalidRecordError(_first_error(error)) from None
    assert isinstance(record, Record)
    return record


def read_line(line: bytes) -> tuple[tuple[Any, ...], Record] | None:
    """What an archive's line says around its value (`Form.line`), and the record in it; None where it has to be parsed first."""
    begun = len(_LINE_OF)
    if not line.startswith(_LINE_OF):
        return None
    topic = _TOPIC_OF.get(line[begun : line.find(b'"', begun)])
    read = None if topic is None else _reader(topic).strict.of_line(line)
    # Should the topic come again and be another, the record is of that one.
    return read if read is not None and read[0][0] == topic else None


def encode(record: Record) -> bytes:
    """The payload of a record: compact JSON, fields in the order of the model, null fields left out.

    Raises:
        InvalidRecordError: the payload would be above `MAX_RECORD_BYTES`.
    """
    payload = record.model_dump_json(exclude_none=True).encode()
    if len(payload) > MAX_RECORD_BYTES:
        raise InvalidRecordError(
            f"{type(record).__name__}: {len(payload)} bytes are above the limit of {MAX_RECORD_BYTES}"
        )
    return payload


def schema_name(record: Record | type[Record]) -> str:
    """The name of a record family and its major version, as `paceline.gpu-frame.v1`."""
    return _name_of(record if isinstance(record, type) else type(record))


@cache
def _name_of(family: type[Record]) -> str:
    return f"paceline.{str(family.model_fields['record'].default).replace('_', '-')}.v{topic_of(family).version}"


def message(record: Record) -> Message:
    """A record with its topic, key, payload and headers.

    Raises:
        UnknownTopicError: the family travels inside others only.
        InvalidRecordError: the payload would be too large.
    """
    topic = topic_of(record)
    headers: list[tuple[str, bytes]] = [("schema", schema_name(record).encode())]
    if topic.cloud_event:
        headers += _cloud_event(record)
    return Message(topic.name, topic.key(record).encode(), encode(record), tuple(headers))


def _cloud_event(record: Record) -> list[tuple[str, bytes]]:
    fields = record.__dict__
    at_ns = fields.get("event_time_ns") or fields.get("decided_at_ns") or fields.get("mark_ns") or 0
    identity = (
        fields.get("finding_id")
        or fields.get("command_id")
        or fields.get("incident_id")
        or f"{fields.get('role')}-{fields.get('partition')}-{at_ns}"
    )
    suffix = fields.get("state") or fields.get("outcome") or ""
    moment = datetime.fromtimestamp(at_ns // 10**9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", f"{identity}{':' + suffix if suffix else ''}".encode()),
        ("ce_source", f"/paceline/{fields.get('site_id')}".encode()),
        ("ce_type", schema_name(record).encode()),
        ("ce_time", f"{moment}.{at_ns % 10**9:09d}Z".encode()),
        ("content-type", b"application/json"),
    ]

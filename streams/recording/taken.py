"""One message as it lies in its topic, and the line of an archive that it becomes. Bytes are kept as they are.

A payload that is JSON on one line stands in the line as it is, byte for byte. All else stands beside a null value in base64,
so that a dead letter or a damaged payload is in the archive as well.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import orjson

from schemas.archive import ArchiveLine

__all__ = ["Taken", "archive_line", "line_of"]


@dataclass(frozen=True, slots=True)
class Taken:
    """A message with its place.

    Attributes:
        topic: full name.
        partition: of the topic.
        offset: of the partition.
        timestamp_ms: append time, as the broker has it.
        key: its bytes.
        value: its bytes; null for a tombstone.
        headers: names and bytes, in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def line_of(taken: Taken) -> bytes:
    """The line of an archive, with its newline."""
    key, headers = _text(taken.key), {name: _text(value) for name, value in taken.headers}
    fields = {
        "topic": taken.topic,
        "partition": taken.partition,
        "offset": taken.offset,
        "timestamp_ms": max(0, taken.timestamp_ms),
        "key": key,
        "headers": {name: text for name, text in headers.items() if text is not None},
    }
    if taken.key is not None and key is None:
        fields["key_base64"] = _base64(taken.key)
    if len(headers) != len(taken.headers) or None in headers.values():
        fields["headers_base64"] = [[name, _base64(value)] for name, value in taken.headers]
    value = taken.value
    if value is not None and not _is_one_line_of_json(value):
        fields["value_base64"] = _base64(value)
        value = None
    return orjson.dumps(fields)[:-1] + b',"value":' + (value if value is not None else b"null") + b"}\n"


def archive_line(taken: Taken, number: int = 0) -> ArchiveLine:
    """The message as a reader of an archive has it; the value is null for what is no JSON."""
    try:
        value = orjson.loads(taken.value) if taken.value is not None else None
    except orjson.JSONDecodeError:
        value = None
    texts = {name: text for name, raw in taken.headers if (text := _text(raw)) is not None}
    return ArchiveLine(
        taken.topic,
        taken.partition,
        taken.offset,
        max(0, taken.timestamp_ms),
        _text(taken.key),
        value,
        texts,
        number,
    )


def _is_one_line_of_json(value: bytes) -> bool:
    if b"\n" in value or b"\r" in value:
        return False
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _text(raw: bytes | None) -> str | None:
    try:
        return raw.decode() if raw is not None else None
    except UnicodeDecodeError:
        return None


def _base64(raw: bytes | None) -> str | None:
    return base64.b64encode(raw).decode() if raw is not None else None

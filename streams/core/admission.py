"""Which records an engine may see: what the boundary of a worker and a replay both hold a decoded record against.

A function of the message and its place alone, so that it is the same in any order, after a restart and in replay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from schemas.codec import schema_name
from schemas.topics import topic_named
from streams.core.position import MAX_AHEAD_NS, Position, ahead_of_append_ns

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["refusal", "refusal_of_name"]


def refusal(record: Record, key: bytes | None, schema: str | None, position: Position) -> str | None:
    """Why a record is refused, in one line; None when it may be judged.

    Args:
        record: what was decoded.
        key: the message's key. Without one a record is on any partition, and not with the others of its node or job.
        schema: the message's `schema` header, as `paceline.gpu-frame.v1`; null is not held against the record.
        position: topic, offset and append time.
    """
    return (
        _refusal_of_schema(record, schema)
        or _refusal_of_time(record, position)
        or _refusal_of_key(record, key, position.topic)
    )


def refusal_of_name(record: Record, key: bytes | None, schema: str | None, topic: str) -> str | None:
    """Why a record is refused by what its message calls it, whatever its time; None when it may be judged.

    Args:
        record: what was decoded.
        key: as for `refusal`.
        schema: as for `refusal`.
        topic: full name or family.
    """
    called, key_of = _names_of(topic, type(record))
    if (schema is None or schema == called) and key == key_of(record).encode():
        return None
    return _refusal_of_schema(record, schema) or _refusal_of_key(record, key, topic)


@cache
def _names_of(topic: str, family: type[Record]) -> tuple[str, Callable[[Record], str]]:
    """What the schema header and the key of such records have to be; to look both up anew doubles the time of the check."""
    return schema_name(family), topic_named(topic).key


def _refusal_of_schema(record: Record, schema: str | None) -> str | None:
    if schema is None or schema == schema_name(record):
        return None
    return f"its schema header is {schema[:100]!r}, and it reads as {schema_name(record)}"


def _refusal_of_time(record: Record, position: Position) -> str | None:
    ahead_ns = ahead_of_append_ns(record, position)
    if ahead_ns <= MAX_AHEAD_NS:
        return None
    return f"event time is {ahead_ns / 1e9:.0f} s ahead of its arrival; at most {MAX_AHEAD_NS // 10**9} s is taken"


def _refusal_of_key(record: Record, key: bytes | None, topic: str) -> str | None:
    name = topic_named(topic).key(record)
    if key is None:
        return f"the record is of {name!r} and was published without a key"
    if name.encode() != key:
        return f"the record is of {name!r} and was published under the key {key[:100]!r}"
    return None

"""A simulated stream as an archive: one JSON line per record, as `paceline record` writes from Kafka.

Partitions follow from a CRC of the key, so all records of a key stay in one partition, and offsets count arrivals.
These partition numbers are an archive's own and not those that a Kafka client would choose.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import orjson

from schemas.codec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.base import Record

__all__ = ["PARTITIONS", "archive_lines"]

PARTITIONS = 4


def archive_lines(events: Iterable[tuple[int, Record]], partitions: int = PARTITIONS) -> Iterator[bytes]:
    """Lines of an archive, newline included.

    Args:
        events: (arrived at in nanoseconds, record), by arrival.
        partitions: partitions of every topic.
    """
    offsets: dict[tuple[str, int], int] = {}
    for arrival_ns, record in events:
        sent = message(record)
        partition = zlib.crc32(sent.key) % partitions
        offset = offsets.get((sent.topic, partition), 0)
        offsets[sent.topic, partition] = offset + 1
        line = {
            "topic": sent.topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": arrival_ns // 1_000_000,
            "key": sent.key.decode(),
            "headers": {name: value.decode() for name, value in sent.headers},
            "value": orjson.Fragment(sent.value),
        }
        yield orjson.dumps(line) + b"\n"

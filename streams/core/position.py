"""Where a record stands: topic, partition, offset, and the append time by which its event time is judged."""

from __future__ import annotations

import msgspec

from schemas.base import Record
from schemas.findings import Evidence, ProgressMark

__all__ = ["MAX_AHEAD_NS", "Position", "ahead_of_append_ns", "event_time_of", "reached_ns"]

MAX_AHEAD_NS = 60_000_000_000
"""A record further ahead of its append time than this is refused: it would run the watermark away."""

_CLOCKS_AGREE_NS = 2_000_000_000
"""A clock that is further ahead is skewed: the limit of the rule `clock_skew`."""


class Position(msgspec.Struct, frozen=True, gc=False):
    """One record's place in its topic. Made for every record, and a frozen dataclass takes ten times as long to make."""

    topic: str
    partition: int
    offset: int
    append_ms: int

    def evidence(self) -> Evidence:
        """The place as findings and commands cite it."""
        return Evidence(topic=self.topic, partition=self.partition, offset=self.offset)


def event_time_of(record: Record) -> int | None:
    """A record's event time in nanoseconds, of a mark the time that it promises; None for records that have none."""
    # Not `isinstance`: of models that is a search in Python, and this is asked of every record.
    at_ns = record.mark_ns if type(record) is ProgressMark else getattr(record, "event_time_ns", None)
    return at_ns if isinstance(at_ns, int) else None


def ahead_of_append_ns(record: Record, position: Position) -> int:
    """By how much a record's event time is ahead of its append time; a function of the record alone."""
    append_ms = position.append_ms
    if append_ms <= 0:
        return 0
    at_ns = record.__dict__.get("event_time_ns")
    if at_ns is None:
        at_ns = event_time_of(record)
    return at_ns - append_ms * 1_000_000 if at_ns is not None else 0


def reached_ns(event_time_ns: int, position: Position) -> int:
    """How far a record says that its source has come, for the time of a partition.

    Nothing happens after its arrival: of a clock that is ahead by more than 2 s the append time counts. Else one such node
    would make all others of its partition look a minute late. A function of the record alone.
    """
    append_ns = position.append_ms * 1_000_000
    return append_ns if 0 < append_ns < event_time_ns - _CLOCKS_AGREE_NS else event_time_ns

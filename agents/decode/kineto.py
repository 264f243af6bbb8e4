"""`paceline decode kineto`: a PyTorch profiler trace of one rank, plain or gzip, to its communication kernels and sums.

Guarantees: read as a stream, so a trace of any size needs memory for 16 bytes a kernel; no event is taken for
communication by category or annotation alone; the sums are exact in nanoseconds, per device, then added. A trace that
breaks off has no summary, because sums over part of it would look like sums. Deliberately not: steps, launches and
verdicts, which are `paceline diagnose profile`'s.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from agents.decode.kineto_document import Member, Unreadable, items
from agents.decode.kineto_event import (
    ANNOTATION_PREFIX,
    GPU_WORK,
    KERNEL,
    arguments,
    comm_kernel,
    device,
    is_communication,
    nanoseconds,
    step_number,
    whole,
)
from agents.decode.kineto_intervals import Intervals, union
from agents.decode.kineto_source import pieces
from agents.decode.record import RAW_LIMIT, Record, Tally, malformed

DISTRIBUTED: Final = "distributedInfo"


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
    """Yields the communication kernels of a trace in its order, then its summary.

    Raises:
        UnknownFormat: The text is no trace.
        Damaged: The trace, or the gzip stream that holds it, breaks off or has something else after its end.
    """
    sums = _Sums()
    is_empty = True
    for item in items(pieces(stream), (DISTRIBUTED,)):
        is_empty = False
        if isinstance(item, list):
            yield from sums.take(item, tally)
        elif isinstance(item, Unreadable):
            yield malformed(item.reason, item.raw)
        else:
            sums.take_member(item)
    if not is_empty:
        yield sums.summary()


class _Sums:
    """What is held of a trace while it is read."""

    def __init__(self) -> None:
        self._computation: defaultdict[int | None, Intervals] = defaultdict(Intervals)
        self._communication: defaultdict[int | None, Intervals] = defaultdict(Intervals)
        self._steps: set[int] = set()
        self._comm_kernel_count = 0
        self._rank: int | None = None
        self._world_size: int | None = None

    def take(self, batch: list[Any], tally: Tally) -> Iterator[Record]:
        for event in batch:
            if not isinstance(event, dict):
                yield malformed("no object", _raw(event))
                continue
            if not event:
                tally.skipped += 1
                continue
            name, category = event.get("name"), event.get("cat")
            work = GPU_WORK.get(category) if isinstance(category, str) else None
            if not isinstance(name, str):
                name = ""
            if work is None:
                if (number := step_number(name)) is not None:
                    self._steps.add(number)
            elif not name.startswith(ANNOTATION_PREFIX) and event.get("ph", "X") == "X":
                yield from self._take_work(event, name, work)

    def _take_work(self, event: dict[str, Any], name: str, work: int) -> Iterator[Record]:
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or duration is None or duration < 0:
            yield malformed("no time or duration that can be read", _raw(event))
            return
        place = device(event, arguments(event))
        if work == KERNEL and is_communication(name):
            self._comm_kernel_count += 1
            self._communication[place].add(start, start + duration)
            yield comm_kernel(event, name)
        else:
            self._computation[place].add(start, start + duration)

    def take_member(self, member: Member) -> None:
        if member.key == DISTRIBUTED and isinstance(member.value, dict):
            self._rank = whole(member.value.get("rank"))
            self._world_size = whole(member.value.get("world_size")) or None

    def summary(self) -> Record:
        communication_ns = computation_ns = either_ns = 0
        for place in self._communication.keys() | self._computation.keys():
            communication = self._communication[place].cover()
            computation = self._computation[place].cover()
            communication_ns += communication.length()
            computation_ns += computation.length()
            either_ns += union((communication, computation)).length()
        return {
            "kind": "trace_summary",
            "rank": self._rank,
            "world_size": self._world_size,
            "step_count": len(self._steps),
            "comm_kernel_count": self._comm_kernel_count,
            "comm_us": communication_ns / 1000,
            "compute_us": computation_ns / 1000,
            "exposed_comm_us": (either_ns - computation_ns) / 1000,
        }


def _raw(event: object) -> str:
    return json.dumps(event, ensure_ascii=False, default=str)[:RAW_LIMIT]

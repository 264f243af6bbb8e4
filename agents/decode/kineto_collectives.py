"""The communication kernels of one rank's trace, each with its start and with what it says about its collective.

Guarantees: read as a stream; kernels come in the order of their starts within a device and stream, with no more held than
the kernels themselves, of which a bounded number is taken. Deliberately not: other events, steps, sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from agents.decode.kineto_document import Member, items
from agents.decode.kineto_event import GPU_WORK, KERNEL, arguments, comm_kernel, is_communication, nanoseconds, whole
from agents.decode.kineto_source import pieces
from agents.decode.record import Record

__all__ = ["TraceCollectives", "read_collectives"]

_MOST_KERNELS: Final = 500_000
"""Some 300 MB; a step has hundreds to thousands."""

_DISTRIBUTED: Final = "distributedInfo"


@dataclass(slots=True)
class TraceCollectives:
    """What was read of one trace.

    Attributes:
        rank: As the trace says; None if it does not.
        kernels: By start; `comm_kernel` records with `start_ns`, and `seq`, `group_name` and `group_desc` where the trace has them.
        left_out: Kernels beyond the limit, or without a time.
    """

    rank: int | None = None
    kernels: list[Record] = field(default_factory=list)
    left_out: int = 0


def read_collectives(stream: BinaryIO) -> TraceCollectives:
    """The communication kernels of a trace.

    Raises:
        UnknownFormat: The text is no trace.
        Damaged: It breaks off.
    """
    found = TraceCollectives()
    for item in items(pieces(stream), (_DISTRIBUTED,)):
        if isinstance(item, Member):
            if item.key == _DISTRIBUTED and isinstance(item.value, dict):
                found.rank = whole(item.value.get("rank"))
        elif isinstance(item, list):
            for event in item:
                if isinstance(event, dict):
                    _take(found, event)
    found.kernels.sort(key=lambda record: record["start_ns"])
    return found


def _take(found: TraceCollectives, event: dict[str, Any]) -> None:
    name, category = event.get("name"), event.get("cat")
    if not (isinstance(name, str) and is_communication(name)):
        return
    if not isinstance(category, str) or GPU_WORK.get(category) != KERNEL or event.get("ph", "X") != "X":
        return
    start_ns = nanoseconds(event.get("ts"))
    record = comm_kernel(event, name)
    if start_ns is None or record["duration_us"] is None or len(found.kernels) >= _MOST_KERNELS:
        found.left_out += 1
        return
    args = arguments(event)
    record["start_ns"] = start_ns
    for key, field_name in (("Process Group Name", "group_name"), ("Process Group Description", "group_desc")):
        if isinstance(args.get(key), str):
            record[field_name] = args[key]
    if "Seq" in args:
        record["seq"] = whole(args["Seq"])
    found.kernels.append(record)

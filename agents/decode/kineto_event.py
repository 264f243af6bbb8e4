"""One event of a trace: what it is, when it was, and what it says about a collective.

Guarantees: times are integer nanoseconds, exact as printed down to that; a value that says it is not known is None, as
is one of the wrong type. Deliberately not: whether a kernel is of a collective by anything but its name (nvshmem,
deep_ep and custom all-reduce kernels count as computation), nor any sum.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from agents.decode.quantity import Number, Unreadable, integer, is_unknown, number
from agents.decode.record import Record

KERNEL: Final = 1
COPY: Final = 2
SET: Final = 3

GPU_WORK: Final[dict[str, int]] = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": SET,
    # As the profiler named them until PyTorch 1.11.
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": SET,
}
"""Category of an event to the kind of work that it is."""

COMMUNICATION_PREFIXES: Final = ("ncclKernel", "ncclDevKernel")
ANNOTATION_PREFIX: Final = "nccl:"

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})", re.ASCII)
_TRAILING_NUMBER: Final = re.compile(r"(?:.*\D)?(\d{1,9})", re.ASCII | re.DOTALL)
_LIST_ITEM: Final = re.compile(r"[,\s]+")
_LONGEST_NS: Final = 1 << 61
"""Times beyond are no times; half of it leaves room for a sum."""


def nanoseconds(value: object) -> int | None:
    """A time or duration in microseconds, as the trace has it, in nanoseconds; None where it is no number."""
    if type(value) is float:
        if not math.isfinite(value):
            return None
        # In one product the digits of a time of 13 digits would be rounded twice.
        before_point = math.floor(value)
        exact = before_point * 1000 + round((value - before_point) * 1000)
    elif type(value) is int:
        exact = value * 1000
    elif isinstance(value, str):
        return _printed_nanoseconds(value)
    else:
        return None
    return exact if -_LONGEST_NS < exact < _LONGEST_NS else None


def _printed_nanoseconds(text: str) -> int | None:
    whole, _, fraction = text.strip().partition(".")
    if whole.isascii() and whole.isdigit() and (not fraction or (fraction.isascii() and fraction.isdigit())):
        exact = int(whole[:32]) * 1000 + int(fraction[:3].ljust(3, "0"))
        return exact if exact < _LONGEST_NS else None
    try:
        value = number(text)
    except Unreadable:
        return None
    return None if value is None else nanoseconds(value)


def microseconds(value: object) -> Number | None:
    """A duration as the trace has it, with its fractions; None where it is no number."""
    if isinstance(value, str):
        try:
            return number(value)
        except Unreadable:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """A count, size or index, also when printed as text or with a fraction of zero; None for -1 and the like."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    elif isinstance(value, str):
        try:
            value = integer(value)
        except Unreadable:
            return None
    return value if isinstance(value, int) and 0 <= value < 1 << 64 else None


def arguments(event: dict[str, Any]) -> dict[str, Any]:
    """The event's `args`; empty where it has none."""
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def device(event: dict[str, Any], args: dict[str, Any]) -> int | None:
    """The GPU of a piece of work: the argument, else the process id, which the profiler sets to it."""
    value = whole(args.get("device"))
    return value if value is not None else whole(event.get("pid"))


def stream(event: dict[str, Any], args: dict[str, Any]) -> int | None:
    """The stream of a piece of work: the argument, else the thread id (`7`, once `stream 7`)."""
    value = whole(args.get("stream"))
    if value is not None:
        return value
    thread = event.get("tid")
    found = _TRAILING_NUMBER.fullmatch(thread) if isinstance(thread, str) else None
    return int(found[1]) if found else whole(thread)


def step_number(name: str) -> int | None:
    """N of `ProfilerStep#N`; None for any other name."""
    found = _STEP.fullmatch(name) if name.startswith("ProfilerStep#") else None
    return int(found[1]) if found else None


def is_communication(name: str) -> bool:
    """Whether a kernel of this name is one of NCCL or RCCL."""
    return name.startswith(COMMUNICATION_PREFIXES)


def comm_kernel(event: dict[str, Any], name: str) -> Record:
    """The record of a communication kernel whose times are readable."""
    args = arguments(event)
    record: Record = {
        "kind": "comm_kernel",
        "name": name,
        "duration_us": microseconds(event.get("dur")),
        "stream": stream(event, args),
        "device": device(event, args),
    }
    for key, field in (("Collective name", "collective"), ("dtype", "dtype")):
        if key in args:
            record[field] = _text(args[key])
    if "Process Group Ranks" in args:
        record["group_ranks"] = group_ranks(args["Process Group Ranks"])
    for key, field in (
        ("Group size", "group_size"),
        ("In msg nelems", "in_elements"),
        ("Out msg nelems", "out_elements"),
    ):
        if key in args:
            record[field] = whole(args[key])
    return record


def group_ranks(value: object) -> list[int] | None:
    """The ranks of a process group, a list or the text of one; None where it is empty or was cut with `...`."""
    if isinstance(value, str):
        parts: list[object] = [part for part in _LIST_ITEM.split(value.strip().strip("[]()").strip()) if part]
    elif isinstance(value, list):
        parts = value
    else:
        return None
    ranks = [whole(part) for part in parts]
    known = [rank for rank in ranks if rank is not None]
    return known if known and len(known) == len(ranks) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and not is_unknown(value) else None

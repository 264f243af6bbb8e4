"""Lines on which a rank, or the launcher for it, reports its end: CUDA, HIP and NCCL errors, exceptions, signals.

Guarantees: `hardware` only for messages that name a device, its memory or its link as the cause; `program` for errors
of the code or its use of memory; all else is `unknown`, timeouts and lost peers among it, since those end the victims
and not the culprit. The rank is one of the job: the rank within a process group other than the default one, task labels
and local ranks name none. Deliberately does not join the several lines of one crash.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import RAW_LIMIT, Record
from agents.decode.steps_prefix import rank_in

_HARDWARE = re.compile(
    r"uncorrectable|\becc error|eccuncorrectable|invalid access of peer gpu memory|\bhardware error"
    r"|hardware stack error|hardwarestackerror|nvlinkuncorrectable|hardware exception|hw exception|gpu hang"
    r"|fallen off the bus|gpu is lost|gpu_is_lost|gpu requires reset|reset_required|device hardware",
    re.IGNORECASE,
)
_PROGRAM = re.compile(
    r"device-side assert|illegal memory access|illegal address|misaligned address"
    r"|invalid (?:device (?:function|ordinal)|argument|configuration|resource handle|device symbol|address space)"
    r"|no kernel image|kernel image is invalid|out of memory|outofmemory|resource_exhausted|alloc_failed|oom[_ -]?kill|memory access fault|aperture_violation"
    r"|segmentation fault|segfault|sigsegv|shapes? cannot be|size mismatch|must match the (?:size|existing)|same dtype"
    r"|expected (?:all tensors|scalar type|object|tensor)|state_dict|keyword argument|not implemented"
    r"|\bsignal 11\b|exitcode\s*:\s*-11\b|exitcode: -11\b|return code = -11\b",
    re.IGNORECASE,
)
_PROGRAM_EXCEPTIONS: Final = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "FileNotFoundError",
        "ImportError",
        "IndentationError",
        "IndexError",
        "KeyError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "OutOfMemoryError",
        "OverflowError",
        "RecursionError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
        "UnicodeDecodeError",
        "ValueError",
        "ZeroDivisionError",
    }
)
_UNDECIDED = re.compile(r"\bnan\b|nccl|connection|timed? ?out|store->get", re.IGNORECASE)
"""What an exception of the program may be about without the program being at fault."""

_EXCEPTION = re.compile(
    r"\s*(?:[A-Za-z_]\w{0,60}\.){0,10}(?P<name>[A-Z]\w{0,60}(?:Error|Interrupt)|(?:[A-Z]\w{0,60})?Exception)(?::|\s*$)"
)
_END = re.compile(
    r"\bcuda error:|\bhip error:|cuda out of memory|hip out of memory|\bcuda failure\b|\bnccl error\b"
    r"|terminate called after throwing|^\s*what\(\):"
    r"|watchdog thread terminated|watchdog caught collective operation timeout|taking the entire process down"
    r"|terminating the process after attempting to dump debug info"
    r"|^\s*(?:segmentation fault|bus error|aborted|killed|floating point exception)\s*$"
    r"|(?:segmentation fault|bus error|aborted|floating point exception)\s+\(core dumped\)"
    r"|fatal python error:|\bcaught signal \d+|received signal sig(?:segv|bus|abrt|ill|fpe)|\bsignal: .{1,40}\(\d+\)"
    r"|srun: error: .{0,120}(?:killed|exited with exit code|segmentation fault|aborted|bus error|out of memory)"
    r"|slurmstepd: error: .{0,80}(?:oom|out of memory)"
    r"|exited on signal \d+|mpi_abort was invoked"
    r"|failed \(exitcode: -?\d+\) local_rank|exits with return code = -?[1-9]"
    r"|memory access fault by gpu|hw exception by gpu|hsa_status_error_\w+",
    re.IGNORECASE,
)
_SUMMARY_RANK = re.compile(r"(?:^|\s)rank\s*:\s*(\d{1,9}) \(local_rank: \d+\)")
_SUMMARY_EXIT = re.compile(r"(?:^|\s)exitcode\s*:\s*-?\d{1,9} \(pid: \d+\)")
_SUMMARY_TRACE = re.compile(r"(?:^|\s)traceback\s*:\s")

_RANK_NAMED = re.compile(
    r"\bon rank (\d{1,9})\b|\bprocess rank (\d{1,9})\b|^\s*(?:\w+: )?rank (\d{1,9})[:,]", re.IGNORECASE
)
_DEFAULT_GROUP = re.compile(r"\[PG (?:ID )?\d+ [^\]]{0,40}\(default_pg\) Rank (\d{1,9})\]|\[PG 0 Rank (\d{1,9})\]")


class FailureReader:
    """Reads failure lines; remembers the rank that torchrun's summary names a line before the exit code."""

    def __init__(self) -> None:
        self._summary_rank: int | None = None

    def feed(self, text: str, message: str) -> Record | None:
        """The failure that a line reports.

        Args:
            text: The whole line.
            message: The line without the labels in front of it.
        """
        if found := _SUMMARY_RANK.search(text):
            self._summary_rank = int(found[1])
            return None
        if _SUMMARY_EXIT.search(text):
            rank, self._summary_rank = self._summary_rank, None
            return _record(rank, failure_class(message), message)
        if _SUMMARY_TRACE.search(text):
            return None
        exception = _EXCEPTION.match(message)
        if exception is None and _END.search(message) is None:
            return None
        return _record(_rank(text, message), failure_class(message, exception["name"] if exception else ""), message)


def failure_class(message: str, exception: str = "") -> str:
    """`hardware`, `program` or `unknown` for a message and the Python exception that it names, if any."""
    if _HARDWARE.search(message):
        return "hardware"
    if _PROGRAM.search(message):
        return "program"
    if exception in _PROGRAM_EXCEPTIONS and not _UNDECIDED.search(message):
        return "program"
    return "unknown"


def _record(rank: int | None, classified: str, message: str) -> Record:
    return {"kind": "failure", "rank": rank, "failure_class": classified, "text": message.strip()[:RAW_LIMIT]}


def _rank(text: str, message: str) -> int | None:
    rank = rank_in(text)
    if rank is not None:
        return rank
    found = _DEFAULT_GROUP.search(text) or _RANK_NAMED.search(message)
    return int(next(group for group in found.groups() if group)) if found else None

"""Lines in which the watchdog of ProcessGroupNCCL tells of an operation that timed out or failed.

Guarantees: the wordings of PyTorch 2.3 to 2.10; a rank is one of the job. `[Rank 4]`, and `Rank 4` behind the name of
any group but the default one, number the members of that group and give none. The group's description is given where the
line has it. What the watchdog says about itself, dump signals and stack traces yield nothing, and repeats of a line are not
removed.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record

__all__ = ["WATCHDOG_WORDS", "watchdog_record"]

WATCHDOG_WORDS: Final = re.compile(r"watchdog|ProcessGroupNCCL|\bNCCL\b", re.IGNORECASE)
"""What a log has that may hold such lines."""

_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout")
_FAILURE = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?|Timeout at (?:NCCL )?work)\s*:\s*(?P<seq>\d{1,19})"
)
_SEQUENCE = re.compile(r"\bSeqNum=(\d{1,19})")
_OPERATION = re.compile(r"\bOpType=(\w{1,60})")
_ELEMENTS = re.compile(r"\bNumelIn=(\d{1,19})")
_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d{1,9}) PG GUID [^\s()\]]{1,64}|(?P<name>\w{1,64}))\s?(?:\((?P<desc>[^()\]]{0,200})\))? Rank \d"
)
_TIMEOUT_MS = re.compile(r"\bTimeout\(ms\)=(\d{1,15})")
_RAN_MS = re.compile(r"\bran for (\d{1,15}) milliseconds")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work:\s*(-?\d{1,19})")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work:\s*(-?\d{1,19})")
_STARTED = re.compile(r"last started (?:NCCL )?work:\s*(-?\d{1,19})")
_GLOBAL_RANK = re.compile(r"\[rank[ -]?(\d{1,9})(?:/\d{1,9})?\]|(?<![\w.])rank=(\d{1,9})(?!\d)|\brank-(\d{1,9})/\d")
_DEFAULT_GROUP_RANK = re.compile(r"\[PG [^\]]{0,200}\(default_pg\) Rank (\d{1,9})\]")
_LARGEST: Final = 2**63


def watchdog_record(line: str) -> Record | None:
    """The record of one line of a log; None if no watchdog tells of an operation in it."""
    failure = _FAILURE.search(line)
    timeout = _TIMEOUT.search(line) if failure is None else None
    told = failure or timeout
    if told is None:
        return None
    rest = line[told.start() :]
    record: Record = {
        "kind": "watchdog",
        "rank": _rank(line, told.start()),
        "seq": _number(failure["seq"]) if failure else _first(_SEQUENCE, rest),
    }
    for name, pattern in (
        ("last_enqueued_seq", _ENQUEUED),
        ("last_started_seq", _STARTED),
        ("last_completed_seq", _COMPLETED),
        ("timeout_ms", _TIMEOUT_MS),
        ("ran_ms", _RAN_MS),
    ):
        if pattern.search(rest):
            record[name] = _first(pattern, rest)
    operation = _OPERATION.search(rest)
    if operation:
        record["op_type"] = operation[1]
    if _ELEMENTS.search(rest):
        record["in_elements"] = _first(_ELEMENTS, rest)
    group = _GROUP.search(line[: told.start()])
    if group:
        record["pg_id"] = group["id"] or group["name"]
        record["group_desc"] = group["desc"] or None
    return record


def _rank(line: str, end: int) -> int | None:
    """The job's rank in what stands before the message: the last label of a launcher, else the default group's."""
    head = line[max(0, end - 600) : end]
    found = None
    for match in _GLOBAL_RANK.finditer(head):
        found = int(match[1] or match[2] or match[3])
    if found is None:
        default = _DEFAULT_GROUP_RANK.search(head)
        found = int(default[1]) if default else None
    return found


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return _number(match[1]) if match else None


def _number(digits: str) -> int | None:
    value = int(digits)
    return value if 0 <= value < _LARGEST else None

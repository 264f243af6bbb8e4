"""Whether bytes are a whole dump: a pickle or a JSON document from its first byte to its last.

A dump is not written in one go, so one that stands still may still be cut. Guarantees: nothing of a pickle is ever
built; its operations are stepped over by their lengths alone. Limits of size are the caller's. What a dump says, and
whether it is one of a flight recorder, is not looked at.
"""

from __future__ import annotations

import json
import pickletools
from typing import Final, Literal

__all__ = ["Encoding", "encoding_of", "is_whole"]

Encoding = Literal["pickle", "json", "unknown"]

_PICKLE_START: Final = 0x80  # PROTO; protocols 0 and 1, which have none, are not what a recorder writes
_STOP: Final = ord(".")
_WHITE: Final = b" \t\r\n"

# How far an operation goes beyond its code: a fixed number of bytes, or one of pickletools' kinds below 0.
_REACH: Final = {
    ord(operation.code): operation.arg.n if operation.arg is not None else 0 for operation in pickletools.opcodes
}
_LENGTH_BYTES: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_TWO_LINES: Final = frozenset(b"ci")  # GLOBAL and INST


def encoding_of(head: bytes) -> Encoding:
    """What a file is by its first bytes."""
    if head[:1] == bytes([_PICKLE_START]):
        return "pickle"
    return "json" if head.lstrip(_WHITE)[:1] == b"{" else "unknown"


def is_whole(data: bytes) -> bool:
    """Whether the bytes end where the document in them does."""
    encoding = encoding_of(data[:64])
    if encoding == "pickle":
        return _pickle_end(data) == len(data)
    return encoding == "json" and _is_json(data)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _pickle_end(data: bytes) -> int | None:
    """Where the first pickle ends; None if it does not."""
    position, size = 0, len(data)
    while position < size:
        code = data[position]
        position += 1
        if code == _STOP:
            return position
        reach = _REACH.get(code)
        if reach is None:
            return None
        if reach >= 0:
            position += reach
        elif reach == pickletools.UP_TO_NEWLINE:
            for _ in range(2 if code in _TWO_LINES else 1):
                position = data.find(b"\n", position) + 1
                if position == 0:
                    return None
        else:
            width = _LENGTH_BYTES[reach]
            length = int.from_bytes(data[position : position + width], "little")
            position += width + length
    return None

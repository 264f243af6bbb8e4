"""One entry of `journalctl -o json`, one JSON object a line: who wrote it, when, and its message as text.

Values are strings, but a message that is not UTF-8 is an array of bytes, one that was too long is null, and a
repeated field is an array of such values. Only what the journal itself says counts as the sender: a process can
write any field whose name does not begin with an underscore. Does not read the message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from agents.decode.kernel_transport import Stamp
from agents.decode.quantity import bounded
from agents.decode.text import without_ansi

_FIELDS = ("MESSAGE", "_TRANSPORT", "__REALTIME_TIMESTAMP", "__CURSOR")
_CUT = re.compile(r'"MESSAGE" *: *"(?P<message>(?:NVRM: *Xid|nvidia-nvswitch\d+:? *SXid)[^"\n]*)', re.ASCII)
_OTHER_TRANSPORT = re.compile(r'"_TRANSPORT" *: *"(?!kernel")')


@dataclass(frozen=True, slots=True)
class Entry:
    """One journal entry.

    Attributes:
        kernel: Whether the journal took it from the kernel.
        messages: Its texts: one, several where the field was repeated, none where it has no text.
        stamp: Arrival time, the kernel's own time, and whether the kernel's facility wrote it.
    """

    kernel: bool
    messages: tuple[str, ...]
    stamp: Stamp


def entry(text: str) -> Entry | None:
    """The entry in one line, or None if the line is not a whole JSON object of a journal."""
    fields = _object(text)
    if fields is None or not any(name in fields for name in _FIELDS):
        return None
    facility = fields.get("SYSLOG_FACILITY")
    stamp = Stamp(
        kernel_time_us=_integer(fields.get("_SOURCE_MONOTONIC_TIMESTAMP")),
        wall_time_us=_integer(fields.get("__REALTIME_TIMESTAMP")),
        trusted=facility is None or _integer(facility) == 0,
    )
    return Entry(fields.get("_TRANSPORT") == "kernel", tuple(_texts(fields.get("MESSAGE"))), stamp)


def cut_event(text: str) -> str | None:
    """The message of a line that is no whole entry but plainly had an event of the kernel, else None."""
    found = _CUT.search(text)
    if found is None or _OTHER_TRANSPORT.search(text):
        return None
    return found["message"]


def _object(text: str) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(text)
    except ValueError:
        try:
            # Accepts what orjson does not: half a surrogate pair, and integers of any size.
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return fields if isinstance(fields, dict) else None


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [without_ansi(value)] if value else []
    if not isinstance(value, list):
        return []
    if value and all(isinstance(item, int) and 0 <= item <= 255 for item in value):
        return [without_ansi(bytes(value).decode("utf-8", "replace"))]
    return [text for item in value if not isinstance(item, int) for text in _texts(item)]


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return bounded(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return bounded(int(value))
    return None

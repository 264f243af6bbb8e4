"""`paceline decode flight-recorder`: dumps of PyTorch's flight recorder and the watchdog lines of trainer logs.

Guarantees: the encoding is told from the content; a dump is read whole before anything of it is given out, and one
that is refused, cut or something else is one `malformed` record. Pickles are read without anything they could run,
within limits of size, memory and depth; so is JSON. In a collection of dumps by file name one that is none costs only
itself. Who is to blame for a hang is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Final

from agents.decode import plain_pickle
from agents.decode.flight_recorder_dump import Dump, NotADump, looks_like_dump, read_dump
from agents.decode.record import RAW_LIMIT, Damaged, Record, Tally, malformed
from agents.decode.text import CHUNK_BYTES, without_ansi
from agents.decode.watchdog_line import WATCHDOG_WORDS, watchdog_record

__all__ = ["LARGEST_DUMP_BYTES", "Unreadable", "decode", "dumps_in"]

LARGEST_DUMP_BYTES: Final = 64 << 20
"""2,000 operations with their stacks take a few MB."""

_PICKLE_START: Final = 0x80
_BLANKS: Final = b" \t\r\n\xef\xbb\xbf"
_JSON_DEPTH: Final = 64
_JSON_ITEMS: Final = 8_000_000
"""Items of a JSON text: what it takes in memory follows from these, not from its length."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A dump that gave nothing.

    Attributes:
        name: Of the file, or of the entry in a collection.
        reason: Why, in a few words.
    """

    name: str
    reason: str


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:  # noqa: ARG001 - nothing here lacks text
    """Yields the records of one file.

    Raises:
        Damaged: The file is a dump that cannot be read, or neither a dump nor a log.
    """
    name = PurePath(str(getattr(stream, "name", "") or "")).name
    data = _read(stream)
    if not data.strip(_BLANKS):
        return
    encoding = _encoding(data)
    if encoding == "log" or (encoding == "json" and _is_log(data)):
        yield from _watchdog_records(data)
        return
    for found in dumps_in(data, name):
        if isinstance(found, Dump):
            yield from found.records()
        elif encoding == "json" and found.name != name:
            yield malformed(f"{found.name}: {found.reason}", "")
        else:
            raise Damaged(found.reason, _excerpt(data, encoding))


def dumps_in(data: bytes, name: str) -> Iterator[Dump | Unreadable]:
    """The dumps in the bytes of one file, or why there are none.

    Args:
        data: A pickle, a JSON dump, or a JSON object of dumps by file name.
        name: Of the file, for the rank.
    """
    if len(data) > LARGEST_DUMP_BYTES:
        yield Unreadable(name, f"it is larger than {LARGEST_DUMP_BYTES} bytes")
        return
    if not data.strip(_BLANKS):
        yield Unreadable(name, "it is empty")
        return
    try:
        value = _value(data)
    except ValueError as error:
        yield Unreadable(name, str(error))
        return
    if not looks_like_dump(value) and _is_collection(value):
        for entry_name, entry in value.items():
            yield _dump(entry, str(entry_name))
        return
    yield _dump(value, name)


def _dump(value: Any, name: str) -> Dump | Unreadable:
    try:
        return read_dump(value, name)
    except NotADump as error:
        return Unreadable(name, f"no dump of a flight recorder: {error}")


def _is_collection(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and any(looks_like_dump(entry) for entry in value.values())


def _read(stream: BinaryIO) -> bytes:
    """All of the stream, or just enough of it to see that it is too much."""
    parts = []
    left = LARGEST_DUMP_BYTES + 1
    while left > 0 and (chunk := stream.read(min(left, CHUNK_BYTES << 4))):
        parts.append(chunk)
        left -= len(chunk)
    return b"".join(parts)


def _encoding(data: bytes) -> str:
    if data[0] == _PICKLE_START:
        return "pickle"
    if data.lstrip(_BLANKS)[:1] == b"{":
        return "json"
    if b"\0" not in data[:CHUNK_BYTES] and WATCHDOG_WORDS.search(data.decode("utf-8", "replace")):
        return "log"
    return "unknown"


def _is_log(data: bytes) -> bool:
    """Whether what begins as JSON is a log whose lines are JSON objects of their own."""
    return any(True for _ in _watchdog_records(data)) and b'"entries"' not in data and b'"pg_status"' not in data


def _watchdog_records(data: bytes) -> Iterator[Record]:
    text = without_ansi(data.decode("utf-8", "replace"))
    for line in text.replace("\r", "\n").split("\n"):
        record = watchdog_record(line)
        if record is not None:
            yield record


def _value(data: bytes) -> Any:
    """The value in a pickle or a JSON text.

    Raises:
        ValueError: It is neither, or refused; the message says why.
    """
    encoding = _encoding(data)
    if encoding == "pickle":
        # Not Python's reader: this one makes plain values alone, within bounds, and refuses whatever names code.
        return plain_pickle.loads(data)
    if encoding != "json":
        raise ValueError("neither a dump of a flight recorder nor a log with lines of a watchdog")
    _check_extent(data)
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), parse_constant=_nothing)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _check_extent(data: bytes) -> None:
    """Refuses JSON that has more items, or nests deeper, than any dump.

    Brackets and commas within texts count too; stack frames do not hold that many.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _JSON_ITEMS:
        raise ValueError(f"more than {_JSON_ITEMS} items")
    depth = 0
    for byte in data.translate(None, delete=_NO_BRACKETS):
        if byte in _OPENING:
            depth += 1
            if depth > _JSON_DEPTH:
                raise ValueError(f"nested deeper than {_JSON_DEPTH}")
        else:
            depth -= 1


_OPENING: Final = b"[{"
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _nothing(_: str) -> None:
    return None


def _excerpt(data: bytes, encoding: str) -> str:
    if encoding == "json":
        return data[: 4 * RAW_LIMIT].decode("utf-8", "replace")
    return repr(data[:64])

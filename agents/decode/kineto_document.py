"""A trace's JSON, read as a stream: its events in batches, and those of its other members that somebody wants.

Guarantees: memory for one batch, however large the file, in whatever order members stand, printed compact or pretty; an
event that is broken or too large costs itself and is told; what a profiler prints that is no JSON (`nan`, a lone
backslash, bytes that are not UTF-8) is mended.

How: a batch ends where one event follows another. Where that is, is guessed, and the guess holds when the batch parses,
because the text of whole elements is read alike with and without what follows. Where it does not parse, ends are
found by counting brackets outside strings. Deliberately not: any knowledge of what an event means.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from agents.decode.kineto_mending import LONG_TIME, NOT_JSON, parsed
from agents.decode.record import Damaged, UnknownFormat

BATCH_BYTES: Final = 1 << 18
"""Text that is parsed at a time."""

EVENT_BYTES: Final = 1 << 24
"""Text of one event at most. Events of a kilobyte are usual, ones with call stacks and shapes have some hundreds."""

MEMBER_BYTES: Final = 1 << 24
"""Text of a wanted member at most: `distributedInfo` lists the ranks of every process group."""

EVENTS: Final = "traceEvents"
_TAIL_BYTES: Final = 1 << 16
_GAP: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_BETWEEN: Final = re.compile(rb"[\s,]*")
_BLANK: Final = re.compile(rb"\s*")
_SCALAR_END: Final = re.compile(rb"[\s,\]}]")
_STRING_REST: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
_RESYNC: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id)"\s*:)')

_OPEN: Final = frozenset(b"{[")
_QUOTE: Final = ord('"')
_SCALAR_BYTES: Final = 1 << 12
_EXCERPT_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the trace beside its events, under its key."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An element of `traceEvents` that could not be read; `raw` is its beginning."""

    reason: str
    raw: str


Item = list[Any] | Member | Unreadable


def items(pieces: Iterator[bytes], wanted: Collection[str]) -> Iterator[Item]:
    """Batches of events, wanted members and what could not be read, in the order of the file.

    An element of a batch is whatever JSON value stood in the list; the list is announced by a `Member` of its key,
    without a value. A bare list is taken as the list of events. An empty text gives nothing.

    Args:
        pieces: The text; a byte order mark is passed over.
        wanted: Keys of members to give out; others are passed over.

    Raises:
        UnknownFormat: The text is no JSON object with `traceEvents`, and no list of events.
        Damaged: It is one, but ends before its end or has text after it; what came before was given out.
    """
    text = _Text(pieces)
    text.fill(3)
    if text.data.startswith(b"\xef\xbb\xbf"):
        text.position = 3
    opening = text.next_byte(_BLANK)
    if opening is None:
        return
    if opening == b"[":
        text.position += 1
        yield from _bare_events(text)
    elif opening == b"{":
        text.position += 1
        yield from _members(text, wanted)
    else:
        raise UnknownFormat("no JSON object with traceEvents")
    if text.next_byte(_BLANK) not in (None, b"\0"):
        raise Damaged("text follows the end of the trace", text.excerpt())


class _EndsInsideError(Exception):
    """The text ends inside a value; the position is where it began."""


class _TooLongError(Exception):
    """The value is longer than it may be; the position is where it began."""


class _Scan:
    """Finds the end of an object, a list or a string, over any number of windows."""

    __slots__ = ("_depth", "_in_string", "at")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self.at = 0
        """Where to go on when more text is there."""

    def advance(self, data: bytes, at: int) -> int | None:
        """The index behind the value; None where it does not end in `data`."""
        while True:
            if self._in_string:
                found = _STRING_REST.match(data, at)
                at = found.end() if found else at
                if at >= len(data) or data[at] != _QUOTE:
                    break
                self._in_string = False
                at += 1
            else:
                found = _STRUCTURE.search(data, at)
                if found is None:
                    at = len(data)
                    break
                at = found.end()
                token = data[found.start()]
                if token == _QUOTE:
                    self._in_string = at - found.start() == 1
                elif token in _OPEN:
                    self._depth += 1
                else:
                    self._depth -= 1
            if self._depth <= 0 and not self._in_string:
                return at
        self.at = at
        return None


class _Text:
    """A window on the text: what was read and not yet passed."""

    __slots__ = ("_passed", "_pieces", "data", "position")

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._passed = 0
        self.data = b""
        self.position = 0

    @property
    def offset(self) -> int:
        """Bytes from the beginning of the text to the position."""
        return self._passed + self.position

    def more(self, size: int) -> bool:
        """Reads `size` bytes further or to the end, and lets go what was passed; False where there is nothing more."""
        parts = [self.data[self.position :]]
        self._passed += self.position
        self.position = 0
        read = 0
        for piece in self._pieces:
            parts.append(piece)
            read += len(piece)
            if read >= size:
                break
        self.data = b"".join(parts)
        return read > 0

    def fill(self, size: int) -> None:
        """Reads until `size` bytes lie ahead of the position, or to the end."""
        ahead = len(self.data) - self.position
        if ahead < size:
            self.more(size - ahead)

    def next_byte(self, over: re.Pattern[bytes]) -> bytes | None:
        """The byte at the position once what the pattern matches is passed; None at the end."""
        while True:
            found = over.match(self.data, self.position)
            self.position = found.end() if found else self.position
            if self.position < len(self.data):
                return self.data[self.position : self.position + 1]
            if not self.more(1):
                return None

    def value(self, limit: int) -> bytes:
        """The text of the object, list or string at the position, which moves behind it.

        Raises:
            _EndsInsideError: The text ends first.
            _TooLongError: It is longer than `limit`, or its end is not in sight.
        """
        scan = _Scan()
        scanned = 0
        while (end := scan.advance(self.data, self.position + scanned)) is None:
            scanned = scan.at - self.position
            ahead = len(self.data) - self.position
            if ahead > limit:
                raise _TooLongError
            if not self.more(max(ahead, BATCH_BYTES)):
                raise _EndsInsideError
        if end - self.position > limit:
            raise _TooLongError
        value = self.data[self.position : end]
        self.position = end
        return value

    def pass_value(self) -> None:
        """Moves behind the object, list or string at the position, without keeping it.

        Raises:
            _EndsInsideError: The text ends first.
        """
        scan = _Scan()
        at = self.position
        while (end := scan.advance(self.data, at)) is None:
            self.position = scan.at
            if not self.more(BATCH_BYTES):
                raise _EndsInsideError
            at = self.position
        self.position = end

    def scalar(self) -> bytes:
        """The text of the number or word at the position, which moves behind it; empty where there is none."""
        self.fill(_SCALAR_BYTES)
        found = _SCALAR_END.search(self.data, self.position)
        end = found.start() if found else len(self.data)
        value = self.data[self.position : end]
        self.position = end
        return value

    def excerpt(self) -> str:
        """The text at the position, as much as shows where it is."""
        return self.data[self.position : self.position + _EXCERPT_BYTES].decode("utf-8", "replace")


def _members(text: _Text, wanted: Collection[str]) -> Iterator[Item]:
    has_events = False
    try:
        while (byte := text.next_byte(_BETWEEN)) != b"}":
            if byte != b'"':
                raise _no_trace(has_events, text, "no key where one must be" if byte else "the trace ends early")
            key = parsed(text.value(MEMBER_BYTES))
            if text.next_byte(_BLANK) != b":":
                raise _no_trace(has_events, text, "a key without a value")
            text.position += 1
            byte = text.next_byte(_BLANK)
            if key == EVENTS and byte == b"[":
                has_events = True
                text.position += 1
                yield Member(EVENTS, None)
                yield from _events(text)
            elif key == EVENTS:
                raise UnknownFormat("traceEvents is no list")
            elif key in wanted:
                yield from _member(text, str(key))
            elif byte in (b"{", b"[", b'"'):
                text.pass_value()
            elif not text.scalar():
                raise _no_trace(has_events, text, "a key without a value")
    except (_EndsInsideError, _TooLongError):
        raise Damaged("the trace ends inside a member", text.excerpt()) from None
    text.position += 1
    if not has_events:
        raise UnknownFormat("no traceEvents")


def _bare_events(text: _Text) -> Iterator[Item]:
    is_trace = False
    for item in _events(text):
        if not is_trace and not (isinstance(item, list) and isinstance(item[0], dict) and "ph" in item[0]):
            raise UnknownFormat("a list, but not of events")
        if not is_trace:
            yield Member(EVENTS, None)
        is_trace = True
        yield item
    if not is_trace:
        raise UnknownFormat("an empty list")


def _no_trace(has_events: bool, text: _Text, reason: str) -> Exception:
    excerpt = text.excerpt()
    if has_events or not excerpt:
        return Damaged(reason, excerpt)
    return UnknownFormat(reason)


def _member(text: _Text, key: str) -> Iterator[Item]:
    if text.data[text.position : text.position + 1] not in (b"{", b"[", b'"'):
        yield Member(key, parsed(text.scalar()))
        return
    try:
        yield Member(key, parsed(text.value(MEMBER_BYTES)))
    except _TooLongError:
        text.pass_value()


def _events(text: _Text) -> Iterator[Item]:
    """The elements of the list at the position, which moves behind its end."""
    broken_until = 0
    while True:
        byte = text.next_byte(_BETWEEN)
        if byte == b"]":
            text.position += 1
            return
        if byte is None:
            raise Damaged("the trace ends before its events do")
        if text.offset >= broken_until:
            text.fill(BATCH_BYTES)
            cut = _last_gap(text)
            if cut is not None:
                batch = _parsed_batch(text.data[text.position : cut])
                if batch is not None:
                    text.position = cut
                    yield batch
                    continue
                broken_until = text.offset + cut - text.position
        yield from _element(text)


def _last_gap(text: _Text) -> int | None:
    """The index behind the last `}` in the window that an element seems to follow."""
    last = None
    for last in _GAP.finditer(text.data, max(text.position, len(text.data) - _TAIL_BYTES)):  # noqa: B007
        pass
    return None if last is None else last.start() + 1


def _parsed_batch(elements: bytes) -> list[Any] | None:
    try:
        batch: list[Any] = orjson.loads(b"[" + LONG_TIME.sub(rb'\1"\2"', elements) + b"]")
    except orjson.JSONDecodeError:
        return None
    return batch


def _element(text: _Text) -> Iterator[Item]:
    """The one element at the position, and what of the text it spoils."""
    if text.data[text.position : text.position + 1] not in (b"{", b"[", b'"'):
        excerpt = text.excerpt()
        if not text.scalar():
            text.position += 1  # a bracket that closes nothing
        yield Unreadable("no object", excerpt.partition("\n")[0])
        return
    start = text.excerpt()
    try:
        raw = text.value(EVENT_BYTES)
    except _EndsInsideError:
        if not _resynchronise(text, text.position + 1, len(text.data)):
            raise Damaged("the trace ends inside an event", start) from None
        yield Unreadable("no end of the event", start)
        return
    except _TooLongError:
        yield Unreadable(f"no end of the event within {EVENT_BYTES >> 20} MiB", start)
        if not _resynchronise(text, text.position + 1, len(text.data)):
            try:
                text.pass_value()
            except _EndsInsideError:
                raise Damaged("the trace ends inside an event", start) from None
        return
    value = parsed(raw)
    if value is not NOT_JSON:
        yield [value]
        return
    # A quote too many makes the end that was counted a wrong one.
    _resynchronise(text, text.position - len(raw) + 1, text.position)
    yield Unreadable("no JSON", start[: len(raw)])


def _resynchronise(text: _Text, start: int, end: int) -> bool:
    """Moves to the first place in a part of the window that looks like the beginning of an event."""
    found = _RESYNC.search(text.data, start, end)
    if found is not None:
        text.position = found.end()
    return found is not None

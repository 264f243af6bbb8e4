"""The archive: recorded messages, one JSON object a line, plain, zstd-compressed, or as `paceline record` writes it.

`{"topic", "partition", "offset", "timestamp_ms", "key", "headers", "value"}`. `timestamp_ms` is the append time. What is no
JSON was recorded with a null value and its bytes in `value_base64`.
A line that cannot be read is given out with its number and the reason, never skipped in silence.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from schemas.archive_blocks import ZSTD_MAGIC, Block, Damage, NotAnArchiveError, is_recorded, read_blocks
from schemas.codec import decode_value, message, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from schemas.base import Record

__all__ = ["ArchiveLine", "ArchiveWriter", "BadLine", "NotAnArchiveError", "decode_line", "read_archive"]

_READ_BYTES = 1 << 20
"""A line is a few kilobytes: read by the 8 kB that Python takes by default, every third of them is a call of the system."""

_BUNCH_BYTES = 1 << 16
"""Lines are read in bunches of so many bytes, and then given out one by one. Reading and judging each fill the processor's caches with
their own code and data: with a change from one to the other at every line both take a seventh longer (measured)."""

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(slots=True)
class ArchiveLine:
    """One recorded message with its value as parsed JSON.

    Where line and record were read in one, `record` has the record, and the value is parsed when it is asked for.
    Nobody changes one. It is not frozen, since to set the slots of what is frozen costs a microsecond a line.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: Any
    headers: dict[str, str] = field(default_factory=dict)
    number: int = 0
    """Line of the file, counted from 1."""
    record: Record | None = field(default=None, init=False, repr=False, compare=False)
    _raw: bytes = field(default=b"", init=False, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "value":
                raise AttributeError(name)
            self.value = orjson.loads(self._raw)["value"]
            return self.value


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no recorded message."""

    number: int
    reason: str


class ArchiveWriter:
    """Writes records as archive lines; offsets count up per topic and partition, in order of arrival.

    Args:
        stream: where lines go, uncompressed.
        partitions: how many partitions a topic has; keys are spread over them by a stable hash.
    """

    def __init__(self, stream: BinaryIO, partitions: int = 1) -> None:
        self._stream = stream
        self._partitions = partitions
        self._offsets: dict[tuple[str, int], int] = {}
        self.lines = 0

    def write(self, record: Record, arrival_ns: int) -> None:
        """Append a record that arrived at the given time."""
        wire = message(record)
        # FNV-1a: stable over processes, unlike hash().
        digest = 0x811C9DC5
        for byte in wire.key:
            digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
        partition = digest % self._partitions
        place = (wire.topic, partition)
        offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + 1
        line = {
            "topic": wire.topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": arrival_ns // 1_000_000,
            "key": wire.key.decode(),
            "headers": {name: value.decode() for name, value in wire.headers},
        }
        head = orjson.dumps(line)[:-1]
        self._stream.write(head + b',"value":' + wire.value + b"}\n")
        self.lines += 1

    @staticmethod
    @contextmanager
    def open(path: Path, partitions: int = 1) -> Iterator[ArchiveWriter]:
        """Open a file for writing, compressed when its name ends in `.zst`; it appears whole or not at all.

        What is there and is no file (a pipe, a device) is written to as it is: it must not be replaced by a file.

        Raises:
            OSError: it cannot be written.
        """
        if path.exists() and not path.is_file():
            with path.open("wb") as there:
                yield ArchiveWriter(there, partitions)
            return
        partial = path.with_name(path.name + ".partial")
        try:
            with partial.open("wb") as raw:
                if path.suffix == ".zst":
                    import zstandard

                    with zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False) as compressed:
                        yield ArchiveWriter(compressed, partitions)
                else:
                    yield ArchiveWriter(raw, partitions)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def decode_line(line: ArchiveLine) -> Record:
    """The record in a line.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRecordError: no record of the topic's families.
    """
    return line.record if line.record is not None else decode_value(line.topic, line.value)


def read_archive(
    path: Path,
    on_read: Callable[[int], None] | None = None,
    is_tolerant: bool = False,
    wants: Callable[[dict[str, Any]], bool] | None = None,
    from_line: int = 1,
) -> Iterator[ArchiveLine | BadLine]:
    """Lines of an archive, in order; compression is told by content.

    Args:
        path: the file.
        on_read: told how many bytes of the file have been read, now and then.
        is_tolerant: give damaged blocks of a recorded archive out as bad lines and go on behind them.
        wants: which blocks of a recorded archive are read at all, by their notes; of other archives everything is read.
        from_line: number of the first line that is given out. Those before it are not parsed, and blocks of them alone stay
            packed.

    Raises:
        NotAnArchiveError: the file cannot be opened, is a pipe or is packed otherwise, or its compressed stream ends or breaks before
            its end; what could be read was given out before.
    """
    try:
        stream: BinaryIO = path.open("rb", buffering=_READ_BYTES)
    except OSError as error:
        raise NotAnArchiveError(f"{path}: {error.strerror}") from None
    told = on_read or _nobody
    with stream:
        if not stream.seekable():
            raise NotAnArchiveError(f"{path}: it is a pipe: write it to a file first")
        try:
            start = stream.read(12)
        except OSError as error:
            raise NotAnArchiveError(f"{path}: {error.strerror}") from None
        stream.seek(0)
        if is_recorded(start):
            yield from _recorded(path, stream, told, is_tolerant, wants, from_line)
        elif start[:2] == _GZIP_MAGIC:
            raise NotAnArchiveError(f"{path} is packed with gzip: unpack it first, zcat {path} > FILE.jsonl")
        elif start[:4] == ZSTD_MAGIC:
            yield from _lines(_decompressed(path, stream, told), from_line=from_line)
        else:
            yield from _lines(_counted(stream, told), from_line=from_line)


def _nobody(_: int) -> None:
    return


def _counted(stream: BinaryIO, told: Callable[[int], None]) -> Iterator[bytes]:
    for number, raw in enumerate(stream):
        if number % 256 == 0:
            told(stream.tell())
        yield raw


def _recorded(
    path: Path,
    stream: BinaryIO,
    told: Callable[[int], None],
    is_tolerant: bool,
    wants: Callable[[dict[str, Any]], bool] | None,
    from_line: int,
) -> Iterator[ArchiveLine | BadLine]:
    """Lines of a recorded archive; each damage ends it, or is told in its place."""

    def is_wanted(note: dict[str, Any]) -> bool:
        return note["first_line"] + note["lines"] > from_line and (wants is None or wants(note))

    for item in read_blocks(stream, str(path), is_wanted):
        if isinstance(item, Block):
            yield from _lines(item.content.split(b"\n"), item.note["first_line"], from_line)
        elif isinstance(item, Damage) and is_tolerant:
            if item.first_line >= from_line:
                yield BadLine(item.first_line, item.reason)
        elif isinstance(item, Damage):
            raise NotAnArchiveError(f"{path}: {item.reason}")
        told(stream.tell())


def _decompressed(path: Path, stream: BinaryIO, told: Callable[[int], None]) -> Iterator[bytes]:
    """Whole lines of a compressed stream; what a torn one still holds is given out before the error."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    is_open, rest = False, b""
    try:
        while compressed := stream.read(1 << 20):
            told(stream.tell())
            while compressed:
                is_open = True
                *lines, rest = (rest + frame.decompress(compressed)).split(b"\n")
                yield from lines
                compressed = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame, is_open = decompressor.decompressobj(), False
    except zstandard.ZstdError as error:
        raise NotAnArchiveError(f"{path}: compressed stream is damaged: {error}") from None
    if is_open:
        raise NotAnArchiveError(f"{path}: compressed stream ends before its end")
    if rest:
        yield rest


def _lines(stream: Iterable[bytes], first: int = 1, from_line: int = 1) -> Iterator[ArchiveLine | BadLine]:
    passed_over = max(0, from_line - first)
    number = first + passed_over
    for bunch in _bunches(islice(stream, passed_over, None)):
        yield from [_line(at, raw) for at, raw in enumerate(bunch, number) if raw and not raw.isspace()]
        number += len(bunch)


def _bunches(stream: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines that are read together; those before an error are given out before it."""
    bunch: list[bytes] = []
    size = 0
    try:
        for raw in stream:
            bunch.append(raw)
            size += len(raw) + 1  # an empty one counts as well
            if size >= _BUNCH_BYTES:
                yield bunch
                bunch, size = [], 0
    except Exception:
        yield bunch
        raise
    yield bunch


def _line(number: int, raw: bytes) -> ArchiveLine | BadLine:
    read = read_line(raw)
    if read is None:
        return _parsed(number, raw)
    # Not by the constructor: there is no value to set yet.
    line = ArchiveLine.__new__(ArchiveLine)
    said, line.record = read
    line.topic, line.partition, line.offset, line.timestamp_ms, line.key, line.headers, _ = said
    line.number, line._raw = number, raw
    return line


def _parsed(number: int, raw: bytes) -> ArchiveLine | BadLine:
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return BadLine(number, f"no JSON: {error}")
    if not isinstance(fields, dict) or not isinstance(fields.get("topic"), str) or "value" not in fields:
        return BadLine(number, "no object with a topic and a value")
    partition, offset, timestamp_ms = fields.get("partition", 0), fields.get("offset", 0), fields.get("timestamp_ms", 0)
    # JSON has no other kinds of numbers, and a truth value is none.
    are_whole = type(partition) is int and type(offset) is int and type(timestamp_ms) is int
    if not are_whole or not (0 <= partition < 2**63 and 0 <= offset < 2**63 and 0 <= timestamp_ms < 2**63):
        return BadLine(number, "partition, offset and timestamp_ms are whole numbers from 0 on")
    headers = fields.get("headers") or {}
    key = fields.get("key")
    if key is None and isinstance(fields.get("key_base64"), str):
        # A key that is no text is nobody's key; without one the record would pass.
        key = fields["key_base64"]
    return ArchiveLine(
        fields["topic"],
        partition,
        offset,
        timestamp_ms,
        key if isinstance(key, str) else None,
        fields["value"],
        headers if isinstance(headers, dict) else {},
        number,
    )

"""A recorded archive: zstd pieces of archive lines, each behind a note of what it holds, and a manifest at the end.

The file is a valid `.jsonl.zst`: notes are skippable zstd frames, so that `zstdcat` gives the lines. A block's note names
its lines, its places and the SHA-256 of its packed bytes; so every damage is found, and told by what it costs. A writer that was killed
leaves whole blocks behind, and goes on after them. Notes are checked by CRC-32: against accidents, not against forgers.

    head | block note, block | block note, block | ... | end (index and manifest) | where the end stands
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from schemas.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = [
    "ARCHIVE_VERSION",
    "ZSTD_MAGIC",
    "ArchiveMarks",
    "Block",
    "BlockWriter",
    "Damage",
    "is_recorded",
    "marks_of",
    "read_blocks",
]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""How a frame of zstd begins."""

ARCHIVE_VERSION = 1

_SKIPPABLE = 0x184D2A5C
_MAGIC = struct.pack("<I", _SKIPPABLE)
_NOTE, _WHERE = b"PCLN", b"PCLE"
_MOST_NOTE_BYTES = 256 << 20
_MOST_BLOCK_BYTES = 256 << 20
"""A block is written at a few MB; what claims more is damaged, and must not fill the memory."""

_SCAN_BYTES = 1 << 20


class NotAnArchiveError(SchemaError):
    """The file cannot be opened, is damaged as a whole, or is of a version that is not known here."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block, found whole.

    Attributes:
        note: `block` (its number from 0), `first_line` (from 1), `lines`, `bytes`, `packed_bytes`, `sha256`, `places` (by
            `topic/partition`: first offset, last offset, count), `read_to` (by `topic/partition`, the offset after the last
            one looked at), `first_ms` and `last_ms` (append times), and what its writer had to say besides.
        content: its lines.
    """

    note: dict[str, Any]
    content: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """What cannot be read at one place of the file.

    Attributes:
        at: byte of the file.
        reason: what is wrong and what it costs, in one line.
        first_line: number of the first line that is lost.
    """

    at: int
    reason: str
    first_line: int


@dataclass(slots=True)
class ArchiveMarks:
    """What the notes of a file say.

    Attributes:
        head: what was asked for; null if it cannot be read.
        blocks: notes of whole blocks.
        end: the manifest; null when the recording did not end or its end is damaged.
        damages: all that cannot be read.
        whole_to: byte after the last whole block that follows only whole ones: where a recording goes on.
    """

    head: dict[str, Any] | None = None
    blocks: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    damages: list[Damage] = field(default_factory=list)
    whole_to: int = 0


def is_recorded(start: bytes) -> bool:
    """Whether a file that begins with these bytes (12 are enough) is a recorded archive, perhaps with a damaged beginning."""
    return start[:4] == _MAGIC or start[8:12] == _NOTE


def read_blocks(
    stream: BinaryIO, name: str, wants: Callable[[dict[str, Any]], bool] | None = None
) -> Iterator[Block | Damage | dict[str, Any]]:
    """Everything in a recorded archive, in order: notes of head and end as objects, blocks, and each damage.

    After a damage it goes on at the next note that is whole. That a recording has no end is a damage, too.

    Args:
        stream: the file, at its beginning.
        name: what errors call it.
        wants: asked with a block's note; of one that is not wanted the sum is checked and the content is left packed.

    Raises:
        NotAnArchiveError: it is of a version that this code does not know.
    """
    yield from _Reader(stream, name, wants or (lambda _: True)).read()


def marks_of(path: Path) -> ArchiveMarks:
    """Read a file through and say what is in it; every sum is checked, nothing is decoded.

    Raises:
        NotAnArchiveError: the file cannot be opened, or is of a version that is not known here.
    """
    marks = ArchiveMarks()
    try:
        stream = path.open("rb")
    except OSError as error:
        raise NotAnArchiveError(f"{path}: {error.strerror}") from None
    with stream:
        reader = _Reader(stream, str(path), lambda _: False)
        for item in reader.read():
            if isinstance(item, Block):
                marks.blocks.append(item.note)
            elif isinstance(item, Damage):
                marks.damages.append(item)
            elif item["note"] == "head":
                marks.head = item
            else:
                marks.end = item
            if isinstance(item, Block | dict) and not marks.damages and marks.end is None:
                marks.whole_to = reader.at
    return marks


class _Reader:
    def __init__(self, stream: BinaryIO, name: str, wants: Callable[[dict[str, Any]], bool]) -> None:
        self._stream = stream
        self._name = name
        self._wants = wants
        self.at = 0
        self._block = 0
        self._line = 1
        self._has_ended = False

    def read(self) -> Iterator[Block | Damage | dict[str, Any]]:
        is_first = True
        while True:
            self._stream.seek(self.at)
            begin, start = self.at, self._stream.read(12)
            if not start:
                break
            note = self._note(start)
            if note is None:
                if start[:4] == _MAGIC and start[8:12] == _WHERE and len(self._stream.read(8)) == 8:
                    self.at += 20
                    continue
                yield self._lost_note()
                if not self._seek_note():
                    break
                continue
            if note["note"] == "head":
                if is_first:
                    _check_version(note, self._name)
                elif not self._has_ended:
                    yield Damage(
                        begin, f"byte {begin}: another recording begins, and the one before it has no end", self._line
                    )
                if note.get("archive_version") != ARCHIVE_VERSION:
                    yield self._other_version(begin, note)
                    return
                self._has_ended, self._block, self._line = False, 0, 1
            is_first = False
            if note["note"] != "block":
                self._has_ended = self._has_ended or note["note"] == "end"
                yield note
                continue
            if note["block"] > self._block:
                yield self._missing(note)
            yield self._read_block(note)
        if not self._has_ended:
            yield Damage(self.at, "the recording has no end: it was cut off, or is still being written", self._line)

    def _note(self, start: bytes) -> dict[str, Any] | None:
        """The note that begins at the present byte, and the position behind it; null if there is no whole one."""
        if start[:4] != _MAGIC or start[8:12] != _NOTE:
            return None
        (size,) = struct.unpack("<I", start[4:8])
        if not 8 < size <= _MOST_NOTE_BYTES:
            return None
        body = self._stream.read(size - 4)
        if len(body) != size - 4 or zlib.crc32(body[4:]) != struct.unpack("<I", body[:4])[0]:
            return None
        note = orjson.loads(body[4:])
        self.at += 8 + size
        return note if isinstance(note, dict) else None

    def _lost_note(self) -> Damage:
        after = f"after block {self._block - 1}" if self._block else "at the beginning"
        return Damage(self.at, f"byte {self.at}, {after}: there is no readable note", self._line)

    def _other_version(self, at: int, head: dict[str, Any]) -> Damage:
        version = head.get("archive_version")
        return Damage(
            at,
            f"byte {at}: an archive of version {version} is appended; this paceline reads version {ARCHIVE_VERSION}, and "
            "leaves out all from there on",
            self._line,
        )

    def _seek_note(self) -> bool:
        """Go to the next note that can be read; false when there is none."""
        at = self.at + 1
        while True:
            self._stream.seek(at)
            chunk = self._stream.read(_SCAN_BYTES)
            found = -1
            while (found := chunk.find(_MAGIC, found + 1)) >= 0:
                self.at = at + found
                self._stream.seek(self.at)
                start = self._stream.read(12)
                before = self.at
                if self._note(start) is not None or (start[8:12] == _WHERE and len(start) == 12):
                    self.at = before
                    return True
            if len(chunk) < _SCAN_BYTES:
                self.at = at + len(chunk)
                return False
            at += len(chunk) - 3

    def _missing(self, note: dict[str, Any]) -> Damage:
        lost = note["first_line"] - self._line
        first, self._block = self._block, note["block"]
        first_line, self._line = self._line, note["first_line"]
        name = f"block {first}" if first + 1 == self._block else f"blocks {first} to {self._block - 1}"
        return Damage(
            self.at, f"{name} cannot be found: {lost} lines from line {first_line} on are left out", first_line
        )

    def _read_block(self, note: dict[str, Any]) -> Block | Damage:
        begin, first_line = self.at, self._line
        packed = self._stream.read(min(note["packed_bytes"], _MOST_BLOCK_BYTES))
        self._block, self._line = note["block"] + 1, note["first_line"] + note["lines"]
        if len(packed) < note["packed_bytes"]:
            self.at = self._stream.seek(0, 2)
            return Damage(begin, f"{_told(note)}: the file ends within it", first_line)
        if hashlib.sha256(packed).hexdigest() != note["sha256"]:
            # Its length may be what is damaged least: the next note is looked for from its beginning.
            if not self._is_note_at(begin + len(packed)):
                self.at = begin
                self._seek_note()
            else:
                self.at = begin + len(packed)
            return Damage(begin, f"{_told(note)}: its sum is another", first_line)
        self.at = begin + len(packed)
        if not self._wants(note):
            return Block(note, b"")
        import zstandard

        try:
            content = zstandard.ZstdDecompressor().decompress(packed, max_output_size=note["bytes"])
        except zstandard.ZstdError as error:
            return Damage(begin, f"{_told(note)}: {error}", first_line)
        return Block(note, content)

    def _is_note_at(self, at: int) -> bool:
        self._stream.seek(at)
        start = self._stream.read(12)
        return start[:4] == _MAGIC and start[8:12] in {_NOTE, _WHERE}


def _told(note: dict[str, Any]) -> str:
    places = [f"{place} {first}..{last}" for place, (first, last, _) in sorted(note["places"].items())]
    shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    last_line = note["first_line"] + note["lines"] - 1
    return f"block {note['block']} (lines {note['first_line']} to {last_line}: {shown}) is left out"


def _check_version(head: dict[str, Any], name: str) -> None:
    version = head.get("archive_version")
    if version != ARCHIVE_VERSION:
        raise NotAnArchiveError(
            f"{name} is an archive of version {version}; this paceline reads version {ARCHIVE_VERSION}"
        )


class BlockWriter:
    """Writes a recorded archive, block by block.

    Args:
        stream: an empty file, or one that ends after a whole block.
        head: what is asked for; written only when the file is new.
        known: notes of the blocks that are in the file already.
    """

    def __init__(self, stream: BinaryIO, head: dict[str, Any], known: list[dict[str, Any]] | None = None) -> None:
        self._stream = stream
        self.blocks: list[dict[str, Any]] = list(known or ())
        self.lines = self.blocks[-1]["first_line"] + self.blocks[-1]["lines"] - 1 if self.blocks else 0
        self._pending: list[bytes] = []
        self._places: dict[str, list[int]] = {}
        self._read_to: dict[str, int] = {}
        self._times: list[int] = []
        self.pending_bytes = 0
        self.remarks: dict[str, Any] = {}
        """What else the note of the block in the making is to say; empty again behind every block."""
        if known is None:
            self._write_note({"note": "head", "archive_version": ARCHIVE_VERSION, **head})

    def add(self, line: bytes, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        """Take one line with its newline."""
        self._pending.append(line)
        self.pending_bytes += len(line)
        place = self._places.setdefault(f"{topic}/{partition}", [offset, offset, 0])
        place[:] = min(place[0], offset), max(place[1], offset), place[2] + 1
        self._times = [min([*self._times[:1], timestamp_ms]), max([*self._times[1:], timestamp_ms])]
        self.looked_at(topic, partition, offset)

    def looked_at(self, topic: str, partition: int, offset: int) -> None:
        """Note that a record was passed: a recording that goes on does not look at it again."""
        self._read_to[f"{topic}/{partition}"] = offset + 1

    def close_block(self) -> None:
        """Write what has come since the last block, in one piece; nothing if nothing has."""
        if not self._pending and not self._read_to:
            return
        import zstandard

        content = b"".join(self._pending)
        packed = zstandard.ZstdCompressor(level=6, write_checksum=True).compress(content)
        note: dict[str, Any] = {
            "note": "block",
            "block": len(self.blocks),
            "first_line": self.lines + 1,
            "lines": len(self._pending),
            "bytes": len(content),
            "packed_bytes": len(packed),
            "sha256": hashlib.sha256(packed).hexdigest(),
            "places": self._places,
            "read_to": self._read_to,
            "first_ms": self._times[0] if self._times else None,
            "last_ms": self._times[1] if self._times else None,
            **self.remarks,
        }
        note["at"] = self._stream.tell()
        self._write_note(note)
        self._stream.write(packed)
        self._stream.flush()
        self.blocks.append(note)
        self.lines += len(self._pending)
        self._pending, self._places, self._read_to, self._times, self.pending_bytes = [], {}, {}, [], 0
        self.remarks = {}

    def end(self, manifest: dict[str, Any]) -> None:
        """Close the last block, and write index and manifest behind it."""
        self.close_block()
        at = self._stream.tell()
        index = [{key: value for key, value in note.items() if key != "note"} for note in self.blocks]
        self._write_note({"note": "end", **manifest, "lines": self.lines, "blocks": index})
        self._stream.write(struct.pack("<II4sQ", _SKIPPABLE, 12, _WHERE, at))
        self._stream.flush()

    def _write_note(self, note: dict[str, Any]) -> None:
        body = orjson.dumps(note)
        self._stream.write(struct.pack("<II4sI", _SKIPPABLE, 8 + len(body), _NOTE, zlib.crc32(body)) + body)
        self._stream.flush()

"""Spool entries as bytes: one frame each, found again behind any damage.

A frame is a marker, the length of its body, a CRC-32 over length and body, and the body: number, arrival, topic, key,
headers, value. The marker has bytes that UTF-8 never has, so no record of ours holds one. The CRC starts from a seed of
the segment's own, so a frame counts only in the segment it was written to. What does not check is passed over up to the
next frame that does: damage costs the frames it touches, and nothing is read that was not written, but for a collision
of the CRC (1 in 4 thousand million for damage over more than 32 bits; none for less). It repairs nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.codec import Message

__all__ = ["MAX_BODY_BYTES", "Damage", "Entry", "frame", "packed", "scan", "seed_of"]

MAX_BODY_BYTES = 4 << 20
"""Above every record that the codec lets through; a length beyond it is damage."""

_MARKER = b"\xf5PL\xff"
_FRAME = struct.Struct(">4sII")
_HEAD = struct.Struct(">QqHIH")
_HEADER = struct.Struct(">HI")
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Entry:
    """One spooled message.

    Attributes:
        number: its place in the lane, from 1.
        arrival_ns: wall time at which the agent took it.
        message: topic, key, headers and value, as they were.
    """

    number: int
    arrival_ns: int
    message: Message


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no frame, from `start` to before `end`."""

    start: int
    end: int


def seed_of(segment: str) -> int:
    """The seed of a segment's CRCs, from its name with its lane's."""
    return zlib.crc32(segment.encode())


def packed(entry: Entry) -> bytes:
    """The body of an entry's frame.

    Raises:
        ValueError: the body would be above `MAX_BODY_BYTES`, or a part is longer than its length can tell.
    """
    topic = entry.message.topic.encode()
    try:
        parts = [
            _HEAD.pack(entry.number, entry.arrival_ns, len(topic), len(entry.message.key), len(entry.message.headers)),
            topic,
            entry.message.key,
        ]
        for name, value in entry.message.headers:
            encoded = name.encode()
            parts += [_HEADER.pack(len(encoded), len(value)), encoded, value]
    except struct.error as error:
        raise ValueError(f"an entry of {entry.message.topic} has a part that is too long: {error}") from None
    body = b"".join([*parts, entry.message.value])
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"an entry of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}")
    return body


def frame(body: bytes, seed: int) -> bytes:
    """The frame of a body, 12 bytes longer than it."""
    length = _LENGTH.pack(len(body))
    return _MARKER + length + _LENGTH.pack(zlib.crc32(body, zlib.crc32(length, seed))) + body


def scan(data: bytes, seed: int, start: int = 0) -> Iterator[Entry | Damage]:
    """The entries in a segment's bytes, and the damage between them.

    Args:
        data: the bytes.
        seed: of the segment.
        start: where the first frame should begin.
    """
    view = memoryview(data)
    at = start
    damaged_from: int | None = None
    while at < len(data):
        found = _entry_at(view, at, seed)
        if found is None:
            damaged_from = at if damaged_from is None else damaged_from
            at = data.find(_MARKER, at + 1)
            if at < 0:
                break
            continue
        if damaged_from is not None:
            yield Damage(damaged_from, at)
            damaged_from = None
        entry, at = found
        yield entry
    if damaged_from is not None:
        yield Damage(damaged_from, len(data))


def _entry_at(view: memoryview, at: int, seed: int) -> tuple[Entry, int] | None:
    body_at = at + _FRAME.size
    if body_at > len(view):
        return None
    marker, length, crc = _FRAME.unpack_from(view, at)
    end = body_at + length
    if marker != _MARKER or length > MAX_BODY_BYTES or end > len(view):
        return None
    body = view[body_at:end]
    if zlib.crc32(body, zlib.crc32(_LENGTH.pack(length), seed)) != crc:
        return None
    try:
        return _unpacked(bytes(body)), end
    except (struct.error, UnicodeDecodeError, ValueError):  # a collision of the CRC
        return None


def _unpacked(body: bytes) -> Entry:
    number, arrival_ns, topic_size, key_size, header_count = _HEAD.unpack_from(body)
    at = _HEAD.size + topic_size
    topic = body[_HEAD.size : at].decode()
    key = body[at : at + key_size]
    at += key_size
    headers = []
    for _ in range(header_count):
        name_size, value_size = _HEADER.unpack_from(body, at)
        at += _HEADER.size
        headers.append((body[at : at + name_size].decode(), body[at + name_size : at + name_size + value_size]))
        at += name_size + value_size
    if at > len(body):
        raise ValueError("parts are longer than the body")
    return Entry(number, arrival_ns, Message(topic, key, body[at:], tuple(headers)))

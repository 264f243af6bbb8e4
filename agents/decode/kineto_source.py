"""The bytes of a trace file in pieces, unpacked where they are gzip, which the content tells and not the name.

Guarantees: memory for one piece, however large the file; gzip of several members is one text, zero bytes that pad it
are dropped. Deliberately not: other compressions, JSON, or any second look at what was given out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from agents.decode.record import Damaged

PIECE_BYTES: Final = 1 << 18
"""Bytes read from a file, and given out, at a time."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31
"""What zlib takes for a stream with a gzip header."""


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The text of a stream, in pieces of at most `PIECE_BYTES`.

    Raises:
        Damaged: The gzip stream breaks off or does not hold what it says; what came before was given out.
    """
    # read1 gives what a pipe holds now; read would wait for a full piece.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    first = read(PIECE_BYTES)
    while 0 < len(first) < len(_GZIP_MAGIC) and (more := read(PIECE_BYTES)):
        first += more
    packed = _packed(first, read)
    yield from _unpacked(packed) if first.startswith(_GZIP_MAGIC) else packed


def _packed(first: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    piece = first
    while piece:
        yield piece
        piece = read(PIECE_BYTES)


def _unpacked(packed: Iterator[bytes]) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP_WINDOW)
    is_open = False
    try:
        for piece in packed:
            rest = piece
            while rest:
                if not is_open:
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    member, is_open = zlib.decompressobj(_GZIP_WINDOW), True
                text = member.decompress(rest, PIECE_BYTES)
                if text:
                    yield text
                rest = member.unused_data if member.eof else member.unconsumed_tail
                is_open = not member.eof
            while is_open and (text := member.decompress(member.unconsumed_tail, PIECE_BYTES)):
                yield text
    except zlib.error as error:
        raise Damaged(f"the gzip stream is broken: {error}") from None
    if is_open:
        raise Damaged("the gzip stream breaks off")

r"""Bytes to numbered lines of text, for files of any size and any content.

Guarantees: `\r`, `\n` and `\r\n` each end one line, so numbers agree with an editor's; terminal escape
sequences are gone; a byte that is not UTF-8 becomes U+FFFD and costs no more than itself; memory is bounded
by one chunk and one line of at most `MAX_LINE_BYTES`, whose rest is dropped. Lines are not trimmed otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
"""What is kept of one line. Kernel records end at 1 KiB and journal entries at 48 KiB unless told otherwise;
a mebibyte leaves room for exports that put a whole table in one line."""

_END = re.compile(rb"\r\n?|\n")
_BOM = "\ufeff"

_ANSI = re.compile(
    "\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    "|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # operating system commands: window titles, hyperlinks
    r"|[ -/]+[0-~]"  # character sets
    r"|[0-Z\\^-~]"  # two-character escapes
    ")?"
)


def without_ansi(text: str) -> str:
    """`text` without terminal escape sequences; what a cut sequence leaves behind stays as text."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def lines(stream: BinaryIO, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) per line of `stream`, empty lines too, without their ends.

    A last line without an end counts; an end at the very end of the file opens no further line.
    """
    for number, raw in enumerate(_raw_lines(stream, max_line_bytes), 1):
        text = without_ansi(raw.decode("utf-8", "replace"))
        yield number, text.removeprefix(_BOM) if number == 1 else text


def _raw_lines(stream: BinaryIO, max_line_bytes: int) -> Iterator[bytes]:
    # read1 gives what a pipe holds now; read would wait for a full chunk.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    line = bytearray()
    open_line = False
    after_cr = False
    while chunk := read(CHUNK_BYTES):
        if after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of an end of line that two chunks share
        if not chunk:
            after_cr = False
            continue
        after_cr = chunk.endswith(b"\r")
        *complete, rest = _END.split(chunk)
        for part in complete:
            line += part[: max(0, max_line_bytes - len(line))]
            yield bytes(line)
            line.clear()
            open_line = False
        if rest:
            line += rest[: max(0, max_line_bytes - len(line))]
            open_line = True
    if open_line:
        yield bytes(line)

"""Follows a text file that others write: new complete lines, over rotation and truncation.

Guarantees: every line is given once, in order, with a position that grows over rotations; a line without its end waits
for the rest; one reading takes a bounded number of bytes. Character devices (`/dev/kmsg`) and pipes are read the same
way and never block. Not seen: a file that is truncated and refilled beyond the old length between two readings, and
all but the oldest and the newest of several rotations between them.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from agents.decode.text import MAX_LINE_BYTES, without_ansi

__all__ = ["LogFollower", "LogLine"]

_CHUNK_BYTES = 1 << 16
"""Above the 8 KiB that one record of `/dev/kmsg` may have; a smaller buffer makes the read fail."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its end; `position` counts bytes since the follower began, over rotations."""

    position: int
    text: str


class LogFollower:
    """Reads what is new in a file.

    Args:
        path: the file; it may come to be later.
        from_start: read what the file holds already, or only what is written from now on.
        max_bytes: bytes taken in one reading at most; the rest comes with the next.
    """

    def __init__(self, path: str | Path, *, from_start: bool = True, max_bytes: int = 8 << 20) -> None:
        self.lost_records = 0
        """Records of the kernel's ring that were overwritten before they were read."""
        self._path = Path(path)
        self._from_start = from_start
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._is_stream = False
        self._offset = 0
        self._base = 0
        self._partial = bytearray()
        self._partial_start = 0

    def read(self) -> list[LogLine]:
        """The lines that were completed since the last reading; none while the file is not there.

        Raises:
            OSError: the file is there and cannot be read.
        """
        lines: list[LogLine] = []
        budget = self._max_bytes
        while budget > 0:
            if self._file is None and not self._open():
                break
            chunk = self._read_chunk()
            if chunk:
                budget -= len(chunk)
                self._split(chunk, lines)
            elif self._is_stream or not self._moved_on(lines):
                break
        return lines

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._from_start = True  # what comes later is new from its first line on
            return False
        self._is_stream = not stat.S_ISREG(os.fstat(self._file).st_mode)
        self._offset = 0
        if not self._from_start:
            self._skip_to_end()
            self._from_start = True
        return True

    def _skip_to_end(self) -> None:
        assert self._file is not None
        try:
            self._offset = os.lseek(self._file, 0, os.SEEK_END)
        except OSError:  # a pipe holds nothing old
            self._offset = 0

    def _read_chunk(self) -> bytes:
        assert self._file is not None
        while True:
            try:
                chunk = os.read(self._file, _CHUNK_BYTES)
            except BlockingIOError:
                return b""
            except BrokenPipeError:  # how /dev/kmsg says that it has overwritten what was next
                self.lost_records += 1
                continue
            return chunk

    def _split(self, chunk: bytes, lines: list[LogLine]) -> None:
        if not self._partial:
            self._partial_start = self._offset
        self._offset += len(chunk)
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            whole = self._partial + piece if self._partial else piece
            lines.append(self._line(bytes(whole)))
            self._partial_start += len(whole) + 1
            self._partial.clear()
        # What is beyond the limit is dropped, and its length with it: positions stay increasing, which is their point.
        self._partial += rest[: max(0, MAX_LINE_BYTES - len(self._partial))]

    def _line(self, raw: bytes) -> LogLine:
        text = without_ansi(raw.removesuffix(b"\r").decode("utf-8", "replace"))
        return LogLine(self._base + self._partial_start, text)

    def _moved_on(self, lines: list[LogLine]) -> bool:
        """At the end of a file: whether there is another to go on with, a new one or this one cut short."""
        assert self._file is not None
        own = os.fstat(self._file)
        try:
            current = os.stat(self._path)  # noqa: PTH116 - beside os.fstat, in the same terms
        except FileNotFoundError:
            return False  # moved away, and the new one is not made yet
        if (own.st_dev, own.st_ino) != (current.st_dev, current.st_ino):
            if self._partial:  # nobody ends this line any more
                lines.append(self._line(bytes(self._partial)))
            self._restart()
            self.close()
            return True
        if own.st_size < self._offset:
            self._restart()
            os.lseek(self._file, 0, os.SEEK_SET)
            return True
        return False

    def _restart(self) -> None:
        self._base += self._offset
        self._offset = 0
        self._partial.clear()

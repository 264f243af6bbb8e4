"""Follows a text file that others write: new complete lines, over rotation, truncation and restarts of the reader.

Guarantees: every line is given once, in order, with a position that grows over rotations; a line without its end waits
for the rest; one reading takes a bounded number of bytes. A file that was renamed is read to its end before the new one,
also when that happened while nobody read; of one that was copied and cut short the copy is read to its end, if it is kept
beside it uncompressed. Character devices (`/dev/kmsg`) and pipes are read the same way and never block. Not seen: all but
the oldest and the newest of several rotations between two readings, and what a copy missed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agents.collectors.log_cursor import FilePlace
from agents.decode.text import MAX_LINE_BYTES, without_ansi

__all__ = ["LogFollower", "LogLine", "OpenLog"]

_CHUNK_BYTES = 1 << 16
"""Above the 8 KiB that one record of `/dev/kmsg` may have; a smaller buffer makes the read fail."""

_TAIL_BYTES = 64
"""Of what was read last; with a time in every line they do not occur twice at one offset."""

_ROTATED_FILES = 32
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its end; `position` counts bytes since the follower began, over rotations."""

    position: int
    text: str


class OpenLog(Protocol):
    """An open log that is no file: the kernel's ring, or what stands for it."""

    def read(self, size: int) -> bytes:
        """The next bytes; none at the end of a pipe.

        Raises:
            BlockingIOError: nothing is there now.
            BrokenPipeError: what was next has been overwritten.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class LogFollower:
    """Reads what is new in a file.

    Args:
        path: the file; it may come to be later.
        from_start: read what the file holds already, or only what is written from now on.
        max_bytes: bytes taken in one reading at most; the rest comes with the next.
        place: where an earlier follower of the file got to; what stands before it is not read again.
        open_log: opens the log instead of `path`, as tests do that have no kernel's ring.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        from_start: bool = True,
        max_bytes: int = 8 << 20,
        place: FilePlace | None = None,
        open_log: Callable[[], OpenLog] | None = None,
    ) -> None:
        self.overruns = 0
        """How often the kernel said that it had overwritten what was next."""
        self.is_stream = False
        """Whether it reads a device or a pipe, which has no places; known once it was opened."""
        self.is_caught_up = False
        """Whether it has been at the end of the log: what it gives from then on was written a moment ago."""
        self._path = Path(path)
        self._from_start = from_start
        self._max_bytes = max_bytes
        self._place = place
        self._open_log = open_log
        self._log: OpenLog | None = None
        self._file: int | None = None
        self._base = 0
        self._offset = 0
        self._line_start = 0
        self._partial = bytearray()
        self._tail = b""

    def read(self) -> list[LogLine]:
        """The lines that were completed since the last reading; none while the file is not there.

        Raises:
            OSError: the file is there and cannot be read.
        """
        lines: list[LogLine] = []
        try:
            self._read_into(lines)
        except OSError:
            if not lines:
                raise  # else the next reading meets it again, and these lines are not lost
        return lines

    def place(self) -> FilePlace | None:
        """Where the next line begins, for a follower after a restart; None before the first reading and for streams."""
        if self._file is None or self.is_stream:
            return None
        own = os.fstat(self._file)
        return FilePlace(
            device=own.st_dev, inode=own.st_ino, offset=self._line_start, tail=self._tail.hex(), base=self._base
        )

    def close(self) -> None:
        """Let go of the file."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read_into(self, lines: list[LogLine]) -> None:
        budget = self._max_bytes
        if self._is_open and not self.is_stream and self._was_cut():
            self._leave_for_copy()
        while budget > 0:
            if not self._is_open and not self._open():
                self.is_caught_up = True
                break
            chunk = self._read_chunk()
            if chunk:
                budget -= len(chunk)
                self._split(chunk, lines)
            elif self.is_stream or not self._moved_on(lines):
                self.is_caught_up = True
                break
        self._remember_tail()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process anything may be gone already
            self.close()

    @property
    def _is_open(self) -> bool:
        return self._file is not None or self._log is not None

    def _open(self) -> bool:
        if self._open_log is not None:
            self._log, self.is_stream = self._open_log(), True
            return True
        place, self._place = self._place, None
        if place is not None and self._resume(place):
            return True
        try:
            self._file = _opened(self._path)
        except FileNotFoundError:
            self._from_start = True  # what comes later is new from its first line on
            self._place = place
            return False
        self.is_stream = not stat.S_ISREG(os.fstat(self._file).st_mode)
        if place is not None:
            self._base = max(self._base, place.base + place.offset)
        elif not self._from_start:
            self._skip_to_end()
        self._from_start = True
        return True

    def _resume(self, place: FilePlace) -> bool:
        """Open the file that a place is in, wherever it is by now, and go there; whether it was found."""
        for path in (self._path, *_rotated(self._path)):
            try:
                file = _opened(path)
            except OSError:
                continue
            own = os.fstat(file)
            same_file = (own.st_dev, own.st_ino) == (place.device, place.inode)
            # Of a copy only the content tells; where nothing was read there is no content to go by.
            if stat.S_ISREG(own.st_mode) and (same_file or place.offset > 0) and _holds(file, place):
                self._go_to(file, place)
                return True
            os.close(file)
        return False

    def _go_to(self, file: int, place: FilePlace) -> None:
        os.lseek(file, place.offset, os.SEEK_SET)
        self._file, self.is_stream = file, False
        self._base, self._offset, self._line_start = place.base, place.offset, place.offset
        self._tail = bytes.fromhex(place.tail)
        self._from_start = True

    def _skip_to_end(self) -> None:
        assert self._file is not None
        with contextlib.suppress(OSError):  # a pipe holds nothing old
            self._offset = self._line_start = os.lseek(self._file, 0, os.SEEK_END)

    def _read_chunk(self) -> bytes:
        while True:
            try:
                if self._log is not None:
                    return self._log.read(_CHUNK_BYTES)
                assert self._file is not None
                return os.read(self._file, _CHUNK_BYTES)
            except BlockingIOError:
                return b""
            except BrokenPipeError:  # how /dev/kmsg says that it has overwritten what was next
                self.overruns += 1

    def _split(self, chunk: bytes, lines: list[LogLine]) -> None:
        at = self._offset
        self._offset += len(chunk)
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            at += len(piece) + 1
            if self._partial:
                self._extend(piece)
                piece = bytes(self._partial)  # noqa: PLW2901 - the whole of it
                self._partial.clear()
            lines.append(self._line(piece))
            self._line_start = at
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        self._partial += piece[: max(0, MAX_LINE_BYTES - len(self._partial))]  # what is beyond the limit is dropped

    def _line(self, raw: bytes) -> LogLine:
        text = without_ansi(raw.removesuffix(b"\r").decode("utf-8", "replace"))
        return LogLine(self._base + self._line_start, text)

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
            self._remember_tail()
            self._leave_for_copy()
            return True
        return False

    def _was_cut(self) -> bool:
        """Whether the file no longer holds what was read of it, however long it has become since."""
        assert self._file is not None
        if os.fstat(self._file).st_size < self._offset:
            return True
        size = len(self._tail)
        return os.pread(self._file, size, self._line_start - size) != self._tail

    def _leave_for_copy(self) -> None:
        """The file was cut short: go on in the copy that was made of it before, else at its new start."""
        place = self.place()
        assert place is not None
        self.close()
        if place.offset > 0:
            for path in _rotated(self._path):
                try:
                    file = _opened(path)
                except OSError:
                    continue
                if stat.S_ISREG(os.fstat(file).st_mode) and _holds(file, place):
                    self._partial.clear()
                    self._go_to(file, place)
                    return
                os.close(file)
        self._restart()

    def _restart(self) -> None:
        self._base += self._offset
        self._offset = self._line_start = 0
        self._partial.clear()
        self._tail = b""

    def _remember_tail(self) -> None:
        if self._file is None or self.is_stream:
            return
        size = min(_TAIL_BYTES, self._line_start)
        tail = os.pread(self._file, size, self._line_start - size)
        if len(tail) == size:  # shorter if the file was cut this very moment
            self._tail = tail


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _holds(file: int, place: FilePlace) -> bool:
    """Whether a file has before the place what was read there."""
    try:
        tail = bytes.fromhex(place.tail)
        return os.fstat(file).st_size >= place.offset and os.pread(file, len(tail), place.offset - len(tail)) == tail
    except (OSError, ValueError):
        return False


def _rotated(path: Path) -> Iterator[Path]:
    """Files beside a log that a rotation may have made of it, the newest first."""
    found = []
    with contextlib.suppress(OSError):
        for beside in path.parent.iterdir():
            if beside != path and beside.name.startswith(path.stem) and beside.suffix not in _COMPRESSED:
                with contextlib.suppress(OSError):
                    found.append((beside.stat().st_mtime_ns, beside))
    return iter([beside for _, beside in sorted(found, reverse=True)[:_ROTATED_FILES]])

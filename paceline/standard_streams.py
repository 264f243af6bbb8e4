"""Stdout and stderr of the command where they take nothing more (a full disk, a log that is full): every command ends alike.

Commands take an `OSError` for one of the file that they read or write. One of stdout is none of theirs and would be told of
that file, so it is another exception, which passes them by. What stderr does not take nobody can be told; the status stands.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["StdoutError", "watch_standard_streams"]


class StdoutError(BaseException):
    """Stdout takes nothing more; the text says why. No `Exception`: nobody on the way may take it for what he expects."""


class _Stdout(io.FileIO):
    """The file that stdout is. A reader that went away is told as ever."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutError(error.strerror or str(error)) from None


class _Stderr(io.FileIO):
    """The file that stderr is. What it does not take is lost."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def watch_standard_streams() -> None:
    """From here on what stdout does not take is a `StdoutError`, and what stderr does not take nothing.

    One that was closed by who started us goes nowhere, and no file that is opened later gets its number.
    """
    sys.stdout = _over(sys.stdout, _Stdout) if sys.stdout is not None else _nowhere()
    sys.stderr = _over(sys.stderr, _Stderr) if sys.stderr is not None else _nowhere()


def _over(was: TextIO, file: type[io.FileIO]) -> TextIO:
    was.flush()
    raw = file(was.fileno(), "wb", closefd=False)
    is_unbuffered = isinstance(was.buffer, io.RawIOBase)  # by PYTHONUNBUFFERED
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=was.encoding,
        errors=was.errors,
        line_buffering=bool(was.line_buffering),
        write_through=is_unbuffered,
    )


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")

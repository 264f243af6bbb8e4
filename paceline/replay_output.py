"""Where the outputs of a replay go: stdout, or a file that a later run of the same replay goes on with.

A replay is a function of its input, so that what the file holds already is said again and held against it: what is the
same is not written twice, and a file of another replay is an error. A last line that was torn is written anew.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, BinaryIO, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["OtherReplayError", "ReplayOutput"]


class OtherReplayError(Exception):
    """The file holds what this replay does not say; the text names the line."""


class ReplayOutput:
    """Takes lines.

    Args:
        path: the file; null for stdout, or for nowhere.
        is_resumed: hold the lines against those that are there.
        to_stdout: write to stdout where there is no file.

    Raises:
        OSError: the file cannot be written, or is there and nobody asked to go on with it.
    """

    def __init__(self, path: Path | None, is_resumed: bool, to_stdout: bool) -> None:
        self._path = path
        self._known: BinaryIO | None = None
        self._stream: BinaryIO | None = sys.stdout.buffer if to_stdout and path is None else None
        self.lines = 0
        if path is not None:
            self._stream = path.open("r+b" if is_resumed and path.exists() else "x+b")
            self._known = self._stream if is_resumed else None

    def write(self, line: bytes) -> None:
        """Take the next line.

        Raises:
            OtherReplayError: another one stands in its place.
        """
        self.lines += 1
        if self._stream is None:
            return
        if self._known is not None:
            at = self._known.tell()
            there = self._known.readline()
            if there == line:
                return
            if there.endswith(b"\n"):
                raise OtherReplayError(f"{self._path}: line {self.lines} is of another replay")
            self._known.seek(at)
            self._known.truncate()
            self._known = None
        self._stream.write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None:
            return
        self._stream.flush()
        if self._path is not None:
            self._stream.close()

"""Where the outputs of a replay go: stdout, or a file that a later run of the same replay goes on with.

A replay is a function of its input, so that what the file holds already is said again and held against it: what is the
same is not written twice, and a file of another replay is an error. A last line that was torn is written anew. What a checkpoint
counts is not said again; its sum is held against the file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import orjson

from schemas.codec import decode_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from schemas.base import Record

__all__ = ["OtherReplayError", "ReplayOutput"]


_PIECE_BYTES = 1 << 20


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
        self._bytes = 0
        self._sum = hashlib.sha256()
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
        self._bytes += len(line)
        self._sum.update(line)
        if self._known is not None:
            at = self._known.tell()
            there = self._known.readline()
            if there == line:
                return
            # A line that is torn is the beginning of this one; zeros are what a power cut leaves behind it.
            if there.endswith(b"\n") or not line.startswith(there.rstrip(b"\0")):
                raise OtherReplayError(f"{self._path}: line {self.lines} is of another replay")
            self._known.seek(at)
            self._known.truncate()
            self._known = None
        self._stream.write(line)

    def end(self) -> None:
        """All has been said.

        Raises:
            OtherReplayError: the file holds more than that.
        """
        if self._known is not None and self._known.readline():
            raise OtherReplayError(f"{self._path}: from line {self.lines + 1} on it is of another replay")

    def on_disk(self) -> dict[str, Any]:
        """What has been said so far, `lines`, `bytes` and `sha256`, when all of it is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        assert self._stream is not None
        self._stream.flush()
        os.fsync(self._stream)
        return {"lines": self.lines, "bytes": self._bytes, "sha256": self._sum.hexdigest()}

    def go_on_behind(self, said: dict[str, Any]) -> bool:
        """Take for said what a checkpoint counts, and go on behind it; false if the file does not begin with it.

        To be called before anything is written.

        Args:
            said: as `on_disk` gave it.
        """
        assert self._stream is not None
        left = said["bytes"]
        while left and (piece := self._stream.read(min(left, _PIECE_BYTES))):
            self._sum.update(piece)
            left -= len(piece)
        if left or self._sum.hexdigest() != said["sha256"]:
            self._sum = hashlib.sha256()
            self._stream.seek(0)
            return False
        self.lines, self._bytes = said["lines"], said["bytes"]
        return True

    def records(self) -> Iterator[Record]:
        """What has been said so far, read from the file."""
        assert self._path is not None
        with self._path.open("rb") as said:
            for _ in range(self.lines):
                told = orjson.loads(said.readline())
                yield decode_value(told["topic"], told["value"])

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

"""The segment of a lane that is being written, and the files that still wait for a sync.

Guarantees: of a write that failed nothing stands before the next one; a new segment's name is on the disk before its
first entry. It keeps no numbers but the segment's own, and is not safe to use from several threads.
"""

from __future__ import annotations

import os
from pathlib import Path

from agents.spool_segment import MAGIC, Segment, new_segment

__all__ = ["SegmentWriter"]


class SegmentWriter:
    """Writes the segments of one directory, one after another.

    Args:
        directory: the lane's.
    """

    def __init__(self, directory: Path) -> None:
        self.segment: Segment | None = None
        """The one that is being written; None where the next entry begins one."""
        self._directory = directory
        self._file = -1
        self._ended: list[int] = []

    def begin(self, first: int) -> Segment:
        """Begin a segment; the one before is ended.

        Raises:
            OSError: it cannot be made.
        """
        self.end()
        segment = new_segment(self._directory, first)
        self._file = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.segment = segment
        self._put(MAGIC)
        self._sync_directory()
        return segment

    def append(self, data: bytes) -> None:
        """Write an entry to the segment.

        Raises:
            OSError: it is not written. The segment may have ended with that, and is gone if it has no entry.
        """
        assert self.segment is not None
        self._put(data)
        self.segment.last += 1

    def end(self) -> None:
        """Write no more to the segment."""
        if self.segment is not None:
            self._ended.append(self._file)
            self.segment = None

    def drop(self) -> None:
        """Forget the segment, which is about to be removed."""
        if self.segment is not None:
            os.close(self._file)
            self.segment = None

    def files_to_sync(self) -> list[int]:
        """Files with what was written since the last call; the caller syncs and closes them."""
        current = [] if self.segment is None else [os.dup(self._file)]
        files, self._ended = self._ended + current, []
        return files

    def _put(self, data: bytes) -> None:
        assert self.segment is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self._undo(self.segment)
            raise
        self.segment.size += len(data)

    def _undo(self, segment: Segment) -> None:
        if segment.last >= segment.first:
            try:
                os.ftruncate(self._file, segment.size)
            except OSError:
                self.end()  # what stands of the entry is damage at the end of this segment
            return
        self.drop()
        segment.path.unlink(missing_ok=True)

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

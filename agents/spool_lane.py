"""One lane of the spool: numbered entries in segment files, read in order, forgotten once they are settled.

Guarantees: entries are given out in the order in which they were appended, also over restarts; an entry leaves the disk
only when it and all before it are settled (delivered or given up for a stated reason), or when a lane that may drops
its oldest segment to stay below its cap; a damaged segment costs the entries that the damage touches, which is counted
and logged. After a crash entries may be given out again. Numbers are the lane's own and may be used again for other
entries once nothing of them is on the disk. It sends nothing, and two processes must not open one lane.
"""

from __future__ import annotations

import bisect
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from agents.spool_frames import Damage, Entry, frame, packed
from agents.spool_policy import LanePolicy
from agents.spool_position import read_position, write_position
from agents.spool_segment import MAGIC, Segment, segments_in
from agents.spool_writer import SegmentWriter
from schemas.codec import Message

__all__ = ["SpoolFullError", "SpoolLane"]

_LOG = logging.getLogger(__name__)

_FRAME_OVERHEAD = 12

_RECYCLED_BYTES = 65_536
"""A segment of which all is settled is let go at this size, or what was long delivered would stay on the disk."""


class SpoolFullError(Exception):
    """The lane is at its cap and gives nothing up for what is new."""


class SpoolLane:
    """A lane in a directory of its own; safe to use from several threads.

    Args:
        directory: the lane's; it is made if it is missing.
        policy: caps and firmness.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path, policy: LanePolicy) -> None:
        self.corrupt_segments = 0
        """Segments in which something could not be read."""
        self.corrupt_records = 0
        """Entries that damage cost, where their numbers are known; those of a torn end are not."""
        self.dropped_records = 0
        """Entries given up because the lane was full."""
        self._directory = directory
        self._policy = policy
        self._lock = threading.RLock()
        self._sync_ended = threading.Condition(self._lock)
        self._is_syncing = False
        directory.mkdir(mode=0o750, exist_ok=True)
        self._segments = self._found()
        self._writer = SegmentWriter(directory)
        position = read_position(self._position_path) or 0
        self._floor = max(position, self._segments[0].first - 1 if self._segments else 0)
        """All up to this number are settled."""
        self._settled: set[int] = set()
        self._handed: dict[int, int] = {}
        """Arrival of entries that were given out and are not settled."""
        self._last = max([self._floor, *(segment.last for segment in self._segments)])
        self._synced = self._last
        self._cursor = self._floor + 1
        self._peeked: Entry | None = None
        self._reading: Segment | None = None
        self._read_up_to = 0
        self._items: Iterator[Entry | Damage] = iter(())
        self._is_moved = False
        self._forget_settled()
        self._try_to_write()

    # --- What it holds --------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Entries that are not settled."""
        with self._lock:
            return self._last - self._floor - len(self._settled)

    @property
    def unread(self) -> int:
        """Entries that were never given out since the start or the last `rewind`, at most."""
        with self._lock:
            return self._last + 1 - self._cursor

    @property
    def size_bytes(self) -> int:
        """Bytes on the disk."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def floor(self) -> int:
        """The number up to which all is settled."""
        with self._lock:
            return self._floor

    @property
    def is_synced(self) -> bool:
        """Whether everything that was appended is on the disk."""
        with self._lock:
            return self._synced == self._last

    def holds(self, number: int) -> bool:
        """Whether an entry is there to be given out again."""
        with self._lock:
            return number > self._floor and number not in self._settled

    def oldest_arrival_ns(self) -> int | None:
        """When the oldest entry that is not settled was taken; None if all are."""
        with self._lock:
            if self._handed:
                return min(self._handed.values())
            entry = self.peek()
            return entry.arrival_ns if entry else None

    # --- Writing --------------------------------------------------------------------------------------------------

    def append(self, message: Message, arrival_ns: int, *, is_out: bool = False) -> int:
        """Write an entry, unsynced; its number.

        Args:
            message: what to keep.
            arrival_ns: wall time at which it was taken.
            is_out: the message is on its way already: it is given out again only after `rewind`. Holds only while
                nothing before it is unread.

        Raises:
            SpoolFullError: the lane is at its cap, and this entry's policy or size lets nothing make room.
            OSError: the disk does not take it; nothing was appended.
            ValueError: the message is larger than any record.
        """
        with self._lock:
            number = self._last + 1
            body = packed(Entry(number, arrival_ns, message))
            size = len(body) + _FRAME_OVERHEAD
            self._make_room(size + len(MAGIC))
            segment = self._writable(number, size)
            self._writer.append(frame(body, segment.seed))
            if self._segments[-1:] != [segment]:
                self._segments.append(segment)
            self._last = number
            if is_out and self._cursor == number:
                self._cursor = number + 1
                self._handed[number] = arrival_ns
            return number

    def sync(self) -> None:
        """Return when all that was appended before the call is on the disk; calls share one sync.

        Raises:
            OSError: the disk does not say so. The entries stay in the lane and count as synced.
        """
        with self._lock:
            wanted = self._last
            while self._synced < wanted and self._is_syncing:
                self._sync_ended.wait()
            if self._synced >= wanted:
                return
            wanted = self._last
            files = self._writer.files_to_sync()
            self._is_syncing = True
        try:
            for file in files:
                os.fdatasync(file)
        finally:
            for file in files:
                os.close(file)
            with self._lock:
                self._synced = max(self._synced, wanted)
                self._is_syncing = False
                self._sync_ended.notify_all()

    def _writable(self, number: int, size: int) -> Segment:
        segment = self._writer.segment
        if segment is None or (segment.last >= segment.first and segment.size + size > self._policy.segment_bytes):
            return self._writer.begin(number)
        return segment

    def _make_room(self, size: int) -> None:
        if size > self._policy.cap_bytes:
            raise SpoolFullError(f"an entry of {size} bytes is larger than the lane")
        if self.size_bytes + size > self._policy.cap_bytes:
            self._forget_settled(at_any_size=True)
        while self._segments and self.size_bytes + size > self._policy.cap_bytes:
            if not self._policy.drops_oldest:
                raise SpoolFullError(f"{self._directory.name} lane is at its cap of {self._policy.cap_bytes} bytes")
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        segment = self._segments[0]
        lost = [n for n in range(max(segment.first, self._cursor), segment.last + 1) if n not in self._settled]
        self.dropped_records += len(lost)
        self._raise_floor(segment.last)
        self._forget_settled(at_any_size=True)

    # --- Reading --------------------------------------------------------------------------------------------------

    def next(self) -> Entry | None:
        """Give out the next entry; None if there is none yet."""
        with self._lock:
            entry = self.peek()
            if entry is not None:
                self._peeked = None
                self._cursor = entry.number + 1
                self._handed[entry.number] = entry.arrival_ns
            return entry

    def peek(self) -> Entry | None:
        """The entry that `next` would give out."""
        with self._lock:
            if self._peeked is None:
                self._peeked = self._read()
            return self._peeked

    def rewind(self) -> None:
        """Begin again with the oldest entry that is not settled."""
        with self._lock:
            self._cursor = self._floor + 1
            self._handed.clear()
            self._stop_reading()

    def _read(self) -> Entry | None:
        limit = self._synced if self._policy.syncs_first else self._last
        while self._cursor <= limit:
            segment = self._segment_of(self._cursor)
            if segment is not self._reading:
                self._reading, self._read_up_to, self._items = segment, 0, iter(())
            item = next(self._items, None)
            if item is None and self._read_up_to < segment.size:
                try:
                    self._items = self._load(segment)
                except OSError as error:
                    _LOG.warning("spool: %s cannot be read now: %s", segment.path, error.strerror or error)
                    return None
            elif item is None:
                self._lost(segment.last)
            elif isinstance(item, Damage):
                self._damaged(segment, item)
            elif self._cursor <= item.number <= segment.last:
                self._lost(item.number - 1)
                if item.number not in self._settled and item.number > self._floor:
                    return item
                self._cursor = item.number + 1
        return None

    def _segment_of(self, number: int) -> Segment:
        return self._segments[bisect.bisect_right(self._segments, number, key=lambda segment: segment.first) - 1]

    def _load(self, segment: Segment) -> Iterator[Entry | Damage]:
        try:
            items = segment.load(self._read_up_to)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EIO}:  # as too many open files: it may work the next time
                raise
            items = iter((Damage(self._read_up_to, segment.size),))
        self._read_up_to = segment.size
        return items

    def _damaged(self, segment: Segment, damage: Damage) -> None:
        if not segment.is_reported:
            segment.is_reported = True
            self.corrupt_segments += 1
            size = damage.end - damage.start
            _LOG.warning("spool: %s is damaged: %d bytes from byte %d on", segment.path, size, damage.start)

    def _lost(self, last: int) -> None:
        """Entries from the cursor to `last` are not in their segment."""
        if last < self._cursor:
            return
        lost = [number for number in range(self._cursor, last + 1) if self.holds(number)]
        self._cursor = last + 1
        if lost:
            self.corrupt_records += len(lost)
            _LOG.warning("spool: %s lane lost %d records to damage", self._directory.name, len(lost))
            for number in lost:
                self.settle(number)

    def _stop_reading(self) -> None:
        self._reading, self._items, self._peeked = None, iter(()), None

    # --- Forgetting -----------------------------------------------------------------------------------------------

    def settle(self, number: int) -> None:
        """An entry was delivered, or given up; it is not given out again."""
        with self._lock:
            self._handed.pop(number, None)
            if not self._floor < number <= self._last:
                return
            self._settled.add(number)
            if number == self._floor + 1:
                self._raise_floor(self._floor)
                self._forget_settled()

    def save_position(self) -> None:
        """Write down what is settled, if that has changed.

        Raises:
            OSError: it cannot be written; what is settled may be given out again after a restart.
        """
        with self._lock:
            if self._is_moved:
                write_position(self._position_path, self._floor)
                self._is_moved = False

    def close(self) -> None:
        """Sync, write down what is settled, and let go of the files.

        Raises:
            OSError: the disk does not take it.
        """
        try:
            self.sync()
            self.save_position()
        finally:
            with self._lock:
                self._writer.end()
                for file in self._writer.files_to_sync():
                    os.close(file)

    @property
    def _position_path(self) -> Path:
        return self._directory / "settled"

    def _raise_floor(self, number: int) -> None:
        if number > self._floor:
            self._floor = number
            self._settled = {settled for settled in self._settled if settled > number}
        while self._floor + 1 in self._settled:
            self._floor += 1
            self._settled.discard(self._floor)
        self._cursor = max(self._cursor, self._floor + 1)
        if self._peeked is not None and self._peeked.number <= self._floor:
            self._peeked = None
        self._is_moved = True

    def _forget_settled(self, at_any_size: bool = False) -> None:
        while self._segments and self._segments[0].last <= self._floor:
            segment = self._segments[0]
            if segment is self._writer.segment:
                if segment.size < _RECYCLED_BYTES and not at_any_size:
                    return
                self._writer.drop()
            if segment is self._reading:
                self._stop_reading()
            del self._segments[0]
            try:
                segment.path.unlink(missing_ok=True)
            except OSError as error:
                _LOG.warning("spool: %s cannot be removed: %s", segment.path, error.strerror or error)

    # --- Opening --------------------------------------------------------------------------------------------------

    def _found(self) -> list[Segment]:
        segments = segments_in(self._directory)
        # The last one may be torn; it is read for its last number, and never written again.
        while segments and not self._find_last(segments[-1]):
            segments.pop().path.unlink()
        return segments

    def _find_last(self, segment: Segment) -> bool:
        """Find the number of a segment's last entry; whether it has one."""
        segment.last = segment.first - 1
        self._read_up_to = 0
        for item in self._load(segment):
            if isinstance(item, Damage):
                self._damaged(segment, item)
            else:
                segment.last = max(segment.last, item.number)
        return segment.last >= segment.first

    def _try_to_write(self) -> None:
        """A lane that cannot be written must show now, not when the first record comes; a full disk may get room."""
        try:
            write_position(self._position_path, self._floor)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            _LOG.warning("spool: %s: %s", self._directory, error.strerror)

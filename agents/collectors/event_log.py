"""One log of events, read with a cursor: what the collectors of kernel log and Fabric Manager log have in common.

Guarantees: over restarts of the agent no line is lost and none is given twice, as far as the log still has it and the
cursor could be written; what the kernel's ring overwrote is counted. A reading has a cursor where nothing is held back;
`acknowledge` puts it on disk, and its caller does so once the events were handed on: a crash in between repeats events,
under the same numbers, and loses none. It knows no source's name and asks for no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Readings
from agents.collectors.log_cursor import FilePlace, KmsgPlace, LogCursor
from agents.collectors.log_follower import LogFollower

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.collectors.kernel_events import KernelEventReader
    from agents.collectors.log_cursor import CursorFile
    from agents.collectors.log_follower import LogLine, OpenLog

__all__ = ["EventLog"]

_READING_BYTES = 1 << 20
"""A reading of half a second on a slow core, at worst; a longer log takes several."""


class EventLog:
    """Reads a log on from where it was left.

    Args:
        path: `/dev/kmsg` or a file.
        reader: makes events of its lines.
        boot_id: this boot's name.
        cursors: keeps the cursor; None keeps none.
        from_start: without a cursor, read what the log holds already.
        open_log: opens the log instead of `path`, for tests.
    """

    def __init__(
        self,
        path: Path,
        reader: KernelEventReader,
        boot_id: str,
        cursors: CursorFile | None = None,
        *,
        from_start: bool = True,
        open_log: Callable[[], OpenLog] | None = None,
    ) -> None:
        self.lost_records = 0
        """Records of the kernel's ring that were overwritten before they were read, by the gap in their numbers."""
        self._path = path
        self._reader = reader
        self._boot_id = boot_id
        self._cursors = cursors
        self._from_start = from_start
        self._open_log = open_log
        self._follower: LogFollower | None = None
        self._seq: int | None = None
        self._skip_to = -1

    def collect(self, now_ns: int) -> Readings:
        """The events of lines that are new.

        Raises:
            CollectorError: the log cannot be read.
        """
        if self._follower is None:
            self._follower = self._begin()
        is_live = self._follower.is_caught_up
        try:
            lines = self._follower.read()
        except OSError as error:
            raise CollectorError(f"{self._path} cannot be read: {error.strerror or error}") from None
        if not lines:
            if not self._reader.is_waiting:
                return Readings()
            # A log that pauses: nothing follows that could change what was held back.
            return Readings(events=self._reader.finish(now_ns), cursor=self._cursor())
        if self._follower.is_stream:
            lines = self._in_sequence(lines)
        return Readings(events=self._reader.read(lines, now_ns, is_live=is_live), cursor=self._cursor())

    def finish(self, now_ns: int) -> Readings:
        """What was held back until later lines would decide, for one reading of a whole file."""
        return Readings(events=self._reader.finish(now_ns))

    def acknowledge(self, cursor: object) -> None:
        """Put a reading's cursor on disk: its events were handed on."""
        if self._cursors is not None and isinstance(cursor, LogCursor):
            self._cursors.save(cursor)

    def _begin(self) -> LogFollower:
        cursor = self._cursors.load() if self._cursors is not None else None
        if cursor is not None and not self._reader.restore(cursor.last_number, cursor.fold, cursor.reader):
            cursor = None
        place = None
        if cursor is not None and isinstance(cursor.place, FilePlace):
            place = cursor.place
        elif cursor is not None and isinstance(cursor.place, KmsgPlace):
            self._seq = self._skip_to = cursor.place.seq
        return LogFollower(
            self._path,
            from_start=self._from_start or cursor is not None,
            max_bytes=_READING_BYTES,
            place=place,
            open_log=self._open_log,
        )

    def _in_sequence(self, lines: list[LogLine]) -> list[LogLine]:
        """Lines of the ring without those that an earlier run has given; what is missing between them is counted."""
        new = []
        is_new = True
        for line in lines:
            text = line.text
            if not text.startswith(" "):  # else a property of the record before
                number = _sequence_number(text)
                if number is not None:
                    is_new = number > self._skip_to
                    if is_new:
                        if self._seq is not None and number > self._seq + 1:
                            self.lost_records += number - self._seq - 1
                        self._seq = number
            if is_new:
                new.append(line)
        return new

    def _cursor(self) -> LogCursor | None:
        """Where the next line is; None while something is held back, or nobody keeps it."""
        if self._cursors is None or self._follower is None or self._reader.is_waiting:
            return None
        place = KmsgPlace(seq=self._seq) if self._seq is not None else self._follower.place()
        if place is None:
            return None
        return LogCursor(
            log=str(self._path),
            boot_id=self._boot_id,
            place=place,
            last_number=self._reader.last_number,
            fold=self._reader.fold_snapshot(),
            reader=self._reader.reader_snapshot(),
        )


def _sequence_number(text: str) -> int | None:
    """The second field of a `/dev/kmsg` record."""
    fields = text.split(",", 2)
    if len(fields) < 3 or not fields[0].isdecimal() or not fields[1].isdecimal() or len(fields[1]) > 18:
        return None
    return int(fields[1])

"""One trainer log that is being written: its new lines to the steps that they finish.

Guarantees: a step comes once, when every rank of the log has come to a later one or nothing was said of it for two
seconds, so that the timers behind a step line are its own; what the log held when it was first seen is read for its
restarts and, unless asked for, gives no step. A printed time that is more than ten minutes from now is not believed of a
line that was written now; a line without a time has the time at which it was read. It knows no jobs and no records.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from agents.collectors.log_follower import LogFollower
from agents.decode.record import Record
from agents.decode.steps import StepLogReader
from agents.decode.text import without_ansi
from agents.decode.watchdog_line import watchdog_record
from agents.importers.step_lines import LoggedStep, Report, StepLines, WallClock

__all__ = ["TrainerLogFile"]

_QUIET_NS = 2 * 10**9
"""Lines of one step are printed within milliseconds; buffers are flushed with them, or not at all."""

_BELIEVED_NS = 600 * 10**9

_WATCHDOG_WORDS = ("atchdog", "NCCL work")
_MOST_WATCHDOG_LINES = 1024
"""Of one reading; a rank says a few about each operation that times out."""

_MOST_OLD_BYTES = 64 << 20
"""What a log holds is read for its restarts up to this size; a longer one is followed from its end."""


class TrainerLogFile:
    """Follows one log.

    Args:
        path: the file.
        now_ns: wall time.
        zone: of times without one; None is this machine's as it is now.
        framework: lines of others are left out; empty takes all.
        is_new: whether it came while it was waited for, so that all of it is new.
        from_start: give also the steps that it holds already.
        max_bytes: bytes taken in one reading.
    """

    def __init__(
        self,
        path: Path,
        now_ns: int,
        *,
        zone: tzinfo | None,
        framework: str,
        is_new: bool,
        from_start: bool,
        max_bytes: int = 1 << 18,
    ) -> None:
        self.path = path
        self.report = Report(files=1)
        self.tools: set[str] = set()
        """Frameworks that its lines have shown."""
        self._watchdog: list[tuple[int, Record]] = []
        self._framework = framework
        size = 0 if is_new else path.stat().st_size
        self._gives_from = 0 if from_start else size
        self._live_from = size
        self._follower = LogFollower(path, from_start=from_start or size <= _MOST_OLD_BYTES, max_bytes=max_bytes)
        self._reader = StepLogReader()
        self._clock = _ArrivalClock(zone or _zone_here(now_ns), now_ns)
        self._lines = StepLines(self._clock, None, self.report)
        self._line_count = 0
        self._said_ns: dict[tuple[int, int], int] = {}
        self._old: set[tuple[int, int]] = set()

    @property
    def has_unnamed(self) -> bool:
        """Whether some of its lines name no rank, and no timers do it for them."""
        return self._lines.has_unnamed and not self._lines.timer_ranks

    @property
    def named_ranks(self) -> frozenset[int]:
        """Ranks that its lines name."""
        return frozenset(self._lines.named_ranks | self._lines.timer_ranks)

    @property
    def is_idle(self) -> bool:
        """Whether no step waits for further lines."""
        return not self._lines.steps

    def take_watchdog(self) -> list[tuple[int, Record]]:
        """What the watchdog said in lines that were written since this was asked last.

        Returns:
            How many restarts the log has shown before each line, and the line's record.
        """
        told, self._watchdog = self._watchdog, []
        return told

    def read(self, now_ns: int) -> int:
        """Take what is new; how many lines that was.

        Raises:
            OSError: the file is there and cannot be read.
        """
        lines = self._follower.read()
        for line in lines:
            is_live = line.position >= self._live_from
            self._clock.now_ns, self._clock.is_live = now_ns, is_live
            for text in line.text.split("\r"):
                self._line_count += 1
                if is_live and any(word in text for word in _WATCHDOG_WORDS):
                    self._take_watchdog(text)
                for record in self._reader.feed(self._line_count, text):
                    self._take(record, now_ns, line.position >= self._gives_from)
        return len(lines)

    def finished(self, now_ns: int, rank: int | None) -> list[LoggedStep]:
        """The steps that are whole by now, with their event times.

        Args:
            now_ns: wall time.
            rank: whose the lines are that name none; None where timers name ranks.
        """
        taken = self._lines.take_finished(
            lambda step: now_ns - self._said_ns.get((step.epoch, step.step), 0) >= _QUIET_NS
        )
        given = []
        for step in taken:
            key = (step.epoch, step.step)
            said_ns = self._said_ns.pop(key, now_ns)
            self._lines.name_unnamed(step, rank)
            if key in self._old:
                self._old.discard(key)
            elif not step.known:
                self.report.without_time += 1
            else:
                step.event_ns = min(step.wall_ns if step.wall_ns is not None else said_ns, now_ns)
                self.report.steps += 1
                given.append(step)
        return given

    def close(self) -> None:
        """Let go of the file."""
        self._follower.close()

    def _take_watchdog(self, text: str) -> None:
        record = watchdog_record(without_ansi(text))
        if record is not None and len(self._watchdog) < _MOST_WATCHDOG_LINES:
            step = self._lines.current
            self._watchdog.append((step.epoch if step is not None else 0, record))

    def _take(self, record: dict[str, Any], now_ns: int, is_given: bool) -> None:
        tool = record.get("tool")
        if record["kind"] == "step" and tool is not None:
            if self._framework and tool != self._framework:
                self.report.foreign += 1
                return
            self.tools.add(tool)
        self._lines.take(record)
        step = self._lines.current
        if step is None:
            return
        key = (step.epoch, step.step)
        if key in self._lines.steps:
            self._said_ns[key] = now_ns
            if not is_given:
                self._old.add(key)


class _ArrivalClock(WallClock):
    """Wall times of a log's lines; of a line that was written now, the present where it prints none that can be it."""

    def __init__(self, zone: tzinfo, now_ns: int) -> None:
        super().__init__(zone, now_ns)
        self.now_ns = now_ns
        self.is_live = False

    def read_ns(self, record: dict[str, Any]) -> int | None:
        """Event time of a record's line."""
        printed_ns = super().read_ns(record)
        if not self.is_live:
            return printed_ns
        if printed_ns is None or abs(printed_ns - self.now_ns) > _BELIEVED_NS:
            return self.now_ns
        return printed_ns


def _zone_here(now_ns: int) -> tzinfo:
    here = datetime.fromtimestamp(now_ns // 10**9, UTC).astimezone().tzinfo
    assert here is not None
    return here

"""Decoded records of one trainer log folded into steps, for logs that are read whole and for those that still grow.

Timers belong to the nearest step line before them. Bare progress bars are no steps unless they print a time, because
they may count evaluation batches. A step number that falls begins a new epoch, unless it is the one just before.
Deliberately knows nothing of files, of other logs, of jobs or of records; what a line leaves open (rank, time) is open
until the caller settles it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LoggedStep", "Report", "Row", "StepLines", "WallClock", "rank_in_name"]

_LONGEST_STEP_US: Final = 10**13
"""115 days: a longer step is a misread number."""
_END_NS: Final = 2**63 - 1
_RANKS_AT_MOST: Final = 65_536
"""Ranks that a growing log is followed for; one that names more is forged and starts anew."""

_FILE_RANK = re.compile(r"(?<![a-z])rank[_=-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_FILE_NUMBER = re.compile(r"\.(\d{1,5})\.(?:log|txt|out|err)$", re.IGNORECASE)
_LOCAL_TIME = re.compile(
    r"(?:(?P<year>\d{4})-?(?P<month>\d\d)-?(?P<day>\d\d)[T ]|(?P<us_month>\d\d)/(?P<us_day>\d\d)/(?P<us_year>\d{4}) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
)
_MEASURED: Final = frozenset(
    {"loss", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu", "mfu_pct", "skipped_iterations"}
)
"""What tells a trainer's own line from a bare progress bar, which may count evaluation batches."""

_TIMERS: Final = {
    "forward-compute": "forward",
    "forward": "forward",
    "fwd": "forward",
    "backward-compute": "backward",
    "backward-backward": "backward",
    "backward-inner": "backward",
    "bwd-inner": "backward",
    "batch-generator": "data",
    "optimizer": "optimizer",
    "step": "optimizer",
    "all-grads-sync": "sync",
}
_WAIT = re.compile(
    r"(?:(?:forward|backward)-(?:send|recv)-?)+|params-all-gather"
    r"|(?P<part>(?:[a-z-]*-)?(?:grads|params|embedding)-(?:all-reduce|reduce-scatter|all-gather)|(?:backward|bwd)-allreduce)"
)


@dataclass(slots=True)
class Report:
    """What became of the logs; complete once the first record is given out.

    Attributes:
        files: logs read.
        foreign: of these, logs that no trainer wrote, as of ranks that print no steps.
        steps: steps given out, per log.
        derived: step times that no line prints, from token rates and the job's tokens, or from successive times.
        without_time: steps left out because neither a time nor a timer is known of them.
        without_step: step lines without a step number.
        repeats: lines on a step whose time was known already, or on the step before it.
        restarts: times that a step number fell.
        loose_timers: timer values without a step line to belong to.
        extremes: figures of straggler reports, which are not used.
        malformed: lines that were meant to be telemetry but cannot be read.
    """

    files: int = 0
    foreign: int = 0
    steps: int = 0
    derived: int = 0
    without_time: int = 0
    without_step: int = 0
    repeats: int = 0
    restarts: int = 0
    loose_timers: int = 0
    extremes: int = 0
    malformed: int = 0


@dataclass(slots=True)
class Row:
    """One rank's share of a step: its step time, and timers by column in microseconds."""

    step_us: int | None = None
    timers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class LoggedStep:
    """One step of one log; the reporter that no line names is the row None."""

    epoch: int
    step: int
    steps_since: int
    wall_ns: int | None = None
    event_ns: int = 0
    rows: dict[int | None, Row] = field(default_factory=dict)

    @property
    def duration_us(self) -> int:
        """The longest step time that was given, 0 if none was."""
        return max((row.step_us or 0 for row in self.rows.values()), default=0)

    @property
    def known(self) -> bool:
        """Whether a time or a timer is known."""
        return any(row.step_us is not None or row.timers for row in self.rows.values())


@dataclass(slots=True)
class _Tail:
    """Where one rank's lines of a log stand; `anchor` is the line that the next derived duration counts from."""

    epoch: int = 0
    step: int = -1
    step_before: int = -1
    anchor_step: int = 0
    anchor_ns: int | None = None


class WallClock:
    """Wall times of a log's lines. Clocks without a date begin on the start's day and pass midnight by themselves."""

    def __init__(self, zone: tzinfo, start_ns: int) -> None:
        self._zone = zone
        self._day = datetime.fromtimestamp(start_ns // 10**9, zone).date()
        self._last_ns = 0

    def read_ns(self, record: dict[str, Any]) -> int | None:
        """Event time of a record's line, or None where it has none that exists."""
        wall_us, text = record.get("wall_time_us"), record.get("time_text")
        time_ns = wall_us * 1000 if wall_us is not None else self._local_ns(text) if text else None
        return time_ns if time_ns is not None and 0 <= time_ns < _END_NS else None

    def _local_ns(self, text: str) -> int | None:
        found = _LOCAL_TIME.fullmatch(text)
        if found is None:
            return None
        year, month, day = (found[name] or found[f"us_{name}"] for name in ("year", "month", "day"))
        clock = (int(found["hour"]), int(found["minute"]), int(found["second"]))
        try:
            date = (int(year), int(month), int(day)) if year else (self._day.year, self._day.month, self._day.day)
            moment = datetime(*date, *clock, tzinfo=self._zone)
            seconds = int(moment.timestamp())
        except (ValueError, OverflowError):
            return None
        time_ns = seconds * 10**9 + int((found["fraction"] or "").ljust(9, "0"))
        if year:
            return time_ns
        if time_ns < self._last_ns - 43_200 * 10**9:
            self._day += timedelta(days=1)
            time_ns += 86_400 * 10**9
        if time_ns < self._last_ns:
            return None
        self._last_ns = time_ns
        return time_ns


def rank_in_name(name: str, world_size: int | None = None) -> int | None:
    """The rank that a log file's name gives; a bare number only if the job has such a rank."""
    if found := _FILE_RANK.search(name):
        return int(found[1])
    found = _FILE_NUMBER.search(name)
    if found is None or (world_size is not None and int(found[1]) >= world_size):
        return None
    return int(found[1])


class StepLines:
    """Folds the records of one log, in the log's order.

    Args:
        clock: wall times of its lines.
        tokens_per_gpu: of the job, which turn a printed token rate into a step time; None if unknown.
        report: what became of the lines is counted here.
    """

    def __init__(self, clock: WallClock, tokens_per_gpu: float | None, report: Report) -> None:
        self.steps: dict[tuple[int, int], LoggedStep] = {}
        self.named_ranks: set[int] = set()
        self.timer_ranks: set[int] = set()
        self.has_unnamed = False
        self.tokens_per_gpu: list[float] = []
        self._clock = clock
        self._job_tokens_per_gpu = tokens_per_gpu
        self._report = report
        self._tails: dict[int | None, _Tail] = {}
        self._bare: set[tuple[int, int]] = set()
        self._current: tuple[LoggedStep, int | None] | None = None

    @property
    def current(self) -> LoggedStep | None:
        """The step that the last lines were about."""
        return self._current[0] if self._current is not None else None

    @property
    def restarts(self) -> int:
        """How often the step number fell."""
        return max((tail.epoch for tail in self._tails.values()), default=0)

    def take(self, record: dict[str, Any]) -> None:
        """Fold one record in."""
        kind = record["kind"]
        if kind == "step":
            self._take_step(record)
        elif kind == "timer":
            self._take_timer(record)
        elif kind == "rank_extreme":
            self._report.extremes += 1
        elif kind == "malformed":
            self._report.malformed += 1

    def _take_step(self, record: dict[str, Any]) -> None:
        number, rank = record["step"], record.get("rank")
        printed_us = _microseconds(record["step_time_ms"])
        tail = self._tails.setdefault(rank, _Tail())
        if number is None or not 0 <= number < 2**63:
            self._report.without_step += 1
            self._current = None
            return
        if printed_us is None and not record.keys() & _MEASURED:
            self._bare.add((tail.epoch, number))
            return
        if number == tail.step_before:
            # Ranks that all print without saying who they are overtake each other by one step; no restart is so short.
            self._report.repeats += 1
            self._current = None
            return
        wall_ns = self._clock.read_ns(record)
        if number < tail.step:
            tail.epoch, tail.step, tail.anchor_ns = tail.epoch + 1, -1, None
        since = number - tail.step if tail.step >= 0 else 1
        if number != tail.step:
            tail.step_before, tail.step = tail.step, number
        step = self.steps.setdefault((tail.epoch, number), LoggedStep(tail.epoch, number, since))
        step.wall_ns = max(wall_ns, step.wall_ns or 0) if wall_ns is not None else step.wall_ns
        self._current = (step, rank)
        if rank is None:
            self.has_unnamed = True
        else:
            self.named_ranks.add(rank)
        row = step.rows.setdefault(rank, Row())
        if row.step_us is not None:
            self._report.repeats += 1
            return
        row.step_us = self._duration_us(record, printed_us, number, wall_ns, tail)

    def _duration_us(
        self, record: dict[str, Any], printed_us: int | None, number: int, wall_ns: int | None, tail: _Tail
    ) -> int | None:
        rate = record.get("tokens_per_s_per_gpu")
        derived_us = None
        if rate and rate > 0 and printed_us is None and self._job_tokens_per_gpu is not None:
            derived_us = _microseconds(self._job_tokens_per_gpu / rate * 1000)
        if wall_ns is not None:
            if tail.anchor_ns is not None and wall_ns > tail.anchor_ns and number > tail.anchor_step:
                between_ms = (wall_ns - tail.anchor_ns) / 1e6 / (number - tail.anchor_step)
                derived_us = derived_us or _microseconds(between_ms)
            # Lines within one tick of a coarse clock share the next tick among them.
            if tail.anchor_ns is None or (wall_ns != tail.anchor_ns and number != tail.anchor_step):
                tail.anchor_step, tail.anchor_ns = number, wall_ns
        if printed_us is not None:
            if rate and rate > 0 and math.isfinite(tokens := rate * printed_us / 1e6):
                self.tokens_per_gpu.append(tokens)
            return printed_us
        self._report.derived += derived_us is not None
        return derived_us

    def _take_timer(self, record: dict[str, Any]) -> None:
        time_us = _microseconds(record.get("time_ms"), zero=True)
        name = "-".join(record["name"].lower().replace("_", " ").split())
        wait = _WAIT.fullmatch(name)
        column = _TIMERS.get(name) or (f"{'part' if wait['part'] else 'wait'}:{name}" if wait else None)
        if time_us is None or column is None:
            return
        if self._current is None:
            self._report.loose_timers += 1
            return
        step, reporter = self._current
        rank = record.get("rank")
        if rank is not None:
            self.timer_ranks.add(rank)
        else:
            rank = reporter
        timers = step.rows.setdefault(rank, Row()).timers
        if column in timers:
            # A second block behind one step line is of a later step, whose number nobody printed.
            self._report.loose_timers += 1
        else:
            timers[column] = time_us

    def take_finished(self, is_quiet: Callable[[LoggedStep], bool]) -> list[LoggedStep]:
        """Take out the steps that no further line is expected of, in the order of the log.

        Args:
            is_quiet: whether nothing has been said of a step for so long that nothing will; else it is finished once
                every rank of the log has come to a later one.
        """
        self._bare.clear()
        self.tokens_per_gpu.clear()
        if len(self._tails) > _RANKS_AT_MOST:
            self._tails.clear()
        reached = min(((tail.epoch, tail.step) for tail in self._tails.values() if tail.step >= 0), default=(0, -1))
        finished = [key for key, step in self.steps.items() if key < reached or is_quiet(step)]
        return [self.steps.pop(key) for key in finished]

    def leave_out_unknown(self) -> None:
        """Drop the steps of which neither a time nor a timer is known, and count them and the bare ones."""
        self._report.without_time += len(self._bare - self.steps.keys())
        self._bare.clear()
        for key in [key for key, step in self.steps.items() if not step.known]:
            del self.steps[key]
            self._report.without_time += 1

    def name_reporter(self, rank: int | None) -> None:
        """Give unnamed lines to `rank`, or to all ranks that timers name: a time without a rank is the job's then."""
        for step in self.steps.values():
            self.name_unnamed(step, rank)
        self.leave_out_unknown()

    def name_unnamed(self, step: LoggedStep, rank: int | None) -> None:
        """Give the unnamed row of one step to `rank`, or to all ranks that timers name."""
        unnamed = step.rows.pop(None, None)
        if unnamed is None:
            return
        for each in [rank] if rank is not None else sorted(self.timer_ranks):
            row = step.rows.setdefault(each, Row())
            row.step_us = unnamed.step_us if row.step_us is None else row.step_us
            if rank is not None:
                row.timers = unnamed.timers | row.timers

    def set_event_times(self, start_ns: int) -> None:
        """Event time per step: its wall time, else that of the step before and the steps' time since."""
        now_ns = start_ns
        for step in self.steps.values():
            elapsed_ns = now_ns + step.steps_since * step.duration_us * 1000
            now_ns = min(step.wall_ns if step.wall_ns is not None else elapsed_ns, _END_NS)
            step.event_ns = now_ns


def _microseconds(milliseconds: float | None, *, zero: bool = False) -> int | None:
    """Whole microseconds of a duration; None for what is no duration."""
    if milliseconds is None or not 0 <= milliseconds <= _LONGEST_STEP_US / 1000:
        return None
    time_us = round(milliseconds * 1000)
    return time_us if time_us > 0 or (zero and time_us == 0) else None

"""Step timings from the logs of trainers that have no hook: Megatron-LM, torchtitan, NeMo, DeepSpeed and others.

Guarantees: files are found by pattern and followed over rotation and truncation; the framework is told from each line;
a step is published once, by the rules of `paceline import steps`; one reading takes a bounded number of bytes. A log
says less than the hook: mostly one rank speaks for all, and waiting is unknown unless timers are printed. Jobs are not
published from logs; register them (`paceline jobs`). After a restart of the agent only what is written from then on
counts. What the watchdog says of operations that time out is a digest of its rank.
"""

from __future__ import annotations

import glob
import logging
import zoneinfo
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Readings
from agents.trainer_log_settings import TrainerLog, parse_trainer_log

if TYPE_CHECKING:
    from agents.collectors.trainer_log_file import TrainerLogFile
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings
    from agents.watchdog_digest import WatchdogLines
    from schemas.steps import CollectiveDigest, StepTiming

__all__ = ["TrainerLogCollector"]

_LOG = logging.getLogger(__name__)

_LOOK_EVERY_NS = 10 * 10**9
_MOST_FILES = 256
_LINES_A_READING = 5_000
"""Of all logs together, a second's work in the source's own thread; only a log that is caught up with has so many."""


@dataclass(slots=True)
class _Group:
    """The logs of one entry of the setting."""

    entry: TrainerLog
    files: dict[str, TrainerLogFile] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    looked_ns: int | None = None
    watchdog: dict[int, WatchdogLines] = field(default_factory=dict)
    """By attempt of the job; the latest one only."""


class TrainerLogCollector:
    """Follows trainer logs.

    Args:
        entries: which logs.
        identity: who publishes. Timings from logs are numbered in a session of their own.
    """

    name = "trainer-log"

    def __init__(self, entries: Sequence[TrainerLog], identity: AgentIdentity) -> None:
        self.counters: Counter[str] = Counter()
        """`steps` and digests of the `watchdog` published, `without_time`, `repeats`, `foreign`, `restarts` and `extremes` of finished files."""
        self._identity = identity
        self._groups = [_Group(entry) for entry in entries]
        self._sequence = 0
        self._first = 0
        self._closed_malformed = 0

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> TrainerLogCollector:
        """A collector for one run of the agent."""
        return cls([parse_trainer_log(text) for text in settings.trainer_logs], identity)

    @property
    def malformed(self) -> int:
        """Lines that were meant to be telemetry and could not be read."""
        # Asked from the thread of the metrics page, while files come and go.
        open_files = (file.report.malformed for group in self._groups for file in list(group.files.values()))
        return self._closed_malformed + sum(open_files)

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The logs that are followed, and the frameworks that they have shown."""
        return {path: tuple(sorted(file.tools)) for group in self._groups for path, file in list(group.files.items())}

    def is_supported(self) -> str | None:
        """None if any log is to be followed; a log that is not there yet is waited for."""
        return None if self._groups else "trainer_logs names none: give path=/logs/rank_*.log job=NAME"

    def collect(self, now_ns: int) -> Readings:
        """The timings of steps that are whole by now.

        Raises:
            CollectorError: no log could be read, and one is there.
        """
        failures: list[str] = []
        timings: list[StepTiming] = []
        digests: list[CollectiveDigest] = []
        lines = 0
        for group in self._groups:
            self._look(group, now_ns, failures)
        followed = [(group, file) for group in self._groups for file in group.files.values()]
        # Where there is more than one reading takes, each log is the first in turn.
        self._first = self._first % len(followed) if followed else 0
        for group, file in followed[self._first :] + followed[: self._first]:
            if lines < _LINES_A_READING:
                try:
                    lines += file.read(now_ns)
                except OSError as error:
                    failures.append(f"{file.path} cannot be read: {error.strerror or error}")
                    continue
            timings += self._timings(group, file, now_ns)
            digests += self._digests(group, file, now_ns)
        self._first += 1
        if failures and len(failures) >= len(followed):
            raise CollectorError(failures[0])
        return Readings(records=(*timings, *digests))

    def _look(self, group: _Group, now_ns: int, failures: list[str]) -> None:
        """Find files that are new, and let go of those that are gone."""
        from agents.collectors.trainer_log_file import TrainerLogFile

        if group.looked_ns is not None and abs(now_ns - group.looked_ns) < _LOOK_EVERY_NS:
            return
        entry = group.entry
        found = sorted(path for path in glob.iglob(entry.path, recursive=True) if Path(path).is_file())  # noqa: PTH207 - Path.glob takes no absolute pattern
        for path in [path for path in group.files if path not in found]:
            file = group.files[path]
            if not file.read(now_ns) and file.is_idle:  # a log that is being rotated has no file for a moment
                self._close(group.files.pop(path))
        for path in found:
            if path in group.files or sum(len(each.files) for each in self._groups) >= _MOST_FILES:
                continue
            try:
                group.files[path] = TrainerLogFile(
                    Path(path),
                    now_ns,
                    zone=zoneinfo.ZoneInfo(entry.zone) if entry.zone else None,
                    framework=entry.framework,
                    is_new=group.looked_ns is not None,
                    from_start=entry.from_start,
                )
            except OSError as error:
                failures.append(f"{path} cannot be read: {error.strerror or error}")
                continue
            _LOG.info("%s: following %s for job %s", self.name, path, entry.job_id)
        group.looked_ns = now_ns

    def _close(self, file: TrainerLogFile) -> None:
        report = file.report
        self._closed_malformed += report.malformed
        for name in ("without_time", "repeats", "foreign", "extremes"):
            self.counters[name] += getattr(report, name)
        file.close()

    def _timings(self, group: _Group, file: TrainerLogFile, now_ns: int) -> list[StepTiming]:
        from agents.importers.step_timing import rank_rows, step_timing

        timings = []
        for step in file.finished(now_ns, self._rank(group, file)):
            for rows in rank_rows(step):
                timings.append(
                    step_timing(
                        step,
                        rows,
                        job_id=group.entry.job_id,
                        first_epoch=group.entry.epoch,
                        node_id=self._identity.node_id,
                        agent_session=f"{self._identity.agent_session}-logs",
                        sequence=self._sequence,
                    )
                )
                self._sequence += 1
                self.counters["steps"] += 1
        return timings

    def _digests(self, group: _Group, file: TrainerLogFile, now_ns: int) -> list[CollectiveDigest]:
        """Of the ranks of which the watchdog has said something new."""
        records = file.take_watchdog()
        if not records:
            return []
        from agents.importers.step_lines import rank_in_name
        from agents.watchdog_digest import WatchdogLines

        own = group.entry.rank if group.entry.rank is not None else rank_in_name(file.path.name)
        new: dict[tuple[int, int], WatchdogLines] = {}
        for restarts, record in records:
            epoch = group.entry.epoch + restarts
            if epoch not in group.watchdog:
                group.watchdog = {epoch: WatchdogLines()}
            rank = group.watchdog[epoch].take(record, own)
            if rank is not None:
                new[epoch, rank] = group.watchdog[epoch]
        found = []
        for (epoch, rank), told in sorted(new.items(), key=lambda item: item[0]):
            found.append(
                told.digest(
                    rank,
                    job_id=group.entry.job_id,
                    epoch=epoch,
                    node_id=self._identity.node_id,
                    agent_session=f"{self._identity.agent_session}-logs",
                    seq=self._sequence,
                    event_time_ns=now_ns,
                    log_path=str(file.path),
                )
            )
            self._sequence += 1
            self.counters["watchdog"] += 1
        return found

    def _rank(self, group: _Group, file: TrainerLogFile) -> int | None:
        """Whose the lines of a log are that name no rank: as told, its only one, its name's, else the next free one."""
        from agents.importers.step_lines import rank_in_name

        if not file.has_unnamed:
            return None
        if group.entry.rank is not None:
            return group.entry.rank
        if len(file.named_ranks) == 1:
            return next(iter(file.named_ranks))
        path = str(file.path)
        if path not in group.ranks:
            in_name = rank_in_name(file.path.name)
            taken = {*group.ranks.values(), *(rank for each in group.files.values() for rank in each.named_ranks)}
            group.ranks[path] = (
                in_name if in_name is not None else next(n for n in range(len(taken) + 1) if n not in taken)
            )
        return group.ranks[path]

"""When a job stopped making progress: one suspicion an episode, from step timings and the progress of its ranks.

A step that any rank reports is progress, at its event time; so is a rank's step or completed collective that its agent
tells of first, at the time of that record, and time in a masked phase. Suspected is a job whose last progress is

    limit = max(p99_times * p99 of the step time, median of the step time + margin)

behind the time that all of its live nodes have passed. A node is live while it is at most 10 s behind the fastest of the
job: an agent tells progress every second while nothing moves. The time of the suspicion is last progress + limit, whatever
record told it; it ends with the first progress after it. All of this is maxima and minima over records, so their order makes no
difference as long as no node is more than the limit less a step (15 s or more) late.

Not noticed: a hang before `least_steps` steps were made; one inside a masked phase. Says nothing of who is at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.progress import PartitionClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.steps import RankProgress, StepTiming

__all__ = ["HangThresholds", "JobProgress", "limit_of"]

_LIVE_NS = 10_000_000_000
"""A node further behind is not waited for: the lateness of the join."""

_REMEMBERED_STEPS = 256

_MASKED, _MASKED_RUN = -1, -2
"""Instead of a step time: of a step that is no training; of one whose phase comes in runs, as evaluation does."""

_TRAINING = frozenset({None, "train"})


@dataclass(frozen=True, slots=True)
class HangThresholds:
    """Thresholds of the rule.

    Attributes:
        p99_times: of the 99th percentile of the step time. Judgement; compare Unicron 3 x mean step, EROICA 5 x.
        margin_ns: over the median step time. Mycroft 15 s; PyTorch's own default is 10 minutes.
        least_steps: training steps that must be known: a first step compiles and loads.
        quiet_ns: since the last digest, after which no more are waited for. Judgement.
        deadline_ns: since the suspicion, after which without any digest nobody can be told. Judgement.
    """

    p99_times: float = 3.0
    margin_ns: int = 15_000_000_000
    least_steps: int = 5
    quiet_ns: int = 1_000_000_000
    deadline_ns: int = 30_000_000_000


def limit_of(times_us: list[int], thresholds: HangThresholds) -> int | None:
    """How long a job may make no progress, in nanoseconds; None while too few steps are known.

    Args:
        times_us: step times of training steps, in any order.
        thresholds: in force.
    """
    if len(times_us) < max(1, thresholds.least_steps):
        return None
    ordered = sorted(times_us)
    p99_us = ordered[-(len(ordered) // 100) - 1]
    median_us = ordered[(len(ordered) - 1) // 2]
    return max(round(thresholds.p99_times * p99_us * 1000), median_us * 1000 + thresholds.margin_ns)


class _Told:
    """What one node's agent said of its ranks: the furthest, and when it was first told of."""

    __slots__ = ("at_ns", "done", "done_ns", "gone", "masked_ns", "phase", "ranks", "step", "step_ns")

    def __init__(self) -> None:
        self.step, self.step_ns = -1, 0
        self.done, self.done_ns = -1, 0
        self.masked_ns = 0
        self.at_ns = -1
        self.phase: str | None = None
        self.ranks: tuple[int, ...] = ()
        self.gone: tuple[int, ...] = ()

    def state(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


class JobProgress:
    """Follows the progress of one epoch of one job.

    Attributes:
        onset_ns: the last progress before the suspicion that stands; None while none does.
        suspected_ns: event time of that suspicion.
    """

    def __init__(self) -> None:
        self._clock = PartitionClock(_LIVE_NS, 0.0)
        self._fastest_ns = 0
        self._step_us: dict[int, int] = {}
        self._stepped_ns = 0
        self._highest_step = -1
        self._nodes: dict[str, _Told] = {}
        self._resumed_ns: int | None = None
        self._last: int | None = None
        self._limit: tuple[HangThresholds, int | None] | None = None
        self._news_ns = 0
        self._gone = self._widest = self._phased = self._masked = 0
        """Counts over nodes, so that a record of one need not look at all: ranks that are gone, ranks of the largest node, nodes
        that tell their phase, and those whose phase is masked."""
        self.step_offset = 0
        """Place of the last progress that was a step."""
        self.onset_ns: int | None = None
        self.suspected_ns = 0

    @property
    def fastest_ns(self) -> int:
        """Event time of the job's furthest node."""
        return self._fastest_ns

    @property
    def still_for_ns(self) -> int:
        """How far that is after the last news of progress."""
        return self._fastest_ns - self._news_ns

    @property
    def last_step(self) -> int | None:
        """The highest step that was reported."""
        return self._highest_step if self._highest_step >= 0 else None

    def on_step(self, timing: StepTiming, at_ns: int, offset: int = 0) -> None:
        """A node's share of a step, at the event time that it counts for, and its place."""
        self._reached(timing.node_id, at_ns)
        if (at_ns, -offset) > (self._stepped_ns, -self.step_offset):
            self._stepped_ns, self.step_offset = at_ns, offset
            self._moved(at_ns)
        elif self.onset_ns is not None and at_ns > self.onset_ns:
            self._moved(at_ns)
        known_us = self._step_us.get(timing.step)
        told_us = _step_us(timing)
        if known_us is not None:
            told_us = min(known_us, told_us) if known_us < 0 or told_us < 0 else max(known_us, told_us)
        if told_us == known_us:
            return
        self._step_us[timing.step] = told_us
        self._highest_step = max(self._highest_step, timing.step)
        self._limit = self._last = None
        if len(self._step_us) > _REMEMBERED_STEPS:
            del self._step_us[min(self._step_us)]

    def on_progress(self, record: RankProgress, at_ns: int) -> None:
        """What a node's agent says of its ranks, at the event time that it counts for."""
        self._reached(record.node_id, at_ns)
        told = self._nodes.get(record.node_id)
        if told is None:
            told = self._nodes[record.node_id] = _Told()
        step = _highest(record.last_step)
        if step > told.step or (step == told.step and at_ns < told.step_ns):
            told.step, told.step_ns = step, at_ns
            if step > self._highest_step:
                self._moved(at_ns)
        done = _completed(record)
        if done > told.done or (done == told.done and at_ns < told.done_ns):
            told.done, told.done_ns = done, at_ns
            self._moved(at_ns)
        if record.phase not in _TRAINING and at_ns > told.masked_ns:
            told.masked_ns = at_ns
            self._moved(at_ns)
        if at_ns >= told.at_ns:
            told.at_ns, gone = at_ns, _gone(record)
            if (told.ranks, told.phase, told.gone) != (record.rank, record.phase, gone):
                self._count(told, -1)
                told.ranks, told.phase, told.gone = record.rank, record.phase, gone
                self._count(told, 1)

    def turn(self, thresholds: HangThresholds, is_over: bool) -> str | None:
        """What the job's time brings now: a suspicion `open`, or the one that stands `cleared`.

        Args:
            thresholds: in force.
            is_over: whether the job has ended, or a later attempt of it runs.
        """
        if self.onset_ns is not None:
            if is_over or (self._resumed_ns is not None and self._clock.time_ns >= self._resumed_ns):
                return "cleared"
            return None
        due_ns = None if is_over else self.due_ns(thresholds)
        if due_ns is None or self._clock.time_ns < due_ns:
            return None
        self.onset_ns, self.suspected_ns = self.last_ns, due_ns
        self._resumed_ns = None
        return "open"

    def close(self) -> tuple[int, int]:
        """End the suspicion that stands: its onset, and when it ended."""
        assert self.onset_ns is not None
        onset_ns, self.onset_ns = self.onset_ns, None
        resumed_ns, self._resumed_ns = self._resumed_ns, None
        return onset_ns, max(self.suspected_ns, self._clock.time_ns if resumed_ns is None else resumed_ns)

    def due_ns(self, thresholds: HangThresholds) -> int | None:
        """When a suspicion will be due if nothing moves, or None: not yet to be told, masked, or it stands already."""
        if self.onset_ns is not None or self.still_for_ns < thresholds.margin_ns:
            return None
        limit_ns = self.limit_ns(thresholds)
        if limit_ns is None or self._is_masked():
            return None
        return self.last_ns + limit_ns

    def limit_ns(self, thresholds: HangThresholds) -> int | None:
        """How long the job may make no progress; None while too few steps are known."""
        if self._limit is None or self._limit[0] != thresholds:
            times_us = [us for us in self._step_us.values() if us > 0]
            self._limit = thresholds, limit_of(times_us, thresholds)
        return self._limit[1]

    @property
    def median_us(self) -> int | None:
        """Median of the remembered step times."""
        times_us = sorted(us for us in self._step_us.values() if us > 0)
        return times_us[(len(times_us) - 1) // 2] if times_us else None

    @property
    def last_ns(self) -> int:
        """Event time of the last progress."""
        if self._last is None:
            told = self._nodes.values()
            self._last = max(
                self._stepped_ns,
                max((node.step_ns for node in told if node.step > self._highest_step), default=0),
                max((node.done_ns for node in told if node.done >= 0), default=0),
                max((node.masked_ns for node in told), default=0),
            )
        return self._last

    @property
    def unreachable_at_most(self) -> int:
        """No fewer ranks than `unreachable` has."""
        return self._gone + max(0, len(self._nodes) - self._clock.live) * self._widest

    def unreachable(self) -> Iterator[int]:
        """Ranks that will write no dump: their process is gone, or their node is silent."""
        for node in self._nodes.values():
            yield from node.ranks if node.at_ns < self._fastest_ns - _LIVE_NS else node.gone

    def _reached(self, node_id: str, at_ns: int) -> None:
        self._clock.observe(node_id, at_ns)
        if at_ns > self._fastest_ns:
            self._fastest_ns = at_ns
            self._clock.forget_idle()

    def _moved(self, at_ns: int) -> None:
        self._last = None
        self._news_ns = max(self._news_ns, at_ns)
        if self.onset_ns is not None and at_ns > self.onset_ns:
            self._resumed_ns = at_ns if self._resumed_ns is None else min(self._resumed_ns, at_ns)

    def _count(self, told: _Told, one: int) -> None:
        self._gone += one * len(told.gone)
        self._widest = max(self._widest, len(told.ranks))
        self._phased += one * (told.phase is not None)
        self._masked += one * (told.phase not in _TRAINING)

    def _is_masked(self) -> bool:
        """Whether the job is in a phase that takes its own time: as its trainers say now, else as its last step was."""
        if self._masked:
            oldest_ns = self._fastest_ns - _LIVE_NS
            return any(node.phase not in _TRAINING and node.at_ns >= oldest_ns for node in self._nodes.values())
        return self._phased == 0 and self._step_us.get(self._highest_step) == _MASKED_RUN

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "clock": self._clock.snapshot(),
            "fastest_ns": self._fastest_ns,
            "step_us": dict(sorted(self._step_us.items())),
            "stepped_ns": self._stepped_ns,
            "highest_step": self._highest_step,
            "nodes": {name: self._nodes[name].state() for name in sorted(self._nodes)},
            "news_ns": self._news_ns,
            "step_offset": self.step_offset,
            "resumed_ns": self._resumed_ns,
            "onset_ns": self.onset_ns,
            "suspected_ns": self.suspected_ns,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._clock.restore(snapshot["clock"])
        self._fastest_ns = snapshot["fastest_ns"]
        self._step_us = {int(step): us for step, us in snapshot["step_us"].items()}
        self._stepped_ns = snapshot["stepped_ns"]
        self._highest_step = snapshot["highest_step"]
        self._nodes = {}
        for name, values in snapshot["nodes"].items():
            told = self._nodes[name] = _Told()
            for slot, value in zip(_Told.__slots__, values, strict=True):
                setattr(told, slot, tuple(value) if slot in {"ranks", "gone"} else value)
        self._gone = self._widest = self._phased = self._masked = 0
        for told in self._nodes.values():
            self._count(told, 1)
        self._news_ns = snapshot["news_ns"]
        self.step_offset = snapshot["step_offset"]
        self._resumed_ns = snapshot["resumed_ns"]
        self.onset_ns = snapshot["onset_ns"]
        self.suspected_ns = snapshot["suspected_ns"]
        self._last = self._limit = None


def _highest(column: tuple[int | None, ...]) -> int:
    if column and None not in column:
        return max(column)  # type: ignore[type-var, return-value]
    return max((step for step in column if step is not None), default=-1)


def _completed(record: RankProgress) -> int:
    """Collectives that the node's ranks have completed, all groups together; -1 where none is told of."""
    if not record.groups:
        return -1
    completed = 0
    for of_group in record.groups.values():
        for marks in of_group:
            completed += marks[2] or 0
    return completed


def _gone(record: RankProgress) -> tuple[int, ...]:
    connected = record.connected
    if connected is None or all(connected):
        return ()
    return tuple(rank for rank, is_here in zip(record.rank, connected, strict=True) if not is_here)


def _step_us(timing: StepTiming) -> int:
    """The longest that a rank took, or that the step does not count. After a checkpoint training goes on at once."""
    if timing.phase == "train":
        column = timing.step_us
        return max(column) if None not in column else max((us for us in column if us is not None), default=0)  # type: ignore[type-var, return-value]
    return _MASKED if timing.phase == "checkpoint" else _MASKED_RUN

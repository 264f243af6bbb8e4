"""The step join: per-node timings of one job become whole steps, each closed once, in step order.

A step closes as soon as all expected ranks are in and its number follows the last closed one; after a gap in the
numbers it waits until the lateness bound has passed, since an earlier step may still come. A step with missing ranks
closes at its deadline; the missing are counted, never read as zero. What comes for a closed step is a repeat or late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.collectives import Collective, CollectiveJoin, fill_wait, instances, integers, known_numbers
from streams.core.known import known_of
from streams.core.medians import median, ranked_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from schemas.steps import StepTiming

    _Seating = tuple[NDArray[np.int64], NDArray[np.int64] | slice, tuple[str, ...]]

__all__ = ["STEP_COLUMNS", "ClosedStep", "Collective", "StepJoin", "StepJoinConfig", "fill_own", "instances"]

STEP_COLUMNS = (
    "step_us",
    "own_us",
    "compute_us",
    "forward_us",
    "backward_us",
    "host_us",
    "data_us",
    "wait_us",
    "tokens",
    "sum_squared_lengths",
)


@dataclass(frozen=True, slots=True)
class StepJoinConfig:
    """Bounds of the join.

    Attributes:
        lateness_ns: how much later than a record with a later event time a record may arrive.
        deadline_steps: a step with missing ranks closes this many median step times after its last report (but not
            before the lateness bound). 3 follows the practice of step-time watchers to call 3 steps a stall.
        idle_ns: a report that is further behind the partition's time is of a clock that is behind, or very late: its step has
            waited since it came, not since it says.
        open_steps: at most this many steps of one job are open; the oldest closes when there are more.
        remembered_steps: closed steps whose ranks are remembered, to tell repeats from late records.
    """

    lateness_ns: int = 10_000_000_000
    deadline_steps: float = 3.0
    idle_ns: int = 60_000_000_000
    open_steps: int = 256
    remembered_steps: int = 256


_COLUMN_OF = {name: attrgetter(name) for name in STEP_COLUMNS}
_RANKS = attrgetter("rank")
_NODE = attrgetter("node_id")
_ORDER = attrgetter("node_id", "agent_session", "seq")


@dataclass(frozen=True)
class ClosedStep:
    """One step of one job, arrays over the ranks that reported, in rank order; NaN is unknown.

    `own_us` is filled from its parts where a rank did not report it whole. `collectives` is by kind of communicator. What
    several rules ask for is found once.
    """

    job_id: str
    epoch: int
    step: int
    phase: str
    event_time_ns: int
    rank: NDArray[np.int64]
    node_id: tuple[str, ...]
    columns: dict[str, NDArray[np.float64]]
    collectives: dict[str, Collective]
    missing: tuple[int, ...]
    expected: int
    first_offset: int = 0
    """Lowest offset of the step's records: the place to start reading it from."""

    @property
    def own_us(self) -> NDArray[np.float64]:
        """Own time per rank."""
        return self.columns["own_us"]

    @cached_property
    def present(self) -> frozenset[int]:
        """The ranks that reported."""
        return frozenset(self.rank.tolist())

    @cached_property
    def step_time_us(self) -> int | None:
        """The job's step time: the longest that any rank reported."""
        longest = float(np.fmax.reduce(self.columns["step_us"])) if len(self.rank) else np.nan
        return None if np.isnan(longest) else int(longest)

    @cached_property
    def known_own_us(self) -> NDArray[np.float64]:
        """Own times of the ranks whose own time is known: `own_us` itself where it is of all."""
        return known_of(self.own_us)

    @cached_property
    def own_median_us(self) -> float | None:
        """Median own time of those ranks; None where there is none."""
        return median(self.known_own_us) if self.known_own_us.size else None

    @cached_property
    def wait_shares(self) -> tuple[float, float] | None:
        """Median and 99th percentile over ranks of the waiting share of the step, the higher of two; None where no rank says."""
        known = known_of(self.columns["wait_us"])
        if not self.step_time_us or not known.size:
            return None
        middle, high = (ceil((known.size - 1) * share) for share in (0.5, 0.99))
        ranked = ranked_at(known, (middle, high))
        return float(ranked[middle] / self.step_time_us), float(ranked[high] / self.step_time_us)


@dataclass(slots=True)
class _Open:
    timings: list[StepTiming] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    latest_ns: int = 0
    """Event time of the last report."""
    waits_ns: int = 0
    """Since when it waits, in the partition's time: mostly since the last report."""
    first_offset: int = 2**63


@dataclass(frozen=True, slots=True)
class _Closed:
    """A closed step: the ranks that were missing, which are few, or those that were in while nobody knows the members."""

    step: int
    ranks: frozenset[int]
    are_missing: bool

    def had(self, ranks: set[int]) -> bool:
        return not (ranks & self.ranks) if self.are_missing else ranks <= self.ranks


class StepJoin:
    """Joins the steps of one epoch of one job."""

    def __init__(self, config: StepJoinConfig | None = None) -> None:
        self._config = config or StepJoinConfig()
        self._open: dict[int, _Open] = {}
        self._waits: dict[int, int] = {}
        """Since when steps wait whose records come again."""
        self._last_closed: int | None = None
        self._recent: deque[_Closed] = deque(maxlen=self._config.remembered_steps)
        self._step_times_us: deque[int] = deque(maxlen=33)
        self._collectives = CollectiveJoin()
        self._seating: tuple[tuple[list[Any], list[str]], _Seating] | None = None
        """What followed from the ranks and nodes of the last step; derived, in no snapshot."""
        self.repeats = 0

    @property
    def oldest_open_ns(self) -> int | None:
        """Time of the oldest open step's last report."""
        if not self._open:
            return None
        return min(state.waits_ns for state in self._open.values())

    def add(self, timing: StepTiming, offset: int = 0, at_ns: int | None = None, time_ns: int = 0) -> bool:
        """Take one node's share of a step; false when the step is closed and the record is late.

        Repeats (all ranks already in) are counted and dropped.

        Args:
            timing: the share.
            offset: its place.
            at_ns: its event time where that is not the record's own, because its clock is ahead of its arrival.
            time_ns: event time of the partition; 0 for a share that comes again after a restart.
        """
        at_ns = timing.event_time_ns if at_ns is None else at_ns
        ranks = set(timing.rank)
        if self._last_closed is not None and timing.step <= self._last_closed:
            if any(closed.step == timing.step and closed.had(ranks) for closed in self._recent):
                self.repeats += 1
                return True
            return False
        state = self._open.get(timing.step)
        if state is None:
            state = self._open[timing.step] = _Open(waits_ns=self._waits.pop(timing.step, 0))
        state.first_offset = min(state.first_offset, offset)
        if ranks <= state.ranks:
            self.repeats += 1
            return True
        state.timings.append(timing)
        state.ranks |= ranks
        state.latest_ns = max(state.latest_ns, at_ns)
        state.waits_ns = max(state.waits_ns, time_ns if time_ns - at_ns > self._config.idle_ns else at_ns)
        return True

    def may_close(self, time_ns: int, expected: int | None) -> bool:
        """Whether `close` may find something: no open step is complete, and none has waited for the lateness bound, if not.

        Asked at every share, of which all but the last of a step leave it open.

        Args:
            time_ns: as for `close`.
            expected: as for `close`.
        """
        if len(self._open) > self._config.open_steps:
            return True
        for state in self._open.values():
            if expected is not None and len(state.ranks) >= expected:
                return True
            if time_ns - state.waits_ns >= self._config.lateness_ns:
                return True
        return False

    def close(
        self, time_ns: int, expected: int | None, members: frozenset[int], final: bool = False
    ) -> list[ClosedStep]:
        """Close what can be closed at this time, oldest step first.

        Args:
            time_ns: event time of the partition.
            expected: how many ranks report each step, or None while the job is unknown.
            members: the expected ranks, as far as they are known, to name the missing.
            final: the input has ended: close everything.
        """
        closed: list[ClosedStep] = []
        while self._open:
            step = min(self._open)
            state = self._open[step]
            complete = expected is not None and len(state.ranks) >= expected
            follows = self._last_closed is not None and step == self._last_closed + 1
            waited_ns = time_ns - state.waits_ns
            # A deadline is never below the lateness bound, and to know it costs more than all else here.
            overdue = waited_ns >= self._config.lateness_ns and (complete or waited_ns >= self._deadline_ns())
            crowded = len(self._open) > self._config.open_steps
            if not (final or overdue or crowded or (complete and follows)):
                break
            del self._open[step]
            self._last_closed = step
            missing = members - state.ranks
            self._recent.append(
                _Closed(step, missing, True) if members else _Closed(step, frozenset(state.ranks), False)
            )
            whole = self._assemble(step, state, expected, missing)
            if whole.step_time_us is not None:
                self._step_times_us.append(whole.step_time_us)
            closed.append(whole)
        return closed

    def _deadline_ns(self) -> int:
        if not self._step_times_us:
            return self._config.lateness_ns
        median_us = sorted(self._step_times_us)[len(self._step_times_us) // 2]
        return max(self._config.lateness_ns, int(self._config.deadline_steps * median_us * 1000))

    def _assemble(self, step: int, state: _Open, expected: int | None, missing: frozenset[int]) -> ClosedStep:
        # Sorted, so that of two unequal reports of one rank the same one counts whatever came first.
        timings = sorted(state.timings, key=_ORDER)
        rank, first, nodes = self._seating_of(timings)
        columns = {name: column[first] for name, column in _columns(timings).items()}
        collectives = self._collectives.of(timings, first)
        fill_own(columns)
        fill_wait(columns, collectives)
        phases = {t.phase for t in timings} - {"train"}
        return ClosedStep(
            job_id=timings[0].job_id,
            epoch=timings[0].epoch,
            step=step,
            phase=max(phases) if phases else "train",
            event_time_ns=state.latest_ns,
            rank=rank,
            node_id=nodes,
            columns=columns,
            collectives=collectives,
            missing=tuple(sorted(missing)),
            expected=expected if expected is not None else len(rank),
            first_offset=state.first_offset,
        )

    def _seating_of(self, timings: Sequence[StepTiming]) -> _Seating:
        """Ranks in order, their places among the ranks of all shares, and their nodes: the same in nearly all steps."""
        told = list(map(_RANKS, timings)), list(map(_NODE, timings))
        if self._seating is None or self._seating[0] != told:
            rank = np.fromiter(chain.from_iterable(told[0]), dtype=np.int64)
            first: NDArray[np.int64] | slice = slice(None)
            nodes = tuple(
                chain.from_iterable(repeat(node_id, len(ranks)) for ranks, node_id in zip(*told, strict=True))
            )
            if not (np.diff(rank) > 0).all():
                rank, first = np.unique(rank, return_index=True)
                nodes = tuple(map(nodes.__getitem__, first.tolist()))
            self._seating = told, (rank, first, nodes)
        return self._seating[1]

    @property
    def first_open_offset(self) -> int | None:
        """Lowest offset of a record that is in an open step."""
        return min((state.first_offset for state in self._open.values()), default=None)

    def snapshot(self, with_open: bool = True) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_open: whether the records of open steps are part of it, as they are, and how many repeats there were;
                false where they will come again.
        """
        return {
            "open": {
                step: [state.first_offset, state.latest_ns, list(state.timings)]
                for step, state in sorted(self._open.items())
            }
            if with_open
            else {},
            "waits": {
                step: state.waits_ns for step, state in sorted(self._open.items()) if state.waits_ns != state.latest_ns
            },
            "last_closed": self._last_closed,
            "recent": [[closed.step, sorted(closed.ranks), closed.are_missing] for closed in self._recent],
            "step_times_us": list(self._step_times_us),
            **({"repeats": self.repeats} if with_open else {}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        waits = {int(step): at for step, at in snapshot["waits"].items()}
        self._open = {
            int(step): _Open(
                list(timings),
                {rank for timing in timings for rank in timing.rank},
                latest_ns,
                waits.get(int(step), latest_ns),
                first_offset,
            )
            for step, (first_offset, latest_ns, timings) in snapshot["open"].items()
        }
        self._waits = {step: at for step, at in waits.items() if step not in self._open}
        self._last_closed = snapshot["last_closed"]
        self._recent = deque(
            (_Closed(step, frozenset(ranks), are_missing) for step, ranks, are_missing in snapshot["recent"]),
            maxlen=self._config.remembered_steps,
        )
        self._step_times_us = deque(snapshot["step_times_us"], maxlen=33)
        self.repeats = snapshot.get("repeats", 0)


def _columns(timings: Sequence[StepTiming]) -> dict[str, NDArray[np.float64]]:
    """All columns by name, the ranks of all shares one after the other; NaN is unknown."""
    given = {name: list(map(column_of, timings)) for name, column_of in _COLUMN_OF.items()}
    # All that are told in full at once, since each call of numpy costs as much as the values of many ranks.
    told = [name for name, columns in given.items() if None not in columns]
    whole = integers(chain.from_iterable(map(given.__getitem__, told)))
    if whole is None:
        return {name: _column(timings, columns) for name, columns in given.items()}
    rows = dict(zip(told, whole.astype(np.float64).reshape(len(told), -1), strict=True)) if told else {}
    return {name: rows[name] if name in rows else _column(timings, columns) for name, columns in given.items()}


def _column(timings: Sequence[StepTiming], columns: Sequence[tuple[int | None, ...] | None]) -> NDArray[np.float64]:
    if columns.count(None) == len(columns):
        return np.full(sum(len(timing.rank) for timing in timings), np.nan)
    return known_numbers(
        (None,) * len(timing.rank) if column is None else column
        for timing, column in zip(timings, columns, strict=True)
    )


def fill_own(columns: dict[str, NDArray[np.float64]]) -> None:
    """Where ranks do not say their own time, put the sum of its parts in its place; NaN is unknown, all in microseconds."""
    own = columns["own_us"]
    unknown = np.isnan(own)
    if not unknown.any():
        return
    compute = columns["compute_us"]
    if np.isnan(compute).all():
        compute = columns["forward_us"] + np.nan_to_num(columns["backward_us"])
    parts = compute + np.nan_to_num(columns["host_us"]) + np.nan_to_num(columns["data_us"])
    columns["own_us"] = np.where(unknown, parts, own)

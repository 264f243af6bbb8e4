"""A sweep: every archive under every value, in as many processes as asked for, with one result whatever their number.

A task is one archive and some of the values: each record is decoded once and given to an engine per value. Decoding is about
a third of what a replay costs, so a value of its own in each task would pay it anew each time, and all values in one task
would leave the other processes idle where archives are few. Nothing here can publish.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.rare_collection import rare_collection
from paceline.replay_source import ArchiveSource, ReplaySpan
from paceline.review.truth_file import Described, stranger_of
from paceline.spawned import results_in_order
from paceline.tuning.outcome import Listener
from schemas.archive import NotAnArchiveError
from schemas.fleet import Job, Node, Policy, RankPlacement
from streams.engines.decisions import DEFAULT_SETTLE_NS
from streams.engines.pipeline import Pipeline
from streams.replay import Problems, decoded

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence, Sequence
    from pathlib import Path

    from agents.simulation.truth import Truth
    from paceline.tuning.outcome import Outcome
    from paceline.tuning.tunable import Tunable
    from schemas.base import Record
    from streams.core.position import Position

__all__ = ["Incidents", "Swept", "sweep", "times_read"]

_DECODE_COST, _ENGINE_COST = 1.0, 2.5
"""Of one archive, measured (docs/replay.md); only their ratio counts."""


@dataclass(frozen=True, slots=True)
class Incidents:
    """One archive, and how it is read.

    Attributes:
        path: the archive.
        site_id: of the findings.
        policy: what is in force from its beginning on; null for the defaults.
        is_policy_fixed: policies that were recorded in it do not count.
        truths: what was wrong, or null where nobody knows.
        is_readable: read around what is damaged.
    """

    path: Path
    site_id: str
    policy: Policy | None = None
    is_policy_fixed: bool = False
    truths: tuple[Truth, ...] | None = None
    is_readable: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of one archive.

    Attributes:
        in_force: the outcome under the policy that was in force.
        outcomes: one per value, in their order.
        values_in_force: the tunable's values while something was judged.
        problems: what in the archive could not be used.
        damage: where it could not be read on, or null.
        stranger: a job or GPU of the truth that the archive does not know, or null.
        has_judged: whether there was anything in it to judge.
    """

    in_force: Outcome
    outcomes: tuple[Outcome, ...]
    values_in_force: tuple[float, ...]
    problems: Problems
    damage: str | None
    stranger: str | None
    has_judged: bool


class _Judged:
    """The engines under one value, or under the policy as it was."""

    def __init__(self, archive: Incidents, tunable: Tunable, value: float | None) -> None:
        self._tunable, self._value, self._site_id = tunable, value, archive.site_id
        self._policy = self._tuned(archive.policy)
        self.pipeline = Pipeline(archive.site_id, self._policy)
        self.listener = Listener(tunable.rule, archive.truths)

    def take(self, record: Record, position: Position) -> None:
        if isinstance(record, Policy):
            tuned = self._tuned(record)
            assert tuned is not None
            self._listen(self.pipeline.on_record(tuned, position))
            if self.pipeline.refusal is None:
                self._policy = tuned
        else:
            self._listen(self.pipeline.on_record(record, position))

    def outcome(self) -> Outcome:
        """What it comes to, the input having ended."""
        self._listen(self.pipeline.flush())
        return self.listener.outcome()

    @property
    def value_in_force(self) -> float:
        return self._tunable.value_in(self._policy)

    def _tuned(self, policy: Policy | None) -> Policy | None:
        return policy if self._value is None else self._tunable.put(policy, self._value, self._site_id)

    def _listen(self, outputs: list[Record]) -> None:
        settle_ns = self._policy.settle_ns if self._policy is not None else DEFAULT_SETTLE_NS
        for output in outputs:
            self.listener.take(output, settle_ns)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one task came to: one archive under some of the values."""

    outcomes: tuple[Outcome, ...]
    values_in_force: tuple[float, ...]
    problems: Problems
    damage: str | None
    stranger: str | None
    has_judged: bool


class _Reached:
    """How far each task has read, where the parent sees it: told here, or left in memory that processes share."""

    def __init__(self) -> None:
        self.bytes_read: MutableSequence[int] = [0]
        self.tell: Callable[[int], object] | None = None

    def reach(self, task: int, bytes_read: int) -> None:
        self.bytes_read[task] = bytes_read
        if self.tell is not None:
            self.tell(sum(self.bytes_read))


_reached = _Reached()


def _begin(bytes_read: MutableSequence[int], tell: Callable[[int], object] | None) -> None:
    _reached.bytes_read, _reached.tell = bytes_read, tell


def sweep(
    archives: Sequence[Incidents],
    tunable: Tunable,
    values: Sequence[float],
    processes: int,
    on_read: Callable[[int], object] = lambda _: None,
) -> list[Swept]:
    """Every archive under every value and under the policy that was in force.

    Args:
        archives: what is read.
        tunable: what is swept.
        values: its values.
        processes: how many at once.
        on_read: told now and then how many bytes all tasks have read; each archive is read `times_read` times.

    Returns:
        One entry per archive, in their order.

    Raises:
        NotAnArchiveError: an archive cannot be opened, or its sums do not hold and nobody asked to read around that.
        BrokenProcessPool: a process has died.
    """
    asked: tuple[float | None, ...] = (None, *values)
    groups = times_read(len(archives), len(values), processes)
    calls = [
        (archive, tunable, asked[group::groups], number * groups + group)
        for number, archive in enumerate(archives)
        for group in range(groups)
    ]
    at_once = min(processes, len(calls))
    if at_once == 1:
        reached: MutableSequence[int] = [0] * len(calls)
    else:
        reached = multiprocessing.get_context("spawn").Array("q", len(calls), lock=False)
    parts = list(
        results_in_order(
            _judged_part,
            calls,
            at_once,
            _begin,
            (reached, on_read if at_once == 1 else None),
            lambda: on_read(sum(reached)),
        )
    )
    return [_joined(parts[first : first + groups]) for first in range(0, len(parts), groups)]


def times_read(archives: int, values: int, processes: int) -> int:
    """Into how many tasks each archive is split so that all end soonest, archives taken for equally long."""
    engines = values + 1

    def cost(groups: int) -> float:
        rounds = -(-archives * groups // processes)
        return rounds * (_DECODE_COST + _ENGINE_COST * -(-engines // groups))

    return min(range(1, min(engines, processes) + 1), key=lambda groups: (cost(groups), groups))


@rare_collection()
def _judged_part(archive: Incidents, tunable: Tunable, values: Sequence[float | None], task: int) -> _Part:
    """One pass over an archive, with an engine per value; the first one's word is told of what could not be used."""
    judged = [_Judged(archive, tunable, value) for value in values]
    problems, damage = Problems(), None
    in_force: set[float] = set()
    described = Described()
    source = ArchiveSource(archive.path, ReplaySpan(), archive.is_readable)
    records = decoded(source.lines(lambda bytes_read: _reached.reach(task, bytes_read)), problems)
    try:
        for number, record, position in records:
            if isinstance(record, Policy) and archive.is_policy_fixed:
                continue
            for each in judged:
                each.take(record, position)
            problems.note_refusal(number, position, judged[0].pipeline.refusal)
            described.take(record)
            if not isinstance(record, Job | RankPlacement | Node | Policy):
                in_force.add(judged[0].value_in_force)
    except NotAnArchiveError as error:
        # What could be read is judged to its end, as a replay does.
        damage = str(error)
    outcomes = tuple(each.outcome() for each in judged)
    problems.counts.update(judged[0].pipeline.counts)
    # What is damaged may have lost what told of them.
    is_whole = damage is None and not problems.counts["bad_lines"]
    stranger = stranger_of(archive.truths, described) if archive.truths and is_whole else None
    return _Part(outcomes, tuple(sorted(in_force)), problems, damage, stranger, judged[0].pipeline.has_judged)


def _joined(parts: Sequence[_Part]) -> Swept:
    """An archive's outcomes again in the order of the values; tasks have every n-th each."""
    longest = len(parts[0].outcomes)
    turns = [part.outcomes[turn] for turn in range(longest) for part in parts if turn < len(part.outcomes)]
    first = parts[0]
    return Swept(
        turns[0],
        tuple(turns[1:]),
        first.values_in_force,
        first.problems,
        first.damage,
        first.stranger,
        first.has_judged,
    )

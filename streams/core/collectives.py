"""Time in collectives, per rank and communicator: joined over the nodes of a step, and what a transfer takes in each.

Every member of a communicator reports transfer and waiting together; the shortest time among its members is the transfer,
since whom the others wait for waits least. Communicators keep their names, so that a step without some of them mixes
nothing up. Deliberately no memory: one step at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import are_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from schemas.steps import CollectiveTiming, StepTiming

__all__ = [
    "Collective",
    "CollectiveJoin",
    "Meetings",
    "fill_wait",
    "instances",
    "integers",
    "known_numbers",
    "meetings_of",
    "numbered",
    "shortest_us",
    "transfers",
]


_COLLECTIVES, _GROUP = attrgetter("collectives"), attrgetter("group")
_INSTANCE, _DURATION = attrgetter("instance"), attrgetter("duration_us")


@dataclass(frozen=True, slots=True)
class Meetings:
    """Who meets whom.

    Attributes:
        order: positions with a known duration, by communicator.
        starts: where each communicator's begin among them.
        members: how many they are.
        numbers: of the communicators.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    members: NDArray[np.int64]
    numbers: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Collective:
    """Time in one kind of communicator, per rank of the step: NaN where a rank is in none or did not say.

    Attributes:
        group: the kind.
        instance: number of each rank's communicator in `names`; -1 for a rank in none.
        duration_us: transfer and waiting together.
        names: of the communicators, sorted.
        op: the operation, of the first report that says one.
        meetings: ranks by communicator where every duration is known, if that has been found before.
    """

    group: str
    instance: NDArray[np.int64]
    duration_us: NDArray[np.float64]
    names: tuple[str, ...] = ()
    op: str | None = None
    meetings: Meetings | None = None

    def name_of(self, number: int) -> str:
        """Name of a communicator."""
        return self.names[number] if number < len(self.names) else str(number)


def instances(collective: Collective) -> list[NDArray[np.int64]]:
    """Positions of the ranks that meet in each communicator of one kind, those with a known duration only."""
    met = _by_instance(collective)
    # numpy.split does the same and takes ten times as long about it.
    return [met.order[start:stop] for start, stop in pairwise([*met.starts.tolist(), met.order.size])]


def shortest_us(collective: Collective) -> NDArray[np.float64]:
    """The shortest known duration in each communicator of one kind, in the order of `instances`."""
    return transfers(collective)[1]


def transfers(collective: Collective) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Number, shortest known duration in microseconds, and members with a known duration of each communicator of one kind."""
    met = _by_instance(collective)
    return met.numbers, _shortest(collective, met), met.members


def fill_wait(columns: dict[str, NDArray[np.float64]], collectives: dict[str, Collective]) -> None:
    """Fill unknown `wait_us` with what each rank spent in collectives beyond the shortest of its communicator."""
    unknown = np.isnan(columns["wait_us"])
    if not unknown.any() or not collectives:
        return
    waits = np.zeros(len(unknown))
    for collective in collectives.values():
        met = _by_instance(collective)
        if met.order.size:
            duration_us = collective.duration_us[met.order]
            waits[met.order] += duration_us - np.repeat(_shortest(collective, met), met.members)
    columns["wait_us"] = np.where(unknown, waits, columns["wait_us"])


def _by_instance(collective: Collective) -> Meetings:
    if are_known(collective.duration_us):
        return collective.meetings or meetings_of(collective.instance)
    return meetings_of(collective.instance, ~np.isnan(collective.duration_us))


def _shortest(collective: Collective, met: Meetings) -> NDArray[np.float64]:
    if not met.order.size:
        return np.array([], dtype=np.float64)
    shortest: NDArray[np.float64] = np.minimum.reduceat(collective.duration_us[met.order], met.starts)
    return shortest


def meetings_of(instance: NDArray[np.int64], known: NDArray[np.bool_] | None = None) -> Meetings:
    """Ranks by communicator.

    Args:
        instance: number of each rank's communicator; -1 for a rank in none.
        known: whose duration is known; all where it is null.
    """
    positions = np.flatnonzero(instance >= 0 if known is None else known & (instance >= 0))
    order = positions[np.argsort(instance[positions], kind="stable")]
    begins = np.ones(order.size, dtype=np.bool_)
    begins[1:] = np.diff(instance[order]) != 0
    starts = np.flatnonzero(begins)
    return Meetings(order, starts, np.diff(starts, append=order.size), instance[order[starts]])


class CollectiveJoin:
    """Joins the collectives of steps of one job, step after step.

    Who meets whom is the same in nearly all steps: what follows from it is kept from one step to the next, and made anew
    when a report says something else. It holds no history, and a new one gives the same.
    """

    def __init__(self) -> None:
        self._numbered: dict[str, tuple[list[Any], NDArray[np.int64], tuple[str, ...], Meetings]] = {}

    def of(self, timings: Sequence[StepTiming], first: NDArray[np.int64] | slice) -> dict[str, Collective]:
        """Collectives of a step by kind.

        Args:
            timings: the nodes' shares of the step.
            first: for each rank of the step, its place among the ranks of all shares, one after the other.

        `instance` of a report is a column over the node's ranks, or, where its length is another, the name of the one
        communicator that the report is about.
        """
        even = _one_of_each(timings)
        counts = [len(timing.rank) for timing in timings]
        result = {}
        for group in sorted(even or {collective.group for timing in timings for collective in timing.collectives}):
            columns: list[Any] = list(map(_INSTANCE, even[group])) if even else [None]
            if None not in columns and list(map(len, columns)) == counts:
                reports = even[group]
                duration = known_numbers(map(_DURATION, reports))
                op = next((report.op for report in reports if report.op is not None), None)
                instance, names, meetings = self._of_columns(group, columns)
                if isinstance(first, slice):
                    result[group] = Collective(group, instance, duration, names, op, meetings)
                else:
                    result[group] = Collective(group, instance[first], duration[first], names, op)
            else:
                result[group] = _of_uneven(group, timings, first)
        return result

    def _of_columns(self, group: str, columns: list[Any]) -> tuple[NDArray[np.int64], tuple[str, ...], Meetings]:
        known = self._numbered.get(group)
        if known is None or known[0] != columns:
            instance, names = numbered(list(chain.from_iterable(columns)))
            meetings = meetings_of(instance)
            known = self._numbered[group] = (columns, instance, names, meetings)
        return known[1:]


def _one_of_each(timings: Sequence[StepTiming]) -> dict[str, tuple[CollectiveTiming, ...]]:
    """The nodes' reports by kind, where all nodes report the same kinds in one order, each once; else nothing."""
    reports = list(map(_COLLECTIVES, timings))
    if len(set(map(len, reports))) != 1:
        return {}
    by_group: dict[str, tuple[CollectiveTiming, ...]] = {}
    for column in zip(*reports, strict=True):
        groups = set(map(_GROUP, column))
        if len(groups) != 1 or groups & by_group.keys():
            return {}
        by_group[groups.pop()] = column
    return by_group


def integers(columns: Iterable[Iterable[Any]]) -> NDArray[np.int64] | None:
    """Columns of integers, one after the other; None where one of them is unknown or has more than 64 bits."""
    try:
        return np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    except (TypeError, OverflowError):
        return None


def known_numbers(given: Iterable[Sequence[int | None]]) -> NDArray[np.float64]:
    """Columns of integers, one after the other; NaN is unknown."""
    columns = list(given)
    whole = integers(columns)
    return np.array(list(chain.from_iterable(columns)), dtype=np.float64) if whole is None else whole.astype(np.float64)


def numbered(names: Sequence[int | str | None]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number of each name among the sorted ones, -1 for none, and those."""
    distinct = set(names) - {None}
    numbers = {name: number for number, name in enumerate(sorted({str(name) for name in distinct}))}
    number_of: dict[Any, int] = {name: numbers[str(name)] for name in distinct} | {None: -1}
    return np.fromiter(map(number_of.__getitem__, names), dtype=np.int64, count=len(names)), tuple(numbers)


def _of_uneven(group: str, timings: Sequence[StepTiming], first: NDArray[np.int64] | slice) -> Collective:
    """One kind where a report has none of it, several, no communicators or one named for all."""
    names: list[Any] = []
    durations: list[Any] = []
    op = None
    for timing in timings:
        count = len(timing.rank)
        matching = [collective for collective in timing.collectives if collective.group == group]
        if not matching:
            names.extend([None] * count)
            durations.extend([None] * count)
            continue
        if op is None:
            op = next((collective.op for collective in matching if collective.op is not None), None)
        instance = matching[0].instance
        if instance is not None and len(instance) != count:
            own_names, own_durations = _by_name(matching, count)
            names.extend(own_names)
            durations.extend(own_durations)
            continue
        if len(matching) == 1:
            durations.extend(matching[0].duration_us)
        else:
            durations.extend(_sums([collective.duration_us for collective in matching]))
        names.extend(instance if instance is not None else [0] * count)
    instance_of, distinct = numbered(names)
    duration = np.array(durations, dtype=np.float64)
    return Collective(group, instance_of[first], duration[first], distinct, op)


def _by_name(matching: Sequence[CollectiveTiming], count: int) -> tuple[list[str | None], list[int | None]]:
    """Communicator and time of each local rank, of reports that are about one communicator each.

    A rank that was in several of one kind is told of the first; its operations there add up.
    """
    names: list[str | None] = [None] * count
    durations: list[int | None] = [None] * count
    for collective in matching:
        name = "-".join(map(str, collective.instance)) if collective.instance is not None else "0"
        for place, duration in enumerate(collective.duration_us):
            if duration is None or names[place] not in (None, name):
                continue
            names[place] = name
            durations[place] = (durations[place] or 0) + duration
    return names, durations


def _sums(columns: Sequence[tuple[int | None, ...]]) -> list[int | None]:
    """Several operations in one communicator during a step add up: the rank spent their sum in it."""
    return [None if None in durations else sum(d for d in durations if d) for durations in zip(*columns, strict=True)]

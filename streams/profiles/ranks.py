"""Ranks side by side: who makes the others wait, from the traces of the same steps.

A collective ends for all ranks together, and its kernel runs from a rank's arrival to that end. So the rank whose
collectives take the SHORTEST time came last: it is the straggler, and the long ones are its victims.

Guarantees: only ranks with the same collectives in the same number are compared (pipeline stages and experts have
others); point-to-point kernels are left out where there are collectives; nobody is named below the limit, or where the
rank with the shortest collectives did not also have the longest time of its own. Deliberately not: clocks. Times of
different ranks are never set against each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from streams.profiles.figures import StepFigures, Work

__all__ = ["MARGIN_SHARE", "RankComparison", "RankTimes", "compare_ranks"]

MARGIN_SHARE: Final = 0.05
"""Share of a step by which a straggler's collectives must be shorter than its peers' median. A judgement: below it the
jitter of a few steps decides."""

_LEAST_RANKS: Final = 2
_POINT_TO_POINT: Final = frozenset({"send", "recv", "sendrecv", "isend", "irecv"})

_Signature = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RankTimes:
    """A rank's mean step, microseconds.

    Attributes:
        rank: As the trace or its name says.
        collective_us: Durations of its collectives, added up.
        own_us: The step without communication that nothing covers.
        window_us: The step.
        is_compared: Whether it has peers with the same collectives.
    """

    rank: int
    collective_us: float
    own_us: float
    window_us: float
    is_compared: bool


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Ranks in order, and the straggler among them (None where nobody stands out), with the reason."""

    straggler_rank: int | None
    reason: str
    steps: tuple[int | None, ...]
    ranks: tuple[RankTimes, ...]


def compare_ranks(steps_by_rank: Mapping[int, Sequence[StepFigures]]) -> RankComparison:
    """Compares ranks over the steps that all of them have.

    Args:
        steps_by_rank: Each rank's steps, one entry per step and device.
    """
    common = _common_steps(steps_by_rank)
    chosen = {rank: [step for step in steps if step.step in common] for rank, steps in sorted(steps_by_rank.items())}
    groups: defaultdict[_Signature, list[int]] = defaultdict(list)
    for rank, steps in chosen.items():
        if signature := _signature(steps):
            groups[signature].append(rank)
    compared = {rank for group in groups.values() if len(group) >= _LEAST_RANKS for rank in group}
    times = {rank: _times(rank, steps, len(common), rank in compared) for rank, steps in chosen.items() if common}
    order = tuple(sorted(common, key=lambda step: -1 if step is None else step))
    straggler, reason = _straggler(groups, times)
    return RankComparison(straggler, reason, order, tuple(times.values()))


def _common_steps(steps_by_rank: Mapping[int, Sequence[StepFigures]]) -> set[int | None]:
    sets = [{step.step for step in steps} for steps in steps_by_rank.values()]
    return set.intersection(*sets) if sets else set()


def _signature(steps: Sequence[StepFigures]) -> _Signature:
    counts: defaultdict[str, int] = defaultdict(int)
    for step in steps:
        for name, work in _collectives(step).items():
            counts[name] += work.count
    return tuple(sorted(counts.items()))


def _collectives(step: StepFigures) -> Mapping[str, Work]:
    """Its collectives; all communication where point-to-point is all there is (all-to-all is such without arguments)."""
    collectives = {name: work for name, work in step.collectives.items() if name.lower() not in _POINT_TO_POINT}
    return collectives or step.collectives


def _times(rank: int, steps: Sequence[StepFigures], step_count: int, is_compared: bool) -> RankTimes:
    collective = sum(work.total_us for step in steps for work in _collectives(step).values())
    own = sum(step.window_us - step.exposed_comm_us for step in steps)
    window = sum(step.window_us for step in steps)
    return RankTimes(rank, collective / step_count, own / step_count, window / step_count, is_compared)


def _straggler(groups: Mapping[_Signature, list[int]], times: Mapping[int, RankTimes]) -> tuple[int | None, str]:
    """The rank that stands out most over all groups of peers."""
    best: tuple[float, int, str] | None = None
    reason = "no two ranks have the same steps and the same collectives"
    for group in groups.values():
        if len(group) < _LEAST_RANKS or not times:
            continue
        shortest = min((times[rank] for rank in group), key=lambda entry: (entry.collective_us, entry.rank))
        others = [times[rank] for rank in group if rank != shortest.rank]
        usual = median(entry.collective_us for entry in others)
        share = (usual - shortest.collective_us) / shortest.window_us if shortest.window_us else 0.0
        told = (
            f"rank {shortest.rank} has the shortest collectives: {shortest.collective_us:,.0f} us a step, its peers' median "
            f"is {usual:,.0f}, a difference of {share:.1%} of the step (limit {MARGIN_SHARE:.0%})"
        )
        if share < MARGIN_SHARE:
            reason = f"no rank stands out: {told}"
        elif shortest.own_us <= median(entry.own_us for entry in others):
            reason = f"no rank is named: {told}, but its own time is not longer than theirs"
        elif best is None or share > best[0]:
            best = (share, shortest.rank, f"{told}; it came last, and its peers waited")
    return (None, reason) if best is None else (best[1], best[2])

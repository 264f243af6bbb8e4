"""As what slow ranks are named: one by one, or a tensor group or node that is slow as a whole.

A whole is named once when each of its members is slow, or some are and the others lean that way nearly as far: a loader that
costs a node 5 % shows in some of its ranks a step or two before it does in others, and that is one matter, not eight. While
most of a whole leans and it is not yet whole, those that are slow already wait for a few steps. Which member holds a group
back cannot be seen in times that include waiting inside the step. No state: who has waited long enough is told by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from schemas.findings import Subject

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    import numpy as np
    from numpy.typing import NDArray

    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = ["Leaning", "slow_units", "subject_of"]

_FAR_ABOVE = 2.0
"""A member so many times as far off as the next is slow itself; the others are what it drags along or a second matter."""
_NEARLY = 0.5
"""The others of a whole lean so far, as a share of what its slow ones do."""
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Leaning:
    """Ranks that take longer than their peers, if not by as much as a slow one.

    Attributes:
        often: in most of their last steps.
        now: in this step.
    """

    often: AbstractSet[int] = frozenset()
    now: AbstractSet[int] = frozenset()


def slow_units(
    step: ClosedStep,
    roster: JobRoster,
    suspects: AbstractSet[int],
    log_ratio: NDArray[np.float64],
    leaning: Leaning,
    may_wait: AbstractSet[int],
) -> list[set[int]]:
    """Suspects as they are to be named now, each in at most one unit; those that wait are in none.

    Args:
        step: the step.
        roster: its tensor groups.
        suspects: slow ranks that are not named yet.
        log_ratio: logarithm of own time over the peers', by position in the step.
        leaning: who else takes longer.
        may_wait: suspects that have not waited for long enough.
    """
    if not suspects:
        return []
    ratio = dict(zip(step.rank.tolist(), log_ratio.tolist(), strict=True))
    units: list[set[int]] = []
    left = set(suspects)
    for members in _wholes(step, roster):
        slow = members & left
        if not slow:
            continue
        others = members - slow
        if others <= leaning.often:
            ranked = sorted((ratio[rank] for rank in members), reverse=True)
            is_near = not others or median(ratio[r] for r in others) > _NEARLY * median(ratio[r] for r in slow)
            if is_near and ranked[0] <= _FAR_ABOVE * ranked[1]:
                units.append(set(members))
                left -= members
        elif len((others & leaning.now) | slow) - 1 >= _MOST * (len(members) - 1):
            left -= slow & may_wait
    units += [{rank} for rank in left]
    return sorted(units, key=min)


def _wholes(step: ClosedStep, roster: JobRoster) -> list[set[int]]:
    """Nodes and tensor groups of more than one rank, the largest first."""
    tensor = roster.job.layout.tensor if roster.job is not None else 1
    by_node: dict[str, set[int]] = {}
    by_tensor_group: dict[int, set[int]] = {}
    for rank, node_id in zip(step.rank.tolist(), step.node_id, strict=True):
        by_node.setdefault(node_id, set()).add(rank)
        by_tensor_group.setdefault(rank // tensor, set()).add(rank)
    wholes = [members for members in by_node.values() if len(members) > 1]
    if tensor > 1:
        wholes += [members for members in by_tensor_group.values() if len(members) > 1]
    return sorted(wholes, key=lambda whole: (-len(whole), min(whole)))


def subject_of(step: ClosedStep, roster: JobRoster, members: AbstractSet[int]) -> Subject:
    """A unit as the subject of a finding."""
    ordered = sorted(members)
    nodes = {node for rank, node in zip(step.rank.tolist(), step.node_id, strict=True) if rank in members}
    if len(ordered) == 1:
        seat = roster.seats.get(ordered[0])
        return Subject(
            level="rank",
            job_id=step.job_id,
            rank=ordered[0],
            stage=seat.stage if seat is not None else None,
            node_id=seat.node_id if seat is not None else (min(nodes) if nodes else None),
            gpu_uuid=seat.gpu_uuid if seat is not None else None,
            pci_bus_id=seat.pci_bus_id if seat is not None else None,
        )
    of_nodes = {rank for rank, node in zip(step.rank.tolist(), step.node_id, strict=True) if node in nodes}
    return Subject(
        level="node" if len(nodes) == 1 and of_nodes == members else "rank_group",
        job_id=step.job_id,
        ranks=tuple(ordered),
        node_id=min(nodes) if len(nodes) == 1 else None,
    )

"""Generated whole steps as the engines' own: what the join would have made of the reports of all ranks.

One step costs a few array conversions, so a long run is judged at the speed of the rules. Nothing is late, repeated or
missing here; what the join does about that is measured elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streams.core.collectives import Collective, meetings_of, numbered
from streams.core.step_join import STEP_COLUMNS, ClosedStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agents.simulation.benchmark import Membership, WholeStep

__all__ = ["closed_steps"]


def closed_steps(steps: Iterable[WholeStep]) -> Iterator[ClosedStep]:
    """Closed steps, in the order of the given ones.

    Args:
        steps: of one job, each with the time its ranks reported their own time in.
    """
    known: tuple[Membership, _Meetings] | None = None
    for step in steps:
        if known is None or known[0] is not step.members:
            known = (step.members, _Meetings(step.members))
        meetings = known[1]
        unknown = np.full(len(meetings.rank), np.nan)
        yield ClosedStep(
            job_id=step.members.job_id,
            epoch=step.members.epoch,
            step=step.step,
            phase=step.phase,
            event_time_ns=step.event_time_ns,
            rank=meetings.rank,
            node_id=step.members.node_ids,
            columns={
                name: step.columns[name].astype(np.float64) if name in step.columns else unknown
                for name in STEP_COLUMNS
            },
            collectives={
                group: Collective(
                    group,
                    instance,
                    step.durations[group].astype(np.float64),
                    names,
                    step.members.operations[group],
                    places,
                )
                for group, (instance, names, places) in meetings.groups.items()
            },
            missing=(),
            expected=len(meetings.rank),
        )


class _Meetings:
    """What follows from a membership alone."""

    def __init__(self, members: Membership) -> None:
        self.rank = np.arange(len(members.node_ids), dtype=np.int64)
        self.groups = {}
        for group, numbers in sorted(members.instances.items()):
            instance, names = numbered(numbers.tolist())
            self.groups[group] = (instance, names, meetings_of(instance))

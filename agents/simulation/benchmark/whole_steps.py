"""A job's steps whole, as arrays over its ranks, without the messages that would tell of them.

For runs so long that making records, and not judging them, would take the time: what every rank would report of a step is
there, what the way of a report adds is not (clocks that are off, delay, loss, repeats, missing ranks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.simulation.benchmark.step_records import OPERATIONS, step_columns, told_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.job_steps import StepBlock
    from agents.simulation.benchmark.layout import Segment

__all__ = ["Membership", "WholeStep", "whole_steps"]


@dataclass(frozen=True)
class Membership:
    """Who the ranks are and whom they meet, in rank order; one for all steps of an epoch.

    Attributes:
        job_id, epoch: of the job.
        node_ids: node of each rank.
        instances: by kind of communicator the number of the one that each rank is in.
        operations: by kind what is done in it.
    """

    job_id: str
    epoch: int
    node_ids: tuple[str, ...]
    instances: dict[str, NDArray[Any]]
    operations: dict[str, str]

    @classmethod
    def of(cls, segment: Segment, inventory: Inventory) -> Membership:
        """The membership of a segment."""
        names = [inventory.machines[node].node_id for node in segment.nodes]
        groups = told_groups(segment)
        return cls(
            segment.plan.job_id,
            segment.epoch,
            tuple(name for name in names for _ in range(segment.gpus_per_node)),
            {group: segment.instances[group] for group in groups},
            {group: OPERATIONS[group] for group in groups},
        )


@dataclass(frozen=True)
class WholeStep:
    """One step. Arrays are over the ranks in their order, whole microseconds.

    Attributes:
        members: who they are.
        step, phase: its number and phase.
        event_time_ns: when the last rank had ended it.
        columns: by field of a step timing.
        durations: by kind of communicator, the time spent in it.
    """

    members: Membership
    step: int
    phase: str
    event_time_ns: int
    columns: dict[str, NDArray[Any]]
    durations: dict[str, NDArray[Any]]


def whole_steps(case: BenchmarkCase, inventory: Inventory, blocks: Iterable[StepBlock]) -> Iterator[WholeStep]:
    """Steps of one job in order, but for one that never ends."""
    members: dict[int, Membership] = {}
    for block in blocks:
        segment = block.segment
        if segment.epoch not in members:
            members[segment.epoch] = Membership.of(segment, inventory)
        whole = members[segment.epoch]
        columns = step_columns(case, segment, block)
        ends_ns = (block.end_us.max(axis=1) * 1000).tolist()
        for place, step in enumerate(block.steps.tolist()[: len(block.steps) - block.stands]):
            yield WholeStep(
                whole,
                step,
                block.phases[place],
                case.start_ns + ends_ns[place],
                {name: values[place] for name, values in columns.items()},
                {group: block.collectives[group][place] for group in whole.instances},
            )

"""Which rank runs on which hardware, and who meets whom: one membership epoch of a job is one segment.

Ranks count up tensor, data, pipeline, fast to slow, and fill nodes in their order. Arrays over ranks have shape (stages,
replicas, tensor); flat order is rank order. Noise and faults belong to hardware, so a rank that moves takes nothing along.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.errors import ScenarioError
from agents.simulation.noise import entity_keys

if TYPE_CHECKING:
    from agents.simulation.benchmark.case import JobPlan
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.topology import IndexArray
    from agents.simulation.noise import KeyArray, Noise

__all__ = ["Segment", "job_nodes", "replica_count", "shrunk"]


@dataclass(frozen=True)
class Segment:
    """A job's membership for a stretch of steps.

    Attributes:
        plan: the job.
        epoch: of its records.
        first_step, stop_step: steps [first, stop).
        nodes: hardware index of each of the job's nodes, in rank order.
        replicas: data-parallel degree.
        gpus_per_node: ranks of a node.
    """

    plan: JobPlan
    epoch: int
    first_step: int
    stop_step: int
    nodes: tuple[int, ...]
    replicas: int
    gpus_per_node: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(stages, replicas, tensor)."""
        return self.plan.pipeline, self.replicas, self.plan.tensor

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.nodes) * self.gpus_per_node

    @cached_property
    def hardware(self) -> IndexArray:
        """Hardware index of each rank, in `shape`."""
        return np.repeat(np.array(self.nodes), self.gpus_per_node).reshape(self.shape)

    @cached_property
    def gpu(self) -> IndexArray:
        """GPU of its node of each rank, in `shape`; NIC k serves GPU k."""
        return np.tile(np.arange(self.gpus_per_node), len(self.nodes)).reshape(self.shape)

    def device_keys(self, inventory: Inventory) -> KeyArray:
        """Noise keys of the ranks' devices, in `shape`."""
        keys = inventory.gpu_keys[self.hardware, self.gpu]
        return np.ascontiguousarray(keys)

    def rank_of(self, hardware: int, gpu: int) -> int | None:
        """The rank on a GPU; none where the hardware is not of this segment."""
        if hardware not in self.nodes:
            return None
        return self.nodes.index(hardware) * self.gpus_per_node + gpu

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """(stage, replica, tensor index) of a rank."""
        unit, tensor = divmod(rank, self.plan.tensor)
        stage, replica = divmod(unit, self.replicas)
        return stage, replica, tensor

    @cached_property
    def instances(self) -> dict[str, IndexArray]:
        """By kind of communicator: the number of the one each rank is in, flat in rank order. Kinds of one member are left out."""
        stages, replicas, tensor = self.shape
        stage, replica, member = np.indices(self.shape)
        expert = self.plan.expert
        groups = {
            "tp": (tensor, stage * replicas + replica),
            "ep": (expert, (stage * (replicas // max(expert, 1)) + replica // max(expert, 1)) * tensor + member),
            "pp": (stages, replica * tensor + member),
            "dp": (replicas, stage * tensor + member),
            "mp": (stages * tensor, replica),
        }
        return {name: number.reshape(-1) for name, (size, number) in groups.items() if size > 1}


def replica_count(plan: JobPlan, nodes: int, gpus_per_node: int) -> int:
    """The data-parallel degree that tensor and pipeline leave.

    Raises:
        ScenarioError: the degrees do not divide the ranks, or a node would hold two stages.
    """
    world = nodes * gpus_per_node
    if gpus_per_node % plan.tensor or world % (plan.tensor * plan.pipeline) or nodes % plan.pipeline:
        raise ScenarioError(
            f"job {plan.job_id}: {world} GPUs on {nodes} nodes do not give whole nodes to each of {plan.pipeline} stages "
            f"of tensor groups of {plan.tensor}"
        )
    replicas = world // (plan.tensor * plan.pipeline)
    if replicas % plan.expert:
        raise ScenarioError(f"job {plan.job_id}: {replicas} replicas are no multiple of {plan.expert} expert members")
    return replicas


def job_nodes(plan: JobPlan, first_node: int, names: tuple[str, ...], noise: Noise) -> tuple[int, ...]:
    """The job's nodes in rank order, of those from `first_node` on.

    `pipeline_in_pod` puts the stages of a replica side by side and replicas one after the other; `rank_order` fills nodes
    by rank, so that a stage's replicas are side by side; `random` draws.
    """
    physical = list(range(first_node, first_node + plan.nodes))
    if plan.placement == "random":
        keys = entity_keys([names[node] for node in physical])
        order = np.argsort(noise.uniform(f"placement-{plan.job_id}", keys), kind="stable")
        return tuple(physical[index] for index in order.tolist())
    if plan.placement == "rank_order":
        return tuple(physical)
    per_stage = plan.nodes // plan.pipeline
    return tuple(
        physical[block * plan.pipeline + stage] for stage in range(plan.pipeline) for block in range(per_stage)
    )


def shrunk(segment: Segment, keep: set[int], at_step: int) -> Segment:
    """The segment after the nodes of one replica have left and the others were numbered backwards.

    Args:
        segment: the membership so far.
        keep: hardware that stays in any case.
        at_step: first step of the new membership.

    Raises:
        ScenarioError: every replica holds hardware that must stay, or there is only one.
    """
    stages = segment.plan.pipeline
    per_stage = len(segment.nodes) // stages
    columns = [tuple(segment.nodes[stage * per_stage + block] for stage in range(stages)) for block in range(per_stage)]
    for leaving in range(per_stage):
        if per_stage > 1 and not keep.intersection(columns[leaving]):
            rest = [column for block, column in enumerate(columns) if block != leaving][::-1]
            nodes = tuple(column[stage] for stage in range(stages) for column in rest)
            return Segment(
                plan=segment.plan,
                epoch=segment.epoch + 1,
                first_step=at_step,
                stop_step=segment.stop_step,
                nodes=nodes,
                replicas=replica_count(segment.plan, len(nodes), segment.gpus_per_node),
                gpus_per_node=segment.gpus_per_node,
            )
    raise ScenarioError(f"job {segment.plan.job_id}: no replica can leave")

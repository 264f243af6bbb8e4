"""The simulated fleet's inventory: names, addresses, places, and which rank runs where.

Ranks count up tensor, data, pipeline, fast to slow (Megatron's order), and fill the GPUs of a job's nodes in order. All
NICs of a node hang on one leaf switch (no rails). Names and addresses depend on the seed and the place alone, never on
the size of the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.noise import KeyArray, Noise, entity_keys
from schemas.fleet import Job, Layout, Node, RankPlacement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agents.simulation.scenario import JobPlan, Scenario

__all__ = ["PFC_PRIORITY", "UPLINKS_PER_LEAF", "Fleet", "JobShape"]

PFC_PRIORITY = 3
"""The lossless traffic class; 3 is the usual choice for RoCE."""

UPLINKS_PER_LEAF = 2

# PCI buses of the eight GPUs of an HGX H100 board as several vendors wire it; further ones are made up.
_HGX_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_NODES_PER_RACK = 4
_NODES_PER_POD = 64


@dataclass(frozen=True)
class JobShape:
    """A job's place and degrees of parallelism. `first_gpu` is its first GPU, counted over the fleet."""

    plan: JobPlan
    index: int
    first_node: int
    stop_node: int
    gpus_per_node: int
    data: int
    tokens_per_step: int

    @property
    def world(self) -> int:
        """Number of ranks."""
        return (self.stop_node - self.first_node) * self.gpus_per_node

    @property
    def first_gpu(self) -> int:
        """The first rank's GPU, counted over the fleet."""
        return self.first_node * self.gpus_per_node

    @property
    def shape(self) -> tuple[int, int, int]:
        """(pipeline, data, tensor): the array shape whose flat order is rank order."""
        return self.plan.pipeline, self.data, self.plan.tensor

    def rank_of(self, node: int, gpu: int) -> int:
        """The rank on a GPU of one of the job's nodes."""
        return (node - self.first_node) * self.gpus_per_node + gpu

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """(stage, data index, tensor index) of a rank."""
        unit, tensor = divmod(rank, self.plan.tensor)
        stage, data = divmod(unit, self.data)
        return stage, data, tensor


@dataclass(frozen=True)
class Fleet:
    """Everything about a scenario's fleet that does not change while it runs. Columns are per node, then per device."""

    scenario: Scenario
    node_ids: tuple[str, ...]
    gpu_uuids: tuple[tuple[str, ...], ...]
    pci_bus_ids: tuple[str, ...]
    nics: tuple[str, ...]
    leaf_ids: tuple[str, ...]
    jobs: tuple[JobShape, ...]

    @classmethod
    def of(cls, scenario: Scenario, noise: Noise) -> Fleet:
        """Lay a scenario's fleet out."""
        node_ids = tuple(f"node-{index:04d}" for index in range(scenario.nodes))
        gpus = range(scenario.gpus_per_node)
        leaves = -(-scenario.nodes // scenario.nodes_per_leaf)
        return cls(
            scenario=scenario,
            node_ids=node_ids,
            gpu_uuids=tuple(
                tuple("GPU-" + noise.identifier("gpu-uuid", f"{node_id}/{gpu}") for gpu in gpus) for node_id in node_ids
            ),
            pci_bus_ids=tuple(f"0000:{_HGX_BUSES[gpu] if gpu < len(_HGX_BUSES) else 2 + gpu:02x}:00" for gpu in gpus),
            nics=tuple(f"mlx5_{index}" for index in range(scenario.nics_per_node)),
            leaf_ids=tuple(f"leaf-{index:03d}" for index in range(leaves)),
            jobs=tuple(_job_shape(scenario, plan, index) for index, plan in enumerate(scenario.jobs)),
        )

    def leaf_of(self, node: int) -> int:
        """Index of the leaf switch that a node hangs on."""
        return node // self.scenario.nodes_per_leaf

    def nodes_of_leaf(self, leaf: int) -> range:
        """The nodes on a leaf switch."""
        first = leaf * self.scenario.nodes_per_leaf
        return range(first, min(first + self.scenario.nodes_per_leaf, self.scenario.nodes))

    def leaf_port(self, node: int, nic: int) -> str:
        """Name of the leaf's port that a NIC is cabled to."""
        return f"Ethernet{(node % self.scenario.nodes_per_leaf) * self.scenario.nics_per_node + nic}"

    def uplink_port(self, uplink: int) -> str:
        """Name of a leaf's port towards the spines."""
        return f"Ethernet{self.scenario.nodes_per_leaf * self.scenario.nics_per_node + uplink}"

    def job_of_node(self, node: int) -> JobShape | None:
        """The job whose ranks run on a node; none for a spare."""
        return next((job for job in self.jobs if job.first_node <= node < job.stop_node), None)

    @cached_property
    def node_keys(self) -> KeyArray:
        """Noise keys, shape (nodes,)."""
        return entity_keys(self.node_ids)

    @cached_property
    def gpu_keys(self) -> KeyArray:
        """Noise keys, shape (nodes, GPUs of a node)."""
        return self._device_keys("gpu", self.scenario.gpus_per_node)

    @cached_property
    def nic_keys(self) -> KeyArray:
        """Noise keys, shape (nodes, NICs of a node)."""
        return self._device_keys("nic", self.scenario.nics_per_node)

    @cached_property
    def leaf_keys(self) -> KeyArray:
        """Noise keys, shape (leaf switches,)."""
        return entity_keys(self.leaf_ids)

    def _device_keys(self, kind: str, count: int) -> KeyArray:
        names = [f"{node_id}/{kind}/{index}" for node_id in self.node_ids for index in range(count)]
        return entity_keys(names).reshape(len(self.node_ids), count)

    def inventory(self, start_ns: int) -> Iterator[Node | Job | RankPlacement]:
        """The records that register nodes, jobs and ranks, in force from `start_ns`."""
        for index, node_id in enumerate(self.node_ids):
            yield Node(
                node_id=node_id,
                effective_from_ns=start_ns,
                sku=self.scenario.sku,
                gpu_uuid=self.gpu_uuids[index],
                pci_bus_id=self.pci_bus_ids,
                rack=f"rack-{index // _NODES_PER_RACK:03d}",
                leaf=self.leaf_ids[self.leaf_of(index)],
                pod=f"pod-{index // _NODES_PER_POD:02d}",
                zone=f"hall-a/row-{index // (_NODES_PER_RACK * 8):02d}",
            )
        for job in self.jobs:
            yield self.job_record(job, start_ns)
            for node in range(job.first_node, job.stop_node):
                yield self._placement(job, node, start_ns)

    def job_record(self, job: JobShape, effective_from_ns: int, *, ended: bool = False) -> Job:
        """The registration of a job, or its end."""
        return Job(
            job_id=job.plan.job_id,
            version=2 if ended else 1,
            effective_from_ns=effective_from_ns,
            state="ended" if ended else "running",
            world_size=job.world,
            model=job.plan.model,
            layout=Layout(tensor=job.plan.tensor, data=job.data, pipeline=job.plan.pipeline),
            tokens_per_step=job.tokens_per_step,
            seq_len=job.plan.seq_len,
            sku=self.scenario.sku,
            mfu_target=job.plan.mfu_target,
        )

    def _placement(self, job: JobShape, node: int, start_ns: int) -> RankPlacement:
        first = job.rank_of(node, 0)
        ranks = range(first, first + job.gpus_per_node)
        return RankPlacement(
            job_id=job.plan.job_id,
            effective_from_ns=start_ns,
            node_id=self.node_ids[node],
            rank=tuple(ranks),
            gpu_uuid=self.gpu_uuids[node],
            pci_bus_id=self.pci_bus_ids,
            sku=(self.scenario.sku,) * job.gpus_per_node,
            stage=tuple(job.coordinates(rank)[0] for rank in ranks),
        )

    def boot_id(self, node: int, noise: Noise) -> str:
        """The kernel's boot id of a node; it outlives restarts of the agent."""
        return noise.identifier("boot-id", self.node_ids[node])

    def sessions(self, noise: Noise, generation: int = 0) -> list[str]:
        """One agent session id per node; another generation is what a restarted agent calls itself."""
        return [noise.identifier(f"session-{generation}", node_id)[:18] for node_id in self.node_ids]

    def clock_offsets_ns(self, noise: Noise) -> list[int]:
        """How far each node's clock is off: normal, 10 ms (a choice: no published figure for fleets)."""
        offsets = noise.normal("clock-offset", self.node_keys) * 10e6
        return [int(value) for value in np.rint(offsets)]


def _job_shape(scenario: Scenario, plan: JobPlan, index: int) -> JobShape:
    first, stop = scenario.node_range(plan)
    world = (stop - first) * scenario.gpus_per_node
    data = world // (plan.tensor * plan.pipeline)
    tokens = plan.tokens_per_step
    if tokens is None:
        # 6N convention: MFU = 6 N tokens / (step time x ranks x peak). Whole tokens for each replica.
        flop_budget = plan.mfu * scenario.peak_tflops * 1e12 * world * plan.step_time_ms * 1e-3
        tokens = max(1, round(flop_budget / (6.0 * plan.model.parameters * data))) * data
    return JobShape(plan, index, first, stop, scenario.gpus_per_node, data, tokens)

"""Faults: where and when each one strikes, and what it does to ranks, GPUs and ports.

`place_faults` turns a scenario's fault plans into places and times, drawn from the seed; no two faults share a node.
`FaultEffects` answers what holds at a moment. All times are nanoseconds since the start of the run. What a fault does
ends with it, but for what heat and a step under way carry on; a lost GPU stays lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.errors import ScenarioError

if TYPE_CHECKING:
    from agents.simulation.fleet import Fleet, JobShape
    from agents.simulation.noise import FloatArray, Noise
    from agents.simulation.scenario import FaultKind, FaultPlan

__all__ = ["FaultEffects", "PlacedFault", "RankEffects", "place_faults"]

# Ranges of the culprit's own time over its peers' where a plan gives none.
_SLOWDOWN = {"thermal": (1.6, 1.8), "cpu_contention": (1.4, 1.6)}

_RAMP_SHARE = 0.15
_MAX_RAMP_S = 60.0
"""Heat comes over minutes, so a throttle is a ramp and not a step; in a short run it takes its share of the fault."""

_HOST_SHARE = 0.7
"""Of the time that a starved host costs; the rest is its data loader's."""


@dataclass(frozen=True)
class PlacedFault:
    """A fault with its place. `strength` is the own-time factor, or pause frames a second; `step_factor` a storm's alone."""

    fault_id: str
    plan: FaultPlan
    job: JobShape
    node: int
    gpu: int
    nic: int
    onset_ns: int
    end_ns: int
    strength: float
    step_factor: float = 1.0

    @property
    def kind(self) -> FaultKind:
        """The plan's kind."""
        return self.plan.kind

    @property
    def rank(self) -> int:
        """The culprit's rank in its job (for a storm: the rank whose GPU shares the NIC's number, if there is one)."""
        return self.job.rank_of(self.node, self.gpu)

    def overlap_s(self, since_ns: int, until_ns: int) -> float:
        """Seconds of (since, until] during which the fault holds."""
        return max(0, min(until_ns, self.end_ns) - max(since_ns, self.onset_ns)) * 1e-9

    def active(self, at_ns: int) -> bool:
        """Whether the fault holds."""
        return self.onset_ns <= at_ns < self.end_ns

    def progress(self, at_ns: int) -> float:
        """0 outside the fault; inside it rises from just above 0 to 1 over the ramp."""
        if not self.active(at_ns):
            return 0.0
        ramp_s = min(_MAX_RAMP_S, _RAMP_SHARE * (self.end_ns - self.onset_ns) * 1e-9)
        return min(1.0, 0.05 + (at_ns - self.onset_ns) * 1e-9 / ramp_s)


@dataclass(frozen=True)
class RankEffects:
    """What faults do to one job's step, arrays in rank order.

    `compute_factor` multiplies compute time, `host_share` and `data_share` are additions in units of healthy own time,
    `transfer_extra_share` is added to the gradient all-reduce, in units of the healthy step time.
    """

    compute_factor: FloatArray
    host_share: FloatArray
    data_share: FloatArray
    transfer_extra_share: float


def place_faults(fleet: Fleet, noise: Noise) -> tuple[PlacedFault, ...]:
    """Give every fault of the scenario its place and time.

    Raises:
        ScenarioError: a job has fewer nodes than faults, or two faults are pinned to one node.
    """
    plans = fleet.scenario.faults
    pinned = [plan.node for plan in plans if plan.node is not None]
    if len(set(pinned)) != len(pinned):
        raise ScenarioError("two faults are pinned to one node; each needs its own")
    used = set(pinned)
    duration_ns = round(fleet.scenario.duration_s * 1e9)
    placed = []
    for index, plan in enumerate(plans):
        job = next(job for job in fleet.jobs if job.plan.job_id == plan.job)
        purpose = f"fault-{index}-{plan.kind}"
        node = plan.node
        if node is None:
            node = _draw_node(fleet, noise, job, plan, used, purpose)
            used.add(node)
        gpu = plan.gpu if plan.gpu is not None else noise.pick(purpose + "/gpu", fleet.scenario.gpus_per_node)
        if plan.kind == "pause_storm":
            low, high = np.log(plan.pause_rate)
            strength = float(np.exp(noise.between(purpose + "/strength", low, high)))
            step_factor = noise.between(purpose + "/step", *plan.step_slowdown)
        else:
            bounds = plan.slowdown or _SLOWDOWN.get(plan.kind, (1.0, 1.0))
            strength, step_factor = noise.between(purpose + "/strength", *bounds), 1.0
        placed.append(
            PlacedFault(
                fault_id=f"T{index + 1:04d}",
                plan=plan,
                job=job,
                node=node,
                gpu=gpu,
                nic=noise.pick(purpose + "/nic", fleet.scenario.nics_per_node),
                onset_ns=round(plan.onset * duration_ns),
                end_ns=round(plan.end * duration_ns),
                strength=strength,
                step_factor=step_factor,
            )
        )
    return tuple(placed)


def _draw_node(fleet: Fleet, noise: Noise, job: JobShape, plan: FaultPlan, used: set[int], purpose: str) -> int:
    free = [node for node in range(job.first_node, job.stop_node) if node not in used]
    if not free:
        raise ScenarioError(
            f"job {plan.job} has {job.stop_node - job.first_node} nodes, too few for its faults: each needs its own"
        )
    if plan.kind == "pause_storm":
        # A storm without anybody to pause is none: prefer a leaf that other nodes share.
        free = [node for node in free if len(fleet.nodes_of_leaf(fleet.leaf_of(node))) > 1] or free
    return free[noise.pick(purpose + "/node", len(free))]


class FaultEffects:
    """What the placed faults do at a moment."""

    def __init__(self, fleet: Fleet, placed: tuple[PlacedFault, ...]) -> None:
        self._fleet = fleet
        self.placed = placed

    def of_kind(self, kind: FaultKind) -> tuple[PlacedFault, ...]:
        """The placed faults of one kind."""
        return tuple(fault for fault in self.placed if fault.kind == kind)

    def on_ranks(self, job: JobShape, at_ns: int) -> RankEffects:
        """What a step of a job that starts at this moment suffers."""
        compute, host, data = np.ones(job.world), np.zeros(job.world), np.zeros(job.world)
        transfer = 0.0
        for fault in self.placed:
            if not fault.active(at_ns):
                continue
            if fault.kind == "pause_storm":
                if job.index in self.jobs_paused_by(fault):
                    transfer += fault.step_factor - 1.0
            elif fault.job.index != job.index:
                continue
            elif fault.kind == "thermal":
                compute[fault.rank] *= 1.0 + (fault.strength - 1.0) * fault.progress(at_ns)
            elif fault.kind == "cpu_contention":
                host[fault.rank] += (fault.strength - 1.0) * _HOST_SHARE
                data[fault.rank] += (fault.strength - 1.0) * (1.0 - _HOST_SHARE)
        return RankEffects(compute, host, data, transfer)

    def jobs_paused_by(self, storm: PlacedFault) -> set[int]:
        """Jobs whose all-reduce a storm holds up: its own, and whoever else has a node on that leaf."""
        paused = {storm.job.index}
        for node in self.nodes_paused_by(storm):
            job = self._fleet.job_of_node(node)
            if job is not None:
                paused.add(job.index)
        return paused

    def nodes_paused_by(self, storm: PlacedFault) -> tuple[int, ...]:
        """Nodes whose NICs the leaf pauses.

        The culprit's own NICs are not among them: within a node nobody sends through the leaf.
        """
        leaf = self._fleet.leaf_of(storm.node)
        return tuple(node for node in self._fleet.nodes_of_leaf(leaf) if node != storm.node)

    def loss_of(self, job: JobShape) -> PlacedFault | None:
        """The first loss of a GPU that stops a job; none if it keeps all of them."""
        losses = [fault for fault in self.of_kind("xid79") if fault.job.index == job.index]
        return min(losses, key=lambda fault: fault.onset_ns, default=None)

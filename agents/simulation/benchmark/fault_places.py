"""Faults with their places: where each one of a case's plan strikes, drawn from the seed, and how strongly in which step.

No two faults share a machine. A place is drawn among what can show the fault: ranks of the wanted stage, NICs and switches
that carry the job's traffic, the zone with most of its GPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.benchmark.case import BenchmarkCase, FaultKind, FaultPlan
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment
    from agents.simulation.noise import FloatArray, Noise, StepArray

__all__ = ["STANDING_KINDS", "PlacedFault", "place_faults"]

STANDING_KINDS: frozenset[FaultKind] = frozenset(
    {"gpu_memory_error", "gpu_execution_error", "cuda_error", "nvlink_error", "machine_unreachable"}
)
"""Faults after which the job stands."""

_NODE_KINDS = frozenset({"host_contention", "loader_stall", "power_brake", "machine_unreachable"})
_JOB_KINDS = frozenset({"storage_stall", "garbage_collection", "fleet_power_cap", "fleet_code", "hot_expert"})
_PERIODS: dict[str, tuple[int, tuple[int, ...]]] = {
    "three_of_ten": (10, (0, 3, 7)),
    "every_37": (37, tuple(range(10))),
    "bursts": (6, (0, 1)),
}


@dataclass(frozen=True)
class PlacedFault:
    """A fault with its place.

    Attributes:
        plan: the fault's plan.
        index: its number in the case.
        machine, gpu: hardware index and GPU (or NIC of that number); -1 where it has none.
        switch: switch index, -1 where it has none.
        members: all (machine, GPU) that it slows by itself; for a network fault the NICs whose traffic suffers.
        place_name: zone or rack, empty for others.
    """

    plan: FaultPlan
    index: int
    machine: int
    gpu: int
    switch: int
    members: tuple[tuple[int, int], ...]
    place_name: str = ""

    @property
    def truth_id(self) -> str:
        """Id of its truth."""
        return f"T{self.index + 1:04d}"

    @property
    def kind(self) -> FaultKind:
        """The plan's kind."""
        return self.plan.kind

    @property
    def is_local(self) -> bool:
        """Whether it has a place below the job."""
        return self.machine >= 0 or self.switch >= 0 or bool(self.place_name)

    def intensity(self, steps: StepArray) -> FloatArray:
        """How strongly it holds in each step, 0 to 1."""
        plan = self.plan
        since = steps - plan.onset_step
        strength = ((steps >= plan.onset_step) & (steps < plan.end_step)).astype(np.float64)
        if plan.pattern in ("ramp", "drift"):
            length = plan.ramp_steps if plan.pattern == "ramp" else plan.end_step - plan.onset_step
            strength *= np.clip((since + 1) / max(1, length), 0.0, 1.0)
        elif plan.pattern != "constant":
            period, held = _PERIODS[plan.pattern]
            strength *= np.isin(since % period, held)
        return strength


def place_faults(
    case: BenchmarkCase, inventory: Inventory, segments: Sequence[Segment], noise: Noise
) -> tuple[PlacedFault, ...]:
    """Give every fault its place.

    Args:
        case: what to place.
        inventory: the hardware.
        segments: first membership of each job.
        noise: of the seed.

    Raises:
        ScenarioError: a fault finds no place.
    """
    placed: list[PlacedFault] = []
    for index, plan in enumerate(case.faults):
        if not plan.onset_step < plan.end_step or plan.onset_step < 0:
            raise ScenarioError(f"fault {plan.kind}: steps {plan.onset_step} to {plan.end_step} are no rising range")
        segment = segments[plan.job]
        used = {fault.machine for fault in placed}
        purpose = f"{case.scenario}-fault-{index}-{plan.kind}"
        if plan.kind in _JOB_KINDS:
            placed.append(PlacedFault(plan, index, -1, -1, -1, _all_members(segment)))
        elif plan.kind == "switch_degraded":
            placed.append(_on_switch(plan, index, inventory, segments, noise, purpose))
        elif plan.kind in ("zone_throttle", "rack_slow"):
            placed.append(_on_group(plan, index, inventory, segment, noise, purpose))
        else:
            fault = _on_device(plan, index, segment, placed, used, noise, purpose)
            if plan.kind in ("pause_storm", "slow_receiver"):
                fault = replace(fault, members=_paused(fault, inventory, segment, noise, purpose))
            placed.append(fault)
    return tuple(placed)


def _all_members(segment: Segment) -> tuple[tuple[int, int], ...]:
    return tuple(zip(segment.hardware.reshape(-1).tolist(), segment.gpu.reshape(-1).tolist(), strict=True))


def _on_device(
    plan: FaultPlan,
    index: int,
    segment: Segment,
    placed: list[PlacedFault],
    used: set[int],
    noise: Noise,
    purpose: str,
) -> PlacedFault:
    stage, replica = plan.stage, None
    beside = plan.same_peers_as if plan.same_peers_as is not None else plan.next_stage_to
    if beside is not None:
        rank = segment.rank_of(placed[beside].machine, placed[beside].gpu)
        assert rank is not None
        stage, replica, _ = segment.coordinates(rank)
        if plan.next_stage_to is not None:
            stage = stage + 1 if stage + 1 < segment.plan.pipeline else stage - 1
        else:
            replica = None
    stages = range(segment.plan.pipeline) if stage is None else [stage]
    if not 0 <= min(stages) <= max(stages) < segment.plan.pipeline:
        raise ScenarioError(f"fault {plan.kind}: job {segment.plan.job_id} has no stage {stage}")
    hardware = segment.hardware[list(stages)]
    gpus = segment.gpu[list(stages)]
    if replica is not None:
        hardware, gpus = hardware[:, replica], gpus[:, replica]
    free = [
        pair
        for pair in zip(hardware.reshape(-1).tolist(), gpus.reshape(-1).tolist(), strict=True)
        if pair[0] not in used
    ]
    if not free:
        raise ScenarioError(f"fault {plan.kind}: no machine of job {segment.plan.job_id} is left for it")
    machine, gpu = free[noise.pick(purpose, len(free))]
    members: tuple[tuple[int, int], ...] = ((machine, gpu),)
    if plan.kind in _NODE_KINDS:
        members = tuple((machine, other) for other in range(segment.gpus_per_node))
    return PlacedFault(plan, index, machine, gpu, -1, members)


def _paused(
    fault: PlacedFault, inventory: Inventory, segment: Segment, noise: Noise, purpose: str
) -> tuple[tuple[int, int], ...]:
    """The culprit's NIC and those that its switch pauses: all on that switch, and through the spines as many as asked."""
    switch_of = inventory.topology.switch_of
    switch = int(switch_of[inventory.slots[fault.machine], fault.gpu])
    others = [pair for pair in _all_members(segment) if pair[0] != fault.machine]
    near = [pair for pair in others if int(switch_of[inventory.slots[pair[0]], pair[1]]) == switch]
    far = sorted(set(others) - set(near))
    more = max(0, fault.plan.count - len(near))
    if more and far:
        keys = np.array([inventory.gpu_keys[pair] for pair in far], dtype=np.uint64)
        order = np.argsort(noise.uniform(purpose + "/victim", keys), kind="stable")
        near += [far[place] for place in order[:more].tolist()]
    return (fault.members[0], *sorted(near))


def _on_switch(
    plan: FaultPlan, index: int, inventory: Inventory, segments: Sequence[Segment], noise: Noise, purpose: str
) -> PlacedFault:
    """The switches that carry most jobs, then most nodes of the fault's job."""
    switch_of = inventory.topology.switch_of
    jobs: Counter[int] = Counter()
    for segment in segments:
        jobs.update(set(np.unique(switch_of[list(segment.nodes)]).tolist()))
    own = Counter(switch for node in segments[plan.job].nodes for switch in set(switch_of[node].tolist()))
    weight = {switch: (jobs[switch], min(count, 2)) for switch, count in own.items()}
    best = max(weight.values())
    candidates = sorted(switch for switch, value in weight.items() if value == best)
    switch = candidates[noise.pick(purpose, len(candidates))]
    members = tuple(
        (machine, nic)
        for machine, slot in enumerate(inventory.slots)
        for nic in range(inventory.plan.gpus_per_node)
        if int(switch_of[slot, nic]) == switch
    )
    return PlacedFault(plan, index, -1, -1, switch, members, inventory.topology.switch_ids[switch])


def _on_group(
    plan: FaultPlan, index: int, inventory: Inventory, segment: Segment, noise: Noise, purpose: str
) -> PlacedFault:
    names = inventory.topology.zones if plan.kind == "zone_throttle" else inventory.topology.racks
    stage_nodes = set(segment.hardware[0 if plan.stage is None else plan.stage].reshape(-1).tolist())
    held = Counter(names[inventory.slots[node]] for node in sorted(stage_nodes))
    most = max(held.values())
    candidates = sorted(name for name, count in held.items() if count == most)
    name = candidates[noise.pick(purpose, len(candidates))]
    members = [pair for pair in _all_members(segment) if names[inventory.slots[pair[0]]] == name]
    if plan.count:
        keys = np.array([inventory.gpu_keys[pair] for pair in members], dtype=np.uint64)
        order = np.argsort(noise.uniform(purpose + "/member", keys), kind="stable")
        members = sorted(members[place] for place in order[: plan.count].tolist())
    return PlacedFault(plan, index, -1, -1, -1, tuple(members), name)

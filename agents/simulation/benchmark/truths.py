"""Truths of a run: who did it, who may be named, what may be done, and what it cost.

Places and permissions follow from the fault alone; times and impact from the run. What no rule could place is said so:
faults below the noise of what is published, and what slows everybody alike without any counter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.benchmark.fault_effects import NETWORK_KINDS, added_share
from agents.simulation.benchmark.fault_places import STANDING_KINDS
from agents.simulation.benchmark.labels import NODE_COSTING_KINDS, Place, PlaceLevel, Truth
from agents.simulation.benchmark.own_times import nominal_times, stage_factors, step_time_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.benchmark.case import BenchmarkCase, FaultKind, JobPlan
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment

__all__ = ["Timeline", "truths_of"]

_CLASSES: dict[FaultKind, str] = {
    "gpu_compute": "compute",
    "host_contention": "host",
    "nic_speed": "nic",
    "pcie_downgrade": "pcie",
    "link_loss": "link",
    "link_slow": "link",
    "switch_degraded": "switch",
    "thermal": "thermal",
    "zone_throttle": "thermal",
    "power_brake": "power",
    "pause_storm": "pause_storm",
    "slow_receiver": "slow_receiver",
    "loader_stall": "data",
    "storage_stall": "storage",
    "garbage_collection": "software",
    "memory_fragmentation": "software",
    "silent_corruption": "silent_corruption",
    "fleet_power_cap": "power",
    "fleet_code": "software",
    "rack_slow": "compute",
    "hot_expert": "workload",
    "gpu_memory_error": "gpu_memory",
    "gpu_execution_error": "gpu_error",
    "cuda_error": "gpu_error",
    "nvlink_error": "nvlink",
    "machine_unreachable": "machine",
}
_ACTIONS: dict[FaultKind, str] = {
    "gpu_compute": "drain_node",
    "thermal": "drain_node",
    "power_brake": "drain_node",
    "pcie_downgrade": "drain_node",
    "host_contention": "collect_evidence",
    "loader_stall": "collect_evidence",
    "nic_speed": "network_action",
    "link_loss": "network_action",
    "link_slow": "network_action",
    "switch_degraded": "network_action",
    "pause_storm": "network_action",
    "slow_receiver": "network_action",
    "memory_fragmentation": "restart_job",
    "gpu_memory_error": "cordon_node",
    "gpu_execution_error": "drain_node",
    "cuda_error": "restart_job",
    "nvlink_error": "drain_node",
    "machine_unreachable": "cordon_node",
}
_GROUP_KINDS = frozenset({"zone_throttle", "rack_slow"})
_JOB_LEVEL_KINDS = frozenset({"storage_stall", "garbage_collection", "fleet_power_cap", "fleet_code", "hot_expert"})
_NODE_LEVEL_KINDS = frozenset({"host_contention", "loader_stall", "power_brake", "machine_unreachable"})
_SPARES_NODES = frozenset({"memory_fragmentation", "switch_degraded", "cuda_error"})

_ACT_FROM_IMPACT = 1.1
"""Below it a restart costs more than the mean length of such a fault."""


@dataclass(frozen=True)
class Timeline:
    """When each step of a job begins and the last one ends, microseconds since the start, and what faults cost.

    `begin_us` has one entry a step and one for the end. `costs` is (time with, time without) by truth id.
    """

    begin_us: tuple[float, ...]
    costs: dict[str, tuple[float, float]]

    def at_us(self, step: int) -> float:
        """When a step begins; the end of the run for one that is never reached."""
        return self.begin_us[min(step, len(self.begin_us) - 1)]


def truths_of(
    case: BenchmarkCase,
    inventory: Inventory,
    segments: Sequence[Sequence[Segment]],
    faults: Sequence[PlacedFault],
    timelines: Sequence[Timeline],
) -> tuple[Truth, ...]:
    """All truths of a run, faults first, then what the jobs themselves bring along.

    Args:
        case: the case.
        inventory: the hardware.
        segments: memberships by job.
        faults: placed faults.
        timelines: by job.
    """
    truths = [
        _fault_truth(case, inventory, segments[fault.plan.job], fault, timelines[fault.plan.job])
        for fault in faults
        if not fault.plan.is_look_alike
    ]
    for index, job in enumerate(case.jobs):
        truths += _job_truths(case, job, segments[index][0], timelines[index], len(truths))
    return tuple(truths)


def _fault_truth(
    case: BenchmarkCase, inventory: Inventory, segments: Sequence[Segment], fault: PlacedFault, timeline: Timeline
) -> Truth:
    plan, segment = fault.plan, segments[0]
    end_step = min(plan.end_step, case.steps)
    with_us, without_us = timeline.costs.get(fault.truth_id, (0.0, 0.0))
    impact = with_us / without_us if without_us else 1.0
    stands = fault.kind in STANDING_KINDS
    if stands:
        impact = float(max(2, case.steps - plan.onset_step))
    culprits, acceptable = _places(inventory, segment, fault)
    nodes = sorted({inventory.machines[machine].node_id for machine, _ in fault.members})
    costly = _JOB_LEVEL_KINDS | _GROUP_KINDS | _SPARES_NODES
    spared = (
        ""
        if fault.kind in costly or fault.switch >= 0
        else "!" + ",".join(nodes[:1] if fault.machine < 0 else [_node_id(inventory, fault)])
    )
    action = _ACTIONS.get(fault.kind, "none")
    if action == "drain_node" and not stands and impact < _ACT_FROM_IMPACT:
        action = "none"
    return Truth(
        truth_id=fault.truth_id,
        scenario=case.scenario,
        onset_step=plan.onset_step,
        end_step=end_step,
        onset_ns=case.start_ns + round(timeline.at_us(plan.onset_step) * 1000),
        end_ns=case.start_ns + round((timeline.begin_us[-1] if stands else timeline.at_us(end_step)) * 1000),
        cause_class=_CLASSES[fault.kind],
        culprits=culprits,
        acceptable=acceptable,
        victims="all_other_ranks_of_job",
        severity=1.0 if stands else round(added_share(plan, segment.plan), 6),
        impact_S=round(impact, 6),
        right_action=action,
        forbidden_actions=tuple(f"{kind}:*{spared}" for kind in NODE_COSTING_KINDS),
        visible_from_step=_visible_from(fault, segment.plan, end_step),
        identifiable=stands or _is_identifiable(fault, segment.plan, impact, end_step),
        advisory=fault.kind in ("hot_expert", "fleet_code"),
        innocents=_innocents(inventory, fault),
        job_id=segment.plan.job_id,
    )


def _node_id(inventory: Inventory, fault: PlacedFault) -> str:
    return inventory.machines[fault.machine].node_id


def _node(inventory: Inventory, machine: int) -> Place:
    node_id = inventory.machines[machine].node_id
    return Place("node", node_id, node_id=node_id)


def _device(inventory: Inventory, segment: Segment, pair: tuple[int, int], level: PlaceLevel) -> Place:
    machine, gpu = pair
    hardware, rank, job_id = inventory.machines[machine], segment.rank_of(machine, gpu), segment.plan.job_id
    name = f"{hardware.node_id}/{hardware.gpu_uuids[gpu]}" if level == "gpu" else f"{job_id}/{rank}"
    return Place(
        level,
        name,
        job_id=job_id,
        rank=rank,
        stage=None if rank is None else segment.coordinates(rank)[0],
        node_id=hardware.node_id,
        gpu_uuid=hardware.gpu_uuids[gpu],
        pci_bus_id=inventory.pci_bus_ids[gpu],
    )


def _ports(inventory: Inventory, pair: tuple[int, int]) -> tuple[Place, Place]:
    """Both ends of a NIC's cable: the NIC's port and the switch's."""
    machine, nic = pair
    node_id, slot, device = inventory.machines[machine].node_id, inventory.machines[machine].slot, inventory.nics[nic]
    switch_id, port = inventory.peer_of(slot, nic).split("/")
    host = Place(
        "port", f"{node_id}/{device}/{inventory.nic_port}", node_id=node_id, device=device, port=inventory.nic_port
    )
    return host, Place("port", f"{switch_id}/{port}", switch_id=switch_id, port=port)


def _tensor_group(inventory: Inventory, segment: Segment, pair: tuple[int, int]) -> Place | None:
    rank = segment.rank_of(*pair)
    if rank is None or segment.plan.tensor == 1:
        return None
    instance = int(segment.instances["tp"][rank])
    first = rank - rank % segment.plan.tensor
    members = tuple(range(first, first + segment.plan.tensor))
    job_id = segment.plan.job_id
    node_id = inventory.machines[pair[0]].node_id  # a node holds whole tensor groups
    return Place("tp_group", f"{job_id}/tp/{instance}", job_id=job_id, ranks=members, node_id=node_id)


def _places(inventory: Inventory, segment: Segment, fault: PlacedFault) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """(culprits, acceptable)."""
    kind, pair = fault.kind, (fault.machine, fault.gpu)
    job = Place("job", segment.plan.job_id, job_id=segment.plan.job_id)
    if kind in _JOB_LEVEL_KINDS:
        return (job,), ()
    members = fault.members
    if fault.switch >= 0:
        switch_id = inventory.topology.switch_ids[fault.switch]
        rail = (Place("rail", switch_id, switch_id=switch_id),) if inventory.topology.is_rail else ()
        # Without counters a rail's switch and one cable of it slow the same rings alike: "network" is all that can be said.
        unlocalised = () if fault.plan.counters_visible else (job,)
        return (Place("switch", switch_id, switch_id=switch_id), *rail), unlocalised
    if kind in _GROUP_KINDS:
        nodes = tuple(_node(inventory, machine) for machine in sorted({machine for machine, _ in members}))
        devices = tuple(_device(inventory, segment, member, "gpu") for member in members)
        name = fault.place_name
        if kind == "rack_slow":
            return (Place("rack", name, rack=name),), (*nodes, *devices)
        return (Place("zone", name, zone=name),), (*nodes, *devices)
    node = _node(inventory, fault.machine)
    if kind in _NODE_LEVEL_KINDS:
        levels: tuple[PlaceLevel, PlaceLevel] = ("gpu", "rank")
        return (node,), tuple(_device(inventory, segment, member, level) for member in members for level in levels)
    gpu, rank = _device(inventory, segment, pair, "gpu"), _device(inventory, segment, pair, "rank")
    host_port, switch_port = _ports(inventory, pair)
    if kind in ("nic_speed", "link_loss", "link_slow", "pause_storm", "slow_receiver"):
        unlocalised = (job,) if kind == "link_slow" else ()
        return (host_port,), (switch_port, node, *unlocalised)
    group = _tensor_group(inventory, segment, pair)
    groups = () if group is None else (group,)
    if kind == "pcie_downgrade":
        return (gpu,), (rank, node, host_port)
    if segment.plan.tensor_view == "folded" and group is not None:
        return groups, (gpu, rank, node)
    return (gpu,), (rank, node, *groups)


def _innocents(inventory: Inventory, fault: PlacedFault) -> tuple[Place, ...]:
    """GPUs of hardware that came under the culprit's node name later."""
    if fault.machine < 0:
        return ()
    node_id = _node_id(inventory, fault)
    return tuple(
        Place("gpu", f"{node_id}/{uuid}", node_id=node_id, gpu_uuid=uuid)
        for machine in inventory.machines
        if machine.node_id == node_id and machine.generation > 0
        for uuid in machine.gpu_uuids
    )


_SMALLEST_VISIBLE = 0.02
"""Own time above its peers' that shows in a step with fixed lengths: five sigma of 0.4 %."""


def _visible_from(fault: PlacedFault, job: JobPlan, end_step: int) -> int:
    steps = np.arange(fault.plan.onset_step, max(end_step, fault.plan.onset_step + 1))
    strength = fault.intensity(steps)
    shown = strength > 0 if fault.kind in ("thermal", "zone_throttle") else strength * added_share(fault.plan, job)
    reached = np.flatnonzero(shown >= _SMALLEST_VISIBLE) if shown.dtype != bool else np.flatnonzero(shown)
    return int(steps[reached[0]]) if len(reached) else fault.plan.onset_step


# Severity and how many steps of it a chart needs in 95 % of cases, from bootstraps of public residuals.
_NEEDED_FIXED = ((0.03, 2), (0.05, 1))
_NEEDED_COVARIATE = ((0.03, 23), (0.05, 9), (0.1, 3), (0.2, 2))
_NEEDED_VARIABLE = ((0.03, 599), (0.05, 242), (0.1, 68), (0.2, 20), (0.5, 5))


def _is_identifiable(fault: PlacedFault, job: JobPlan, impact: float, end_step: int) -> bool:
    plan = fault.plan
    if fault.kind in ("silent_corruption", "fleet_code"):
        return False
    if fault.kind in NETWORK_KINDS:
        told = plan.counters_visible or fault.kind in ("nic_speed", "pcie_downgrade")
        return told or impact >= 1.02
    if fault.kind in ("thermal", "zone_throttle", "power_brake", "fleet_power_cap", "garbage_collection", "hot_expert"):
        return True
    table: tuple[tuple[float, int], ...] = _NEEDED_FIXED
    if job.lengths == "variable":
        table = _NEEDED_COVARIATE if job.lengths_reported else _NEEDED_VARIABLE
    steps = np.arange(plan.onset_step, end_step)
    strength = plan.severity * fault.intensity(steps)
    return any(int((strength >= 0.999 * severity).sum()) >= needed for severity, needed in table)


def _job_truths(case: BenchmarkCase, job: JobPlan, segment: Segment, timeline: Timeline, count: int) -> list[Truth]:
    """What is wrong with a job's own plan: a heavy last stage, lengths that vary. Nobody's node is to blame."""
    truths: list[Truth] = []
    whole = Place("job", job.job_id, job_id=job.job_id)

    def own(cause: str, culprit: Place, severity: float, impact: float, *, advisory: bool) -> Truth:
        return Truth(
            truth_id=f"T{count + len(truths) + 1:04d}",
            scenario=case.scenario,
            onset_step=0,
            end_step=case.steps,
            onset_ns=case.start_ns,
            end_ns=case.start_ns + round(timeline.begin_us[-1] * 1000),
            cause_class=cause,
            culprits=(culprit,),
            acceptable=(whole,) if culprit is not whole else (),
            victims="all_ranks_of_job",
            severity=round(severity, 6),
            impact_S=round(impact, 6),
            right_action="none",
            forbidden_actions=tuple(f"{kind}:*" for kind in NODE_COSTING_KINDS),
            visible_from_step=0,
            identifiable=True,
            advisory=advisory,
            job_id=job.job_id,
        )

    if job.pipeline > 1 and job.last_stage_factor > 1.02:
        last = job.pipeline - 1
        compute = nominal_times(job, segment.replicas).compute
        forward, backward = stage_factors(job)
        even = (np.full_like(forward, forward.mean()), np.full_like(backward, backward.mean()))
        balanced = step_time_us(replace(job), segment.replicas, compute, even)
        impact = job.step_s * 1e6 / balanced
        stage = Place("stage", f"{job.job_id}/{last}", job_id=job.job_id, stage=last)
        truths.append(own("partition", stage, job.last_stage_factor - 1.0, impact, advisory=impact < _ACT_FROM_IMPACT))
    if job.lengths == "variable":
        spans = np.diff(np.array(timeline.begin_us))[min(job.phases.warmup_steps, case.steps - 1) :]
        impact = float(np.median(spans)) / (job.step_s * 1e6)
        truths.append(own("workload", whole, 0.0, impact, advisory=True))
    return truths

"""What faults do to a job's steps: factors and additions on own times and transfers. Nothing here waits.

A network fault multiplies the transfers of the communicators that pass it: of a data-parallel ring if any member's NIC is
hit, of a hand-over between stages if any of its two units' is. NIC k carries GPU k's traffic. Every job counts a fault's
steps by its own step numbers, which agree where jobs are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.simulation.benchmark.case import FaultPlan, JobPlan
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment
    from agents.simulation.noise import FloatArray, Noise, StepArray

__all__ = ["NETWORK_KINDS", "StepEffects", "added_share", "effects_of", "transfer_factor"]

NETWORK_KINDS = frozenset(
    {"nic_speed", "pcie_downgrade", "link_loss", "link_slow", "switch_degraded", "pause_storm", "slow_receiver"}
)

_NIC_OVER_PCIE = 0.8
"""What a NIC of 400 Gb/s takes of a generation 5 link of 16 lanes."""

_COMPUTE_KINDS = frozenset(
    {"gpu_compute", "thermal", "power_brake", "fleet_power_cap", "fleet_code", "rack_slow", "zone_throttle"}
)


@dataclass
class StepEffects:
    """Effects on steps of one segment. Rank arrays have shape (steps, stages, replicas, tensor).

    Attributes:
        compute: factor on compute time.
        host, data: additions in microseconds.
        ring: factor on data-parallel transfers, (steps, stages, tensor).
        hop: factor on hand-overs, (steps, stages - 1, replicas).
        load: factor on the tokens that a rank's experts are given.
    """

    compute: FloatArray
    host: FloatArray
    data: FloatArray
    ring: FloatArray
    hop: FloatArray
    load: FloatArray | None = None


def transfer_factor(plan: FaultPlan, job: JobPlan) -> float:
    """By how much a network fault at full strength stretches what passes it; 1 for other faults."""
    if plan.kind == "nic_speed":
        return 1.0 / plan.speed_share
    if plan.kind == "pcie_downgrade":
        return max(1.0, _NIC_OVER_PCIE / plan.speed_share)
    if plan.kind in NETWORK_KINDS:
        return 1.0 + plan.severity / job.transfers.data
    return 1.0


def added_share(plan: FaultPlan, job: JobPlan) -> float:
    """A fault's severity as truth tells it (see `Truth.severity`)."""
    if plan.kind in NETWORK_KINDS:
        return (transfer_factor(plan, job) - 1.0) * job.transfers.data
    return plan.severity


def effects_of(
    faults: Iterable[PlacedFault],
    segment: Segment,
    inventory: Inventory,
    steps: StepArray,
    own_us: FloatArray,
    noise: Noise,
) -> StepEffects:
    """Effects of some faults on some steps.

    Args:
        faults: those to apply.
        segment: the job's membership in these steps.
        inventory: the hardware.
        steps: step numbers.
        own_us: healthy own time of each rank without noise, (stages, replicas, tensor).
        noise: of the seed.
    """
    shape = (len(steps), *segment.shape)
    stages, replicas, tensor = segment.shape
    effects = StepEffects(
        compute=np.ones(shape),
        host=np.zeros(shape),
        data=np.zeros(shape),
        ring=np.ones((len(steps), stages, tensor)),
        hop=np.ones((len(steps), max(0, stages - 1), replicas)),
    )
    for fault in faults:
        strength = fault.intensity(steps)[:, None, None, None]
        if not strength.any():
            continue
        mask = _mask(fault, segment)
        if not mask.any():
            continue
        if fault.kind in NETWORK_KINDS:
            _network(fault, segment, mask, strength, effects)
        if fault.kind in _COMPUTE_KINDS:
            each = np.ones(segment.shape)
            if fault.kind == "zone_throttle":
                each = 0.7 + 0.6 * noise.uniform("zone-member", segment.device_keys(inventory))
            effects.compute *= 1.0 + fault.plan.severity * strength * (mask * each)
        else:
            _host_side(fault, segment, inventory, steps, (mask, strength, own_us), noise, effects)
    return effects


def _mask(fault: PlacedFault, segment: Segment) -> FloatArray:
    width = segment.gpus_per_node
    codes = np.array([machine * width + gpu for machine, gpu in fault.members])
    return np.isin(segment.hardware * width + segment.gpu, codes).astype(np.float64)


def _network(
    fault: PlacedFault, segment: Segment, mask: FloatArray, strength: FloatArray, effects: StepEffects
) -> None:
    extra = transfer_factor(fault.plan, segment.plan) - 1.0
    effects.ring *= 1.0 + extra * strength[:, 0] * mask.max(axis=1)
    if segment.plan.pipeline > 1:
        units = mask.max(axis=2)
        effects.hop *= 1.0 + extra * strength[:, 0] * np.maximum(units[:-1], units[1:])


def _host_side(
    fault: PlacedFault,
    segment: Segment,
    inventory: Inventory,
    steps: StepArray,
    where: tuple[FloatArray, FloatArray, FloatArray],
    noise: Noise,
    effects: StepEffects,
) -> None:
    mask, strength, own_us = where
    plan, keys = fault.plan, segment.device_keys(inventory)
    added = plan.severity * strength * mask * own_us
    if fault.kind == "host_contention":
        effects.host += 0.8 * added * np.exp(0.05 * noise.normal_steps("starved", keys, steps))
        effects.data += 0.2 * added
    elif fault.kind in ("loader_stall", "storage_stall"):
        entities = inventory.machine_keys[segment.hardware]
        if fault.kind == "storage_stall":
            entities = np.full_like(entities, entities.reshape(-1)[0])
        effects.data += added * np.exp(0.15 * noise.normal_steps("stalled", entities, steps))
    elif fault.kind == "memory_fragmentation":
        effects.host += added
    elif fault.kind == "pcie_downgrade":
        # The batch is copied to the device over the same link.
        effects.data += (
            strength * mask * segment.plan.step_s * 1e6 * segment.plan.data_share * (1 / plan.speed_share - 1)
        )
    elif fault.kind == "garbage_collection":
        low, high = 100e3, 500e3
        phase = np.floor(noise.uniform("gc-fault-phase", keys) * plan.period_steps).astype(np.int64)
        collects = (steps[:, None, None, None] + phase) % plan.period_steps == 0
        effects.host += collects * strength * (low + (high - low) * noise.uniform_steps("gc-fault", keys, steps))
    elif fault.kind == "hot_expert":
        _hot_expert(fault, segment, steps, strength, noise, effects)


def _hot_expert(
    fault: PlacedFault, segment: Segment, steps: StepArray, strength: FloatArray, noise: Noise, effects: StepEffects
) -> None:
    """One expert-parallel member of one stage is given more tokens, the others of its groups as many fewer."""
    stages, replicas, _ = segment.shape
    experts = segment.plan.expert
    windows = (steps - fault.plan.onset_step) // fault.plan.period_steps
    load = np.ones(effects.compute.shape)
    for window in np.unique(windows[windows >= 0]).tolist():
        stage = noise.pick("hot-stage", stages, segment.plan.job_id, window)
        member = noise.pick("hot-member", experts, segment.plan.job_id, window)
        share = np.full(replicas, -1.0 / max(1, experts - 1))
        share[np.arange(replicas) % experts == member] = 1.0
        held = (windows == window)[:, None, None]
        load[:, stage] += held * strength[:, 0] * fault.plan.severity * share[:, None]
    effects.compute *= load
    effects.load = load if effects.load is None else effects.load * load

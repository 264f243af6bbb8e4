"""Healthy look-alikes: what resembles a fault and is none.

Each kind is placed from the seed, on nodes without a fault while there are any, and never on a device that has one.
Idle GPUs, warm-up steps and checkpoint steps are look-alikes too; they come with the jobs and are not placed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.simulation.faults import PlacedFault
    from agents.simulation.fleet import Fleet
    from agents.simulation.noise import Noise
    from agents.simulation.scenario import LookAlikeKind

__all__ = ["GC_SPIKE_EVERY_STEPS", "POWER_CAP_SHARE", "PlacedLookAlike", "place_look_alikes", "power_capped_gpus"]

POWER_CAP_SHARE = 0.35
"""Share of GPUs that run at their power limit under full load."""

GC_SPIKE_EVERY_STEPS = 40
"""About how often one random rank of a job is held up by its interpreter's garbage collection."""

# When it happens, as a share of the run. The application's Xid comes before any loss of a GPU in the packaged scenarios.
_MOMENTS: dict[LookAlikeKind, float] = {
    "application_xid": 0.22,
    "agent_restart": 0.37,
    "unknown_xid": 0.45,
    "brief_thermal_violation": 0.63,
}


@dataclass(frozen=True)
class PlacedLookAlike:
    """A look-alike with its place; `at_ns` is its moment since the start, 0 for what lasts all the run."""

    kind: LookAlikeKind
    node: int
    gpu: int
    nic: int
    at_ns: int


def place_look_alikes(fleet: Fleet, noise: Noise, faults: tuple[PlacedFault, ...]) -> dict[str, PlacedLookAlike]:
    """Give each look-alike of the scenario its place, by kind."""
    placed: dict[str, PlacedLookAlike] = {}
    faulty = {fault.node for fault in faults}
    used: set[int] = set()
    for kind in fleet.scenario.look_alikes:
        purpose = f"look-alike-{kind}"
        nodes = _candidates(fleet, kind)
        calm = [node for node in nodes if node not in faulty] or nodes
        free = [node for node in calm if node not in used] or calm
        node = free[noise.pick(purpose + "/node", len(free))]
        used.add(node)
        gpus = [gpu for gpu in range(fleet.scenario.gpus_per_node) if not _has_fault(faults, node, gpu=gpu)]
        nics = [nic for nic in range(fleet.scenario.nics_per_node) if not _has_fault(faults, node, nic=nic)]
        if not gpus or not nics:
            continue  # nodes of a single device, all of them faulty
        placed[kind] = PlacedLookAlike(
            kind=kind,
            node=node,
            gpu=gpus[noise.pick(purpose + "/gpu", len(gpus))],
            nic=nics[noise.pick(purpose + "/nic", len(nics))],
            at_ns=round(_MOMENTS.get(kind, 0.0) * fleet.scenario.duration_s * 1e9),
        )
    return placed


def _candidates(fleet: Fleet, kind: LookAlikeKind) -> list[int]:
    if kind == "application_xid" and fleet.jobs:
        # The smallest job: whoever runs experiments is where applications crash.
        job = min(fleet.jobs, key=lambda shape: (shape.world, -shape.index))
        return list(range(job.first_node, job.stop_node))
    return list(range(fleet.scenario.nodes))


def _has_fault(faults: tuple[PlacedFault, ...], node: int, gpu: int | None = None, nic: int | None = None) -> bool:
    return any(
        fault.node == node and (fault.nic == nic if fault.kind == "pause_storm" else fault.gpu == gpu)
        for fault in faults
    )


def power_capped_gpus(
    fleet: Fleet, noise: Noise, faults: tuple[PlacedFault, ...], placed: dict[str, PlacedLookAlike]
) -> NDArray[np.bool_]:
    """Which GPUs run at their power limit under load, shape (nodes, GPUs); none without that look-alike."""
    capped = np.zeros(fleet.gpu_keys.shape, dtype=np.bool_)
    if "power_cap" not in fleet.scenario.look_alikes:
        return capped
    capped |= noise.uniform("power-cap", fleet.gpu_keys) < POWER_CAP_SHARE
    for fault in faults:
        if fault.kind != "pause_storm":
            capped[fault.node, fault.gpu] = False
    clocked = placed.get("application_clocks")
    if clocked is not None:
        capped[clocked.node, clocked.gpu] = False
    return capped

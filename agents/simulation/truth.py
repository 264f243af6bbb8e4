"""What is really wrong in a scenario: for evaluation only, and never published to the pipeline.

A truth names the culprit, what else may be named instead, who suffers, the commands that are right, and what must not be
done to anybody else. It follows from the scenario alone and agrees with what `simulate` makes of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agents.simulation.faults import FaultEffects, place_faults
from agents.simulation.fleet import Fleet
from agents.simulation.noise import Noise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agents.simulation.faults import PlacedFault
    from agents.simulation.scenario import FaultKind, Scenario

__all__ = ["MIN_IDENTIFIABLE_NS", "NODE_COMMANDS", "Truth", "truth", "truth_lines"]

MIN_IDENTIFIABLE_NS = 5_000_000_000
"""A shorter fault is over before a fair rule has seen enough of it: it counts for false blame, not for recall."""

NODE_COMMANDS = ("reset_gpu", "drain_node", "cordon_node", "swap_spare", "reboot_node", "replace_hardware")
"""Commands that cost somebody a node."""

_CAUSE_CLASS: dict[FaultKind, str] = {
    "thermal": "thermal",
    "xid79": "gpu_lost",
    "pause_storm": "pause_storm",
    "cpu_contention": "host",
}
_RIGHT_COMMANDS: dict[FaultKind, tuple[str, ...]] = {
    "thermal": ("drain_node",),
    "xid79": ("cordon_node",),
    "pause_storm": ("network_action",),
    "cpu_contention": ("collect_evidence", "run_preflight"),
}

Place = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """One fault as it is.

    `severity` is what the culprit's compute (thermal) or own time (host) has above its peers', for a storm what a step has
    above a healthy one, and 1.0 where work stands still. `forbidden_actions` are {"kinds", "except_node_ids"}: those commands on any other node.
    `culprits`, `acceptable` and `victims` name places by the fields of a finding's subject.
    """

    truth_id: str
    scenario: str
    cause_class: str
    job_id: str
    onset_ns: int
    end_ns: int
    culprits: tuple[Place, ...]
    acceptable: tuple[Place, ...]
    victims: tuple[Place, ...]
    severity: float
    right_commands: tuple[str, ...]
    forbidden_actions: tuple[dict[str, tuple[str, ...]], ...]
    identifiable: bool


def truth(scenario: Scenario, start_ns: int) -> list[Truth]:
    """The faults of a run, in the order of their onset. Empty when only look-alikes are there.

    Raises:
        ScenarioError: the scenario's faults find no place in its fleet.
    """
    noise = Noise(scenario.seed)
    fleet = Fleet.of(scenario, noise)
    placed = place_faults(fleet, noise)
    effects = FaultEffects(fleet, placed)
    return [
        _truth_of(fleet, effects, fault, start_ns)
        for fault in sorted(placed, key=lambda fault: (fault.onset_ns, fault.fault_id))
    ]


def truth_lines(truths: Iterable[Truth]) -> Iterator[bytes]:
    """One JSON object a line, for a file beside the archive."""
    for item in truths:
        yield orjson.dumps(asdict(item)) + b"\n"


def _truth_of(fleet: Fleet, effects: FaultEffects, fault: PlacedFault, start_ns: int) -> Truth:
    culprit, acceptable, victims = _places(fleet, effects, fault)
    severity = fault.strength - 1.0
    if fault.kind == "pause_storm":
        severity = fault.step_factor - 1.0
    elif fault.kind == "xid79":
        severity = 1.0
    return Truth(
        truth_id=fault.fault_id,
        scenario=fleet.scenario.name,
        cause_class=_CAUSE_CLASS[fault.kind],
        job_id=fault.job.plan.job_id,
        onset_ns=start_ns + fault.onset_ns,
        end_ns=start_ns + fault.end_ns,
        culprits=(culprit,),
        acceptable=tuple(acceptable),
        victims=tuple(victims),
        severity=round(severity, 6),
        right_commands=_RIGHT_COMMANDS[fault.kind],
        forbidden_actions=({"kinds": NODE_COMMANDS, "except_node_ids": (fleet.node_ids[fault.node],)},),
        identifiable=fault.end_ns - fault.onset_ns >= MIN_IDENTIFIABLE_NS,
    )


def _places(fleet: Fleet, effects: FaultEffects, fault: PlacedFault) -> tuple[Place, list[Place], list[Place]]:
    job_id = fault.job.plan.job_id
    node: Place = {"level": "node", "node_id": fleet.node_ids[fault.node]}
    if fault.kind == "pause_storm":
        port: Place = {"level": "port", "node_id": node["node_id"], "device": fleet.nics[fault.nic], "port": "1"}
        leaf_port = {
            "level": "port",
            "switch_id": fleet.leaf_ids[fleet.leaf_of(fault.node)],
            "port": fleet.leaf_port(fault.node, fault.nic),
        }
        paused = [
            {"level": "port", "node_id": fleet.node_ids[victim], "device": nic, "port": "1"}
            for victim in effects.nodes_paused_by(fault)
            for nic in fleet.nics
        ]
        jobs = [
            {"level": "job", "job_id": fleet.jobs[index].plan.job_id} for index in sorted(effects.jobs_paused_by(fault))
        ]
        return port, [leaf_port, node], paused + jobs
    gpu: Place = {
        "level": "gpu",
        "node_id": node["node_id"],
        "gpu_uuid": fleet.gpu_uuids[fault.node][fault.gpu],
        "pci_bus_id": fleet.pci_bus_ids[fault.gpu],
        "job_id": job_id,
        "rank": fault.rank,
    }
    rank = {**gpu, "level": "rank"}
    victims: list[Place] = [{"level": "job", "job_id": job_id}]
    if fault.kind == "cpu_contention":
        return rank, [node, gpu], victims
    return gpu, [node, rank], victims

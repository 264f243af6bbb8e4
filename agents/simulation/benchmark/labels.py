"""Labels: what is wrong in a generated case, who did it, what may be said and done about it.

A truth is known to the generator alone and never published. Places are named as the records name them. Severity is what a
fault adds, impact what the job pays for it; the two differ and both are told.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["CAUSE_CLASSES", "NODE_COSTING_KINDS", "Place", "PlaceLevel", "Truth"]

PlaceLevel = Literal["gpu", "rank", "node", "port", "switch", "rail", "rack", "zone", "tp_group", "stage", "job"]

CAUSE_CLASSES = {
    "compute": "one GPU computes slowly; its counters are as they should be",
    "thermal": "heat: clocks down with the thermal bits of the event reasons",
    "power": "power: a brake on a node, or a cap on the whole fleet",
    "host": "a node's processors are taken by something else",
    "nic": "a NIC runs at a part of its speed",
    "pcie": "a GPU's PCIe link has lost lanes or generations",
    "link": "a cable loses or slows what passes it",
    "switch": "a leaf or rail switch is degraded",
    "pause_storm": "a NIC pauses its switch without end",
    "slow_receiver": "a host takes in less than its NIC receives and pauses its switch",
    "data": "the loader of one host stalls",
    "storage": "the storage that all loaders read from stalls",
    "software": "the training program itself: garbage collection, fragmentation, a slower version of the code",
    "partition": "the last pipeline stage is given more work than the others",
    "workload": "the data: an expert that is hot for a while",
    "gpu_memory": "uncorrectable memory errors of a GPU",
    "gpu_error": "a GPU's kernel, driver or execution fails, and its job stands",
    "nvlink": "an NVLink fails",
    "machine": "a machine is not to be reached",
    "silent_corruption": "wrong numbers, nothing slow",
}
"""Classes of causes and what each of them is."""

NODE_COSTING_KINDS = ("reset_gpu", "drain_node", "cordon_node", "swap_spare", "reboot_node", "replace_hardware")
"""Commands that cost somebody a node."""


@dataclass(frozen=True)
class Place:
    """One place by level and id, with the fields that a finding's subject would have.

    Ids: `node_id/gpu_uuid` of a gpu, `job_id/rank` of a rank, `node_id/device/port` of a NIC's port, `switch_id/port` of a
    switch's, `job_id/tp/instance` of a tensor group (`instance` as in the step timings), `job_id/stage` of a stage, and
    the bare name for a node, switch, rail, rack, zone or job.
    """

    level: PlaceLevel
    id: str
    job_id: str | None = None
    rank: int | None = None
    ranks: tuple[int, ...] | None = None
    stage: int | None = None
    node_id: str | None = None
    gpu_uuid: str | None = None
    pci_bus_id: str | None = None
    device: str | None = None
    port: str | None = None
    switch_id: str | None = None
    rack: str | None = None
    zone: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Level, id and the fields that are not null."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Truth:
    """One thing that is wrong.

    Attributes:
        truth_id: `T0001` and on, in the order of the case's plan.
        scenario: the catalogue's row, as `A3`.
        onset_step, end_step: first step that suffers, and the first that no longer does.
        onset_ns, end_ns: true time of the beginning of the one and of the end of the step before the other.
        cause_class: a key of `CAUSE_CLASSES`.
        culprits: what caused it. Several when they are one fault together, as the GPUs of a zone; naming the group or
            any of them counts.
        acceptable: what may be named instead.
        victims: who suffers, in words.
        severity: what the fault adds: to the culprit's own time as a share of it; for the network to a step's transfers,
            as a share of the healthy step; 1.0 where work stands still.
        impact_S: mean time of its steps with this fault alone over that without any, same draws; where the job stands, how many
            healthy steps the run has left.
        right_action: a command kind, or `none` (observe, or advice to the owner).
        forbidden_actions: `kind:*` forbids a kind everywhere, `kind:*!node-a,node-b` everywhere but there.
        visible_from_step: from here on some record shows it; later than the onset for what grows or comes and goes.
        identifiable: false where no rule could place it from what is published; the right answer is then none, or
            "unlocalised". Counts for false blame, not for recall.
        advisory: naming it is right and missing it costs nothing (workload, partition below 10 %).
        innocents: places that must never be blamed although they look alike (a spare under a culprit's old name).
        job_id: the job that the steps are counted in.
    """

    truth_id: str
    scenario: str
    onset_step: int
    end_step: int
    onset_ns: int
    end_ns: int
    cause_class: str
    culprits: tuple[Place, ...]
    acceptable: tuple[Place, ...]
    victims: str
    severity: float
    impact_S: float  # noqa: N815 - the S of the what-if literature
    right_action: str
    forbidden_actions: tuple[str, ...]
    visible_from_step: int
    identifiable: bool
    advisory: bool = False
    innocents: tuple[Place, ...] = ()
    job_id: str = ""

    def allows(self, kind: str, node_id: str | None) -> bool:
        """Whether a command of this kind on this node (null: on no node) is not forbidden."""
        for rule in self.forbidden_actions:
            forbidden, _, where = rule.partition(":")
            if forbidden == kind and node_id not in where.partition("!")[2].split(","):
                return False
        return True

    def as_dict(self) -> dict[str, Any]:
        """The truth as plain data, `cause_class` under its name in files, `class`."""
        plain: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            is_places = name in ("culprits", "acceptable", "innocents")
            plain["class" if name == "cause_class" else name] = (
                [place.as_dict() for place in value] if is_places else value
            )
        return plain

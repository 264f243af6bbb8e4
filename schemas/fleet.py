"""What is registered: jobs, where their ranks run, nodes and their place, and the policy in force.

Each record has a version and the event time from which it holds. Records are re-published daily, because their topics
are not compacted: what held at the time of an incident must stay readable.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import DeviceKey, EventTimeNs, Identifier, Int64, Record, check_columns

__all__ = [
    "FailurePolicy",
    "Job",
    "Layout",
    "ModeScope",
    "Model",
    "Node",
    "Policy",
    "PolicyHeartbeat",
    "RankPlacement",
    "RulePolicy",
]


class Model(Record):
    """The model's shape, as far as FLOP accounting needs it. Only `parameters` is needed for the 6N convention."""

    parameters: float = Field(gt=0)
    embedding_parameters: float | None = Field(default=None, ge=0)
    active_parameters: float | None = Field(default=None, gt=0)
    trainable_parameters: float | None = Field(default=None, ge=0)
    layers: int | None = Field(default=None, gt=0)
    hidden: int | None = Field(default=None, gt=0)
    heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    kv_heads: int | None = Field(default=None, gt=0)
    ffn_hidden: int | None = Field(default=None, gt=0)
    vocab: int | None = Field(default=None, gt=0)
    experts: int | None = Field(default=None, gt=0)
    experts_per_token: int | None = Field(default=None, gt=0)
    gated_mlp: bool = True
    tied_embeddings: bool = False


class Layout(Record):
    """Degrees of parallelism; ranks count up tensor, context, data, pipeline, fast to slow (Megatron's order)."""

    tensor: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)
    data: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    expert: int = Field(default=1, ge=1)
    virtual_pipeline: int = Field(default=1, ge=1)


class Job(Record):
    """A job: what it computes, how it is laid out, and what its owner expects of it.

    `reporting_ranks` is how many ranks send timings; null means all of `world_size`. `step_timings` false is a job without
    the trainer hook: none of them does, and its nodes are compared by their devices' counters instead. `mfu_target` and thresholds are
    ratios (0.4 is 40 %). `peak_tflops` overrides the table of parts.
    """

    record: Literal["job"] = "job"
    job_id: Identifier
    version: int = Field(default=1, ge=1)
    effective_from_ns: EventTimeNs
    epoch: int = Field(default=0, ge=0)
    state: Literal["running", "ended"] = "running"
    world_size: int = Field(ge=1)
    reporting_ranks: int | None = Field(default=None, ge=1)
    step_timings: bool = True
    model: Model | None = None
    layout: Layout = Layout()
    workload: Literal["training", "forward_only", "inference"] = "training"
    flop_convention: str = "6N"
    recompute: Literal["none", "selective", "full"] = "none"
    precision: str = "bf16"
    seq_len: int | None = Field(default=None, gt=0)
    tokens_per_step: int | None = Field(default=None, gt=0)
    sku: str | None = None
    peak_tflops: float | None = Field(default=None, gt=0)
    mfu_target: float | None = Field(default=None, gt=0, le=1)
    gpu_hour_cost: float | None = Field(default=None, ge=0)


class RankPlacement(Record):
    """Which device each of one node's ranks runs on, for one epoch of a job.

    Devices are named by UUID or PCI address, never by index. A null device means that the mapping is unknown; findings
    are then about the node.
    """

    record: Literal["rank_placement"] = "rank_placement"
    job_id: Identifier
    version: int = Field(default=1, ge=1)
    effective_from_ns: EventTimeNs
    epoch: int = Field(default=0, ge=0)
    node_id: Identifier
    rank: tuple[Int64, ...] = Field(min_length=1)
    gpu_uuid: tuple[DeviceKey | None, ...]
    pci_bus_id: tuple[DeviceKey | None, ...] | None = None
    sku: tuple[str | None, ...] | None = None
    stage: tuple[Int64, ...] | None = None
    role: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        check_columns(len(self.rank), self.__dict__, ("gpu_uuid", "pci_bus_id", "sku", "stage", "role"))
        if len(set(self.rank)) != len(self.rank):
            raise ValueError("a rank stands twice in the rank column")
        return self


class Node(Record):
    """A node's hardware and place. Unknown places are null; nothing is grouped by an unknown place."""

    record: Literal["node"] = "node"
    node_id: Identifier
    version: int = Field(default=1, ge=1)
    effective_from_ns: EventTimeNs
    sku: str | None = None
    gpu_uuid: tuple[DeviceKey, ...] = ()
    pci_bus_id: tuple[DeviceKey, ...] = ()
    rack: str | None = None
    leaf: str | None = None
    rail: tuple[str, ...] = ()
    zone: str | None = None
    pod: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class RulePolicy(Record):
    """One rule's switch and its thresholds by name; `per_sku` overrides them for parts whose name contains the key."""

    enabled: bool = True
    thresholds: dict[str, float] = Field(default_factory=dict)
    per_sku: dict[str, dict[str, float]] = Field(default_factory=dict)


class ModeScope(Record):
    """A mode for a part of the fleet: it counts where all that is named fits, and an empty list names nothing.

    `nodes` are shell patterns, all others are names. Where several scopes fit the strictest counts.
    """

    mode: Literal["observe", "approve", "auto"]
    kinds: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class FailurePolicy(Record):
    """What a site does about one class of incidents, or about one kernel code: what is null stays as it was shipped.

    `act` is a kind of command, or `none` for advice alone. `valid_ns` is how long after its decision the command may be
    carried out. `restarts_job` asks for a restart of the job too. Not enabled: it is told, without an act and without advice.
    """

    enabled: bool = True
    act: str | None = None
    when: Literal["now", "after_checkpoint"] | None = None
    valid_ns: int | None = Field(default=None, gt=0)
    taint: str | None = None
    restarts_job: bool | None = None
    advice: str | None = Field(default=None, max_length=2000)


class Policy(Record):
    """What a site has decided: rules, modes by kind of command and scope, guards, and the switch that stops all acting.

    A guard that is not named is on, with the limits of `policy-defaults.toml`; so is a class of `failures`. `codes` goes
    before them, by names like `xid-74` and `sxid-12028`.
    """

    record: Literal["policy"] = "policy"
    policy_version: Identifier
    site_id: Identifier
    effective_from_ns: EventTimeNs
    rules: dict[str, RulePolicy] = Field(default_factory=dict)
    mode: Literal["observe", "approve", "auto"] = "observe"
    mode_by_kind: dict[str, Literal["observe", "approve", "auto"]] = Field(default_factory=dict)
    scopes: tuple[ModeScope, ...] = ()
    guards: dict[str, RulePolicy] = Field(default_factory=dict)
    failures: dict[str, FailurePolicy] = Field(default_factory=dict)
    codes: dict[str, FailurePolicy] = Field(default_factory=dict)
    kill_switch: bool = False
    settle_ns: int = Field(default=10_000_000_000, ge=0)
    gpu_hour_cost: float | None = Field(default=None, ge=0)


class PolicyHeartbeat(Record):
    """A sign that the policy of a site has a keeper who could stop all acting; `event_time_ns` is the keeper's clock."""

    record: Literal["policy_heartbeat"] = "policy_heartbeat"
    site_id: Identifier
    policy_version: Identifier
    event_time_ns: EventTimeNs

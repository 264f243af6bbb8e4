"""Cases: fleet, jobs, faults, noise, sampling and delivery of one benchmark run, as frozen data apart from all logic.

A case says what to generate and leaves open places to the seed. Shares are of the healthy step unless said otherwise.
Figures marked "chosen" have no published source; the others follow public step traces of three training jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "BenchmarkCase",
    "DeliveryPlan",
    "FaultKind",
    "FaultPlan",
    "FleetPlan",
    "JobPlan",
    "LookAlike",
    "NoisePlan",
    "Pattern",
    "PhasePlan",
    "ResizePlan",
    "SamplingPlan",
    "TransferShares",
]

FaultKind = Literal[
    "gpu_compute",
    "host_contention",
    "nic_speed",
    "pcie_downgrade",
    "link_loss",
    "link_slow",
    "switch_degraded",
    "thermal",
    "zone_throttle",
    "power_brake",
    "pause_storm",
    "slow_receiver",
    "loader_stall",
    "storage_stall",
    "garbage_collection",
    "memory_fragmentation",
    "silent_corruption",
    "fleet_power_cap",
    "fleet_code",
    "rack_slow",
    "hot_expert",
    "gpu_memory_error",
    "gpu_execution_error",
    "cuda_error",
    "nvlink_error",
    "machine_unreachable",
]

Pattern = Literal["constant", "ramp", "drift", "three_of_ten", "every_37", "bursts"]
"""How a fault's strength goes over its steps: `ramp` rises over `ramp_steps`, `drift` until the end; `three_of_ten` holds
three steps of ten, `every_37` ten steps of 37, `bursts` two steps of six (median length of public bursts)."""

LookAlike = Literal[
    "power_cap",
    "corrected_ecc",
    "pcie_idle",
    "application_xid",
    "brief_thermal",
    "pause_trickle",
]

Placement = Literal["pipeline_in_pod", "rank_order", "random"]

TensorView = Literal["separated", "folded", "folded_recorded"]
"""What a rank's compute time is inside a tensor group: its own (`separated`, waits in the `tp` collective), or the group's
(`folded`: the sync of every layer is inside and all members look equal; `folded_recorded`: the `tp` collective shows it)."""


@dataclass(frozen=True)
class FleetPlan:
    """Nodes and how they are cabled.

    `rail`: NIC k of a pod's nodes hangs on the pod's rail switch k. `lingjun`: all NICs of a node hang on one leaf of at
    most eight nodes, leaves in three aggregation groups. `other_sku_nodes` nodes
    from the end are another part, slower by `other_sku_slowdown`.
    """

    nodes: int
    shape: Literal["rail", "lingjun"] = "rail"
    gpus_per_node: int = 8
    nodes_per_pod: int = 8
    nodes_per_leaf: int = 8
    nodes_per_rack: int = 4
    racks_per_zone: int = 2
    sku: str = "NVIDIA H100 80GB HBM3"
    peak_tflops: float = 989.5
    other_sku: str = "NVIDIA H100 PCIe"
    other_sku_nodes: int = 0
    other_sku_slowdown: float = 0.12
    transport: Literal["roce", "infiniband"] = "roce"


@dataclass(frozen=True)
class TransferShares:
    """Communication without waiting (chosen): `tensor` and `expert` a step's in all, `hop` one hand-over of a microbatch."""

    tensor: float = 0.04
    expert: float = 0.03
    hop: float = 0.0005
    data: float = 0.08
    norm: float = 0.001


@dataclass(frozen=True)
class PhasePlan:
    """Steps that are no plain training: numbers of steps, and how many healthy steps longer they take (chosen)."""

    warmup_steps: int = 5
    warmup_factors: tuple[float, ...] = (2.6, 1.9, 1.5, 1.25, 1.12)
    checkpoint_every: int = 0
    checkpoint_steps: float = 2.0
    evaluation_every: int = 0
    evaluation_steps: float = 3.0
    compile_at: tuple[int, ...] = ()
    compile_steps: float = 4.0


@dataclass(frozen=True)
class ResizePlan:
    """A change of membership before step `at_step`.

    `shrink_and_renumber`: a replica without a fault leaves and ranks count backwards. `swap_spare`: the node of the first
    fault is replaced by spare hardware under its old name.
    """

    at_step: int
    kind: Literal["shrink_and_renumber", "swap_spare"]


@dataclass(frozen=True)
class JobPlan:
    """One job. Ranks count up tensor, data, pipeline, fast to slow; a node holds eight ranks that follow each other.

    `own_time_reported` false leaves the sums to the reader; `timings_reported` false is a job without any hook.
    `missing_share` of the ranks report nothing from `missing_from_step` on.
    """

    job_id: str
    nodes: int
    tensor: int = 8
    pipeline: int = 1
    virtual_pipeline: int = 1
    expert: int = 1
    microbatches: int = 8
    step_s: float = 2.5
    last_stage_factor: float = 1.0
    lengths: Literal["fixed", "variable"] = "fixed"
    lengths_reported: bool = True
    placement: Placement = "pipeline_in_pod"
    tensor_view: TensorView = "separated"
    timings_reported: bool = True
    own_time_reported: bool = True
    transfers: TransferShares = TransferShares()
    host_share: float = 0.02
    data_share: float = 0.004
    parameters: float = 7e10
    mfu: float = 0.42
    phases: PhasePlan = PhasePlan()
    resize: ResizePlan | None = None
    missing_share: float = 0.0
    missing_from_step: int = 0


@dataclass(frozen=True)
class NoisePlan:
    """Noise, all of it sweepable. Sigmas are of logarithms.

    `microbatch_*` of one operation of a tensor group; `block` of one rank's block of layers in a step; `device` the
    constant offset of a device; `common` what all ranks share from step to step and `walk` its slow part, which returns
    with a time constant of `walk_steps`; `diurnal` from trough to crest over a day. `variable_*` is the share of the
    quadratic term in an operation's mean time: 0.485 and 0.78 give the 19 % and 29 % that a public trace shows.
    Loader, garbage collection and clocks are chosen.
    """

    microbatch_forward: float = 0.016
    microbatch_backward: float = 0.0235
    block: float = 0.005
    blocks: int = 4
    device: float = 0.003
    common: float = 0.005
    walk: float = 0.004
    walk_steps: float = 200.0
    diurnal: float = 0.015
    variable_forward: float = 0.485
    variable_backward: float = 0.78
    transfer: float = 0.015
    host: float = 0.03
    loader: float = 0.5
    gc_every_steps: int = 0
    gc_ms: tuple[float, float] = (50.0, 150.0)
    clock_offset_ms: float = 10.0
    clock_drift_ppm: float = 20.0
    clock_step_s: float = 0.0
    """One node's clock jumps by this much half-way."""


@dataclass(frozen=True)
class SamplingPlan:
    """How often agents publish, in seconds. One second is the default of a real agent; five keep cases small."""

    gpu_s: float = 5.0
    fabric_s: float = 5.0
    switch_s: float = 5.0
    heartbeat_s: float = 5.0
    progress_s: float = 5.0


@dataclass(frozen=True)
class DeliveryPlan:
    """What the way to the broker does: log-normal delay, duplicates, reordering, loss (all chosen)."""

    delay_p50_ms: float = 200.0
    delay_p99_ms: float = 5_000.0
    duplicates: float = 0.005
    duplicate_copies: int = 1
    out_of_order: float = 0.02
    late_ms: float = 2_000.0
    loss: float = 0.001
    reverse_window_s: float = 0.0
    """Above 0: what arrives within each such window comes in reverse order, at the window's end."""


@dataclass(frozen=True)
class FaultPlan:
    """One fault. What is null or negative is drawn from the seed.

    `severity` as in `Truth`. `nic_speed` takes `speed_share` (0.5, 0.25) in its place. `count` devices take part in a
    zone's throttle or a rack; `period_steps` is of garbage collection and of a hot expert's moves. `same_peers_as` puts the fault on another unit of the stage of an earlier fault,
    `next_stage_to` on the neighbouring stage of the same replica.
    """

    kind: FaultKind
    severity: float
    onset_step: int
    end_step: int
    job: int = 0
    pattern: Pattern = "constant"
    ramp_steps: int = 0
    speed_share: float = 0.5
    stage: int | None = None
    same_peers_as: int | None = None
    next_stage_to: int | None = None
    count: int = 0
    period_steps: int = 100
    counters_visible: bool = True
    """Whether device counters tell of a network fault; without them nobody is late and no port complains."""
    is_look_alike: bool = False
    """Happens without being a fault: it has no truth, and naming it is false blame."""


@dataclass(frozen=True)
class BenchmarkCase:
    """One case of the benchmark; with a seed it is a stream of records and its truth.

    `case_id` is `scenario/variant/ranks`. `steps` are of every job. `expect` says in words what is right. In the form
    `whole_steps` the steps of the first job are given as arrays and nothing else is published: for fault-free runs at scale.
    """

    case_id: str
    suite: str
    scenario: str
    fleet: FleetPlan
    jobs: tuple[JobPlan, ...]
    steps: int
    faults: tuple[FaultPlan, ...] = ()
    look_alikes: tuple[LookAlike, ...] = ()
    noise: NoisePlan = NoisePlan()
    sampling: SamplingPlan = SamplingPlan()
    delivery: DeliveryPlan = DeliveryPlan()
    level: Literal["L1", "L2"] = "L1"
    form: Literal["records", "whole_steps"] = "records"
    start_ns: int = 1_767_225_600_000_000_000
    expect: str = ""
    tags: dict[str, float | str] = field(default_factory=dict, hash=False, compare=False)
    """Swept values by name, for tables (severity, slowdown, sigma)."""

    @property
    def ranks(self) -> int:
        """Ranks of all jobs."""
        return sum(job.nodes for job in self.jobs) * self.fleet.gpus_per_node

    @property
    def has_truth(self) -> bool:
        """Whether anything is wrong in it."""
        return any(not fault.is_look_alike for fault in self.faults)

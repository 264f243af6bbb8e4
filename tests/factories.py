"""Records for tests, each with the few fields that the test is about.

Times are given in seconds after `START_NS`. Devices are named `GPU-<node>-<position>` and `0000:<16 + position>:00`.
Every default is a healthy one. Deliberately no clock and no randomness: a test says what it wants to be uneven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.events import KernelEvent
from schemas.findings import Finding, Subject
from schemas.fleet import Job, Layout, Model, Policy, RankPlacement, RulePolicy
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import CollectiveTiming, RankProgress, StepTiming
from schemas.topics import topic_of
from streams.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.base import Record

START_NS = 1_760_000_000_000_000_000
SITE = "site-1"
JOB = "job-1"
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


def at(seconds: float) -> int:
    """Event time of a moment of the test."""
    return START_NS + round(seconds * 1e9)


def uuid_of(node_id: str, position: int) -> str:
    return f"GPU-{node_id}-{position}"


def pci_of(position: int) -> str:
    return f"0000:{16 + position:02x}:00"


def position_of(record: Record, offset: int = 0, partition: int = 0, arrival_s: float | None = None) -> Position:
    """A place in the record's topic; it arrives when it happened unless the test says otherwise."""
    at_ns = getattr(record, "event_time_ns", START_NS) if arrival_s is None else at(arrival_s)
    return Position(topic_of(record).name, partition, offset, at_ns // 1_000_000)


def gpu_frame(
    seconds: float,
    *,
    node_id: str = "node-1",
    gpus: int = 8,
    seq: int | None = None,
    session: str = "s1",
    **columns: Any,
) -> GpuFrame:
    """One tick of a node whose GPUs are all alike where a column is given as one number."""
    given = {
        name: (value if isinstance(value, list | tuple) else (value,) * gpus)
        if name in GpuFrame.model_fields and name not in {"boot_id", "driver_version"}
        else value
        for name, value in columns.items()
    }
    return GpuFrame(
        node_id=node_id,
        agent_session=session,
        seq=round(seconds) if seq is None else seq,
        event_time_ns=at(seconds),
        gpu_uuid=given.pop("gpu_uuid", tuple(uuid_of(node_id, g) for g in range(gpus))),
        pci_bus_id=given.pop("pci_bus_id", tuple(pci_of(g) for g in range(gpus))),
        sku=given.pop("sku", (H100,) * gpus),
        **given,
    )


def nic_frame(
    seconds: float,
    rx: int | None,
    tx: int | None,
    *,
    node_id: str = "node-1",
    seq: int | None = None,
    session: str = "s1",
    priority: int = 3,
) -> FabricFrame:
    """One tick of a node's only port: its cumulative pause frames, received and transmitted."""
    return FabricFrame(
        view="host",
        node_id=node_id,
        agent_session=session,
        seq=round(seconds) if seq is None else seq,
        event_time_ns=at(seconds),
        device=("mlx5_0",),
        port=("1",),
        pfc_port=(0,),
        pfc_priority=(priority,),
        rx_pause_frames=(rx,),
        tx_pause_frames=(tx,),
    )


def switch_frame(
    seconds: float,
    ports: Sequence[str],
    rx: Sequence[int | None],
    tx: Sequence[int | None],
    *,
    switch_id: str = "leaf-1",
) -> FabricFrame:
    """One tick of a switch: cumulative pause frames per port, as the switch sees them."""
    return FabricFrame(
        view="switch",
        switch_id=switch_id,
        agent_session="s1",
        seq=round(seconds),
        event_time_ns=at(seconds),
        device=(switch_id,) * len(ports),
        port=tuple(ports),
        pfc_port=tuple(range(len(ports))),
        pfc_priority=(3,) * len(ports),
        rx_pause_frames=tuple(rx),
        tx_pause_frames=tuple(tx),
    )


def xid_event(
    seconds: float,
    code: int | None,
    *,
    node_id: str = "node-1",
    gpu: int | None = 0,
    seq: int | None = None,
    **fields: Any,
) -> KernelEvent:
    """One kernel line about a GPU, named as the kernel names it: by PCI address."""
    return KernelEvent(
        node_id=node_id,
        agent_session="s1",
        boot_id=fields.pop("boot_id", "boot-1"),
        kmsg_seq=round(seconds * 10) if seq is None else seq,
        event_time_ns=at(seconds),
        source=fields.pop("source", "xid"),
        code=code,
        pci_bus_id=fields.pop("pci_bus_id", pci_of(gpu) if gpu is not None else None),
        **fields,
    )


def step_timing(
    step: int,
    seconds: float,
    compute_us: Sequence[int | None],
    *,
    node_id: str = "node-1",
    first_rank: int = 0,
    step_us: int | None = None,
    job_id: str = JOB,
    seq: int | None = None,
    dp_us: Sequence[int | None] | None = None,
    **columns: Any,
) -> StepTiming:
    """One node's share of a step; the step takes as long as its longest rank unless given."""
    count = len(compute_us)
    longest = max((value for value in compute_us if value is not None), default=0)
    return StepTiming(
        job_id=job_id,
        epoch=columns.pop("epoch", 0),
        node_id=node_id,
        agent_session="s1",
        seq=step if seq is None else seq,
        event_time_ns=at(seconds),
        step=step,
        phase=columns.pop("phase", "train"),
        rank=tuple(range(first_rank, first_rank + count)),
        step_us=((step_us if step_us is not None else longest + 2000),) * count,
        compute_us=tuple(compute_us),
        collectives=(CollectiveTiming(group="dp", instance=(0,) * count, duration_us=tuple(dp_us)),) if dp_us else (),
        **columns,
    )


def progress(
    seconds: float, *, node_id: str = "node-1", job_id: str = JOB, ranks: Sequence[int] = (0,)
) -> RankProgress:
    return RankProgress(
        job_id=job_id,
        node_id=node_id,
        agent_session="s1",
        seq=round(seconds),
        event_time_ns=at(seconds),
        rank=tuple(ranks),
        last_step=(None,) * len(ranks),
    )


def job(world_size: int = 8, *, job_id: str = JOB, layout: dict[str, int] | None = None, **fields: Any) -> Job:
    model = fields.pop("model", None)
    return Job(
        job_id=job_id,
        effective_from_ns=START_NS,
        world_size=world_size,
        layout=Layout(**(layout or {"data": world_size})),
        model=Model(**model) if model is not None else None,
        **fields,
    )


def placement(
    ranks: Sequence[int],
    *,
    node_id: str = "node-1",
    job_id: str = JOB,
    devices: Sequence[int] | None = None,
    sku: str | None = H100,
    **fields: Any,
) -> RankPlacement:
    """Ranks of a node on its GPUs in order, or on the given positions; `devices=[]` leaves the mapping unknown."""
    positions = range(len(ranks)) if devices is None else devices
    return RankPlacement(
        job_id=job_id,
        effective_from_ns=START_NS,
        node_id=node_id,
        rank=tuple(ranks),
        gpu_uuid=tuple(uuid_of(node_id, p) for p in positions) or (None,) * len(ranks),
        pci_bus_id=tuple(pci_of(p) for p in positions) or None,
        sku=(sku,) * len(ranks) if sku is not None else None,
        **fields,
    )


def policy(rules: dict[str, RulePolicy] | None = None, **fields: Any) -> Policy:
    return Policy(policy_version="test", site_id=SITE, effective_from_ns=START_NS, rules=rules or {}, **fields)


def without(rule: str) -> Policy:
    """A policy with one rule switched off."""
    return policy({rule: RulePolicy(enabled=False)})


def finding(
    kind: str,
    seconds: float,
    subject: Subject,
    *,
    state: str = "open",
    onset_s: float | None = None,
    finding_id: str | None = None,
    **fields: Any,
) -> Finding:
    """A finding as a detector would publish it; an opening and its clearing share an id by kind and subject."""
    return Finding(
        finding_id=finding_id or f"find-{kind}-{subject.key()}",
        site_id=SITE,
        rule=kind,
        kind=kind,
        severity=fields.pop("severity", "warning"),
        state=state,
        subject=subject,
        event_time_ns=at(seconds),
        onset_ns=at(seconds if onset_s is None else onset_s),
        **fields,
    )

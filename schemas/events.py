"""Events of a node: kernel lines that say that something happened once, and the node's own state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import DeviceKey, EventTimeNs, Identifier, Record

__all__ = ["HostLoad", "KernelEvent", "NodeStatus"]


class KernelEvent(Record):
    """One recognised kernel line: an Xid, an SXid, a GPU lost without a code, a network driver's or a PCIe error's line.

    `kmsg_seq` orders the lines of one boot and, with `node_id` and `boot_id`, tells repeats of delivery from repeats of
    the fault. `boot_id` is the kernel's, with `before-` in front for lines of an earlier boot and `fabric-manager-` for
    lines that are numbered apart from the kernel's. `trusted` is false for lines that a user process may have written;
    nothing acts on them alone. `repeat_count` is above 1 when the agent folded a burst of lines of one kind and device
    into this record; then `raw` is the first of them and `last_raw` the last. `condition`, `driver`, `interface` and
    `error_name` say what a line of source `nic` or `aer` tells; `code` is null there.
    """

    record: Literal["kernel_event"] = "kernel_event"
    node_id: Identifier
    agent_session: Identifier
    boot_id: Identifier
    kmsg_seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    source: Literal["xid", "sxid", "nic", "aer"]
    code: int | None = None
    severity: str = "unknown"
    pci_bus_id: DeviceKey | None = None
    gpu_uuid: DeviceKey | None = None
    switch_index: int | None = None
    reported_severity: Literal["fatal", "non_fatal"] | None = None
    link: int | None = None
    pid: int | None = None
    process: str | None = None
    recovery_action: str | None = None
    caused_by_xid: int | None = None
    text: str = Field(default="", max_length=2000)
    raw: str = Field(default="", max_length=2000)
    trusted: bool = True
    inferred: bool = False
    repeat_count: int = Field(default=1, ge=1)
    last_raw: str | None = Field(default=None, max_length=2000)
    condition: str | None = Field(default=None, max_length=64)
    driver: str | None = Field(default=None, max_length=64)
    interface: str | None = Field(default=None, max_length=64)
    error_name: str | None = Field(default=None, max_length=64)


class HostLoad(Record):
    """How busy a node's processors, memory and disks are; null is unknown, never zero.

    Ratios are 0..1 of all processors together over the `cpu_span_s` before `observed_ns`: work, waiting for a disk, and
    taken by the hypervisor. Pressure is the percentage of the last 10 s in which some, or all, tasks that were not idle
    waited for the resource (`avg10` of /proc/pressure). `disk_free_ratio` is what an unprivileged user may still take,
    by path. Throttle counts are cumulative since boot: of cores (one count for each core) and of packages.
    """

    observed_ns: EventTimeNs
    cpu_count: int | None = Field(default=None, ge=0)
    cpu_span_s: float | None = Field(default=None, gt=0)
    cpu_busy_ratio: float | None = Field(default=None, ge=0, le=1)
    cpu_iowait_ratio: float | None = Field(default=None, ge=0, le=1)
    cpu_steal_ratio: float | None = Field(default=None, ge=0, le=1)
    load_1min: float | None = Field(default=None, ge=0)
    load_5min: float | None = Field(default=None, ge=0)
    load_15min: float | None = Field(default=None, ge=0)
    cpu_pressure_some_pct: float | None = Field(default=None, ge=0, le=100)
    cpu_pressure_full_pct: float | None = Field(default=None, ge=0, le=100)
    memory_pressure_some_pct: float | None = Field(default=None, ge=0, le=100)
    memory_pressure_full_pct: float | None = Field(default=None, ge=0, le=100)
    io_pressure_some_pct: float | None = Field(default=None, ge=0, le=100)
    io_pressure_full_pct: float | None = Field(default=None, ge=0, le=100)
    memory_total_bytes: int | None = Field(default=None, ge=0)
    memory_available_bytes: int | None = Field(default=None, ge=0)
    disk_free_ratio: dict[str, float] = Field(default_factory=dict)
    core_throttle_count: int | None = Field(default=None, ge=0)
    package_throttle_count: int | None = Field(default=None, ge=0)


class NodeStatus(Record):
    """A heartbeat or a change of state of a node's agent; a heartbeat tells the load of the host where it is known."""

    record: Literal["node_status"] = "node_status"
    node_id: Identifier
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    state: Literal["heartbeat", "start", "stop", "maintenance"]
    boot_id: str | None = None
    agent_version: str | None = None
    sources: tuple[str, ...] = ()
    dropped_records: int = Field(default=0, ge=0)
    note: str | None = Field(default=None, max_length=500)
    host: HostLoad | None = None

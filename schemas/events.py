"""Events of a node: kernel lines that say that something happened once, and the node's own state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import DeviceKey, EventTimeNs, Identifier, Record

__all__ = ["KernelEvent", "NodeStatus"]


class KernelEvent(Record):
    """One recognised kernel line: an Xid, an SXid, or a lost GPU that the driver reported without a code.

    `kmsg_seq` orders the lines of one boot and, with `node_id` and `boot_id`, tells repeats of delivery from repeats of
    the fault. `trusted` is false for lines that a user process may have written; nothing acts on them alone.
    `repeat_count` is above 1 when the agent folded a burst of equal lines.
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


class NodeStatus(Record):
    """A heartbeat or a change of state of a node's agent."""

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

"""Role telemetry: node and switch records of one partition in, device findings and progress marks out.

Repeats are dropped and small reorderings undone per source and stream, then each rule reads the frames of a node in the
node's own order. No rule compares nodes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.events import KernelEvent, NodeStatus
from schemas.findings import ProgressMark
from schemas.frames import FabricFrame, GpuFrame
from streams.core.position import Position
from streams.core.progress import MarkPacer, PartitionClock
from streams.core.sequence import OrderedSources, SeenNumbers
from streams.core.thresholds import is_enabled
from streams.detectors.ecc import UncorrectableEcc
from streams.detectors.pfc import PfcPause
from streams.detectors.sm_clock import SmClock
from streams.detectors.thermal import ThermalViolation
from streams.detectors.xid import XidCodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.base import Record
    from schemas.findings import Finding
    from streams.core.roster import Roster

__all__ = ["TelemetryEngine"]

if TYPE_CHECKING:
    _Item = tuple[Record, Position]


class TelemetryEngine:
    """Device rules over the records of one partition."""

    def __init__(self, site_id: str, partition: int, roster: Roster) -> None:
        self._site_id = site_id
        self._partition = partition
        self._roster = roster
        self._sources: OrderedSources[_Item] = OrderedSources()
        self._kernel_lines = SeenNumbers()
        self._clock = PartitionClock()
        self._pacer = MarkPacer()
        self._gpu_rules: dict[str, SmClock | ThermalViolation | UncorrectableEcc] = {
            "sm_clock": SmClock(site_id),
            "thermal_violation": ThermalViolation(site_id),
            "uncorrectable_ecc": UncorrectableEcc(site_id),
        }
        self._pfc = PfcPause(site_id)
        self._xid = XidCodes(site_id)

    @property
    def repeats(self) -> int:
        """Records dropped because they had come before."""
        return self._sources.repeats + self._kernel_lines.repeats

    @property
    def time_ns(self) -> int:
        """Event time of the partition."""
        return self._clock.time_ns

    def on_record(self, record: Record, position: Position) -> list[Record]:
        """Take one record of the role's topics, and return findings and marks."""
        outputs: list[Record] = []
        if isinstance(record, KernelEvent):
            if self._kernel_lines.is_new(f"{record.node_id}/{record.boot_id}", record.kmsg_seq):
                outputs += self._findings(record, position)
            self._clock.observe(record.node_id, record.event_time_ns)
        elif isinstance(record, GpuFrame | FabricFrame | NodeStatus):
            publisher = record.publisher_id if isinstance(record, FabricFrame) else record.node_id
            source = f"{publisher}/{record.agent_session}/{record.record}"
            for item, place in self._sources.offer(source, record.seq, record.event_time_ns, (record, position)):
                outputs += self._findings(item, place)
            self._clock.observe(publisher, record.event_time_ns)
        return outputs + self._mark()

    def take_late(self) -> list[_Item]:
        """Records that came after their place was passed over; the caller publishes them as late."""
        late, self._sources.late = self._sources.late, []
        return late

    def flush(self) -> list[Record]:
        """What still waits for a lost number: the input has ended."""
        outputs: list[Record] = []
        for item, place in self._sources.flush():
            outputs += self._findings(item, place)
        return outputs

    def _findings(self, record: Record, position: Position) -> list[Finding]:
        policy = self._roster.policy
        evidence = position.evidence()
        found: list[Finding] = []
        if isinstance(record, GpuFrame):
            for name, rule in self._gpu_rules.items():
                if is_enabled(policy, name):
                    found += rule.on_frame(record, self._roster, evidence)
        elif isinstance(record, FabricFrame):
            if is_enabled(policy, "pfc_pause"):
                found += self._pfc.on_frame(record, self._roster, evidence)
        elif isinstance(record, KernelEvent) and is_enabled(policy, "xid"):
            found += self._xid.on_event(record, self._roster, evidence)
        return found

    def _mark(self) -> list[Record]:
        mark_ns = self._clock.time_ns
        if not self._pacer.due(mark_ns):
            return []
        self._clock.forget_idle()
        return [ProgressMark(site_id=self._site_id, role="telemetry", partition=self._partition, mark_ns=mark_ns)]

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a record that waits for a lost one: it is not in the snapshot."""
        lowest: dict[str, int] = {}
        for _, place in self._sources.waiting():
            lowest[place.topic] = min(place.offset, lowest.get(place.topic, place.offset))
        return lowest

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes, without the records that wait for a lost one."""
        return {
            "sources": self._sources.snapshot(with_waiting=False),
            "kernel_lines": self._kernel_lines.snapshot(),
            "clock": self._clock.snapshot(),
            "pacer": self._pacer.snapshot(),
            "gpu_rules": {name: rule.snapshot() for name, rule in self._gpu_rules.items()},
            "pfc": self._pfc.snapshot(),
            "xid": self._xid.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any], folded: Mapping[str, int]) -> None:  # noqa: ARG002
        """Replace the state by a snapshot's; records that come again are told by their numbers."""
        self._sources.restore(snapshot["sources"])
        self._kernel_lines.restore(snapshot["kernel_lines"])
        self._clock.restore(snapshot["clock"])
        self._pacer.restore(snapshot["pacer"])
        for name, rule in self._gpu_rules.items():
            rule.restore(snapshot["gpu_rules"][name])
        self._pfc.restore(snapshot["pfc"])
        self._xid.restore(snapshot["xid"])

"""Role telemetry: node and switch records of one partition in, device findings and progress marks out.

Repeats are dropped and small reorderings undone per source and stream, then each rule reads the frames of a node in the
node's own order. Only the rules of heartbeats and of device peers compare nodes, by the time of the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import astuple

from schemas.events import KernelEvent, NodeStatus
from schemas.findings import ProgressMark
from schemas.frames import FabricFrame, GpuFrame
from streams.core.frame_rules import FrameRule, FrameRules
from streams.core.position import Position, reached_ns
from streams.core.progress import MarkPacer, PartitionClock
from streams.core.sequence import OrderedSources, SeenNumbers, SourceOrder
from streams.core.thresholds import is_enabled
from streams.detectors.clock_skew import ClockSkew, PublisherClock
from streams.detectors.congestion import Congestion
from streams.detectors.congestion_own import CongestionOwn
from streams.detectors.device_peers import DevicePeers
from streams.detectors.ecc import UncorrectableEcc
from streams.detectors.gpu_frames import load_of
from streams.detectors.nic_pcie_link import NicPcieLink
from streams.detectors.node_silence import NodeSilence
from streams.detectors.nvlink import NvlinkErrors
from streams.detectors.pcie_link import PcieLink
from streams.detectors.pfc import PfcPause
from streams.detectors.port_errors import PortErrors
from streams.detectors.port_loss import PortLoss
from streams.detectors.port_speed import PortSpeed
from streams.detectors.power import Power
from streams.detectors.row_remap import RowRemap
from streams.detectors.sm_clock import SmClock
from streams.detectors.thermal import ThermalViolation
from streams.detectors.xid import XidCodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from schemas.base import Record
    from schemas.findings import Finding
    from schemas.fleet import Policy
    from streams.core.roster import Roster

__all__ = ["TelemetryEngine"]

if TYPE_CHECKING:
    _Item = tuple[Record, Position]
    _Timed = GpuFrame | FabricFrame | NodeStatus
    _Source = tuple[Literal["node", "switch"], str]
    """What a publisher is, and its id."""


def _of_node(record: GpuFrame | NodeStatus) -> _Source:
    return "node", record.node_id


def _of_view(frame: FabricFrame) -> _Source:
    return "node" if frame.view == "host" else "switch", frame.publisher_id


_SOURCE_OF: dict[type[Record], Callable[[Any], _Source]] = {
    GpuFrame: _of_node,
    FabricFrame: _of_view,
    NodeStatus: _of_node,
}
"""Of records that are numbered and tell their source's time. Found by type: of models `isinstance` is a search in Python."""


class _Stream:
    """The records of one family, publisher and session, with what is kept of them, so that it is found by one look.

    All of it stands where it belongs too: a stream is forgotten at will, and is no state.
    """

    __slots__ = ("clock", "last", "level", "name", "order", "publisher", "session")

    def __init__(self, source: _Source, session: str, name: str, order: SourceOrder[_Item], last: Any) -> None:
        self.level, self.publisher = source
        self.session = session
        self.name = name
        self.order = order
        self.last = last
        """Of the publisher's frames; null for heartbeats."""
        self.clock: PublisherClock | None = None


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
        self._gpu_rules: dict[str, FrameRule[GpuFrame]] = {
            "sm_clock": SmClock(site_id),
            "thermal_violation": ThermalViolation(site_id),
            "uncorrectable_ecc": UncorrectableEcc(site_id),
            "power": Power(site_id),
            "nvlink_errors": NvlinkErrors(site_id),
            "pcie_link": PcieLink(site_id),
            "row_remap": RowRemap(site_id),
        }
        self._port_rules: dict[str, FrameRule[FabricFrame]] = {
            "pfc_pause": PfcPause(site_id),
            "port_errors": PortErrors(site_id),
            "congestion": Congestion(site_id),
            "port_speed": PortSpeed(site_id),
            "port_loss": PortLoss(site_id),
            "congestion_own": CongestionOwn(site_id),
            "nic_pcie_link": NicPcieLink(site_id),
        }
        self._gpus_in_force = FrameRules(("gpu_uuid", "pci_bus_id", "sku"), _load)
        self._ports_in_force = FrameRules(("device", "port", "view"), _columns_of_counters)
        self._frames_in_force: dict[type[Record], FrameRules[Any]] = {
            GpuFrame: self._gpus_in_force,
            FabricFrame: self._ports_in_force,
        }
        self._clock_skew = ClockSkew(site_id)
        self._node_silence = NodeSilence(site_id)
        # Heartbeats are compared with heartbeats: after a backlog other topics may be read far ahead of them. The middle
        # of the nodes, because the one that is silent must not hold the time back by which it is told.
        self._status_clock = PartitionClock(percentile=0.5)
        self._xid = XidCodes(site_id)
        self._device_peers = DevicePeers(site_id)
        self._streams: dict[type[Record], dict[_Source, _Stream]] = {family: {} for family in _SOURCE_OF}
        """Of each publisher the last one."""
        self._rules_of: dict[type[Record], Callable[[Any, _Stream, Position], Iterable[Finding]]] = {
            GpuFrame: self._of_gpus,
            FabricFrame: self._of_ports,
            NodeStatus: self._of_status,
        }
        self._take_policy(roster.policy)

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
        if self._roster.policy is not self._policy:
            self._take_policy(self._roster.policy)
        outputs: list[Record] = []
        family = type(record)
        source_of = _SOURCE_OF.get(family)
        if source_of is not None:
            source = source_of(record)
            stream = self._streams[family].get(source)
            if stream is None or stream.session != record.agent_session:  # type: ignore[attr-defined]
                stream = self._stream_of(record, source)  # type: ignore[arg-type]
            self._on_timed(record, stream, position, outputs)  # type: ignore[arg-type]
        elif isinstance(record, KernelEvent):
            if self._kernel_lines.is_new(f"{record.node_id}/{record.boot_id}", record.kmsg_seq):
                outputs += self._of_event(record, position)
            self._clock.observe(record.node_id, reached_ns(record.event_time_ns, position))
        mark_ns = self._clock.time_ns
        if mark_ns >= self._pacer.next_ns and self._pacer.due(mark_ns):
            outputs.append(self._mark(mark_ns))
        return outputs

    def on_refused(self, record: Record, position: Position) -> list[Record]:
        """What a record that is refused for being ahead of its arrival says of its publisher's clock; nothing else counts."""
        source_of = _SOURCE_OF.get(type(record))
        if source_of is None:
            return []
        self._follow_policy()
        if not self._watches_clocks:
            return []
        level, publisher = source_of(record)
        at_ns: int = record.event_time_ns  # type: ignore[attr-defined]
        return list(
            self._clock_skew.on_record(publisher, at_ns, position.append_ms, self._roster, position, level=level)
        )

    @property
    def has_late(self) -> bool:
        """Whether `take_late` has records."""
        return bool(self._sources.late)

    def take_late(self) -> list[_Item]:
        """Records that came after their place was passed over; the caller publishes them as late."""
        late, self._sources.late = self._sources.late, []
        return late

    def flush(self) -> list[Record]:
        """What still waits for a lost number: the input has ended."""
        self._follow_policy()
        outputs: list[Record] = []
        for item, place in self._sources.flush():
            stream = self._stream_of(item, _SOURCE_OF[type(item)](item))  # type: ignore[arg-type]
            outputs += self._rules_of[type(item)](item, stream, place)
        for is_in_force, rule in (
            (self._watches_clocks, self._clock_skew),
            (self._watches_silence, self._node_silence),
            (self._compares_devices, self._device_peers),
        ):
            if is_in_force:
                outputs += rule.flush(self._roster)
        return outputs

    def _stream_of(self, record: _Timed, source: _Source) -> _Stream:
        """Find what is kept of a record's stream, to have it at hand for the next ones."""
        family, publisher = type(record), source[1]
        name = f"{publisher}/{record.agent_session}/{record.record}"
        rules = self._frames_in_force.get(family)
        last = rules.last_of(publisher) if rules is not None else None
        stream = _Stream(source, record.agent_session, name, self._sources.of(name), last)
        self._streams[family][source] = stream
        return stream

    def _on_timed(self, record: _Timed, stream: _Stream, position: Position, outputs: list[Record]) -> None:
        """Take a record that is numbered and tells its source's time, and add what it says to the outputs."""
        at_ns, append_ns = record.event_time_ns, position.append_ms * 1_000_000
        if stream.order.is_next(record.seq, at_ns):
            outputs += self._rules_of[type(record)](record, stream, position)
        else:
            for item, place in self._sources.offer(stream.name, record.seq, at_ns, (record, position)):
                outputs += self._rules_of[type(item)](item, stream, place)
        reached = reached_ns(at_ns, position)
        self._clock.observe(stream.publisher, reached)
        # The rules of times restore order by themselves, and look at repeats alike.
        if self._watches_clocks and (
            stream.clock is None or not self._clock_skew.passes_over(stream.clock, at_ns, append_ns)
        ):
            outputs += self._clock_skew.on_record(
                stream.publisher, at_ns, position.append_ms, self._roster, position, level=stream.level
            )
            stream.clock = self._clock_skew.of_publisher(stream.level, stream.publisher)
        if self._watches_silence and type(record) is NodeStatus:
            outputs += self._findings_of_silence(record, reached, position)
        if self._compares_devices and self._device_peers.is_waiting:
            outputs += self._device_peers.on_time(self._clock.time_ns, self._roster)

    def _findings_of_silence(self, status: NodeStatus, at_ns: int, position: Position) -> Iterator[Finding]:
        self._status_clock.observe(status.node_id, at_ns)
        self._node_silence.on_status(status, position)
        for finding in self._node_silence.on_time(self._status_clock.time_ns, self._roster):
            if finding.kind == "node_silent" and finding.state == "open" and finding.subject.node_id is not None:
                # Of few nodes the silent one is the slowest, and the others' findings would wait for it for a minute.
                self._clock.leave(finding.subject.node_id)
            yield finding

    def _of_gpus(self, frame: GpuFrame, stream: _Stream, position: Position) -> Iterable[Finding]:
        self._device_peers.on_gpus(frame, self._roster)
        return self._gpus_in_force.on_frame(stream.last, frame, self._roster, position)

    def _of_ports(self, frame: FabricFrame, stream: _Stream, position: Position) -> Iterable[Finding]:
        self._device_peers.on_ports(frame, self._roster)
        return self._ports_in_force.on_frame(stream.last, frame, self._roster, position)

    def _of_status(self, status: NodeStatus, stream: _Stream, position: Position) -> Iterable[Finding]:  # noqa: ARG002
        self._device_peers.on_status(status, self._roster)
        self._xid.on_status(status)
        return ()

    def _of_event(self, event: KernelEvent, position: Position) -> Iterable[Finding]:
        self._device_peers.on_event(event, self._roster)
        return self._xid.on_event(event, self._roster, position.evidence()) if self._reads_codes else ()

    def _follow_policy(self) -> None:
        if self._roster.policy is not self._policy:
            self._take_policy(self._roster.policy)

    def _take_policy(self, policy: Policy | None) -> None:
        """Which rules a policy has switched on: asked once for as long as it is in force."""
        self._policy = policy
        for streams in self._streams.values():
            streams.clear()
        self._gpus_in_force.put_in_force([rule for name, rule in self._gpu_rules.items() if is_enabled(policy, name)])
        self._ports_in_force.put_in_force([rule for name, rule in self._port_rules.items() if is_enabled(policy, name)])
        self._watches_clocks = is_enabled(policy, "clock_skew")
        self._watches_silence = is_enabled(policy, "node_silence")
        self._compares_devices = is_enabled(policy, "device_peers")
        self._reads_codes = is_enabled(policy, "xid")

    def _mark(self, mark_ns: int) -> ProgressMark:
        self._clock.forget_idle()
        return ProgressMark(site_id=self._site_id, role="telemetry", partition=self._partition, mark_ns=mark_ns)

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a record that waits for a lost one: it is not in the snapshot."""
        lowest: dict[str, int] = {}
        for _, place in self._sources.waiting():
            lowest[place.topic] = min(place.offset, lowest.get(place.topic, place.offset))
        return lowest

    def snapshot(self, with_waiting: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_waiting: whether the records that wait for a lost one are part of it; false where they will come again.
        """
        self._gpus_in_force.settle()
        self._ports_in_force.settle()
        sources = self._sources.snapshot(with_waiting)
        for source in sources.values():
            source[2] = [(seq, at_ns, [record, *astuple(place)]) for seq, at_ns, (record, place) in source[2]]
        return {
            "sources": sources,
            "repeats": [self._sources.repeats, self._kernel_lines.repeats] if with_waiting else [0, 0],
            "kernel_lines": self._kernel_lines.snapshot(),
            "clock": self._clock.snapshot(),
            "pacer": self._pacer.snapshot(),
            "gpu_rules": {name: rule.snapshot() for name, rule in self._gpu_rules.items()},
            "port_rules": {name: rule.snapshot() for name, rule in self._port_rules.items()},
            "clock_skew": self._clock_skew.snapshot(),
            "node_silence": self._node_silence.snapshot(),
            "status_clock": self._status_clock.snapshot(),
            "xid": self._xid.snapshot(),
            "device_peers": self._device_peers.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any], folded: Mapping[str, int]) -> None:  # noqa: ARG002
        """Replace the state by a snapshot's; records that come again are told by their numbers."""
        self._sources.restore(
            {
                name: [next_seq, latest_ns, [(seq, at_ns, _item(plain)) for seq, at_ns, plain in waiting], passed_over]
                for name, (next_seq, latest_ns, waiting, passed_over) in snapshot["sources"].items()
            }
        )
        self._sources.repeats, self._kernel_lines.repeats = snapshot.get("repeats", (0, 0))
        self._kernel_lines.restore(snapshot["kernel_lines"])
        self._clock.restore(snapshot["clock"])
        self._pacer.restore(snapshot["pacer"])
        for name, gpu_rule in self._gpu_rules.items():
            gpu_rule.restore(snapshot["gpu_rules"][name])
        for name, port_rule in self._port_rules.items():
            if name in snapshot["port_rules"]:  # a rule that is newer than the snapshot begins anew
                port_rule.restore(snapshot["port_rules"][name])
        self._clock_skew.restore(snapshot["clock_skew"])
        self._node_silence.restore(snapshot["node_silence"])
        self._status_clock.restore(snapshot["status_clock"])
        self._xid.restore(snapshot["xid"])
        if "device_peers" in snapshot:
            self._device_peers.restore(snapshot["device_peers"])
        self._take_policy(self._roster.policy)


def _item(plain: list[Any]) -> _Item:
    """A record that waits and its place, of their plain data."""
    record, *place = plain
    return record, Position(*place)


def _load(frame: GpuFrame, besides: tuple[str, ...]) -> tuple[object, ...]:
    """What the rules of GPUs read besides columns: nothing but the load, and only some of them."""
    return (load_of(frame),) if besides else ()


def _columns_of_counters(frame: FabricFrame, counters: tuple[str, ...]) -> tuple[object, ...]:
    """The counters that the rules of ports read; one that is not carried is null."""
    carried = frame.counters
    return tuple(map(carried.get, counters)) if carried else (None,) * len(counters)

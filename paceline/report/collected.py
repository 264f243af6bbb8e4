"""What a report keeps of an archive while it passes: bounded by ranks, devices and statements, not by hours.

Fed with inputs and with what was said about them, in the order of the archive. Nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from paceline.report.heat_map import HeatMap
from schemas.events import KernelEvent, NodeStatus
from schemas.findings import Finding
from schemas.fleet import Job, Policy, RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.remediation import ActionResult, Command, Decision, Incident
from schemas.results import StepResult
from schemas.steps import StepTiming
from streams.core.position import event_time_of
from streams.core.step_join import fill_own

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schemas.base import Record
    from streams.core.position import Position

__all__ = ["Arrival", "Collected", "Silence", "StepPoint"]

_SILENT_NS = 30_000_000_000
"""Three times the lateness that is normal, and half of what makes the rule on silent nodes speak."""

_REGULAR = frozenset({"gpu-frames", "fabric-frames", "node-status"})
"""What a source sends whether or not anything happens. A job that makes no steps is no silence of its nodes."""

_SLOW = 1.05
"""A rank is counted as slow from here on: above the noise of healthy ranks, below what rules speak of by themselves."""

_OWN_PARTS = ("own_us", "compute_us", "forward_us", "backward_us", "host_us", "data_us")

_OPEN_STEPS = 32
_MOST_SILENCES = 500


@dataclass(frozen=True, slots=True)
class Silence:
    """A source that was not heard for a while: its last record before, and the first after; null if none came."""

    source: str
    stream: str
    from_ns: int
    to_ns: int | None


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One step as a page needs it; times in microseconds."""

    job_id: str
    at_ns: int
    phase: str
    step_us: int | None
    own_median_us: int | None
    own_max_us: int | None
    own_max_rank: int | None
    mfu: float | None
    missing: int


S = TypeVar("S", bound="Record")


@dataclass(frozen=True, slots=True)
class Arrival(Generic[S]):
    """A statement with when it was on its topic; null where it was made by the replay."""

    record: S
    arrived_ms: int | None


@dataclass(slots=True)
class Collected:
    """Fills as an archive passes."""

    own_ratio: HeatMap = field(default_factory=HeatMap)
    temperature_c: HeatMap = field(default_factory=HeatMap)
    clock_mhz: HeatMap = field(default_factory=lambda: HeatMap("low"))
    power_w: HeatMap = field(default_factory=HeatMap)
    pause_per_s: HeatMap = field(default_factory=HeatMap)
    """Pause frames that ports received, by which they are stopped."""
    pause_sent_per_s: HeatMap = field(default_factory=HeatMap)
    """Pause frames that ports sent, by which they stop others."""
    delay_s: HeatMap = field(default_factory=HeatMap)
    jobs: dict[str, Job] = field(default_factory=dict)
    placed: dict[tuple[str, int], tuple[str, str | None]] = field(default_factory=dict)
    """Node and device by job and rank."""
    stages: dict[tuple[str, int], int] = field(default_factory=dict)
    """Pipeline stage by job and rank, where there are several."""
    policies: list[Policy] = field(default_factory=list)
    steps: list[StepPoint] = field(default_factory=list)
    slow_counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    worst_ratio: dict[tuple[str, int], float] = field(default_factory=dict)
    findings: dict[str, Arrival[Finding]] = field(default_factory=dict)
    incidents: dict[str, list[Arrival[Incident]]] = field(default_factory=dict)
    commands: dict[str, Arrival[Command]] = field(default_factory=dict)
    results: list[Arrival[ActionResult]] = field(default_factory=list)
    holds: dict[str, list[str]] = field(default_factory=dict)
    """By command, which guards held it and why; known where the journal was recorded."""
    silences: list[Silence] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int = 0
    _open: dict[tuple[str, int, int], list[tuple[NDArray[np.int64], NDArray[np.float64], int]]] = field(
        default_factory=dict
    )
    _heard: dict[tuple[str, str], int] = field(default_factory=dict)
    _pauses: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    _delays: dict[str, tuple[int, float]] = field(default_factory=dict)
    _gpu_rows: dict[str, tuple[tuple[str | None, ...], NDArray[np.int64]]] = field(default_factory=dict)
    _rows: dict[tuple[str, str], NDArray[np.int64]] = field(default_factory=dict)

    def take_input(self, record: Record, position: Position) -> None:
        """Take what a node published, or what was registered."""
        at_ns = event_time_of(record)
        if isinstance(record, GpuFrame):
            self._gpus(record)
        elif isinstance(record, FabricFrame):
            self._ports(record)
        elif isinstance(record, StepTiming):
            self._step(record)
        elif isinstance(record, Job):
            self.jobs[record.job_id] = record
        elif isinstance(record, RankPlacement):
            addresses = record.pci_bus_id or (None,) * len(record.rank)
            for rank, uuid, address in zip(record.rank, record.gpu_uuid, addresses, strict=True):
                self.placed[record.job_id, rank] = (record.node_id, uuid or address)
            if record.stage is not None and any(record.stage):
                self.stages |= {(record.job_id, rank): s for rank, s in zip(record.rank, record.stage, strict=True)}
        elif isinstance(record, Policy):
            self.policies.append(record)
        if at_ns is not None and at_ns > 0:
            self._heard_of(record, at_ns, position)

    def take_said(self, record: Record, arrived_ms: int | None) -> None:
        """Take a statement: of the recording with its arrival, of the replay without."""
        if isinstance(record, Finding):
            self.findings.setdefault(f"{record.finding_id}:{record.state}", Arrival(record, arrived_ms))
        elif isinstance(record, Incident):
            self.incidents.setdefault(record.incident_id, []).append(Arrival(record, arrived_ms))
        elif isinstance(record, Command):
            self.commands.setdefault(record.command_id, Arrival(record, arrived_ms))
        elif isinstance(record, ActionResult):
            self.results.append(Arrival(record, arrived_ms))
        elif isinstance(record, StepResult):
            self._result(record)
        elif isinstance(record, Decision) and record.action == "held":
            holds = record.detail.get("holds") or ()
            self.holds[record.subject_id] = [f"{hold['guard']}: {hold['reason']}" for hold in holds]

    def finish(self) -> None:
        """Close what is open, and note who was silent at the end."""
        for key in sorted(self._open):
            self._close_step(key)
        for stream, (second, delay_s) in sorted(self._delays.items()):
            self.delay_s.add(self.delay_s.rows_of([stream]), second * 1_000_000_000, np.array([delay_s]))
        for (source, stream), at_ns in sorted(self._heard.items()):
            if self.last_ns - at_ns > _SILENT_NS:
                self._silent(Silence(source, stream, at_ns, None))

    def _result(self, record: StepResult) -> None:
        self.steps.append(
            StepPoint(
                record.job_id,
                record.event_time_ns,
                record.phase,
                record.step_time_us,
                record.own_median_us,
                record.own_max_us,
                record.own_max_rank,
                record.mfu,
                record.ranks_expected - record.ranks_reported,
            )
        )

    def _heard_of(self, record: Record, at_ns: int, position: Position) -> None:
        self.first_ns = at_ns if self.first_ns is None else min(self.first_ns, at_ns)
        self.last_ns = max(self.last_ns, at_ns)
        source = getattr(record, "node_id", None) or getattr(record, "switch_id", None)
        if source is None or isinstance(record, KernelEvent):
            return
        if getattr(record, "node_id", None) is not None:
            self.nodes.add(source)
        stream = position.topic.split(".")[1]
        if isinstance(record, NodeStatus) and record.state == "stop":
            # It said that it goes.
            self._heard.pop((source, stream), None)
            return
        before = self._heard.get((source, stream))
        if stream in _REGULAR and before is not None and at_ns - before > _SILENT_NS:
            self._silent(Silence(source, stream, before, at_ns))
        if stream in _REGULAR:
            self._heard[source, stream] = max(at_ns, before or 0)
        if position.append_ms > 0:
            self._delayed(stream, at_ns, position.append_ms / 1e3 - at_ns / 1e9)

    def _delayed(self, stream: str, at_ns: int, delay_s: float) -> None:
        """Keep the longest delay of a second, and put it on the map when the next second begins."""
        second = at_ns // 1_000_000_000
        kept = self._delays.get(stream)
        if kept is not None and kept[0] == second:
            self._delays[stream] = (second, max(kept[1], delay_s))
            return
        if kept is not None:
            self.delay_s.add(self.delay_s.rows_of([stream]), kept[0] * 1_000_000_000, np.array([kept[1]]))
        self._delays[stream] = (second, delay_s)

    def _silent(self, silence: Silence) -> None:
        self.silences.append(silence)
        if len(self.silences) > 2 * _MOST_SILENCES:
            self.silences.sort(key=lambda s: s.from_ns - (s.to_ns or self.last_ns))
            del self.silences[_MOST_SILENCES:]

    def _gpus(self, frame: GpuFrame) -> None:
        known = self._gpu_rows.get(frame.node_id)
        if known is None or known[0] != frame.gpu_uuid:
            keys = [(frame.node_id, uuid or f"GPU {index}") for index, uuid in enumerate(frame.gpu_uuid)]
            # The same rows in all three: each GPU is put into all of them at once.
            rows = [heat.rows_of(keys) for heat in (self.temperature_c, self.clock_mhz, self.power_w)]
            known = self._gpu_rows[frame.node_id] = (frame.gpu_uuid, rows[0])
        for heat, column in (
            (self.temperature_c, frame.gpu_temp_c),
            (self.clock_mhz, frame.sm_clock_mhz),
            (self.power_w, frame.power_w),
        ):
            if column is not None:
                heat.add(known[1], frame.event_time_ns, np.array(column, dtype=np.float64))

    def _ports(self, frame: FabricFrame) -> None:
        keys = [
            (frame.publisher_id, f"{device} {port}".strip() if device else str(port))
            for device, port in zip(frame.device, frame.port, strict=True)
        ]
        for way, heat, counts in (
            ("rx", self.pause_per_s, frame.rx_pause_frames),
            ("tx", self.pause_sent_per_s, frame.tx_pause_frames),
        ):
            rates = self._rates(way, frame, counts)
            if not np.isnan(rates).all():
                heat.add(heat.rows_of(keys), frame.event_time_ns, rates)

    def _rates(self, way: str, frame: FabricFrame, counts: tuple[int | None, ...]) -> NDArray[np.float64]:
        """Frames a second by port, its priorities together; NaN at first, after a restart of the counter and after a gap."""
        rates = np.full(len(frame.device), np.nan)
        totals: dict[int, int] = {}
        for port, frames in zip(frame.pfc_port, counts, strict=False):
            if frames is not None:
                totals[port] = totals.get(port, 0) + frames
        for index, total in totals.items():
            key = (way, frame.publisher_id, index)
            before = self._pauses.get(key)
            self._pauses[key] = (frame.event_time_ns, total)
            if before is not None and total >= before[1] and 0 < frame.event_time_ns - before[0] < 60_000_000_000:
                rates[index] = (total - before[1]) / ((frame.event_time_ns - before[0]) / 1e9)
        return rates

    def _step(self, timing: StepTiming) -> None:
        columns = {name: _column(getattr(timing, name), len(timing.rank)) for name in _OWN_PARTS}
        fill_own(columns)
        key = (timing.job_id, timing.epoch, timing.step)
        share = (np.array(timing.rank, dtype=np.int64), columns["own_us"], timing.event_time_ns)
        if timing.phase == "train":
            self._open.setdefault(key, []).append(share)
        if len(self._open) > _OPEN_STEPS:
            self._close_step(min(self._open, key=lambda k: self._open[k][0][2]))

    def _close_step(self, key: tuple[str, int, int]) -> None:
        shares = self._open.pop(key)
        ranks = np.concatenate([share[0] for share in shares])
        own = np.concatenate([share[1] for share in shares])
        known = own[~np.isnan(own)]
        if known.size < 2 or np.median(known) <= 0:
            return
        job_id = key[0]
        ratios = self._to_peers(job_id, ranks, own)
        rows = self._rank_rows(job_id, ranks)
        self.own_ratio.add(rows, max(share[2] for share in shares), ratios)
        worst = int(np.nanargmax(ratios))
        if ratios[worst] > _SLOW:
            self.slow_counts[job_id, int(ranks[worst])] += 1
        for index in np.flatnonzero(ratios > _SLOW):
            name = (job_id, int(ranks[index]))
            self.worst_ratio[name] = max(float(ratios[index]), self.worst_ratio.get(name, 0.0))

    def _to_peers(self, job_id: str, ranks: NDArray[np.int64], own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Own time over the median of the ranks of the same pipeline stage, which have the same work."""
        stages = np.array([self.stages.get((job_id, int(rank)), 0) for rank in ranks]) if self.stages else None
        if stages is None:
            return own / np.nanmedian(own)
        ratios = np.full(len(own), np.nan)
        for stage in np.unique(stages):
            peers = stages == stage
            if not np.isnan(own[peers]).all():
                ratios[peers] = own[peers] / max(1.0, float(np.nanmedian(own[peers])))
        return ratios

    def _rank_rows(self, job_id: str, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        kept = self._rows.get(("ranks", job_id))
        if kept is None or len(kept) <= int(ranks.max()):
            kept = np.full(int(ranks.max()) + 1, -1, dtype=np.int64) if int(ranks.max()) < 1 << 22 else None
            if kept is None:
                return self.own_ratio.rows_of([(job_id, int(rank)) for rank in ranks])
            self._rows["ranks", job_id] = kept
        new = ranks[kept[ranks] < 0]
        if new.size:
            kept[new] = self.own_ratio.rows_of([(job_id, int(rank)) for rank in new])
        return kept[ranks]


def _column(values: tuple[int | None, ...] | None, length: int) -> NDArray[np.float64]:
    if values is None:
        return np.full(length, np.nan)
    return np.array(values, dtype=np.float64)

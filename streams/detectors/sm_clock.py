"""SM clock: a busy GPU that runs well below what its part, or its peers, run at. An observation, never a verdict.

It fires below 90 % of the part's base clock where that is known, else below 90 % of the busy GPUs of the same part and
job on the node, and in both cases only below 1,200 MHz (per part settable). Look-alikes that it passes over: idle GPUs,
application clocks set by the owner, and a fall of all peers alike (a power cap or a hall at its limit): a node whose
busy GPUs all fell cannot be told from that here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas import gpu_parts
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, span_at_pace
from streams.detectors.gpu_frames import APPLICATION_CLOCKS, are_busy, gpu_rows, gpu_subject, peer_group, skus, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.roster import Roster

__all__ = ["SmClock", "SmClockThresholds"]

RULE = "sm_clock"


@dataclass(frozen=True, slots=True)
class SmClockThresholds:
    """Thresholds of the rule.

    Attributes:
        base_share: share of the part's base clock (ratio).
        peer_share: share of the peers' median (ratio).
        ceiling_mhz: never fires at or above this clock. 1,200 MHz is far below the sustained clock of an H100 (about
            1,755 to 1,980 MHz) and near the base clock of an A100.
        hits, span_ns: fires when the condition held in this many samples of the span, or of as many frames of a slower node.
    """

    base_share: float = 0.9
    peer_share: float = 0.9
    ceiling_mhz: float = 1200.0
    hits: int = 3
    span_ns: int = 5_000_000_000


class _GpuClock(SubjectState):
    __slots__ = ("edge", "hits", "last_ns")

    def __init__(self) -> None:
        self.last_ns: int | None = None
        self.hits = TrailingHits(3, 5_000_000_000)
        self.edge = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        return self.hits.is_quiet and self.edge.is_quiet(now_ns)


class SmClock(FrameRule["GpuFrame"]):
    """Watches the clocks of the busy GPUs of many nodes."""

    def __init__(self, site_id: str, defaults: SmClockThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or SmClockThresholds(), RULE)
        self._states = KeyedRows(_GpuClock)
        self._sound_from_mhz: dict[str, float] = {}
        """By node whose GPUs are all at rest, the clock from which on each of them stays so; derived, in no snapshot."""

    def passes_over(self, publisher: str, frame: GpuFrame) -> bool:
        """See `FrameRule`: clocks vary from frame to frame, and hardly one of them is near a limit."""
        clocks, least_mhz = frame.sm_clock_mhz, self._sound_from_mhz.get(publisher)
        if clocks is None:
            return True
        return least_mhz is not None and None not in clocks and min(clocks) >= least_mhz  # type: ignore[type-var, operator]

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        self._sound_from_mhz.pop(frame.node_id, None)
        if frame.sm_clock_mhz is None:
            return
        rows, now_ns = gpu_rows(self._states, frame), frame.event_time_ns
        each = self._limits.of_each(roster.policy, skus(frame))
        busy: list[bool] = []
        groups: list[tuple[str | None, str | None]] = []
        for index, (clock_mhz, limits) in enumerate(zip(frame.sm_clock_mhz, each, strict=True)):
            state = rows.get(index)
            is_under = clock_mhz is not None and clock_mhz < limits.ceiling_mhz
            at_rest = state is None or (limits.hits > 0 and state.is_quiet(now_ns))
            # Nearly every GPU of nearly every frame: nothing below needs to be known of it.
            if at_rest and not is_under:
                continue
            busy = busy or are_busy(frame)
            mask = int(value(frame.clock_event_reasons_mask, index) or 0)
            may_be_low = is_under and busy[index] and not mask & APPLICATION_CLOCKS
            if at_rest and not may_be_low:
                continue
            groups = groups or [peer_group(frame, gpu, roster) for gpu in range(len(frame.gpu_uuid))]
            peer_mhz = _peer_mhz(frame.sm_clock_mhz, index, busy, groups)
            limit_mhz = _limit_mhz(groups[index][0], peer_mhz, limits)
            low = (
                may_be_low
                and clock_mhz is not None
                and limit_mhz is not None
                and clock_mhz < min(limit_mhz, limits.ceiling_mhz)
                # All peers down alike is a cap or a hall, not this device.
                and (peer_mhz is None or clock_mhz < limits.peer_share * peer_mhz)
            )
            if low or state is not None:
                yield from self._statement(frame, index, rows[index], low, limit_mhz, peer_mhz, limits, evidence)
        if rows.are_quiet(now_ns) and all(limits.hits > 0 for limits in each):
            self._sound_from_mhz[frame.node_id] = max((limits.ceiling_mhz for limits in each), default=0.0)

    def _statement(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuClock,
        low: bool,
        limit_mhz: float | None,
        peer_mhz: int | None,
        limits: SmClockThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        since_ns = now_ns - state.last_ns if state.last_ns is not None else None
        state.last_ns = now_ns
        state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, since_ns))
        holds = state.hits.add(now_ns, low)
        edge = state.edge.update(now_ns, holds, state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
        clock_mhz = frame.sm_clock_mhz[index] if frame.sm_clock_mhz is not None else None
        yield self._rule.finding(
            "sm_clock",
            gpu_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"busy at {clock_mhz} MHz, limit {min(limit_mhz or limits.ceiling_mhz, limits.ceiling_mhz):.0f} MHz"
            if edge == "open"
            else f"clock is back at {clock_mhz} MHz",
            values={
                "sm_clock_mhz": clock_mhz,
                "limit_mhz": min(limit_mhz, limits.ceiling_mhz) if limit_mhz is not None else None,
                "peer_median_mhz": peer_mhz,
                "clock_event_reasons_mask": value(frame.clock_event_reasons_mask, index),
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)
        self._sound_from_mhz = {}


def _peer_mhz(
    clocks: tuple[int | None, ...], index: int, busy: list[bool], groups: list[tuple[str | None, str | None]]
) -> int | None:
    """Median clock of the busy GPUs of the same group, this one left out; the higher of two in the middle."""
    peers = sorted(
        clock
        for peer, clock in enumerate(clocks)
        if clock is not None and busy[peer] and peer != index and groups[peer] == groups[index]
    )
    return peers[len(peers) // 2] if peers else None


def _limit_mhz(sku: str | None, peer_mhz: int | None, limits: SmClockThresholds) -> float | None:
    part = gpu_parts.find(sku) if sku is not None else None
    if part is not None and part.base_clock_mhz is not None:
        return limits.base_share * part.base_clock_mhz
    return limits.peer_share * peer_mhz if peer_mhz is not None else None

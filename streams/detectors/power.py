"""Power: a busy GPU that its hardware slowed for power, and one that is capped more than its equals.

`power_slowdown` (warning): the hardware slowdown bit without the bit of hardware heat, or the power brake bit, in 3 samples
at work within 5 s, or in 3 frames of a slower node. `power_cap` (info): the software power cap stood for a share of its working time that is 20 points above
its peers' median. The cap alone says nothing: it is routine under heavy matrix products, so a cap on all peers alike is
passed over. Peers are busy GPUs of the same part and job **on the node**: that a whole node is capped more than others
cannot be seen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, TrailingSum, span_at_pace
from streams.detectors.capped_time import CappedTime, SteadyNode
from streams.detectors.gpu_frames import LOAD, are_busy, gpu_rows, gpu_subject, peer_group, skus, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.counters import Reading
    from streams.core.roster import Roster

__all__ = ["RULE", "Power", "PowerThresholds"]

RULE = "power"

SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
_SLOWED = HW_SLOWDOWN | HW_POWER_BRAKE

_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class PowerThresholds:
    """Thresholds of the rule.

    Attributes:
        hits, span_ns: the slowdown fires when its bit stood in this many samples of the span, or of as many frames of a
            slower node. Compare gpud: unhealthy
            at 6 of 10 one-minute samples; EKS: any bit at all, idle included, which is noisy.
        violation_ns: power violation time in the trailing minute above which the finding calls it high; evidence, never
            a condition. The same 100 ms as for heat, a judgement (DCGM and AKS warn at any increase, HyperPod above 100
            for 5 min without saying of what unit).
        cap_share_above: how far the capped share of working time must be above the peers' median (ratio; 0.2 is 20
            points). A judgement: no public figure was found.
        cap_span_ns: the span over which the share is taken, in ten steps.
        cap_busy_ns: working time that the span must hold before the share counts.
        cap_peers: peers that must be at work as long; with one, nobody can say which of the two is odd.
    """

    hits: int = 3
    span_ns: int = 5_000_000_000
    violation_ns: int = 100_000_000
    cap_share_above: float = 0.20
    cap_span_ns: int = 300_000_000_000
    cap_busy_ns: int = 240_000_000_000
    cap_peers: int = 2


class _GpuPower(SubjectState):
    __slots__ = ("cap_edge", "capped", "counter", "hits", "minute", "slow_edge")

    def __init__(self) -> None:
        self.counter = CounterIncrease()
        self.minute = TrailingSum(_MINUTE_NS)
        self.hits = TrailingHits(3, 5_000_000_000)
        self.slow_edge = EdgeState()
        self.capped = CappedTime()
        self.cap_edge = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        """As to slowdown and violation: the time under the cap moves on with every frame."""
        return not self.minute.total and self.is_fast(now_ns)

    def is_fast(self, now_ns: int) -> bool:
        """Whether one more reading without slowdown changes nothing."""
        return self.slow_edge.is_quiet(now_ns) and self.hits.is_quiet


class Power(FrameRule["GpuFrame"]):
    """Watches the power bits of the busy GPUs of many nodes."""

    columns = ("clock_event_reasons_mask", "power_violation_ns")
    besides = (LOAD,)

    def __init__(self, site_id: str, defaults: PowerThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PowerThresholds(), RULE)
        self._states = KeyedRows(_GpuPower)
        self._steady: dict[str, SteadyNode] = {}

    def passes_over(self, publisher: str, frame: GpuFrame) -> bool:
        """See `FrameRule`: while nothing but time goes by, it is added up for all GPUs of the node together."""
        steady = self._steady.get(publisher)
        if steady is None:
            return frame.clock_event_reasons_mask is None
        return steady.goes_on(frame.event_time_ns)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        masks, violations_ns, now_ns = frame.clock_event_reasons_mask, frame.power_violation_ns, frame.event_time_ns
        steady = self._steady.pop(frame.node_id, None)
        if steady is not None:
            steady.settle()
        if masks is None:
            return
        rows, busy = gpu_rows(self._states, frame), are_busy(frame)
        each = self._limits.of_each(roster.policy, skus(frame))
        slowed = [
            mask is not None and mask & _SLOWED != 0 and busy[index] and not _is_heat(mask)
            for index, mask in enumerate(masks)
        ]
        # A GPU without a mask is not read at all.
        said = violations_ns, slowed, masks if None in masks else None, frame.sku, roster.policy
        stands_still = rows.stand_still(frame.agent_session, now_ns, said)
        shares: dict[int, float] = {}
        capped_until_now = []
        for index, (mask, limits) in enumerate(zip(masks, each, strict=True)):
            if mask is None:
                continue
            state = rows[index]
            share = state.capped.add(now_ns, busy[index], mask & SW_POWER_CAP != 0, limits)
            if share is not None:
                shares[index] = share
            if state.cap_edge.is_open:
                capped_until_now.append(index)
            if not stands_still:
                if violations_ns is not None:
                    _read_violation(state, rows.reading, violations_ns[index])
                if slowed[index] or limits.hits <= 0 or not state.is_fast(now_ns):
                    yield from self._slowdown(frame, index, state, slowed[index], mask, limits, evidence)
        if not stands_still:
            rows.rest()
        # No median is below the least share: where even that is near, nobody's peers need be known.
        least = min(shares.values(), default=0.0)
        above = [index for index, share in shares.items() if share - least > each[index].cap_share_above]
        groups = {peer: peer_group(frame, peer, roster) for peer in shares} if above else {}
        for index in sorted({*above, *capped_until_now}):
            peers = [
                shares[peer] for peer in shares if index in above and peer != index and groups[peer] == groups[index]
            ]
            yield from self._cap(frame, index, rows[index], shares.get(index), peers, each[index], evidence)
        if rows.is_at_rest and not above and not capped_until_now and None not in masks:
            capped = [mask is not None and mask & SW_POWER_CAP != 0 for mask in masks]
            gpus = [rows[index].capped for index in range(len(masks))]
            self._steady[frame.node_id] = SteadyNode(rows.reading, gpus, busy, capped, shares, each)

    def _slowdown(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuPower,
        slowed: bool,
        mask: int,
        limits: PowerThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, state.capped.since_ns))
        holds = state.hits.add(now_ns, slowed)
        edge = state.slow_edge.update(now_ns, holds, state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.slow_edge.tell(edge)
        violation_ns = state.minute.total if frame.power_violation_ns is not None else None
        bit = "hardware power brake" if mask & HW_POWER_BRAKE else "hardware slowdown"
        yield self._rule.finding(
            "power_slowdown",
            gpu_subject(frame, index),
            state=edge,
            severity="warning",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{bit} in {limits.hits} samples at work, {value(frame.sm_clock_mhz, index)} MHz"
            if edge == "open"
            else "no slowdown for power for a minute",
            values={
                "clock_event_reasons_mask": mask,
                "power_violation_ns_in_minute": violation_ns,
                "power_violation_is_high": violation_ns > limits.violation_ns if violation_ns is not None else None,
                "power_w": value(frame.power_w, index),
                "power_limit_w": value(frame.power_limit_w, index),
                "sm_clock_mhz": value(frame.sm_clock_mhz, index),
            },
            evidence=evidence,
        )

    def _cap(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuPower,
        share: float | None,
        peers: list[float],
        limits: PowerThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        peer_share = median(peers) if peers and len(peers) >= limits.cap_peers else None
        holds = share is not None and peer_share is not None and share - peer_share > limits.cap_share_above
        now_ns = frame.event_time_ns
        edge = state.cap_edge.update(now_ns, holds)
        if edge is None:
            return
        onset_ns = state.cap_edge.tell(edge)
        yield self._rule.finding(
            "power_cap",
            gpu_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"under the power cap for {share or 0:.0%} of its working time, its peers for {peer_share or 0:.0%}"
            if edge == "open"
            else "under the power cap no longer than its peers",
            values={
                "capped_share": share,
                "peer_median_share": peer_share,
                "limit_share_above": limits.cap_share_above,
                "power_w": value(frame.power_w, index),
                "power_limit_w": value(frame.power_limit_w, index),
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        for steady in self._steady.values():
            steady.settle()
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)
        self._steady = {}


def _is_heat(mask: int) -> bool:
    """Whether it is heat that slows: the driver sets the general slowdown bit with that of hardware heat."""
    return bool(mask & HW_THERMAL) and not mask & HW_POWER_BRAKE


def _read_violation(state: _GpuPower, reading: Reading, counter_ns: int | None) -> None:
    """Take the power violation time into the trailing minute."""
    step = state.counter.read_in(reading, counter_ns)
    # A device cannot be in violation for longer than the time that passed: such a reading is in another unit.
    plausible = step is not None and step[0] <= 2 * step[1]
    state.minute.add(reading.at_ns, step[0] if step is not None and plausible else 0)

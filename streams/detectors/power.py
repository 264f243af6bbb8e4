"""Power: a busy GPU that its hardware slowed for power, and one that is capped more than its equals.

`power_slowdown` (warning): the hardware slowdown bit without the bit of hardware heat, or the power brake bit, in 3 of 5
samples at work. `power_cap` (info): the software power cap stood for a share of its working time that is 20 points above
its peers' median. The cap alone says nothing: it is routine under heavy matrix products, so a cap on all peers alike is
passed over. Peers are busy GPUs of the same part and job **on the node**: that a whole node is capped more than others
cannot be seen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.keyed import Keyed, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, TrailingSum
from streams.detectors.gpu_frames import gpu_key, gpu_subject, is_busy, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.roster import Roster

__all__ = ["RULE", "Power", "PowerThresholds"]

RULE = "power"

SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80

_MINUTE_NS = 60_000_000_000
_LONGEST_SAMPLE_NS = 60_000_000_000
_BUCKETS = 10


@dataclass(frozen=True, slots=True)
class PowerThresholds:
    """Thresholds of the rule.

    Attributes:
        hits, span_ns: the slowdown fires when its bit stood in this many samples of the span. Compare gpud: unhealthy
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


class _CappedTime:
    """Working time and capped working time of the last span, in buckets: ten pairs of numbers, whatever the tick."""

    __slots__ = ("_buckets", "_last_ns")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []
        self._last_ns: int | None = None

    def add(self, now_ns: int, busy: bool, capped: bool, span_ns: int) -> None:
        """A sample speaks for the time since the one before it; one that is over a minute after it, for none."""
        since_ns = now_ns - self._last_ns if self._last_ns is not None else 0
        self._last_ns = now_ns
        while self._buckets and self._buckets[0][0] <= now_ns - span_ns:
            del self._buckets[0]
        if not busy or not 0 < since_ns <= _LONGEST_SAMPLE_NS:
            return
        start_ns = now_ns - now_ns % max(1, span_ns // _BUCKETS)
        if not self._buckets or self._buckets[-1][0] < start_ns:
            self._buckets.append([start_ns, 0, 0])
        self._buckets[-1][1] += since_ns
        self._buckets[-1][2] += since_ns if capped else 0

    def share(self, busy_ns: int) -> float | None:
        """Capped share of the working time (ratio); None below so much working time."""
        worked_ns = sum(bucket[1] for bucket in self._buckets)
        if worked_ns < max(1, busy_ns):
            return None
        return sum(bucket[2] for bucket in self._buckets) / worked_ns

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [self._last_ns, [list(bucket) for bucket in self._buckets]]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._last_ns = snapshot[0]
        self._buckets = [list(bucket) for bucket in snapshot[1]]


class _GpuPower(SubjectState):
    __slots__ = ("cap_edge", "capped", "counter", "hits", "minute", "slow_edge")

    def __init__(self) -> None:
        self.counter = CounterIncrease()
        self.minute = TrailingSum(_MINUTE_NS)
        self.hits = TrailingHits(3, 5_000_000_000)
        self.slow_edge = EdgeState()
        self.capped = _CappedTime()
        self.cap_edge = EdgeState()


class Power:
    """Watches the power bits of the busy GPUs of many nodes."""

    def __init__(self, site_id: str, defaults: PowerThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PowerThresholds(), RULE)
        self._states: Keyed[_GpuPower] = Keyed(_GpuPower)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        if frame.clock_event_reasons_mask is None:
            return
        skus = frame.sku or (None,) * len(frame.gpu_uuid)
        limits = {sku: self._limits.of(roster.policy, sku) for sku in {*skus}}
        now_ns = frame.event_time_ns
        shares: dict[int, float] = {}
        for index, mask in enumerate(frame.clock_event_reasons_mask):
            if mask is None:
                continue
            state = self._states[f"{frame.node_id}/{gpu_key(frame, index)}"]
            busy = is_busy(frame, index)
            of_gpu = limits[skus[index]]
            state.capped.add(now_ns, busy, bool(mask & SW_POWER_CAP), of_gpu.cap_span_ns)
            share = state.capped.share(of_gpu.cap_busy_ns) if busy else None
            if share is not None:
                shares[index] = share
            yield from self._slowdown(frame, index, state, busy, mask, of_gpu, evidence)
        least = min(shares.values(), default=0.0)
        groups: dict[int, tuple[str | None, str | None]] | None = None
        for index, mask in enumerate(frame.clock_event_reasons_mask):
            if mask is None:
                continue
            share, of_gpu = shares.get(index), limits[skus[index]]
            peers: list[float] = []
            # No median is below the least share: where even that is near, nobody's peers need be known.
            if share is not None and share - least > of_gpu.cap_share_above:
                groups = groups or {peer: _group(frame, peer, roster) for peer in shares}
                peers = [shares[peer] for peer in shares if peer != index and groups[peer] == groups[index]]
            yield from self._cap(frame, index, share, peers, of_gpu, evidence)

    def _slowdown(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuPower,
        busy: bool,
        mask: int,
        limits: PowerThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        violation_ns = self._violation_ns(frame, index, state)
        # The driver sets the general slowdown bit with that of hardware heat: then it is heat that slows.
        slowed = bool(mask & HW_POWER_BRAKE) or (bool(mask & HW_SLOWDOWN) and not mask & HW_THERMAL)
        state.hits.configure(limits.hits, limits.span_ns)
        holds = state.hits.add(now_ns, busy and slowed)
        edge = state.slow_edge.update(now_ns, holds, state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.slow_edge.onset_ns if edge == "open" else state.slow_edge.close()
        assert onset_ns is not None
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

    @staticmethod
    def _violation_ns(frame: GpuFrame, index: int, state: _GpuPower) -> int | None:
        """Power violation time of the trailing minute; None where the node does not say."""
        if frame.power_violation_ns is None:
            return None
        step = state.counter.read(frame.agent_session, frame.event_time_ns, frame.power_violation_ns[index])
        # A device cannot be in violation for longer than the time that passed: such a reading is in another unit.
        plausible = step is not None and step[0] <= 2 * step[1]
        return state.minute.add(frame.event_time_ns, step[0] if step is not None and plausible else 0)

    def _cap(
        self,
        frame: GpuFrame,
        index: int,
        share: float | None,
        peers: list[float],
        limits: PowerThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        state = self._states[f"{frame.node_id}/{gpu_key(frame, index)}"]
        peer_share = median(peers) if peers and len(peers) >= limits.cap_peers else None
        holds = share is not None and peer_share is not None and share - peer_share > limits.cap_share_above
        now_ns = frame.event_time_ns
        edge = state.cap_edge.update(now_ns, holds)
        if edge is None:
            return
        onset_ns = state.cap_edge.onset_ns if edge == "open" else state.cap_edge.close()
        assert onset_ns is not None
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
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)


def _group(frame: GpuFrame, index: int, roster: Roster) -> tuple[str | None, str | None]:
    """Part and job of a GPU: its peers share both."""
    sku = frame.sku[index] if frame.sku is not None else None
    pci_bus_id = frame.pci_bus_id[index] if frame.pci_bus_id is not None else None
    seat = roster.rank_of(frame.node_id, frame.gpu_uuid[index], pci_bus_id)
    return sku, seat[0] if seat is not None else None

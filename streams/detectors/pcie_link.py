"""PCIe link: a GPU that is connected by fewer lanes or at a lower speed than it could be, or whose link replays.

`pcie_link` (warning): a width below the maximum, in two samples, at work or not; or a generation below the maximum, in 3
of 5 samples **at work**: an idle link trains down to save power, and that is normal. `pcie_replay` (info): more replays
in a minute than the bit error rate of the generation explains. A device that is gone reads as width 63 and generation 0:
that is no link, never a number, and changes nothing here (the codes say that it is gone). A GPU that is gone and still
reads its last healthy values cannot be told here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, TrailingSum, span_at_pace
from streams.detectors.gpu_frames import LOAD, are_busy, gpu_rows, gpu_subject, skus, value
from streams.detectors.pcie_reading import LOST_WIDTH, gigabytes_per_s, read_pcie

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster
    from streams.detectors.pcie_reading import PcieReading

__all__ = ["RULE", "PcieLink", "PcieLinkThresholds", "gigabytes_per_s", "replays_per_minute"]

RULE = "pcie_link"

_REPLAYS_PER_MINUTE_AND_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""What a bit error rate of 10^-12 explains, by generation (DCGM's health watch): Gen4 x16 is 16, Gen5 x16 is 31."""

_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class PcieLinkThresholds:
    """Thresholds of the rule.

    Attributes:
        width_hits: samples of the span in which the width must be below its maximum. It does not vary with load, so two
            are enough to pass over one misread.
        generation_hits: samples of the span, at work, in which the generation must be below its maximum.
        span_ns: the span; of a node that is read more seldom as many frames as must hit.
        replay_factor: multiple of DCGM's limit of replays per minute above which it fires (ratio). AKS taints above 5 in
            5 min whatever the link.
    """

    width_hits: int = 2
    generation_hits: int = 3
    span_ns: int = 5_000_000_000
    replay_factor: float = 1.0


class _GpuLink(SubjectState):
    __slots__ = ("edge", "minute", "narrow", "replay", "replay_edge", "slow", "was_slow", "watched_ns")

    def __init__(self) -> None:
        self.watched_ns: int | None = None
        """When the width or the generation was last looked at: a sound link is not, nor one that rests at a low generation."""
        self.was_slow = False
        self.narrow = TrailingHits(2, 5_000_000_000)
        self.slow = TrailingHits(3, 5_000_000_000)
        self.edge = EdgeState()
        self.replay = CounterIncrease()
        self.minute = TrailingSum(_MINUTE_NS)
        self.replay_edge = EdgeState()

    def is_sound(self, now_ns: int) -> bool:
        """Whether one more reading that is neither narrow nor low changes nothing."""
        return self.edge.is_quiet(now_ns) and self.narrow.is_quiet and self.slow.is_quiet

    def is_quiet(self, now_ns: int) -> bool:
        return self.is_sound(now_ns) and not self.minute.total and self.replay_edge.is_quiet(now_ns)


def replays_per_minute(generation: int | None, lanes: int | None) -> int | None:
    """How many replays in a minute the link's bit error rate explains; None for what is not known."""
    per_lane = _REPLAYS_PER_MINUTE_AND_LANE.get(generation or 0)
    if per_lane is None or not lanes or lanes == LOST_WIDTH:
        return None
    # In hundredths: 16 * 0.15 must not become 2.4000000000000004, nor 20 * 0.15 more than 3.
    return ceil(lanes * round(per_lane * 100) / 100)


class PcieLink(FrameRule["GpuFrame"]):
    """Watches the PCIe links of many nodes' GPUs."""

    columns = (
        "clock_event_reasons_mask",
        "pcie_link_gen",
        "pcie_link_width",
        "pcie_max_link_gen",
        "pcie_max_link_width",
        "pcie_replay_count",
    )
    besides = (LOAD,)

    def __init__(self, site_id: str, defaults: PcieLinkThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PcieLinkThresholds(), RULE)
        self._states = KeyedRows(_GpuLink)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        if frame.pcie_link_width is None and frame.pcie_link_gen is None:
            return
        rows, now_ns = gpu_rows(self._states, frame), frame.event_time_ns
        # Only of a link whose generation is below the maximum does it matter whether the GPU is at work.
        may_be_low = frame.pcie_link_gen != frame.pcie_max_link_gen
        busy = are_busy(frame) if may_be_low else [False] * len(frame.gpu_uuid)
        said = (
            frame.pcie_link_gen,
            frame.pcie_link_width,
            frame.pcie_max_link_gen,
            frame.pcie_max_link_width,
            frame.pcie_replay_count,
            busy,
            frame.sku,
            roster.policy,
        )
        if rows.stand_still(frame.agent_session, now_ns, said):
            return
        for index, limits in enumerate(self._limits.of_each(roster.policy, skus(frame))):
            link = read_pcie(frame, index)
            if link is None:
                continue
            state = rows[index]
            is_sound = not link.is_narrow and not (link.is_low and busy[index]) and state.is_sound(now_ns)
            if not is_sound or limits.width_hits <= 0 or limits.generation_hits <= 0:
                yield from self._degraded(frame, index, state, link, busy[index], limits, evidence)
            count = value(frame.pcie_replay_count, index)
            if count is None:
                continue
            step = state.replay.read_in(rows.reading, int(count))
            replays = state.minute.add(now_ns, step[0] if step is not None else 0)
            if replays or state.replay_edge.is_open:
                yield from self._replays(frame, index, state, replays, link, busy[index], limits, evidence)
        rows.rest()

    def _degraded(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuLink,
        link: PcieReading,
        busy: bool,
        limits: PcieLinkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        since_ns = now_ns - state.watched_ns if state.watched_ns is not None else None
        state.watched_ns = now_ns
        state.narrow.configure(limits.width_hits, span_at_pace(limits.width_hits, limits.span_ns, since_ns))
        state.slow.configure(limits.generation_hits, span_at_pace(limits.generation_hits, limits.span_ns, since_ns))
        narrow = state.narrow.add(now_ns, link.is_narrow)
        slow = state.slow.add(now_ns, link.is_low and busy)
        if narrow or slow:
            state.was_slow = slow
        elif state.was_slow and link.is_low and not busy and state.edge.is_open:
            # At rest the low generation that was found says nothing more: neither that it stands nor that it is over.
            return
        onsets = [hits.first_ns for hits, held in ((state.narrow, narrow), (state.slow, slow)) if held]
        edge = state.edge.update(now_ns, narrow or slow, min((at for at in onsets if at is not None), default=None))
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
        # An idle link's generation says nothing of what it can carry: only a low one at work is counted as a loss.
        judged = link.generation if slow or link.max_generation is None else link.max_generation
        speeds = link.speeds(judged)
        lost = speeds["gb_per_s_lost"]
        yield self._rule.finding(
            "pcie_link",
            gpu_subject(frame, index),
            state=edge,
            severity="warning",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"PCIe {link.words}, could be {link.words_at_best}"
            + (f": {lost:.1f} GB/s lost" if lost is not None else "")
            if edge == "open"
            else f"PCIe is back at {link.words}",
            values={
                "link_width": link.width,
                "max_link_width": link.max_width,
                "link_gen": link.generation,
                "max_link_gen": link.max_generation,
                "width_is_low": narrow,
                "generation_is_low": slow,
                **speeds,
            },
            evidence=evidence,
        )

    def _replays(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuLink,
        replays: int,
        link: PcieReading,
        busy: bool,
        limits: PcieLinkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        # Trained down, a link may replay less; what it did at work a moment ago must not be held against that.
        judged = link.generation if busy or link.max_generation is None else link.max_generation
        explained = replays_per_minute(judged, link.width or link.max_width)
        if explained is None:
            return
        limit = limits.replay_factor * explained
        edge = state.replay_edge.update(now_ns, replays > limit)
        if edge is None:
            return
        onset_ns = state.replay_edge.tell(edge)
        yield self._rule.finding(
            "pcie_replay",
            gpu_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{replays} PCIe replays in the trailing minute, limit {limit:.0f}"
            if edge == "open"
            else f"PCIe replays fell to {replays} in the trailing minute",
            values={
                "replays_in_minute": replays,
                "limit_replays_in_minute": limit,
                "link_width": link.width,
                "link_gen": link.generation,
            },
            evidence=evidence,
        )

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.pcie_link_width is None and frame.pcie_link_gen is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.node_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)

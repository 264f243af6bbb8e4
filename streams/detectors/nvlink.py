"""NVLink errors: CRC errors of a GPU's links at a rate that costs throughput.

It fires when the CRC counter (flit and data, all links of the GPU together) grew by more than 10 a second in 3 of 5
samples. A rate and not a total: links correct single errors by replay, and old counts are no news. Passed over: a
counter that begins anew, an agent that restarts, a single burst. Which of the GPU's links errs is not in the frames; a
broken link also prints Xid 74 or 144 to 150, which the code rule reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, span_at_pace
from streams.detectors.gpu_frames import gpu_rows, gpu_subject, skus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.counters import Reading
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "NvlinkErrors", "NvlinkThresholds"]

RULE = "nvlink_errors"


@dataclass(frozen=True, slots=True)
class NvlinkThresholds:
    """Thresholds of the rule.

    Attributes:
        crc_errors_per_s: CRC errors per second above which a sample counts. Sources disagree: AKS drains at any in a
            minute, GCM fails above 0, DCGM warns from 1 a minute and fails from 100 a second. 10 a second is a judgement
            between DCGM's two levels.
        hits, span_ns: fires when the rate was above in this many samples of the span, or of as many frames of a slower node.
    """

    crc_errors_per_s: float = 10.0
    hits: int = 3
    span_ns: int = 5_000_000_000


class _GpuLinks(SubjectState):
    __slots__ = ("crc", "edge", "hits", "peak_per_s", "replay")

    def __init__(self) -> None:
        self.crc = CounterIncrease()
        self.replay = CounterIncrease()
        self.hits = TrailingHits(3, 5_000_000_000)
        self.edge = EdgeState()
        self.peak_per_s = 0.0

    def is_quiet(self, now_ns: int) -> bool:
        return self.hits.is_quiet and self.edge.is_quiet(now_ns)


class NvlinkErrors(FrameRule["GpuFrame"]):
    """Watches the NVLink counters of many nodes' GPUs."""

    columns = ("nvlink_crc_errors", "nvlink_replay_errors")

    def __init__(self, site_id: str, defaults: NvlinkThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or NvlinkThresholds(), RULE)
        self._states = KeyedRows(_GpuLinks)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        counts, replays = frame.nvlink_crc_errors, frame.nvlink_replay_errors
        if counts is None:
            return
        rows = gpu_rows(self._states, frame)
        said = counts, replays, frame.sku, roster.policy
        if rows.stand_still(frame.agent_session, frame.event_time_ns, said):
            return
        each = self._limits.of_each(roster.policy, skus(frame))
        for index, (count, limits) in enumerate(zip(counts, each, strict=True)):
            if count is None:
                continue
            state = rows[index]
            replay_per_s = _per_s(state.replay, rows.reading, replays[index] if replays is not None else None)
            step = state.crc.read_in(rows.reading, count)
            if step is not None and step[1] > 0:
                state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, step[1]))
                crc_per_s = step[0] * 1e9 / step[1]
                yield from self._statement(frame, index, state, crc_per_s, replay_per_s, limits, evidence)
        rows.rest()

    def _statement(
        self,
        frame: GpuFrame,
        index: int,
        state: _GpuLinks,
        crc_per_s: float,
        replay_per_s: float | None,
        limits: NvlinkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        above = crc_per_s > limits.crc_errors_per_s
        if above:
            state.peak_per_s = max(crc_per_s, state.peak_per_s)
        edge = state.edge.update(now_ns, state.hits.add(now_ns, above), state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
        yield self._rule.finding(
            "nvlink_errors",
            gpu_subject(frame, index),
            state=edge,
            severity="warning",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{crc_per_s:.0f} NVLink CRC errors/s, limit {limits.crc_errors_per_s:.0f}"
            if edge == "open"
            else f"NVLink CRC errors fell to {crc_per_s:.0f}/s",
            values={
                "crc_errors_per_s": crc_per_s,
                "replays_per_s": replay_per_s,
                "limit_crc_errors_per_s": limits.crc_errors_per_s,
                "peak_crc_errors_per_s": state.peak_per_s,
            },
            evidence=evidence,
        )
        if edge == "cleared":
            state.peak_per_s = 0.0

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.nvlink_crc_errors is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.node_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)


def _per_s(counter: CounterIncrease, reading: Reading, count: int | None) -> float | None:
    """Errors per second since the last reading; None where this one is a baseline or unknown."""
    step = counter.read_in(reading, count)
    return step[0] * 1e9 / step[1] if step is not None and step[1] > 0 else None

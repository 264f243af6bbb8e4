"""Thermal violation: a GPU that its own firmware slowed for heat. An observation: alone it costs nobody a node.

It fires when the violation counter (cumulative nanoseconds, DCGM field 241) grew by more than 100 ms within the
trailing minute, and is cleared when it has not grown for a minute.
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
from streams.core.trailing import TrailingSum
from streams.detectors.gpu_frames import gpu_rows, gpu_subject, skus, value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["ThermalThresholds", "ThermalViolation"]

RULE = "thermal_violation"
_SPAN_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class ThermalThresholds:
    """Thresholds of the rule.

    Attributes:
        violation_ns: more than this much violation time in the trailing minute. 100 ms is 0.17 % of it; field rules that
            fire on any increase are noisy on air-cooled fleets (see docs/rules.md).
    """

    violation_ns: int = 100_000_000


class _GpuHeat(SubjectState):
    __slots__ = ("counter", "edge", "minute")

    def __init__(self) -> None:
        self.counter = CounterIncrease()
        self.minute = TrailingSum(_SPAN_NS)
        self.edge = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        return not self.minute.total and self.edge.is_quiet(now_ns)


class ThermalViolation(FrameRule["GpuFrame"]):
    """Watches the violation counters of many nodes."""

    columns = ("thermal_violation_ns",)

    def __init__(self, site_id: str, defaults: ThermalThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or ThermalThresholds(), RULE)
        self._states = KeyedRows(_GpuHeat)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        counters_ns, now_ns = frame.thermal_violation_ns, frame.event_time_ns
        if counters_ns is None:
            return
        rows = gpu_rows(self._states, frame)
        if rows.stand_still(frame.agent_session, now_ns, (counters_ns, frame.sku, roster.policy)):
            return
        each = self._limits.of_each(roster.policy, skus(frame))
        cleared = False
        for index, (counter_ns, limits) in enumerate(zip(counters_ns, each, strict=True)):
            state = rows[index]
            step = state.counter.read_in(rows.reading, counter_ns)
            increase_ns = step[0] if step is not None else 0
            # A device cannot be in violation for longer than the time that passed: such a reading is in another unit.
            if step is not None and increase_ns > 2 * step[1]:
                continue
            violation_ns = state.minute.add(now_ns, increase_ns)
            # The window itself is the quiet minute: an open statement stands until nothing is left in it.
            holds = violation_ns > (0 if state.edge.is_open else limits.violation_ns)
            edge = state.edge.update(now_ns, holds, quiet_ns=0)
            if edge is None:
                continue
            onset_ns = state.edge.tell(edge)
            cleared = cleared or edge == "cleared"
            yield self._rule.finding(
                "thermal_violation",
                gpu_subject(frame, index),
                state=edge,
                severity="info",
                event_time_ns=now_ns,
                onset_ns=onset_ns,
                explanation=f"{violation_ns // 10**6} ms of thermal violation in the trailing minute"
                if edge == "open"
                else "no thermal violation for a minute",
                values={
                    "violation_ns_in_minute": violation_ns,
                    "limit_ns": limits.violation_ns,
                    "gpu_temp_c": value(frame.gpu_temp_c, index),
                    "sm_clock_mhz": value(frame.sm_clock_mhz, index),
                    "clock_event_reasons_mask": value(frame.clock_event_reasons_mask, index),
                },
                evidence=evidence,
            )
        # What a cleared statement was held against is not what the next one is.
        rows.rest(if_also=not cleared)

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.thermal_violation_ns is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.node_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)

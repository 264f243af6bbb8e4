"""PFC pause: a port that is told to stop, or tells others to, more than 100 times a second.

Receive and transmit are kept apart: a port that *receives* pause is stopped by its peer and is a victim as a rule; a
port that *transmits* pause stops others and may be the source. Which port is to blame is decided across ports, by
direction, never by who has more. Both fire when the rate held in 3 of 5 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from schemas.findings import Subject
from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.keyed import Keyed, SubjectState
from streams.core.statement import Rule
from streams.core.thresholds import thresholds_for
from streams.core.trailing import TrailingHits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.roster import Roster

__all__ = ["PfcPause", "PfcThresholds"]

RULE = "pfc_pause"
Direction = Literal["rx", "tx"]


@dataclass(frozen=True, slots=True)
class PfcThresholds:
    """Thresholds of the rule.

    Attributes:
        frames_per_s: pause frames per second above which a second counts. A healthy lossless fabric marks ECN and pauses
            almost never.
        hits, span_ns: fires when the rate was above in this many samples of the span.
        quiet_ns: cleared after this long at or below the rate.
    """

    frames_per_s: float = 100.0
    hits: int = 3
    span_ns: int = 5_000_000_000
    quiet_ns: int = 10_000_000_000


class _PortDirection(SubjectState):
    __slots__ = ("edge", "hits", "peak_frames_per_s")

    def __init__(self) -> None:
        self.hits = TrailingHits(3, 5_000_000_000)
        self.edge = EdgeState()
        self.peak_frames_per_s = 0.0


class _Counter(SubjectState):
    __slots__ = ("increase",)

    def __init__(self) -> None:
        self.increase = CounterIncrease()


class PfcPause:
    """Watches the pause counters of many nodes' and switches' ports."""

    def __init__(self, site_id: str, defaults: PfcThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._defaults = defaults or PfcThresholds()
        self._ports: Keyed[_PortDirection] = Keyed(_PortDirection)
        self._counters: Keyed[_Counter] = Keyed(_Counter)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        limits = thresholds_for(self._defaults, roster.policy, RULE)
        rates = {direction: self._rates(frame, direction) for direction in ("rx", "tx")}
        for index in range(len(frame.device)):
            for direction in ("rx", "tx"):
                rate = rates[direction].get(index)
                if rate is None:
                    continue
                yield from self._statement(frame, index, direction, rate, rates, limits, evidence)

    def _statement(
        self,
        frame: FabricFrame,
        index: int,
        direction: str,
        rate: float,
        rates: dict[str, dict[int, float]],
        limits: PfcThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        key = f"{frame.publisher_id}/{frame.device[index]}/{frame.port[index]}/{direction}"
        above = rate > limits.frames_per_s
        if not above and key not in self._ports:
            return
        state = self._ports[key]
        state.hits.configure(limits.hits, limits.span_ns)
        if above:
            state.peak_frames_per_s = max(rate, state.peak_frames_per_s)
        now_ns = frame.event_time_ns
        holds = state.hits.add(now_ns, above)
        edge = state.edge.update(now_ns, holds, state.hits.first_ns, limits.quiet_ns)
        if edge is None:
            return
        onset_ns = state.edge.onset_ns if edge == "open" else state.edge.close()
        assert onset_ns is not None
        opposite = rates["tx" if direction == "rx" else "rx"].get(index)
        word = "received" if direction == "rx" else "transmitted"
        yield self._rule.finding(
            "pfc_pause" if direction == "rx" else "pfc_pause_transmit",
            Subject(
                level="port",
                node_id=frame.node_id,
                switch_id=frame.switch_id,
                device=frame.device[index],
                port=frame.port[index],
            ),
            state=edge,
            severity="warning" if direction == "rx" else "info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{rate:.0f} pause frames/s {word}, limit {limits.frames_per_s:.0f}"
            if edge == "open"
            else f"pause frames {word} fell to {rate:.0f}/s",
            values={
                f"{direction}_pause_frames_per_s": rate,
                f"{'tx' if direction == 'rx' else 'rx'}_pause_frames_per_s": opposite,
                "limit_frames_per_s": limits.frames_per_s,
                "peak_frames_per_s": state.peak_frames_per_s,
                "view": frame.view,
                "peer": frame.peer[index] if frame.peer is not None else None,
            },
            evidence=evidence,
        )
        if edge == "cleared":
            state.peak_frames_per_s = 0.0

    def _rates(self, frame: FabricFrame, direction: str) -> dict[int, float]:
        """Pause frames per second by port, all priorities together; absent where no counter says."""
        per_priority = frame.rx_pause_frames if direction == "rx" else frame.tx_pause_frames
        readings = [
            (port, f"prio{priority}", count)
            for port, priority, count in zip(frame.pfc_port, frame.pfc_priority, per_priority, strict=True)
        ]
        link_level = frame.rx_global_pause_frames if direction == "rx" else frame.tx_global_pause_frames
        if link_level is not None:
            readings += [(port, "global", count) for port, count in enumerate(link_level)]
        rates: dict[int, float] = {}
        for port, name, count in readings:
            key = f"{frame.publisher_id}/{frame.device[port]}/{frame.port[port]}/{direction}/{name}"
            step = self._counters[key].increase.read(frame.agent_session, frame.event_time_ns, count)
            if step is not None and step[1] > 0:
                rates[port] = rates.get(port, 0.0) + step[0] * 1e9 / step[1]
        return rates

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return {"ports": self._ports.snapshot(), "counters": self._counters.snapshot()}

    def restore(self, snapshot: dict[str, dict[str, object]]) -> None:
        """Replace the state by a snapshot's."""
        self._ports.restore(snapshot["ports"])
        self._counters.restore(snapshot["counters"])

"""PFC pause: a port that is told to stop, or tells others to, more than 100 times a second.

Receive and transmit are kept apart: a port that *receives* pause is stopped by its peer and is a victim as a rule; a
port that *transmits* pause stops others and may be the source. Which port is to blame is decided across ports, by
direction, never by who has more. Both fire when the rate held in 3 samples within 5 s, or in 3 readings of a slower source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from schemas.findings import Subject
from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, span_at_pace
from streams.detectors.port_frames import port_key, port_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
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
        hits, span_ns: fires when the rate was above in this many samples of the span, or of as many readings of a slower source.
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

    def is_quiet(self, now_ns: int) -> bool:
        return self.hits.is_quiet and self.edge.is_quiet(now_ns)


class _Counter(SubjectState):
    __slots__ = ("increase",)

    def __init__(self) -> None:
        self.increase = CounterIncrease()

    def is_quiet(self, now_ns: int) -> bool:  # noqa: ARG002
        return True


class PfcPause(FrameRule["FabricFrame"]):
    """Watches the pause counters of many nodes' and switches' ports."""

    columns = (
        "pfc_port",
        "pfc_priority",
        "rx_pause_frames",
        "tx_pause_frames",
        "rx_global_pause_frames",
        "tx_global_pause_frames",
    )

    def __init__(self, site_id: str, defaults: PfcThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PfcThresholds(), RULE)
        self._ports = KeyedRows(_PortDirection)
        self._counters = KeyedRows(_Counter)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        limits = self._limits.of(roster.policy)
        counters = self._counters_of(frame)
        counts = (
            *frame.rx_pause_frames,
            *(frame.rx_global_pause_frames or ()),
            *frame.tx_pause_frames,
            *(frame.tx_global_pause_frames or ()),
        )
        if counters.stand_still(frame.agent_session, frame.event_time_ns, (counts, roster.policy)):
            return
        rates, since_ns = self._rates(frame, counters, counts)
        ports = port_rows(self._ports, frame, "rx", "tx")
        for index in range(len(frame.device)):
            for direction, row in (("rx", index), ("tx", index + len(frame.device))):
                rate = rates[direction].get(index)
                if rate is not None and (rate > limits.frames_per_s or ports.get(row) is not None):
                    ports[row].hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, since_ns))
                    yield from self._statement(frame, index, direction, ports[row], rates, limits, evidence)
        counters.rest(if_also=ports.are_quiet(frame.event_time_ns))

    def _statement(
        self,
        frame: FabricFrame,
        index: int,
        direction: str,
        state: _PortDirection,
        rates: dict[str, dict[int, float]],
        limits: PfcThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        rate = rates[direction][index]
        above = rate > limits.frames_per_s
        if above:
            state.peak_frames_per_s = max(rate, state.peak_frames_per_s)
        now_ns = frame.event_time_ns
        holds = state.hits.add(now_ns, above)
        edge = state.edge.update(now_ns, holds, state.hits.first_ns, limits.quiet_ns)
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
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

    def _counters_of(self, frame: FabricFrame) -> Rows[_Counter]:
        """States of all counters: of received frames those of the priorities, then of the links; likewise transmitted."""
        columns = (("rx", frame.rx_global_pause_frames), ("tx", frame.tx_global_pause_frames))

        def keys() -> list[str]:
            found = []
            for direction, link_level in columns:
                for port, priority in zip(frame.pfc_port, frame.pfc_priority, strict=True):
                    found.append(f"{port_key(frame, port)}/{direction}/prio{priority}")
                for port in range(len(link_level or ())):
                    found.append(f"{port_key(frame, port)}/{direction}/global")
            return found

        carried = tuple(link_level is not None for _, link_level in columns)
        names = frame.device, frame.port, frame.pfc_port, frame.pfc_priority, carried
        return self._counters.of(frame.publisher_id, names, keys)

    @staticmethod
    def _rates(
        frame: FabricFrame, counters: Rows[_Counter], counts: tuple[int | None, ...]
    ) -> tuple[dict[str, dict[int, float]], int | None]:
        """Pause frames per second by direction and port, all priorities together; absent where no counter says.

        With them the nanoseconds since the last reading; None where there was none.
        """
        rates: dict[str, dict[int, float]] = {"rx": {}, "tx": {}}
        row, since_ns = 0, None
        for direction, link_level in (("rx", frame.rx_global_pause_frames), ("tx", frame.tx_global_pause_frames)):
            of_port = rates[direction]
            for port in (*frame.pfc_port, *range(len(link_level or ()))):
                step = counters[row].increase.read_in(counters.reading, counts[row])
                row += 1
                if step is not None and step[1] > 0:
                    of_port[port], since_ns = of_port.get(port, 0.0) + step[0] * 1e9 / step[1], step[1]
        return rates, since_ns

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        return all_at_rest(self._counters.at_rest(frame.publisher_id))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return {"ports": self._ports.snapshot(), "counters": self._counters.snapshot()}

    def restore(self, snapshot: dict[str, dict[str, object]]) -> None:
        """Replace the state by a snapshot's."""
        self._ports.restore(snapshot["ports"])
        self._counters.restore(snapshot["counters"])

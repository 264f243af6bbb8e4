"""Link speed: a port whose link runs slower than it did, or than all like ports of its node. An observation only.

Reads both ends' frames. A link that trains again at half its lanes or at a lower rate stays active, and halves what a
collective gets through it. Expected is the highest rate that the port has shown in its publisher's session; a session
that begins while a fall stands does not make the low rate the norm. A port that never was faster, while all other ports
of its link layer agree on more, is said once, found at start: that is how a fleet with unlike cards looks, and is no
change. While a link is down, and while a source tells no rate, nothing is said and nothing cleared.

It cannot tell a cable from a card or a switch's port, nor see a port that was slow from the start among unlike ports.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.core.counters import CounterIncrease
from streams.core.edges import Edge, EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, span_at_pace
from streams.detectors.port_frames import ROCE_COUNTERS, is_active, link_layers, peer_of, port_rows, port_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "PortSpeed", "PortSpeedThresholds"]

RULE = "port_speed"


@dataclass(frozen=True, slots=True)
class PortSpeedThresholds:
    """Thresholds of the rule. All are judgements: that a link must keep its rate needs no figure.

    Attributes:
        share: a rate below this share of the expected one counts (ratio); sources round.
        peers: other ports of the link layer that must all have shown the same rate.
        hits, span_ns: fires when the rate was low in this many samples of the span, which is as long as that many
            readings where a source is read more seldom.
    """

    share: float = 0.99
    peers: int = 3
    hits: int = 3
    span_ns: int = 10_000_000_000


class _Speed(SubjectState):
    """One port: the highest rate of its session, its fall below that, and how it stands among the other ports."""

    __slots__ = ("fell", "fell_hits", "highest_gbps", "odd", "odd_hits", "pace", "session")

    def __init__(self) -> None:
        self.session: str | None = None
        self.highest_gbps: float | None = None
        self.pace = CounterIncrease()  # of nothing: it tells the time between two readings
        self.fell_hits = TrailingHits(3, 10_000_000_000)
        self.fell = EdgeState()
        self.odd_hits = TrailingHits(3, 10_000_000_000)
        self.odd = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        return (
            self.fell_hits.is_quiet
            and self.odd_hits.is_quiet
            and self.fell.is_quiet(now_ns)
            and self.odd.is_quiet(now_ns)
        )

    def take(self, session: str, rate_gbps: float | None) -> None:
        """Raise the highest rate to that of a link that is up; None is unknown."""
        if session != self.session:
            self.session = session
            if not self.fell.is_open:
                self.highest_gbps = None
        if rate_gbps is not None and (self.highest_gbps is None or rate_gbps > self.highest_gbps):
            self.highest_gbps = rate_gbps


class PortSpeed(FrameRule["FabricFrame"]):
    """Watches the link rates of many nodes' and switches' ports."""

    columns = ("view", "rate_gbps", "link_state")
    besides = ROCE_COUNTERS

    def __init__(self, site_id: str, defaults: PortSpeedThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PortSpeedThresholds(), RULE)
        self._states = KeyedRows(_Speed)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        if frame.rate_gbps is None:
            return
        rows, now_ns, layers = port_rows(self._states, frame), frame.event_time_ns, link_layers(frame)
        said = frame.agent_session, frame.rate_gbps, frame.link_state, layers, roster.policy
        if rows.stand_still(frame.agent_session, now_ns, said):
            return
        limits = self._limits.of(roster.policy)
        rates = [_rate(frame, index) for index in range(len(layers))]
        for index, rate in enumerate(rates):
            rows[index].take(frame.agent_session, rate)
        expected = _agreed(rows, layers, limits.peers)
        for index, rate in enumerate(rates):
            if rate is not None:
                yield from self._port(frame, index, rows, rate, expected[index], limits, evidence)
        rows.rest()

    def _port(
        self,
        frame: FabricFrame,
        index: int,
        rows: Rows[_Speed],
        rate: float,
        agreed: tuple[float, int] | None,
        limits: PortSpeedThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        state, now_ns = rows[index], frame.event_time_ns
        highest = state.highest_gbps
        assert highest is not None
        step = state.pace.read_in(rows.reading, 0)
        span_ns = span_at_pace(limits.hits, limits.span_ns, step[1] if step is not None else None)
        state.fell_hits.configure(limits.hits, span_ns)
        state.odd_hits.configure(limits.hits, span_ns)
        has_fallen = rate < limits.share * highest
        # Hits are few after a time without a rate: what stands is over when the rate is back, not for want of samples.
        holds = (state.fell_hits.add(now_ns, has_fallen) or state.fell.is_open) and has_fallen
        edge = state.fell.update(now_ns, holds, state.fell_hits.first_ns)
        words = (
            f"link runs at {rate:g} Gb/s, ran at {highest:g}" if edge == "open" else f"link is back at {rate:g} Gb/s"
        )
        values: dict[str, Any] = {"rate_gbps": rate, "expected_gbps": highest, "compared_with": "itself", "peers": None}
        yield from self._statement(frame, index, state.fell, edge, words, {**values, "found_at_start": False}, evidence)
        if has_fallen:
            return  # how it stands among others is told by its highest rate, and that was before
        is_odd = agreed is not None and highest < limits.share * agreed[0]
        holds = (state.odd_hits.add(now_ns, is_odd) or state.odd.is_open) and is_odd
        edge = state.odd.update(now_ns, holds, state.odd_hits.first_ns)
        if edge is None:
            return
        expected, peers = agreed if agreed is not None else (None, None)
        values = {"rate_gbps": rate, "expected_gbps": expected, "compared_with": "peers", "peers": peers}
        words = f"link runs at {rate:g} Gb/s"
        if edge == "open":
            words += f", found at start; the other {peers} ports like it run at {expected:g}"
        yield from self._statement(frame, index, state.odd, edge, words, {**values, "found_at_start": True}, evidence)

    def _statement(
        self,
        frame: FabricFrame,
        index: int,
        state: EdgeState,
        edge: Edge | None,
        explanation: str,
        values: dict[str, Any],
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        if edge is None:
            return
        onset_ns = state.tell(edge)
        yield self._rule.finding(
            RULE,
            port_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=frame.event_time_ns,
            onset_ns=onset_ns,
            explanation=explanation,
            values={**values, "view": frame.view, "peer": peer_of(frame, index)},
            evidence=evidence,
        )

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.rate_gbps is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.publisher_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)


def _rate(frame: FabricFrame, index: int) -> float | None:
    """Rate of a link that is up, or whose state nobody tells, in Gb/s; None is unknown. A link that is down states any."""
    assert frame.rate_gbps is not None
    rate = frame.rate_gbps[index]
    return rate if rate is not None and rate > 0 and is_active(frame, index) is not False else None


def _agreed(rows: Rows[_Speed], layers: tuple[str, ...], peers: int) -> list[tuple[float, int] | None]:
    """For each port the highest rate of all other ports of its link layer, and how many they are.

    None where they differ or are too few.
    """
    highest = [rows[index].highest_gbps for index in range(len(layers))]
    shown: dict[str, Counter[float]] = {}
    for layer, rate in zip(layers, highest, strict=True):
        if rate is not None:
            shown.setdefault(layer, Counter())[rate] += 1
    found: list[tuple[float, int] | None] = []
    for layer, own in zip(layers, highest, strict=True):
        rates = shown.get(layer, Counter())
        others = [(rate, count - (rate == own)) for rate, count in rates.items() if count > (rate == own)]
        found.append(others[0] if len(others) == 1 and others[0][1] >= peers else None)
    return found

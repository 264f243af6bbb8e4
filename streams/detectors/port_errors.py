"""Port errors: links that go down or flap, and error counters that grow too fast, port by port.

Reads both ends' frames. `link_down` opens at the first frame that shows it, by state or by the counter of link-down
events (a dip between two frames leaves the state active). A port that was never seen active is a cable nobody plugged
in as a rule: a host's is said as info, found at start; a switch's is passed over; neither is a flap. Counters have the
names that Linux gives them. Those of 8 and 16 bits on old hardware stop at their highest value: a counter that stands
there says nothing about its rate, so it clears nothing, and that it is stuck is said (`<counter>_saturated`, info).

Which end of a link is at fault cannot be seen from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.core.counters import CounterIncrease
from streams.core.edges import Edge, EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import TrailingHits, TrailingSum, span_at_pace
from streams.detectors.port_frames import peer_of, port_rows, port_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "PortErrorThresholds", "PortErrors"]

RULE = "port_errors"

RECOVERIES = "link_error_recovery"
_PER_SECOND = {
    "symbol_error": "symbol_errors_per_s",
    "port_rcv_errors": "rcv_errors_per_s",
    "port_xmit_discards": "xmit_discards_per_s",
    "local_ack_timeout_err": "ack_timeouts_per_s",
}
"""Threshold by counter."""

_COUNTERS = (*_PER_SECOND, RECOVERIES)

_HIGHEST = {"symbol_error": 0xFFFF, "port_rcv_errors": 0xFFFF, "port_xmit_discards": 0xFFFF, RECOVERIES: 0xFF}
"""Where a counter of the original InfiniBand port counters stops; the extended ones have 64 bits."""

_ACTIVE = frozenset({"active", "up"})
_MINUTE_NS = 60_000_000_000
_FLAP_SPAN_NS = 300_000_000_000


@dataclass(frozen=True, slots=True)
class PortErrorThresholds:
    """Thresholds of the rule. Rates per second and minute are NVSentinel's levels for a degraded port.

    Attributes:
        symbol_errors_per_s: `symbol_error` above which a sample counts.
        rcv_errors_per_s: `port_rcv_errors`, likewise.
        xmit_discards_per_s: `port_xmit_discards`, likewise.
        ack_timeouts_per_s: `local_ack_timeout_err`, likewise.
        recoveries_per_min: `link_error_recovery` in the trailing minute above which it fires.
        flaps: returns from down to active within 5 min from which on a link flaps. ByteDance's training fleet acts on 2
            in 5 min; gpud counts 3 of over 25 s in 12 h, NHC 5 in 24 h.
        hits, span_ns: a rate per second fires when it was above in this many samples of the span, which is as long as
            that many readings where a source is read more seldom.
    """

    symbol_errors_per_s: float = 10.0
    rcv_errors_per_s: float = 10.0
    xmit_discards_per_s: float = 100.0
    ack_timeouts_per_s: float = 1.0
    recoveries_per_min: float = 5.0
    flaps: int = 2
    hits: int = 3
    span_ns: int = 5_000_000_000


class _Link(SubjectState):
    """One port's link: whether it was ever seen active, and what went down since it last was."""

    __slots__ = (
        "at_start",
        "down_edge",
        "downs",
        "dropped",
        "events",
        "flap_edge",
        "flaps",
        "seen_active",
        "unexplained_ns",
    )

    def __init__(self) -> None:
        self.events = CounterIncrease()
        self.seen_active = False
        self.dropped = False
        self.downs = 0
        self.unexplained_ns: int | None = None
        self.flaps = TrailingSum(_FLAP_SPAN_NS)
        self.down_edge = EdgeState()
        self.flap_edge = EdgeState()
        self.at_start = False

    def is_quiet(self, now_ns: int) -> bool:
        return (
            not self.downs
            and not self.flaps.total
            and self.down_edge.is_quiet(now_ns)
            and self.flap_edge.is_quiet(now_ns)
        )

    def returns(self, now_ns: int, active: bool | None, increase: int) -> int:
        """How often the link has come back since the last frame.

        The counter and the state tell of the same outage, and the counter may be a frame late.
        """
        self.downs += increase
        if active is False:
            self.dropped = self.dropped or self.seen_active
            return 0
        returned, self.downs = self.downs, 0
        if active and self.dropped:
            self.dropped = False
            if not returned:
                self.unexplained_ns = now_ns
                returned = 1
        elif returned and self.unexplained_ns is not None:
            returned -= now_ns - self.unexplained_ns <= _MINUTE_NS
            self.unexplained_ns = None
        self.seen_active = self.seen_active or bool(active)
        return returned


class _PortCounter(SubjectState):
    __slots__ = ("edge", "hits", "increase", "minute", "saturated")

    def __init__(self) -> None:
        self.increase = CounterIncrease()
        self.hits = TrailingHits(3, 5_000_000_000)
        self.minute = TrailingSum(_MINUTE_NS)
        self.edge = EdgeState()
        self.saturated = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        return (
            self.hits.is_quiet
            and not self.minute.total
            and self.edge.is_quiet(now_ns)
            and self.saturated.is_quiet(now_ns)
        )


class PortErrors(FrameRule["FabricFrame"]):
    """Watches the links and error counters of many nodes' and switches' ports."""

    columns = ("view", "link_state", "link_down_events")
    besides = _COUNTERS

    def __init__(self, site_id: str, defaults: PortErrorThresholds | None = None) -> None:
        self._rule = Rule(RULE, 2, site_id)
        self._limits = LimitsInForce(defaults or PortErrorThresholds(), RULE)
        self._links = KeyedRows(_Link)
        self._counters = KeyedRows(_PortCounter)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        limits = self._limits.of(roster.policy)
        session, now_ns, policy = frame.agent_session, frame.event_time_ns, roster.policy
        links: Rows[_Link] | None = port_rows(self._links, frame)
        said = frame.link_state, frame.link_down_events, frame.view, policy
        if links is not None and links.stand_still(session, now_ns, said):
            links = None
        counters = []
        for name in _COUNTERS:
            column = frame.counters.get(name)
            if column is not None:
                rows = port_rows(self._counters, frame, name)
                if not rows.stand_still(session, now_ns, (column, policy)):
                    counters.append((name, column, rows))
        if links is None and not counters:
            return
        for index in range(len(frame.device)):
            if links is not None:
                yield from self._link(frame, index, links, limits, evidence)
            for name, column, rows in counters:
                if column[index] is not None:
                    yield from self._counter(frame, index, name, column[index], rows, limits, evidence)
        for all_rows in (links, *(rows for _, _, rows in counters)):
            if all_rows is not None:
                all_rows.rest()

    def _link(
        self,
        frame: FabricFrame,
        index: int,
        links: Rows[_Link],
        limits: PortErrorThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        word = frame.link_state[index] if frame.link_state is not None else None
        events = frame.link_down_events[index] if frame.link_down_events is not None else None
        if word is None and events is None:
            return
        link = links[index]
        now_ns = frame.event_time_ns
        step = link.events.read_in(links.reading, events)
        increase = step[0] if step is not None else 0
        active = word.lower() in _ACTIVE if word is not None else None
        returned = link.returns(now_ns, active, increase)
        values: dict[str, Any] = {
            "link_state": word,
            "link_down_events": events,
            "link_down_events_increase": increase if step is not None else None,
        }
        if active is not None or step is not None:
            ever = link.seen_active or active is None
            is_down = increase > 0 or (active is False and (ever or frame.view == "host"))
            edge = link.down_edge.update(now_ns, is_down)
            if edge == "open":
                link.at_start = not ever and not increase
            said = "is down" if active is False else "went down"
            yield from self._statement(
                "link_down",
                "info" if link.at_start else "warning",
                frame,
                index,
                link.down_edge,
                edge,
                f"link {said}{', found at start' if link.at_start else ''}" if edge == "open" else "link stays active",
                {**values, "found_at_start": link.at_start},
                evidence,
            )
        flaps = link.flaps.add(now_ns, returned)
        edge = link.flap_edge.update(now_ns, flaps >= limits.flaps)
        words = f"link went down and came back {flaps} times in 5 min" if edge == "open" else "link no longer flaps"
        yield from self._statement(
            "link_flapping",
            "warning",
            frame,
            index,
            link.flap_edge,
            edge,
            words,
            {**values, "flaps_in_5_min": flaps, "limit_flaps": limits.flaps},
            evidence,
        )

    def _counter(
        self,
        frame: FabricFrame,
        index: int,
        name: str,
        count: int | None,
        rows: Rows[_PortCounter],
        limits: PortErrorThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        state = rows[index]
        now_ns = frame.event_time_ns
        step = state.increase.read_in(rows.reading, count)
        if step is None or step[1] <= 0:
            return
        stuck = count == _HIGHEST.get(name) and step[0] == 0
        edge = state.saturated.update(now_ns, stuck)
        yield from self._statement(
            f"{name}_saturated",
            "info",
            frame,
            index,
            state.saturated,
            edge,
            f"{name} stands at {count}, the highest value of its width: clear it to see its rate again"
            if edge == "open"
            else f"{name} counts again",
            {name: count},
            evidence,
        )
        if stuck:
            return
        if name == RECOVERIES:
            figure, limit, unit = float(state.minute.add(now_ns, step[0])), limits.recoveries_per_min, "min"
            holds, onset_ns = figure > limit, None
        else:
            figure, limit, unit = step[0] * 1e9 / step[1], float(getattr(limits, _PER_SECOND[name])), "s"
            state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, step[1]))
            holds, onset_ns = state.hits.add(now_ns, figure > limit), state.hits.first_ns
        edge = state.edge.update(now_ns, holds, onset_ns)
        yield from self._statement(
            name,
            "warning",
            frame,
            index,
            state.edge,
            edge,
            f"{name} grows by {figure:.0f} a {unit}, limit {limit:g}"
            if edge == "open"
            else f"{name} fell to {figure:.0f} a {unit}",
            {f"{name}_per_{unit}": figure, f"limit_per_{unit}": limit},
            evidence,
        )

    def _statement(
        self,
        kind: str,
        severity: str,
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
            kind,
            port_subject(frame, index),
            state=edge,
            severity=severity,
            event_time_ns=frame.event_time_ns,
            onset_ns=onset_ns,
            explanation=explanation,
            values={
                **values,
                "view": frame.view,
                "peer": peer_of(frame, index),
            },
            evidence=evidence,
        )

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        publisher = frame.publisher_id
        carried = [name for name in _COUNTERS if frame.counters.get(name) is not None]
        links = self._links.at_rest((publisher,))
        return all_at_rest(links, *(self._counters.at_rest((publisher, name)) for name in carried))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return {"links": self._links.snapshot(), "counters": self._counters.snapshot()}

    def restore(self, snapshot: dict[str, dict[str, object]]) -> None:
        """Replace the state by a snapshot's."""
        self._links.restore(snapshot["links"])
        self._counters.restore(snapshot["counters"])

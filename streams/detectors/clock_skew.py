"""Clock skew: a node whose event times differ from the broker's append times for longer than delivery explains.

The skew of a publisher is the lowest (append - event) of 5 minutes of append time, positive for a clock that is behind.
Beyond 2 s it is a finding (warning), because what is joined across nodes is joined by their clocks. Delivery only ever adds
to the difference, so a clock that is **ahead** shows in two half minutes. A clock that is **behind** looks like a late
delivery and must be as late throughout: heard in at least 8 of 10 half minutes, with lowest differences that agree
within 2 s. A spool that is replayed is late by less and less, or comes with fresh records between, and is neither.

Time here is append time alone, so it does not matter in which order topics are read, within 10 s. Records more than 60 s
ahead are refused and no other rule sees them; their times are looked at here all the same. Not told apart: a queue that
is late by the same amount for minutes, which looks like a clock behind. Of that and of a shift of the broker's own clock
the sign is that many nodes say it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from schemas.findings import Evidence, Subject
from streams.core.edges import EdgeState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.findings import Finding
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["RULE", "ClockSkew", "ClockSkewThresholds", "PublisherClock"]

RULE = "clock_skew"

_BUCKET_NS = 30_000_000_000
_BUCKETS = 10
_LATENESS_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class ClockSkewThresholds:
    """Thresholds of the rule. Judgements but the first, which the design fixes.

    Attributes:
        skew_ns: beyond this, ahead or behind. Evidence of several nodes is joined within 5 s: two clocks at the limit
            still meet.
        ahead_buckets: half minutes in which the lowest difference must be beyond the limit for a clock that is ahead.
        behind_buckets: half minutes of the ten in which a clock that is behind must have been heard.
        steady_ns: how far the lowest differences of those may lie apart.
    """

    skew_ns: int = 2_000_000_000
    ahead_buckets: int = 2
    behind_buckets: int = 8
    steady_ns: int = 2_000_000_000


class PublisherClock:
    """What is remembered of one publisher's clock."""

    __slots__ = ("edge", "lowest_ns", "lows", "start_ns")

    def __init__(self) -> None:
        self.lows: dict[int, tuple[int, list[Any]]] = {}
        """(lowest difference, place of its record) by start of the half minute."""
        self.edge = EdgeState()
        # Of the half minute that was last told of, so that nearly every record is seen at once to lower nothing.
        self.start_ns = -_BUCKET_NS
        self.lowest_ns = 0

    def is_above(self, append_ns: int, difference_ns: int) -> bool:
        """Whether a difference is of the half minute that was last told of, and above its lowest."""
        return difference_ns > self.lowest_ns and 0 <= append_ns - self.start_ns < _BUCKET_NS

    def note(self, start_ns: int, difference_ns: int, place: list[Any]) -> None:
        """Take a difference that may be the lowest of its half minute; of equal ones the first place counts."""
        low, lowest = (difference_ns, place), self.lows.get(start_ns)
        lowest = self.lows[start_ns] = low if lowest is None else min(lowest, low)
        self.start_ns, self.lowest_ns = start_ns, lowest[0]


class ClockSkew:
    """Watches the clocks of all publishers of one partition."""

    def __init__(self, site_id: str, defaults: ClockSkewThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or ClockSkewThresholds(), RULE)
        self._publishers: dict[str, PublisherClock] = {}
        self._latest_ns = 0
        self._judged_ns = 0

    def on_record(
        self,
        publisher: str,
        event_time_ns: int,
        append_ms: int,
        roster: Roster,
        evidence: Evidence | Position | None = None,
        *,
        level: Literal["node", "switch"] = "node",
    ) -> Iterable[Finding]:
        """Take the times of one record, and say what the half minutes that ended by now show, of all publishers.

        Args:
            publisher: id of the node or switch.
            event_time_ns: its clock.
            append_ms: the broker's, milliseconds since the epoch; 0 or less is unknown and passed over.
            roster: for the policy.
            evidence: the place of the record.
            level: what the publisher is.
        """
        if append_ms <= 0:
            return ()
        append_ns = append_ms * 1_000_000
        name = f"{level}/{publisher}"
        known = self._publishers.get(name)
        if known is None or not known.is_above(append_ns, append_ns - event_time_ns):
            self._note(name, append_ns, append_ns - event_time_ns, evidence)
        return self._judge(self._latest_ns - _LATENESS_NS, roster) if self._is_due(append_ns) else ()

    def passes_over(self, known: PublisherClock, event_time_ns: int, append_ns: int) -> bool:
        """Take the times of a record that lowers no difference, unless something is to be judged; else false.

        Args:
            known: of its publisher, from `of_publisher`. It may have been forgotten since: what is above a lowest
                difference of its is then of a half minute that was judged, and counts for nothing either.
            event_time_ns: the publisher's clock.
            append_ns: the broker's.
        """
        return known.is_above(append_ns, append_ns - event_time_ns) and not self._is_due(append_ns)

    def _is_due(self, append_ns: int) -> bool:
        """Go on to an append time, and say whether half minutes have ended that are to be judged."""
        if append_ns > self._latest_ns:
            self._latest_ns = append_ns
        return self._latest_ns - self._judged_ns >= _BUCKET_NS + _LATENESS_NS

    def of_publisher(self, level: str, publisher: str) -> PublisherClock | None:
        """What is remembered of a publisher, if anything is."""
        return self._publishers.get(f"{level}/{publisher}")

    def _note(self, name: str, append_ns: int, difference_ns: int, evidence: Evidence | Position | None) -> None:
        """Take a difference that may be the lowest of its half minute."""
        if not self._judged_ns:
            oldest_ns = max(0, append_ns - _LATENESS_NS)
            self._judged_ns = oldest_ns - oldest_ns % _BUCKET_NS
        start_ns = append_ns - append_ns % _BUCKET_NS
        # What is appended to a half minute that was judged already comes from a topic that is read far behind.
        if start_ns < self._judged_ns:
            return
        known = self._publishers.get(name)
        if known is None:
            known = self._publishers[name] = PublisherClock()
        place = [evidence.topic, evidence.partition, evidence.offset] if evidence is not None else []
        known.note(start_ns, difference_ns, place)

    def flush(self, roster: Roster) -> Iterator[Finding]:
        """What the half minutes that have ended show: the input has ended."""
        yield from self._judge(self._latest_ns, roster)

    def _judge(self, until_ns: int, roster: Roster) -> Iterator[Finding]:
        while self._judged_ns + _BUCKET_NS <= until_ns:
            end_ns = self._judged_ns = self._judged_ns + _BUCKET_NS
            limits = self._limits.of(roster.policy)
            for name in sorted(self._publishers):
                publisher = self._publishers[name]
                publisher.lows = {
                    start: low for start, low in publisher.lows.items() if start >= end_ns - _BUCKETS * _BUCKET_NS
                }
                if not publisher.lows and not publisher.edge.is_open:
                    del self._publishers[name]
                    continue
                yield from self._statement(name, publisher, end_ns, limits)
            if not any(publisher.lows for publisher in self._publishers.values()):
                # Nobody was heard for all of the span, as when a recording pauses: nothing is left to judge till now.
                self._judged_ns = max(end_ns, until_ns - until_ns % _BUCKET_NS)

    def _statement(
        self, name: str, publisher: PublisherClock, end_ns: int, limits: ClockSkewThresholds
    ) -> Iterator[Finding]:
        starts = sorted(start for start in publisher.lows if start < end_ns)
        if not starts:
            return
        differences = [publisher.lows[start][0] for start in starts]
        skew_ns = min(differences)
        if publisher.edge.is_open:
            holds = abs(skew_ns) > limits.skew_ns
        else:
            ahead = sum(difference < -limits.skew_ns for difference in differences) >= limits.ahead_buckets
            steady = max(differences) - skew_ns <= limits.steady_ns
            behind = skew_ns > limits.skew_ns and len(starts) >= limits.behind_buckets and steady
            holds = ahead or behind
        first_ns = next((at for at in starts if abs(publisher.lows[at][0]) > limits.skew_ns), end_ns)
        edge = publisher.edge.update(end_ns, holds, first_ns)
        if edge is None:
            return
        onset_ns = publisher.edge.tell(edge)
        level, _, publisher_id = name.partition("/")
        place = publisher.lows[starts[-1]][1]
        word = "behind" if skew_ns > 0 else "ahead"
        yield self._rule.finding(
            "clock_skew",
            Subject(level="node", node_id=publisher_id)
            if level == "node"
            else Subject(level="switch", switch_id=publisher_id),
            state=edge,
            severity="warning",
            event_time_ns=end_ns,
            onset_ns=onset_ns,
            explanation=f"its clock is {abs(skew_ns) / 1e9:.1f} s {word}, limit {limits.skew_ns / 1e9:g} s"
            if edge == "open"
            else f"its clock is within {limits.skew_ns / 1e9:g} s again",
            values={
                "skew_s": skew_ns / 1e9,
                "limit_s": limits.skew_ns / 1e9,
                "highest_of_lowest_s": max(differences) / 1e9,
                "half_minutes_heard": len(starts),
            },
            evidence=Evidence(topic=place[0], partition=place[1], offset=place[2]) if place else None,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "latest_ns": self._latest_ns,
            "judged_ns": self._judged_ns,
            "publishers": {
                name: [
                    [[start, difference, list(place)] for start, (difference, place) in sorted(state.lows.items())],
                    state.edge.snapshot(),
                ]
                for name, state in sorted(self._publishers.items())
            },
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._latest_ns, self._judged_ns = snapshot["latest_ns"], snapshot["judged_ns"]
        self._publishers = {}
        for name, (lows, edge) in snapshot["publishers"].items():
            state = self._publishers[name] = PublisherClock()
            state.lows = {start: (difference, list(place)) for start, difference, place in lows}
            state.edge.restore(edge)

"""Incidents of slow ranks: the cause that their devices show, or the place that slows several of them together.

The cause of a slow rank is decided `EVIDENCE_NS` after it was found, so that what its devices say can come. What one place
explains costs nobody a node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streams.decisions.attribution import KIND_OF_CAUSE, attribute
from streams.decisions.device_faults import is_first_sign
from streams.decisions.explained import Explained
from streams.decisions.places import SharedPlace, place_of_heat, place_of_ranks
from streams.decisions.remedies import remedy_for_class

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Finding
    from streams.core.roster import Roster
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.observations import DeviceNames, Observations
    from streams.decisions.orders import Orders
    from streams.decisions.pause import PauseJudge

__all__ = ["EVIDENCE_NS", "SlowRanks"]

EVIDENCE_NS = 5_000_000_000
"""Tolerance within which evidence of several nodes or switches belongs together."""

_HEAT_SPAN_NS = 600_000_000_000
"""GPUs that begin to slow for heat within this span are looked at together: heat rises over minutes."""

_LATEST_CAUSE_NS = 120_000_000_000
"""How long after a rank became slow its cause may show: violations add up over a minute, and a node is read at least once a
minute. What a device says later was not the cause of what came before."""


@dataclass(slots=True)
class _Waiting:
    """A straggler whose cause is decided at a time."""

    due_ns: int
    finding: Finding
    component: str


class SlowRanks:
    """Opens and closes these incidents in a book that holds those of everybody.

    Args:
        roster: jobs, nodes and policy.
        book: the site's open incidents.
        names: of devices.
        observations: what devices said.
        pause: knows which nodes wait for a pause storm.
        orders: gives the commands.
        journal: where it is said what was suppressed.
    """

    def __init__(
        self,
        roster: Roster,
        book: IncidentBook,
        names: DeviceNames,
        observations: Observations,
        pause: PauseJudge,
        orders: Orders,
        journal: Journal,
    ) -> None:
        self._roster, self._book, self._names = roster, book, names
        self._observations, self._pause = observations, pause
        self._orders, self._journal = orders, journal
        self._places = Explained()
        self._waiting: list[_Waiting] = []

    def take(self, finding: Finding) -> list[Record]:
        """Take a straggler, opened or cleared, and return what follows at once."""
        component = self._names.component(finding.subject)
        incident = self._book.on(component)
        if finding.state == "cleared":
            return self._on_place_recovery(finding) or self._on_recovery(finding, component, incident)
        if incident is None:
            # Published only once its cause is decided: until then nobody is a culprit.
            incident = self._book.open(component, "compute", finding.subject, finding)
            incident.summary = finding.explanation
            incident.values = dict(finding.values)
        incident.join(finding)
        incident.came_again(finding)
        incident.recovered_ns = -1
        incident.slowdown = finding.slowdown
        incident.job_id = finding.job_id
        incident.values = incident.values or dict(finding.values)
        self._waiting.append(_Waiting(finding.event_time_ns + EVIDENCE_NS, finding, component))
        return []

    def take_changed(self, finding: Finding) -> list[Record]:
        """Ranks that became slow together: the place that has all of them, if there is one."""
        if finding.state == "cleared":
            return self._on_place_recovery(finding)
        place = place_of_ranks(finding, self._roster)
        return self._on_place(place, "shared_place", finding, finding.event_time_ns) if place is not None else []

    def reconsider(self, finding: Finding) -> list[Record]:
        """Device evidence that came after a slow rank was judged without any."""
        if finding.state != "open":
            return []
        incident = self._book.on(self._names.component(finding.subject))
        if incident is None or not incident.commands or incident.cause_class not in {"compute", "clock"}:
            return []
        if incident.culprit is None or incident.slowdown is None:
            return []
        latest_ns = incident.onset_ns + _LATEST_CAUSE_NS
        if finding.onset_ns > latest_ns:
            return []
        found = attribute(
            incident.culprit,
            incident.values,
            incident.onset_ns,
            # What has begun too late is remembered too, and is no cause because another finding is early enough.
            min(finding.event_time_ns, latest_ns),
            self._observations,
            self._names,
        )
        if found.cause_class != "thermal" or self._shared_heat(finding.event_time_ns) is not None:
            return []
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.join(finding)
        incident.summary = f"{incident.summary}; {found.summary}"
        return self._orders.order(incident, remedy_for_class(found.cause_class), finding.event_time_ns)

    def decide(self, now_ns: int) -> list[Record]:
        """Causes of ranks that have waited long enough."""
        due = sorted((w for w in self._waiting if w.due_ns <= now_ns), key=lambda w: (w.due_ns, w.finding.finding_id))
        self._waiting = [w for w in self._waiting if w.due_ns > now_ns]
        outputs: list[Record] = []
        for waiting in due:
            outputs += self._journal.decided(self._decide_one(waiting), waiting.due_ns)
        return outputs

    def rename(self, known: str, better: str) -> None:
        """A component goes on under another name."""
        for waiting in self._waiting:
            if waiting.component == known:
                waiting.component = better

    def _on_recovery(self, finding: Finding, component: str, incident: OpenIncident | None) -> list[Record]:
        if incident is None or finding.finding_id not in incident.findings:
            return []
        self._waiting = [w for w in self._waiting if w.finding.finding_id != finding.finding_id]
        if incident.cause_class in {"ecc_rate", "ecc_rate_confirmed"}:
            # Memory does not heal because the rank keeps pace again.
            return []
        if self._orders.takes_out(incident):
            # Its node is out by this, or may yet be: the incident ends when it is back.
            incident.recovered_ns = finding.event_time_ns
            return [self._orders.transition(incident, finding.event_time_ns, "the rank keeps pace again")]
        if "cordon_node" in incident.commands:
            # The pace came back because the node is out, or in spite of it: that closes nothing.
            return []
        self._book.close(component)
        if not incident.is_published:
            return []
        return [self._orders.resolved(incident, finding.event_time_ns)]

    def _on_place(self, place: SharedPlace, cause_class: str, finding: Finding, at_ns: int) -> list[Record]:
        """A finding that a place explains: the first one opens the place's incident, which costs nobody a node."""
        component = f"{place.kind}:{place.name}"
        self._places.join(finding.finding_id, component)
        incident = self._book.on(component)
        if incident is not None:
            incident.suppress(finding)
            return [self._journal.entry("suppressed", finding.finding_id, at_ns)]
        incident = self._book.open(component, cause_class, place.subject(), finding)
        incident.summary = f"{finding.explanation}; {place.suspects} devices of {place.kind} {place.name} alike"
        return self._orders.order(incident, remedy_for_class(cause_class), at_ns)

    def _on_place_recovery(self, finding: Finding) -> list[Record]:
        component = self._places.leave(finding.finding_id)
        return self._book.resolve(component, finding.event_time_ns) if component is not None else []

    def _shared_heat(self, at_ns: int) -> SharedPlace | None:
        """The place whose GPUs slow themselves for heat together."""
        hot = self._observations.nodes_of("thermal_violation", at_ns - _HEAT_SPAN_NS, at_ns)
        return place_of_heat(hot, self._roster.nodes)

    def _decide_one(self, waiting: _Waiting) -> list[Record]:
        finding = waiting.finding
        incident = self._book.on(waiting.component)
        if incident is None or incident.commands:
            return []
        found = attribute(
            finding.subject,
            dict(finding.values),
            finding.onset_ns,
            waiting.due_ns,
            self._observations,
            self._names,
        )
        if found.cause_class == "compute" and self._pause.is_victim(finding.subject.node_id, finding.onset_ns):
            incident.suppressed.append(finding.finding_id)
            return [self._journal.entry("suppressed", finding.finding_id, waiting.due_ns)]
        place = self._shared_heat(waiting.due_ns) if found.cause_class == "thermal" else None
        if place is not None and not incident.is_published:
            self._book.close(waiting.component)
            return self._on_place(place, "cooling", finding, waiting.due_ns)
        if found.cause_class == "compute" and is_first_sign(incident, waiting.due_ns):
            found = replace(
                found, cause_class="ecc_rate_confirmed", summary="corrected memory errors at a high rate there"
            )
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.findings.extend(i for i in found.because if i not in incident.findings)
        if found.because and found.cause_class in KIND_OF_CAUSE:
            incident.signs.observe(KIND_OF_CAUSE[found.cause_class])
        incident.summary = f"{finding.explanation}; {found.summary}"
        return self._orders.order(incident, remedy_for_class(found.cause_class), waiting.due_ns)

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "places": self._places.snapshot(),
            "waiting": [[waiting.due_ns, waiting.finding, waiting.component] for waiting in self._waiting],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._places.restore(snapshot["places"])
        self._waiting = [_Waiting(due_ns, finding, component) for due_ns, finding, component in snapshot["waiting"]]

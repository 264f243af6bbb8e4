"""Incidents: findings with one cause, one culprit (or nobody) and one lifecycle.

The book holds open incidents by component, as plain data. What belongs to a component that already has one joins it;
nothing is opened for an observation alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from schemas.base import deterministic_id, round_significant
from schemas.findings import Evidence, Subject
from schemas.remediation import Incident
from streams.decisions.signs import Signs

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Finding

__all__ = ["Asked", "IncidentBook", "OpenIncident", "State", "id_of_incident"]

_MAX_FINDINGS = 64

State = Literal["open", "acting", "verifying"]


def id_of_incident(site_id: str, family: str, component: str, onset_ns: int) -> str:
    """The id of an incident by what it was opened for."""
    return deterministic_id("inc", site_id, family, component, onset_ns)


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that an incident has asked for."""

    command_id: str
    expires_at_ns: int
    attempt: int


@dataclass(slots=True)
class OpenIncident:
    """The state of one incident."""

    incident_id: str
    component: str
    cause_class: str
    culprit: Subject | None
    onset_ns: int
    job_id: str | None = None
    findings: list[str] = field(default_factory=list)
    suppressed: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    slowdown: float | None = None
    commands: dict[str, Asked] = field(default_factory=dict)
    """By kind of command: a kind is asked for again only when the last one has expired and the fault came anew."""
    summary: str = ""
    is_published: bool = False
    signs: Signs = field(default_factory=Signs)
    state: State = "open"
    """`acting` while an order is under way, `verifying` once one was carried out."""
    advice: str = ""
    """What people were told with its last order."""
    mended_by: str = ""
    """Kind of the last act that was carried out."""
    shows_from_ns: int = -1
    """Its fault shows again where it does after this: the last act, or the pre-flight that was asked for after it."""
    check_due_ns: int = -1
    """When a pre-flight is to be asked for."""
    check_id: str = ""
    """The pre-flight that was asked for after the act."""
    return_id: str = ""
    """The command that gives the node back."""
    again_ns: int = -1
    """When its fault showed again."""
    recovered_ns: int = -1
    """When the rank kept pace again."""

    def lost_until_ns(self, at_ns: int) -> int:
        """Until when its job lost time by it, as far as that is known at a time."""
        return self.recovered_ns if self.recovered_ns >= 0 else at_ns

    def came_again(self, finding: Finding) -> None:
        """A finding that would ask for an act by itself is about this incident's component."""
        if finding.state == "open" and 0 <= self.shows_from_ns < finding.event_time_ns:
            self.again_ns = finding.event_time_ns

    def join(self, finding: Finding) -> None:
        """A finding is explained by this incident's cause."""
        self.signs.take(finding)
        if finding.finding_id not in self.findings and len(self.findings) < _MAX_FINDINGS:
            self.findings.append(finding.finding_id)
            self.evidence.extend(finding.evidence)

    def suppress(self, finding: Finding) -> None:
        """A finding is a consequence of this incident's cause."""
        if finding.finding_id not in self.suppressed and len(self.suppressed) < _MAX_FINDINGS:
            self.suppressed.append(finding.finding_id)


class IncidentBook:
    """Open incidents of one site, by component."""

    def __init__(self, site_id: str) -> None:
        self._site_id = site_id
        self._open: dict[str, OpenIncident] = {}

    def on(self, component: str) -> OpenIncident | None:
        """The open incident of a component."""
        return self._open.get(component)

    def that_asked_for(self, command_id: str) -> OpenIncident | None:
        """The open incident that a command answers."""
        for incident in self.open_ones():
            if any(asked.command_id == command_id for asked in incident.commands.values()):
                return incident
        return None

    def moving(self) -> list[OpenIncident]:
        """Incidents of which an act is under way or was carried out."""
        return [incident for incident in self._open.values() if incident.state != "open"]

    def of_component(self, component: str) -> OpenIncident:
        """The open incident that a component has.

        Raises:
            KeyError: it has none.
        """
        return self._open[component]

    def open_ones(self) -> list[OpenIncident]:
        """All open incidents, by component."""
        return [self._open[component] for component in sorted(self._open)]

    def open(self, component: str, family: str, culprit: Subject | None, finding: Finding) -> OpenIncident:
        """Open an incident for a component that has none."""
        incident = OpenIncident(
            id_of_incident(self._site_id, family, component, finding.onset_ns),
            component,
            family,
            culprit,
            finding.onset_ns,
            finding.job_id,
            slowdown=finding.slowdown,
        )
        incident.join(finding)
        self._open[component] = incident
        return incident

    def rename(self, component: str, to: str) -> None:
        """Go on under another name of the same component, unless that one has an incident already."""
        if component in self._open and to not in self._open:
            incident = self._open[to] = self._open.pop(component)
            incident.component = to

    def close(self, component: str) -> OpenIncident:
        """Take a resolved incident out of the book."""
        return self._open.pop(component)

    def resolve(self, component: str, at_ns: int) -> list[Record]:
        """Close the incident of a component whose cause is gone by itself; nothing where it has none."""
        if component not in self._open:
            return []
        return [self.record(self.close(component), "resolved", at_ns, "")]

    def record(
        self, incident: OpenIncident, state: str, at_ns: int, advice: str, gpu_hours_lost: float | None = None
    ) -> Incident:
        """The transition of an incident as it is published."""
        incident.is_published = True
        return Incident(
            incident_id=incident.incident_id,
            site_id=self._site_id,
            state=state,
            cause_class=incident.cause_class,
            culprit=incident.culprit,
            job_id=incident.job_id,
            event_time_ns=at_ns,
            onset_ns=incident.onset_ns,
            findings=tuple(sorted(incident.findings)),
            suppressed=tuple(sorted(incident.suppressed)),
            summary=incident.summary,
            advice=advice,
            slowdown=incident.slowdown,
            gpu_hours_lost=round_significant(gpu_hours_lost) if gpu_hours_lost is not None else None,
        )

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [
            {
                **{name: value for name, value in asdict(incident).items() if name not in {"culprit", "evidence"}},
                "culprit": incident.culprit.model_dump() if incident.culprit is not None else None,
                "evidence": [place.model_dump() for place in incident.evidence],
            }
            for incident in self.open_ones()
        ]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._open = {}
        for fields in snapshot:
            culprit = Subject.model_validate(fields["culprit"]) if fields["culprit"] is not None else None
            evidence = [Evidence.model_validate(place) for place in fields["evidence"]]
            commands = {kind: Asked(**asked) for kind, asked in fields["commands"].items()}
            signs = Signs(**fields["signs"])
            incident = OpenIncident(
                **{**fields, "culprit": culprit, "evidence": evidence, "commands": commands, "signs": signs}
            )
            self._open[incident.component] = incident

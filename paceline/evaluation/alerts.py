"""Alerts: what a detector said about whom, folded from the records it gave out, each with the time at which it said so.

One alert is one incident with one culprit: an incident that later names somebody else makes a second alert, one that
names the same culprit again, or more finely, does not. Job-level findings that blame nobody are alerts of their own kind:
an answer, never a blame. Observations alone are no alerts; they are kept to show what was seen and not said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.evaluation.answers import CLASSES_OF_JOB_FINDING, UNLOCALISED_KINDS, classes_of_incident
from paceline.evaluation.places import describe, identity
from schemas.findings import Finding
from schemas.remediation import Command, Incident

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record
    from schemas.findings import Subject

__all__ = ["Alert", "Heard", "SaidCommand"]


_NOBODY = frozenset({"job", "stage", "facility"})
"""Levels that name no rank, device, node, port, link or switch."""


_OF_RECORDS = frozenset({"node_silent", "clock_skew"})
"""Findings about how records come, which is no statement about how anything runs."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One statement that somebody or nobody is to blame.

    Attributes:
        alert_id: the incident's id; of a job-level answer the finding's.
        said_ns: when it was given out, by arrival time: delivery and settling are in it.
        event_ns: event time of the statement.
        evidence_ns: event time of the first finding that it rests on.
        step: step of that finding.
        cause: the detector's own word for the class.
        classes: classes of the benchmark that the word may mean.
        subject: who is named; null for nobody.
        is_naming: whether it blames a rank, device, node, port, link or switch.
        is_warning: whether it wants to be heard (job-level advice of severity info, and an incident that blames nobody and
            rests on nothing else, does not).
        closed_ns: when it was taken back or was over; null while it stands.
        summary: its explanation.
    """

    alert_id: str
    said_ns: int
    event_ns: int
    evidence_ns: int
    step: int | None
    cause: str
    classes: tuple[str, ...]
    subject: Subject | None
    is_naming: bool
    is_warning: bool = True
    closed_ns: int | None = None
    summary: str = ""

    def text(self) -> str:
        """Class and culprit in a few words."""
        return f"{self.cause}: {describe(self.subject)}"


@dataclass(frozen=True, slots=True)
class SaidCommand:
    """One command with the time at which it was given out."""

    said_ns: int
    kind: str
    incident_id: str
    node_id: str | None
    target: str


@dataclass(slots=True)
class _Statement:
    alert_id: str
    culprit: Subject | None
    first: tuple[int, int]
    findings: tuple[str, ...]
    cause: str
    summary: str
    closed_ns: int | None = None


@dataclass(slots=True)
class Heard:
    """Folds what a detector gives out, in the order in which it did."""

    findings: dict[str, tuple[int, Finding]] = field(default_factory=dict)
    """By finding id, when it was given out and the finding as it opened."""
    commands: list[SaidCommand] = field(default_factory=list)
    _cleared: dict[str, int] = field(default_factory=dict)
    _incidents: dict[str, list[_Statement]] = field(default_factory=dict)
    _commands: set[str] = field(default_factory=set)

    def take(self, said_ns: int, record: Record) -> None:
        """Take one output."""
        if isinstance(record, Finding):
            if record.state == "open":
                self.findings.setdefault(record.finding_id, (said_ns, record))
            else:
                self._cleared.setdefault(record.finding_id, record.event_time_ns)
        elif isinstance(record, Incident):
            self._take_incident(said_ns, record)
        elif isinstance(record, Command) and record.command_id not in self._commands:
            self._commands.add(record.command_id)
            target = record.target
            self.commands.append(
                SaidCommand(said_ns, record.kind, record.cause.incident_id, target.node_id, target.name())
            )

    def _take_incident(self, said_ns: int, incident: Incident) -> None:
        statements = self._incidents.setdefault(incident.incident_id, [])
        if incident.state == "resolved":
            for statement in statements:
                statement.closed_ns = incident.event_time_ns
            return
        who = identity(incident.culprit) if incident.culprit is not None else None
        known = statements[-1] if statements else None
        if known is not None and (identity(known.culprit) if known.culprit is not None else None) == who:
            known.cause, known.culprit, known.summary = incident.cause_class, incident.culprit, incident.summary
            known.findings = incident.findings
            return
        statements.append(
            _Statement(
                incident.incident_id,
                incident.culprit,
                (said_ns, incident.event_time_ns),
                incident.findings,
                incident.cause_class,
                incident.summary,
            )
        )

    def alerts(self, step_at: Callable[[str | None, int], int | None]) -> tuple[Alert, ...]:
        """All alerts, in the order in which they were said.

        Args:
            step_at: (job id or null, event time) to the step that a job was in, for statements that name no step.
        """
        alerts = [self._alert(statement, step_at) for said in self._incidents.values() for statement in said]
        alerts += [
            self._alert_of_finding(said_ns, finding, is_naming=False, step_at=step_at)
            for said_ns, finding in self.findings.values()
            if finding.kind in CLASSES_OF_JOB_FINDING or finding.kind in UNLOCALISED_KINDS
        ]
        return tuple(sorted(alerts, key=lambda alert: (alert.said_ns, alert.alert_id, alert.event_ns)))

    def finding_alerts(self, step_at: Callable[[str | None, int], int | None]) -> tuple[Alert, ...]:
        """Findings that warn, as alerts of their own: what a reader of their topic hears before anything is decided.

        Args:
            step_at: as for `alerts`.
        """
        alerts = [
            self._alert_of_finding(said_ns, finding, is_naming=finding.subject.level not in _NOBODY, step_at=step_at)
            for said_ns, finding in self.findings.values()
            if finding.severity != "info" and finding.kind not in _OF_RECORDS
        ]
        return tuple(sorted(alerts, key=lambda alert: (alert.said_ns, alert.alert_id)))

    def _alert_of_finding(
        self, said_ns: int, finding: Finding, *, is_naming: bool, step_at: Callable[[str | None, int], int | None]
    ) -> Alert:
        return Alert(
            finding.finding_id,
            said_ns,
            finding.event_time_ns,
            finding.event_time_ns,
            finding.step if finding.step is not None else step_at(finding.job_id, finding.event_time_ns),
            finding.kind,
            CLASSES_OF_JOB_FINDING.get(finding.kind, ()),
            finding.subject,
            is_naming=is_naming,
            is_warning=finding.severity != "info",
            closed_ns=self._cleared.get(finding.finding_id),
            summary=finding.explanation,
        )

    def _alert(self, statement: _Statement, step_at: Callable[[str | None, int], int | None]) -> Alert:
        said_ns, event_ns = statement.first
        known = [self.findings[i][1] for i in statement.findings if i in self.findings]
        # Findings that joined later are no reason for what was said before them.
        known = [finding for finding in known if finding.event_time_ns <= event_ns] or known
        evidence_ns = min((finding.event_time_ns for finding in known), default=event_ns)
        steps = [finding.step for finding in known if finding.step is not None]
        job_id = statement.culprit.job_id if statement.culprit is not None else None
        is_naming = statement.culprit is not None and statement.culprit.level not in _NOBODY
        return Alert(
            statement.alert_id,
            said_ns,
            event_ns,
            min(evidence_ns, event_ns),
            min(steps) if steps else step_at(job_id, evidence_ns),
            statement.cause,
            classes_of_incident(statement.cause),
            statement.culprit,
            is_naming=is_naming,
            is_warning=is_naming or not known or any(finding.severity != "info" for finding in known),
            closed_ns=statement.closed_ns,
            summary=statement.summary,
        )

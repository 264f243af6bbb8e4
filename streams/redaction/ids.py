"""Ids of findings, incidents and commands in a redacted archive: made again from the redacted names, where that can be done.

Ids are sums of what they name. So that a replay of the redacted archive says the ids that stand in it, an id is made again of the
renamed parts wherever the same parts, unrenamed, give the id that was recorded. All others (of older rules, of other tools, of
incidents whose component cannot be told from what they say) get a pseudonym; references to them hold all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from schemas.findings import Finding, Subject
from schemas.remediation import Command, Incident
from streams.core.statement import id_of_finding
from streams.decisions.commands import id_of_command
from streams.decisions.incidents import id_of_incident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.base import Record
    from streams.redaction.names import Names

__all__ = ["Ids", "finding_id"]

_FAMILIES = ("compute", "hang", "common_mode")
"""Under which an incident may have been opened before its cause was known."""

_PLACES = ("node", "leaf", "rack", "zone", "port", "switch", "facility")


@dataclass(slots=True)
class _Incident:
    """What is known of an incident, with its names and without."""

    sites: tuple[str, str]
    onset_ns: int
    causes: set[str] = field(default_factory=set)
    findings: set[str] = field(default_factory=set)
    components: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Command:
    """What the id of a command is made of; its target by its name and by its pseudonym."""

    incident_id: str
    kind: str
    targets: tuple[str, str]
    attempt: int


class Ids:
    """Learns which ids there are, and gives `names` what they become.

    Args:
        names: the pseudonyms of the archive.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._components: dict[str, set[tuple[str, str]]] = {}
        self._incidents: dict[str, _Incident] = {}
        self._commands: dict[str, _Command] = {}

    def learn(self, record: Record, redacted: Record) -> None:
        """Take a statement with its names, and the same one with pseudonyms."""
        if isinstance(record, Finding) and isinstance(redacted, Finding):
            if finding_id(record) == record.finding_id:
                self._names.identify(record.finding_id, finding_id(redacted))
            known = self._components.setdefault(record.finding_id, set())
            known.update(zip(_of_finding(record), _of_finding(redacted), strict=True))
        elif isinstance(record, Incident) and isinstance(redacted, Incident):
            incident = self._incidents.setdefault(
                record.incident_id, _Incident((record.site_id, redacted.site_id), record.onset_ns)
            )
            incident.causes.add(record.cause_class)
            incident.findings.update((*record.findings, *record.suppressed))
            incident.components.update(zip(_of_incident(record), _of_incident(redacted), strict=True))
        elif isinstance(record, Command) and isinstance(redacted, Command):
            # The name that is made of the target has no part but names and what is kept.
            self._commands[record.command_id] = _Command(
                record.cause.incident_id, record.kind, (record.target.name(), redacted.target.name()), record.attempt
            )

    def settle(self) -> None:
        """All has been learnt: say what every id becomes."""
        for name, incident in self._incidents.items():
            if (made := self._made(name, incident)) is not None:
                self._names.identify(name, made)
        for name, command in self._commands.items():
            incident_id, (own, renamed) = command.incident_id, command.targets
            if id_of_command(incident_id, command.kind, own, command.attempt) == name:
                made = id_of_command(self._names.of(incident_id), command.kind, renamed, command.attempt)
                self._names.identify(name, made)
        self._components.clear()
        self._incidents.clear()
        self._commands.clear()

    def _made(self, name: str, incident: _Incident) -> str | None:
        own, renamed = incident.sites
        components = incident.components.union(*(self._components.get(finding, ()) for finding in incident.findings))
        components |= {(f"storm:{own}", f"storm:{renamed}")}
        components |= {(f"{cause}:{own}", f"{cause}:{renamed}") for cause in incident.causes}
        for cause, (component, other) in product((*sorted(incident.causes), *_FAMILIES), sorted(components)):
            if id_of_incident(own, cause, component, incident.onset_ns) == name:
                return id_of_incident(renamed, cause, other, incident.onset_ns)
        return None


def finding_id(finding: Finding) -> str:
    """The id that a finding of our own rules has, by what it says."""
    return id_of_finding(finding.rule, finding.rule_version, finding.kind, finding.subject, finding.onset_ns)


def _of_finding(finding: Finding) -> list[str]:
    found = list(_of_subject(finding.subject))
    found.append(f"job:{finding.job_id}/{finding.epoch}")
    peer = finding.values.get("peer")
    found.append(f"port:{peer if isinstance(peer, str) else None}")
    return found


def _of_incident(incident: Incident) -> list[str]:
    found = [f"{incident.cause_class}:{incident.job_id}"]
    return found + list(_of_subject(incident.culprit or Subject(level="job", job_id=incident.job_id)))


def _of_subject(subject: Subject) -> Iterator[str]:
    """Names of components as the decisions make them of a subject (`streams.decisions`)."""
    yield f"gpu:{subject.node_id}/{subject.gpu_uuid}"
    yield f"gpu:{subject.node_id}/{subject.pci_bus_id}"
    yield f"nvswitch:{subject.node_id}/{subject.pci_bus_id}"
    yield f"rank:{subject.job_id}/{subject.rank}"
    yield f"port:{subject.switch_id}/{subject.port}"
    yield f"port:{subject.node_id}/{subject.device}/{subject.port}"
    yield subject.key()
    for place in _PLACES:
        yield f"{place}:{subject.zone or subject.switch_id or subject.node_id}"

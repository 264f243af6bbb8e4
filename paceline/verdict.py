"""Holds what the processors said against what was really wrong. Used by the demo and by tests; never fed back.

A fault counts as found when an incident of its class names its culprit (or an acceptable place) within the time of the
fault, and a right command for that incident stands on the actions topic. Whoever else is named is blamed wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.findings import BLAMELESS_KINDS, Finding, Subject
from schemas.remediation import Command, Incident
from schemas.results import StepResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agents.simulation.truth import Truth
    from schemas.base import Record

__all__ = ["Heard", "Verdict", "is_named", "judge"]

_EARLY_NS = 2_000_000_000
_GRACE_NS = 20_000_000_000


@dataclass(slots=True)
class Heard:
    """What came out of the processors, folded as it comes."""

    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    steps: dict[tuple[str, int, int], StepResult] = field(default_factory=dict)

    def take(self, record: Record) -> bool:
        """Take one record; false for a repeat, told by its id."""
        if isinstance(record, Finding):
            key = (record.finding_id, record.state)
            fresh = key not in self.findings
            self.findings.setdefault(key, record)
            return fresh
        if isinstance(record, Incident):
            known = self.incidents.get(record.incident_id)
            self.incidents[record.incident_id] = record
            return known != record
        if isinstance(record, Command):
            fresh = record.command_id not in self.commands
            self.commands.setdefault(record.command_id, record)
            return fresh
        if isinstance(record, StepResult):
            step = (record.job_id, record.epoch, record.step)
            fresh = step not in self.steps
            self.steps.setdefault(step, record)
            return fresh
        return False

    def gpu_hours_lost(self, gpus: Mapping[str, int]) -> float:
        """GPU-hours by which the recorded steps were longer than the job's own best quarter of steps.

        Masked steps (warm-up, checkpoint) count as no loss.

        Args:
            gpus: world size by job.
        """
        lost_us = 0.0
        for job_id in sorted({job for job, _, _ in self.steps}):
            times = [
                step.step_time_us
                for (job, _, _), step in self.steps.items()
                if job == job_id and step.phase == "train" and step.step_time_us
            ]
            if not times:
                continue
            usual = sorted(times)[len(times) // 4]
            lost_us += gpus.get(job_id, 0) * sum(max(0, time - usual) for time in times)
        return lost_us / 3.6e9


@dataclass(frozen=True, slots=True)
class Verdict:
    """How well the processors did.

    Attributes:
        found: truth ids with the right culprit, class and command.
        missed: truth ids without.
        blamed_healthy: who was named though healthy, one line each.
        details: per truth, what was said about it.
    """

    found: tuple[str, ...]
    missed: tuple[str, ...]
    blamed_healthy: tuple[str, ...]
    details: tuple[dict[str, Any], ...]


def judge(truths: Sequence[Truth], heard: Heard) -> Verdict:
    """Compare.

    Args:
        truths: what was wrong.
        heard: everything that was published.
    """
    found, missed, details = [], [], []
    for truth in truths:
        incident = _incident_of(truth, heard.incidents.values())
        command = _command_of(truth, incident, heard.commands.values())
        details.append(_detail(truth, incident, command))
        if incident is not None and command is not None:
            found.append(truth.truth_id)
        elif truth.identifiable:
            missed.append(truth.truth_id)
    return Verdict(tuple(found), tuple(missed), tuple(_blamed(truths, heard)), tuple(details))


def _incident_of(truth: Truth, incidents: Iterable[Incident]) -> Incident | None:
    for incident in sorted(incidents, key=lambda i: (i.onset_ns, i.incident_id)):
        in_time = truth.onset_ns - _EARLY_NS <= incident.onset_ns <= truth.end_ns + _GRACE_NS
        if in_time and incident.cause_class == truth.cause_class and is_named(truth, incident.culprit):
            return incident
    return None


def _command_of(truth: Truth, incident: Incident | None, commands: Iterable[Command]) -> Command | None:
    if incident is None:
        return None
    for command in sorted(commands, key=lambda c: (c.decided_at_ns, c.command_id)):
        if command.cause.incident_id == incident.incident_id and command.kind in truth.right_commands:
            return command
    return None


def is_named(truth: Truth, subject: Subject | None) -> bool:
    """Whether a subject is a culprit of a truth, or a place that may be named for it."""
    return subject is not None and any(_is_at(place, subject) for place in (*truth.culprits, *truth.acceptable))


def _is_at(place: dict[str, Any], subject: Subject) -> bool:
    level = place["level"]
    if level != subject.level:
        return False
    named_by = {
        "gpu": ("node_id", "gpu_uuid"),
        "rank": ("job_id", "rank"),
        "node": ("node_id",),
        "port": ("node_id", "switch_id", "device", "port"),
    }[level]
    return all(place.get(name) in {None, getattr(subject, name)} for name in named_by)


def _blamed(truths: Sequence[Truth], heard: Heard) -> list[str]:
    blamed = []
    for incident in sorted(heard.incidents.values(), key=lambda i: (i.onset_ns, i.incident_id)):
        if incident.culprit is not None and not any(is_named(truth, incident.culprit) for truth in truths):
            blamed.append(f"incident {incident.cause_class}: {incident.culprit.key()}")
    for finding in sorted(heard.findings.values(), key=lambda f: (f.event_time_ns, f.finding_id)):
        names_somebody = finding.kind == "straggler" and finding.kind not in BLAMELESS_KINDS
        if names_somebody and not any(is_named(truth, finding.subject) for truth in truths):
            blamed.append(f"finding {finding.kind}: {finding.subject.key()}")
    known = {i.incident_id for i in heard.incidents.values()}
    for command in sorted(heard.commands.values(), key=lambda c: (c.decided_at_ns, c.command_id)):
        if command.cause.incident_id not in known:
            blamed.append(f"command {command.kind} without an incident: {command.target.name()}")
    return sorted(set(blamed))


def _detail(truth: Truth, incident: Incident | None, command: Command | None) -> dict[str, Any]:
    return {
        "truth_id": truth.truth_id,
        "cause_class": truth.cause_class,
        "culprits": list(truth.culprits),
        "found": incident is not None and command is not None,
        "incident_id": incident.incident_id if incident is not None else None,
        "named": incident.culprit.model_dump(exclude_none=True)
        if incident is not None and incident.culprit is not None
        else None,
        "command": command.kind if command is not None else None,
        "when": command.when if command is not None else None,
        "seconds_to_command": round((command.decided_at_ns - truth.onset_ns) / 1e9, 3) if command is not None else None,
        "why": incident.summary if incident is not None else None,
    }

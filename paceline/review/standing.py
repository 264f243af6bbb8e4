"""What stands now: incidents that are not over, and what became of the commands that they asked for.

A fold over incidents, commands and results in any order within a topic: of an incident the latest transition counts, of
a command's results the strongest. Pure; the time by which terms are judged is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline.one_line import one_line
from schemas.remediation import ActionResult, Command, Incident
from streams.decisions.acts import STRENGTH

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Subject

__all__ = ["Standing", "command_text", "incident_lines", "place_text"]

_SAID = {"applied": "carried out", "failed": "failed", "refused": "refused", "expired": "expired"}
_NS = 1_000_000_000


@dataclass(slots=True)
class Standing:
    """Incidents, commands and results by id."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    results: dict[str, ActionResult] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Take one record; repeats change nothing, and of transitions of one instant the one that comes last counts."""
        if isinstance(record, Incident):
            known = self.incidents.get(record.incident_id)
            if known is None or record.event_time_ns >= known.event_time_ns:
                self.incidents[record.incident_id] = record
        elif isinstance(record, Command):
            self.commands.setdefault(record.command_id, record)
        elif isinstance(record, ActionResult):
            before = self.results.get(record.command_id)
            if before is None or STRENGTH[record.outcome] > STRENGTH[before.outcome]:
                self.results[record.command_id] = record

    def shown(self, with_resolved: bool) -> list[Incident]:
        """Incidents that are not over, or all, the oldest first."""
        wanted = [i for i in self.incidents.values() if with_resolved or i.state != "resolved"]
        return sorted(wanted, key=lambda incident: (incident.onset_ns, incident.incident_id))

    def commands_of(self, incident_id: str) -> list[Command]:
        """Commands of an incident as they were decided, without those in whose place an order stands."""
        replaced = {command.supersedes for command in self.commands.values()}
        mine = [
            command
            for command in self.commands.values()
            if command.cause.incident_id == incident_id and command.command_id not in replaced
        ]
        return sorted(mine, key=lambda command: (command.decided_at_ns, command.sequence, command.command_id))

    def waiting(self, now_ns: int) -> list[Command]:
        """Commands that a person can still consent to, the first to lapse first."""
        found = [
            command
            for incident in self.shown(with_resolved=False)
            for command in self.commands_of(incident.incident_id)
            if self.state_of(command, now_ns) == "waits"
        ]
        return sorted(found, key=lambda command: (command.expires_at_ns, command.command_id))

    def state_of(self, command: Command, now_ns: int) -> str:
        """What became of a command.

        Returns:
            `observed` (nobody is to carry it out), `waits` (for a person's consent), `lapsed` (its term or its incident ended
            before anybody consented), `ordered` (no result yet), `unanswered` (its term ended without one), or the outcome
            of its strongest result.
        """
        result = self.results.get(command.command_id)
        if command.mode == "observe":
            return "observed"
        is_over = now_ns >= command.expires_at_ns
        if command.mode == "approve":
            incident = self.incidents.get(command.cause.incident_id)
            return "lapsed" if is_over or (incident is not None and incident.state == "resolved") else "waits"
        if result is not None:
            return result.outcome
        return "unanswered" if is_over else "ordered"

    def as_dict(self, incident: Incident, now_ns: int) -> dict[str, Any]:
        """An incident with its commands, for programs: `incident` as on its topic, `commands` each with `became`."""
        commands = [
            {**command.model_dump(exclude_none=True), "became": self.state_of(command, now_ns)}
            for command in self.commands_of(incident.incident_id)
        ]
        return {"incident": incident.model_dump(exclude_none=True), "commands": commands}


def place_text(place: Subject | None) -> str:
    """Who is to blame, by the names that its fields have; or that nobody is."""
    if place is None:
        return "nobody to blame"
    fields = place.model_dump(exclude_none=True, exclude={"level"})
    ranks = fields.pop("ranks", ())
    if ranks:
        shown = ", ".join(str(rank) for rank in ranks[:8])
        fields["ranks"] = f"{shown}, ... ({len(ranks)} in all)" if len(ranks) > 8 else shown
    named = ", ".join(f"{name.removesuffix('_id').replace('_', ' ')} {value}" for name, value in fields.items())
    return f"to blame: {named}"


def incident_lines(standing: Standing, incident: Incident, now_ns: int) -> list[str]:
    """An incident for a person: who, since when, what it costs, what was decided and what became of that."""
    cost = [f"{incident.slowdown:.2f} times as slow"] if incident.slowdown is not None else []
    cost += [f"{incident.gpu_hours_lost:.3g} GPU-hours lost"] if incident.gpu_hours_lost is not None else []
    cost += [f"job {incident.job_id}"] if incident.job_id is not None else []
    since = f"{_time(incident.onset_ns)} ({_span(now_ns - incident.onset_ns)})"
    lines = [
        f"{incident.incident_id}  {incident.state}  {incident.cause_class}  since {since}",
        f"  {place_text(incident.culprit)}{'; ' + ', '.join(cost) if cost else ''}",
    ]
    lines += [f"  {text}" for text in (incident.summary, incident.advice) if text]
    lines += [f"  {command_text(standing, command, now_ns)}" for command in standing.commands_of(incident.incident_id)]
    return [one_line(line) for line in lines]


def command_text(standing: Standing, command: Command, now_ns: int) -> str:
    """A command and what became of it, in a line."""
    state = standing.state_of(command, now_ns)
    what = f"{command.command_id}  {command.kind} {command.target.name()}: "
    if state == "observed":
        return what + "not ordered (mode observe)"
    if state == "waits":
        left = _span(command.expires_at_ns - now_ns)
        return what + f"waits for consent, {left} left: paceline approve {command.command_id} --key ..."
    if state == "lapsed":
        return what + "lapsed; nobody consented in time"
    by = f", with {command.approved_by}'s consent" if command.approved_by else ""
    if state == "ordered":
        return what + f"ordered{by}; no result yet"
    if state == "unanswered":
        return what + f"ordered{by}; its term ended without a result"
    result = standing.results[command.command_id]
    why = ": ".join(text for text in (result.code, result.reason) if text)
    return (
        what
        + f"{_SAID[state]} by {result.actuator_id} at {_time(result.event_time_ns)}{by}{f' ({why})' if why else ''}"
    )


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // _NS, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _span(span_ns: int) -> str:
    seconds = max(0, span_ns // _NS)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds // 86400} d"

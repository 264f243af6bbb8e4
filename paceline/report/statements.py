"""What was said, as a page shows it: incidents with what was known when, commands with what came of them, findings, silences.

Everything is bounded, and each cut is named by its total.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.review.difference import place_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.report.collected import Arrival, Collected, StepPoint
    from schemas.findings import Evidence, Finding, Subject
    from schemas.remediation import Command, Incident

__all__ = [
    "cited_places",
    "finding_rows",
    "incident_rows",
    "job_of",
    "last_words",
    "raw_anchor",
    "short_place",
    "short_uuid",
    "silence_rows",
]

Place = tuple[str, int, int]
"""Topic, partition and offset."""

_MOST_INCIDENTS = 300
_MOST_FINDINGS = 5_000
_MOST_SILENCES = 300
_MOST_RAW_CITED = 1_500
_MOST_CITED = 6
"""Records named beside one statement: a reader opens one or two."""

_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}
_UUID = re.compile(r"^((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]+$")


def raw_anchor(place: Place) -> str:
    """The id on the page of a raw record."""
    return f"raw-{place[0].split('.')[1] if '.' in place[0] else place[0]}-{place[1]}-{place[2]}"


def short_place(subject: Subject) -> str:
    """A subject as people say it: whose rank, where, on which device by the beginning of its UUID."""
    words = [f"rank {subject.rank}"] if subject.rank is not None else []
    if subject.rank is None and subject.ranks is not None:
        words.append(
            f"ranks {', '.join(map(str, subject.ranks))}" if len(subject.ranks) <= 4 else f"{len(subject.ranks)} ranks"
        )
    port = f"port {subject.port}" if subject.port is not None else None
    part = " ".join(filter(None, (subject.device, port))) or None
    uuid = short_uuid(subject.gpu_uuid) if subject.gpu_uuid is not None else subject.pci_bus_id
    words += filter(None, (subject.switch_id, subject.node_id, uuid, part))
    return ", ".join(words) or subject.job_id or subject.zone or subject.level


def short_uuid(uuid: str) -> str:
    """The first group of a device's UUID; what is no UUID stays whole."""
    found = _UUID.match(uuid)
    return found[1] if found else uuid


def last_words(collected: Collected) -> list[Incident]:
    """Each incident as it was said last, by onset; of very many those that cost most and those without an end."""
    last = [words[-1].record for words in collected.incidents.values()]
    last.sort(key=lambda i: (i.state == "resolved", i.culprit is None, -(i.gpu_hours_lost or 0.0)))
    return sorted(last[:_MOST_INCIDENTS], key=lambda i: (i.onset_ns, i.incident_id))


def job_of(incident: Incident) -> str | None:
    """The job of an incident, else of its culprit."""
    return incident.job_id or (incident.culprit.job_id if incident.culprit is not None else None)


def _place_of(evidence: Evidence) -> Place:
    return evidence.topic, evidence.partition, evidence.offset


def cited_places(collected: Collected) -> list[Place]:
    """Places of the raw records that incidents, commands and findings rest on, the weightiest first."""
    places: dict[Place, None] = {}

    def take(evidence: Iterable[Evidence]) -> None:
        for item in evidence:
            places.setdefault(_place_of(item))

    for said in collected.commands.values():
        take(said.record.cause.evidence)
    in_incidents = {name for incident in last_words(collected) for name in (*incident.findings, *incident.suppressed)}
    findings = sorted(
        (said.record for said in collected.findings.values()),
        key=lambda f: (f.finding_id not in in_incidents, _SEVERITIES[f.severity]),
    )
    for finding in findings:
        take(finding.evidence)
    return list(places)[:_MOST_RAW_CITED]


# --- Incidents --------------------------------------------------------------------------------------------------------


def incident_rows(collected: Collected, arrivals: dict[Place, int]) -> list[dict[str, Any]]:
    """All incidents by onset.

    Args:
        collected: what the archive holds.
        arrivals: when cited records were at the brokers, milliseconds; 0 is unknown.
    """
    commands: dict[str, list[Arrival[Command]]] = {}
    for said in collected.commands.values():
        commands.setdefault(said.record.cause.incident_id, []).append(said)
    steps: dict[str, list[StepPoint]] = {}
    for step in sorted(collected.steps, key=lambda s: s.at_ns):
        if step.phase == "train":
            steps.setdefault(step.job_id, []).append(step)
    return [
        _incident(collected, incident, commands.get(incident.incident_id, []), steps, arrivals)
        for incident in last_words(collected)
    ]


def _incident(
    collected: Collected,
    last: Incident,
    commands: list[Arrival[Command]],
    steps: dict[str, list[StepPoint]],
    arrivals: dict[Place, int],
) -> dict[str, Any]:
    words = collected.incidents[last.incident_id]
    own = [collected.findings[key] for name in last.findings if (key := f"{name}:open") in collected.findings]
    own.sort(key=lambda said: said.record.event_time_ns)
    job_id = job_of(last)
    end_ns = last.event_time_ns if last.state == "resolved" else None
    rank = last.culprit.rank if last.culprit is not None else None
    return {
        "id": last.incident_id,
        "class": last.cause_class,
        "state": last.state,
        "job_id": job_id,
        "who": short_place(last.culprit) if last.culprit is not None else None,
        "culprit": place_name(last.culprit) if last.culprit is not None else None,
        "summary": last.summary,
        # What is advised once dumps are read is other than what was advised before.
        "advice": next((said.record.advice for said in reversed(words) if said.record.advice), ""),
        "slowdown": last.slowdown,
        "gpu_hours_lost": last.gpu_hours_lost,
        "onset_ms": last.onset_ns / 1e6,
        "end_ms": end_ns / 1e6 if end_ns is not None else None,
        "pace": _pace(steps.get(job_id or "", []), rank, last.onset_ns, end_ns or collected.last_ns),
        "explained": len(last.suppressed),
        "known": _known(collected, words, own, commands, arrivals),
        "findings": [_finding(said) for said in own],
        "commands": [_command(collected, said.record) for said in commands],
    }


def _pace(steps: list[StepPoint], rank: int | None, from_ns: int, to_ns: int) -> dict[str, Any] | None:
    """What a rank did to the training steps of its incident, in seconds; null where it was never the slowest."""
    if rank is None:
        return None
    within = steps[
        bisect_left(steps, from_ns, key=lambda s: s.at_ns) : bisect_right(steps, to_ns, key=lambda s: s.at_ns)
    ]
    mine = [s for s in within if s.own_max_rank == rank and s.own_max_us and s.own_median_us]
    if not mine:
        return None
    return {
        "steps": len(within),
        "slowest_in": len(mine),
        "own_s": float(np.median([s.own_max_us or 0 for s in mine])) / 1e6,
        "median_s": float(np.median([s.own_median_us or 0 for s in mine])) / 1e6,
    }


def _known(
    collected: Collected,
    words: list[Arrival[Incident]],
    own: list[Arrival[Finding]],
    commands: list[Arrival[Command]],
    arrivals: dict[Place, int],
) -> list[dict[str, Any]]:
    """What was known when: for each thing its event time, and when the brokers had it."""
    onset_ms = words[-1].record.onset_ns / 1e6
    rows: list[dict[str, Any]] = [{"what": "it began", "text": "", "event_ms": onset_ms, "arrived_ms": None}]

    def tell(what: str, text: str, at_ns: int, arrived_ms: int | None) -> None:
        rows.append({"what": what, "text": text, "event_ms": at_ns / 1e6, "arrived_ms": arrived_ms})

    places = [_place_of(item) for said in own for item in said.record.evidence]
    known = sorted(arrivals[place] for place in places if arrivals.get(place))
    if known:
        rows.append({"what": "first raw record of it", "text": "", "event_ms": None, "arrived_ms": known[0]})
    for finding in own:
        tell(
            f"finding {finding.record.kind}",
            finding.record.explanation,
            finding.record.event_time_ns,
            finding.arrived_ms,
        )
    for word in words:
        tell(f"incident {word.record.state}", word.record.summary, word.record.event_time_ns, word.arrived_ms)
    for order in commands:
        what = f"command {order.record.kind} ({order.record.mode})"
        tell(what, order.record.target.key(), order.record.decided_at_ns, order.arrived_ms)
    names = {said.record.command_id for said in commands}
    for result in collected.results:
        if result.record.command_id in names:
            tell(
                f"result {result.record.outcome}",
                result.record.reason,
                result.record.event_time_ns,
                result.arrived_ms,
            )
    return sorted(rows, key=lambda row: row["event_ms"] or row["arrived_ms"])


def _command(collected: Collected, command: Command) -> dict[str, Any]:
    results = [
        {"outcome": r.record.outcome, "reason": r.record.reason, "event_ms": r.record.event_time_ns / 1e6}
        for r in collected.results
        if r.record.command_id == command.command_id
    ]
    target = command.target
    device = short_uuid(target.gpu_uuid) if target.gpu_uuid is not None else target.pci_bus_id
    return {
        "kind": command.kind,
        "when": command.when.replace("_", " "),
        "mode": command.mode,
        "approved_by": command.approved_by,
        "on": ", ".join(filter(None, (target.key(), device, target.device, target.port))),
        "target": target.name(),
        "reason": command.reason,
        "held": collected.holds.get(command.command_id, []),
        "evidence": _cited(command.cause.evidence),
        "results": results,
    }


# --- Findings and silences --------------------------------------------------------------------------------------------


def _cited(evidence: Iterable[Evidence]) -> list[str]:
    """Anchors of records, each once."""
    anchors = dict.fromkeys(raw_anchor(_place_of(item)) for item in evidence)
    return list(anchors)[:_MOST_CITED]


def _finding(said: Arrival[Finding]) -> dict[str, Any]:
    finding = said.record
    return {
        "id": finding.finding_id,
        "kind": finding.kind,
        "severity": finding.severity,
        "state": finding.state,
        "who": short_place(finding.subject),
        "about": place_name(finding.subject),
        "event_ms": finding.event_time_ns / 1e6,
        "arrived_ms": said.arrived_ms,
        "text": finding.explanation,
        "evidence": _cited(finding.evidence),
    }


def finding_rows(collected: Collected) -> list[dict[str, Any]]:
    """Findings by time; of very many the weightiest."""
    rows = sorted(collected.findings.values(), key=lambda said: _SEVERITIES[said.record.severity])[:_MOST_FINDINGS]
    return [_finding(said) for said in sorted(rows, key=lambda said: said.record.event_time_ns)]


def silence_rows(collected: Collected) -> dict[str, Any]:
    """How often somebody was silent, and the longest silences."""
    longest = sorted(collected.silences, key=lambda s: s.from_ns - (s.to_ns or collected.last_ns))[:_MOST_SILENCES]
    return {
        "total": len(collected.silences),
        "rows": [
            {
                "source": s.source,
                "stream": s.stream,
                "from_ms": s.from_ns / 1e6,
                "to_ms": s.to_ns / 1e6 if s.to_ns is not None else None,
            }
            for s in longest
        ],
    }

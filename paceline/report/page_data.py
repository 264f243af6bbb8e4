"""From what was collected to what a page shows: sums, sentences, heat maps and tables, as one object for JSON.

Everything is bounded: series are thinned to some two thousand points, tables to their first rows, and each cut is named.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.review.difference import place_name

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from paceline.report.collected import Arrival, Collected, StepPoint
    from paceline.report.heat_map import HeatMap
    from schemas.findings import Evidence, Finding
    from schemas.remediation import Command, Incident

__all__ = ["cited_places", "page_data"]

_POINTS = 2_000
_MOST_FINDINGS = 5_000
_MOST_SILENCES = 300
_MOST_DEVICES = 8
_MOST_RAW_CITED = 1_500
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}


def cited_places(collected: Collected) -> list[tuple[str, int, int]]:
    """Places of the raw records that incidents, commands and findings rest on, the weightiest first."""
    places: dict[tuple[str, int, int], None] = {}

    def take(evidence: Iterable[Evidence]) -> None:
        for item in evidence:
            places.setdefault((item.topic, item.partition, item.offset))

    for said in collected.commands.values():
        take(said.record.cause.evidence)
    in_incidents = {name for incident in _last_words(collected) for name in (*incident.findings, *incident.suppressed)}
    findings = sorted(_findings(collected), key=lambda f: (f.finding_id not in in_incidents, _SEVERITIES[f.severity]))
    for finding in findings:
        take(finding.evidence)
    return list(places)[:_MOST_RAW_CITED]


def page_data(
    collected: Collected, about: dict[str, Any], raw: dict[tuple[str, int, int], tuple[int, str]]
) -> dict[str, Any]:
    """All that the page draws.

    Args:
        collected: what the archive holds.
        about: name of the source, versions, policy and whether statements were recorded or replayed.
        raw: cited records by place, with their arrival and JSON.
    """
    jobs = sorted({step.job_id for step in collected.steps})
    arrivals = {place: at_ms for place, (at_ms, _) in raw.items()}
    return {
        "about": {**about, "from_ms": (collected.first_ns or 0) / 1e6, "to_ms": collected.last_ns / 1e6},
        "summary": _summary(collected),
        "records": dict(sorted(collected.records.items())),
        "jobs": [_job(collected, job_id) for job_id in jobs],
        "heats": _heats(collected),
        "devices": _devices(collected),
        "incidents": [_incident(collected, words, arrivals) for words in _by_onset(collected)],
        "findings": _finding_rows(collected),
        "findings_total": len(collected.findings),
        "silences": _silences(collected),
        "raw": [
            {"id": _anchor(place), "place": f"{place[0]}/{place[1]} @ {place[2]}", "arrived_ms": at_ms, "json": text}
            for place, (at_ms, text) in raw.items()
        ],
    }


def _anchor(place: tuple[str, int, int]) -> str:
    return f"raw-{place[0].split('.')[1] if '.' in place[0] else place[0]}-{place[1]}-{place[2]}"


# --- Summary ----------------------------------------------------------------------------------------------------------


def _summary(collected: Collected) -> dict[str, Any]:
    """Figures and sentences that need no knowledge of the trade."""
    span_s = (collected.last_ns - (collected.first_ns or collected.last_ns)) / 1e9
    incidents = _last_words(collected)
    lost = [i.gpu_hours_lost for i in incidents if i.gpu_hours_lost is not None]
    commands = Counter(said.record.kind for said in collected.commands.values())
    prices = [p.gpu_hour_cost for p in collected.policies if p.gpu_hour_cost] + [
        job.gpu_hour_cost for job in collected.jobs.values() if job.gpu_hour_cost
    ]
    done = Counter(said.record.outcome for said in collected.results)
    return {
        "span_s": span_s,
        "gpus": sum(job.world_size for job in collected.jobs.values()),
        "nodes": len(collected.nodes),
        "steps": len(collected.steps),
        "incidents": len(incidents),
        "blamed": len({i.culprit.key() for i in incidents if i.culprit is not None}),
        "commands": dict(sorted(commands.items())),
        "results": dict(done),
        "gpu_hours_lost": round(sum(lost), 4) if lost else None,
        "money_lost": round(sum(lost) * prices[-1], 2) if lost and prices else None,
        "silent": len({silence.source for silence in collected.silences}),
        "sentences": _sentences(collected, span_s, incidents, sum(lost) if lost else None),
    }


def _sentences(collected: Collected, span_s: float, incidents: list[Incident], lost: float | None) -> list[str]:
    told = []
    for job_id in sorted({step.job_id for step in collected.steps}):
        times = [s.step_us for s in collected.steps if s.job_id == job_id and s.phase == "train" and s.step_us]
        job = collected.jobs.get(job_id)
        size = f" on {job.world_size:,} GPUs" if job is not None else ""
        if times:
            told.append(
                f"Job {job_id}{size} made {len(times):,} training steps; half of them took less than "
                f"{np.median(times) / 1e6:.2f} s, the longest {max(times) / 1e6:.2f} s."
            )
    if not incidents:
        told.append(f"In {_span(span_s)} nothing was found that has a cause and needs an act.")
    elif lost is not None:
        told.append(
            f"The incidents below cost {lost:,.{0 if lost >= 100 else 2}f} GPU-hours in which GPUs waited for one that was slow."
        )
    return told


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- Steps ------------------------------------------------------------------------------------------------------------


def _job(collected: Collected, job_id: str) -> dict[str, Any]:
    steps = sorted((s for s in collected.steps if s.job_id == job_id), key=lambda s: s.at_ns)
    slowest = sorted(
        ((rank, count) for (job, rank), count in collected.slow_counts.items() if job == job_id),
        key=lambda item: -item[1],
    )[:12]
    bins = max(1, -(-len(steps) // _POINTS))
    groups = [steps[index : index + bins] for index in range(0, len(steps), bins)]
    return {
        "job_id": job_id,
        "steps": len(steps),
        "bin": bins,
        "at": [round(group[-1].at_ns / 1e9, 3) for group in groups],
        "step": [group[-1].step for group in groups],
        "step_s": _slowest_s(groups, lambda s: s.step_us),
        "median_s": _slowest_s(groups, lambda s: s.own_median_us),
        "slowest_s": _slowest_s(groups, lambda s: s.own_max_us),
        "mfu": [
            round(sum(known) / len(known), 4) if (known := [s.mfu for s in group if s.mfu is not None]) else None
            for group in groups
        ],
        "missing": [max(s.missing for s in group) for group in groups],
        "slowest": [
            {
                "rank": rank,
                "count": count,
                "worst": round(collected.worst_ratio.get((job_id, rank), 1.0), 3),
                "where": " ".join(filter(None, collected.placed.get((job_id, rank), ("", None)))),
            }
            for rank, count in slowest
        ],
    }


def _slowest_s(groups: list[list[StepPoint]], of: Callable[[StepPoint], int | None]) -> list[float | None]:
    """By group the longest of a time, in seconds; null where no step has it."""
    longest_us = (max((us for step in group if (us := of(step)) is not None), default=None) for group in groups)
    return [round(us / 1e6, 5) if us is not None else None for us in longest_us]


# --- Maps and lanes ---------------------------------------------------------------------------------------------------


def _heats(collected: Collected) -> list[dict[str, Any]]:
    drawn = []

    def draw(
        heat: HeatMap, name: str, unit: str, rows: str, low: float, high: float, label: Callable[[Any], str]
    ) -> None:
        if not heat:
            return
        order: list[Hashable] = sorted(heat.keys, key=str) if rows != "ranks" else sorted(heat.keys)  # type: ignore[type-var]
        data = heat.drawn(order, low, high)
        data["labels"] = [label(order[index]) for index in data.pop("keys")]
        drawn.append({"name": name, "unit": unit, "what": rows, **data})

    def of_rank(key: tuple[str, int]) -> str:
        node = collected.placed.get(key, ("", None))[0]
        return f"{key[0]} rank {key[1]} {node}".strip()

    def of_device(key: tuple[str, str]) -> str:
        return f"{key[0]} {key[1]}"

    high = collected.own_ratio.quantile(0.9999) or 1.3
    draw(
        collected.own_ratio,
        "Own time of a rank over the median of its peers",
        "x",
        "ranks",
        1.0,
        max(1.2, min(3.0, high)),
        of_rank,
    )
    clocks = collected.clock_mhz.quantile(0.0), collected.clock_mhz.quantile(0.5)
    if clocks[0] is not None and clocks[1] is not None:
        # The sign of a clock is turned, so that its quantile from below is its highest.
        top = max(clocks[0], clocks[1])
        draw(collected.clock_mhz, "Lowest SM clock", "MHz", "GPUs", top * 0.6, top, of_device)
    draw(collected.temperature_c, "Highest GPU temperature", "C", "GPUs", 30, 90, of_device)
    top = collected.pause_per_s.quantile(1.0) or 0.0
    if top > 0:
        draw(collected.pause_per_s, "Pause frames received", "/s", "ports", 0, max(100.0, top), of_device)
    draw(
        collected.delay_s,
        "Delay until a record arrived",
        "s",
        "streams",
        0,
        max(5.0, min(120.0, collected.delay_s.quantile(1.0) or 0)),
        str,
    )
    return drawn


def _devices(collected: Collected) -> list[dict[str, Any]]:
    """Lanes of the devices that incidents name, then of those that warnings name."""
    keys: dict[tuple[str, str], str] = {}
    subjects = [i.culprit for i in _last_words(collected) if i.culprit is not None]
    subjects += [f.subject for f in _findings(collected) if f.severity != "info"]
    for subject in subjects:
        node_id, device = subject.node_id, subject.gpu_uuid
        if subject.rank is not None and subject.job_id is not None and device is None:
            node_id, device = collected.placed.get((subject.job_id, subject.rank), (node_id, None))
        if node_id is not None and device is not None:
            keys.setdefault((node_id, device), place_name(subject))
        elif node_id is not None and subject.device is not None:
            keys.setdefault((node_id, f"{subject.device} {subject.port or ''}".strip()), place_name(subject))
    lanes = []
    for key, name in keys.items():
        series = []
        for heat, label, unit in (
            (collected.clock_mhz, "SM clock", "MHz"),
            (collected.temperature_c, "temperature", "C"),
            (collected.power_w, "power", "W"),
            (collected.pause_per_s, "pause frames received", "/s"),
        ):
            times, values = heat.row(key)
            if any(value is not None for value in values):
                series.append({"label": label, "unit": unit, "at": times, "values": values})
        if series:
            lanes.append({"name": name, "node": key[0], "series": series})
        if len(lanes) >= _MOST_DEVICES:
            break
    return lanes


# --- Statements -------------------------------------------------------------------------------------------------------


def _findings(collected: Collected) -> list[Finding]:
    return [said.record for said in collected.findings.values()]


def _last_words(collected: Collected) -> list[Incident]:
    last = [words[-1].record for words in collected.incidents.values()]
    return sorted(last, key=lambda i: (i.onset_ns, i.incident_id))


def _by_onset(collected: Collected) -> list[list[Arrival[Incident]]]:
    return [collected.incidents[incident.incident_id] for incident in _last_words(collected)]


def _incident(
    collected: Collected, words: list[Arrival[Incident]], arrivals: dict[tuple[str, int, int], int]
) -> dict[str, Any]:
    last = words[-1].record
    advice = next((said.record.advice for said in words if said.record.advice), "")
    commands = [said for said in collected.commands.values() if said.record.cause.incident_id == last.incident_id]
    own = [collected.findings[key] for name in last.findings if (key := f"{name}:open") in collected.findings]
    return {
        "id": last.incident_id,
        "class": last.cause_class,
        "state": last.state,
        "job_id": last.job_id or (last.culprit.job_id if last.culprit is not None else None),
        "culprit": place_name(last.culprit) if last.culprit is not None else None,
        "summary": last.summary,
        "advice": advice,
        "slowdown": last.slowdown,
        "gpu_hours_lost": last.gpu_hours_lost,
        "onset_ms": last.onset_ns / 1e6,
        "end_ms": last.event_time_ns / 1e6 if last.state == "resolved" else None,
        "explained": len(last.suppressed),
        "known": _known(collected, words, own, commands, arrivals),
        "findings": [_finding(said) for said in own],
        "commands": [_command(collected, said.record) for said in commands],
    }


def _known(
    collected: Collected,
    words: list[Arrival[Incident]],
    own: list[Arrival[Finding]],
    commands: list[Arrival[Command]],
    arrivals: dict[tuple[str, int, int], int],
) -> list[dict[str, Any]]:
    """What was known when: for each thing its event time, and when the brokers had it."""
    onset_ns = words[-1].record.onset_ns
    rows: list[dict[str, Any]] = [{"what": "it began", "event_ms": onset_ns / 1e6, "arrived_ms": None}]
    places = [(item.topic, item.partition, item.offset) for said in own for item in said.record.evidence]
    known = sorted(arrivals[place] for place in places if arrivals.get(place))
    if known:
        rows.append({"what": "first raw record of it", "event_ms": None, "arrived_ms": known[0]})
    told: list[tuple[str, int, int | None]] = []
    told += [(f"finding {said.record.kind}", said.record.event_time_ns, said.arrived_ms) for said in own]
    told += [(f"incident {said.record.state}", said.record.event_time_ns, said.arrived_ms) for said in words]
    told += [
        (f"command {said.record.kind} ({said.record.mode})", said.record.decided_at_ns, said.arrived_ms)
        for said in commands
    ]
    names = {said.record.command_id for said in commands}
    told += [
        (f"result {said.record.outcome}", said.record.event_time_ns, said.arrived_ms)
        for said in collected.results
        if said.record.command_id in names
    ]
    rows += [{"what": what, "event_ms": at_ns / 1e6, "arrived_ms": at_ms} for what, at_ns, at_ms in told]
    return sorted(rows, key=lambda row: row["event_ms"] or row["arrived_ms"])


def _command(collected: Collected, command: Command) -> dict[str, Any]:
    results = [
        {"outcome": r.record.outcome, "reason": r.record.reason, "event_ms": r.record.event_time_ns / 1e6}
        for r in collected.results
        if r.record.command_id == command.command_id
    ]
    return {
        "id": command.command_id,
        "kind": command.kind,
        "when": command.when.replace("_", " "),
        "mode": command.mode,
        "target": command.target.name(),
        "reason": command.reason,
        "decided_ms": command.decided_at_ns / 1e6,
        "cost": command.cost_estimate,
        "policy": command.policy_version,
        "evidence": [_anchor((e.topic, e.partition, e.offset)) for e in command.cause.evidence],
        "results": results,
    }


def _finding(said: Arrival[Finding]) -> dict[str, Any]:
    finding = said.record
    return {
        "id": finding.finding_id,
        "kind": finding.kind,
        "severity": finding.severity,
        "state": finding.state,
        "about": place_name(finding.subject),
        "event_ms": finding.event_time_ns / 1e6,
        "arrived_ms": said.arrived_ms,
        "text": finding.explanation,
        "evidence": [_anchor((e.topic, e.partition, e.offset)) for e in finding.evidence[:6]],
    }


def _finding_rows(collected: Collected) -> list[dict[str, Any]]:
    rows = sorted(collected.findings.values(), key=lambda said: _SEVERITIES[said.record.severity])[:_MOST_FINDINGS]
    return [_finding(said) for said in sorted(rows, key=lambda said: said.record.event_time_ns)]


def _silences(collected: Collected) -> dict[str, Any]:
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

"""Puts an explanation together from a finding, what was registered, the history of its job and the records it cites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from paceline.explanation.formulas import formula_of
from paceline.explanation.impact import impact_of, price_in_force
from paceline.explanation.model import Explanation
from paceline.explanation.step_history import compare, members_of
from paceline.explanation.thresholds import policy_name, thresholds_in_force

if TYPE_CHECKING:
    from paceline.explanation.model import CitedRecord, Impact, JobStepRow, PeerComparison, Persistence
    from paceline.explanation.step_history import StepHistory
    from schemas.findings import Finding
    from streams.core.roster import JobRoster, Roster

__all__ = ["explained"]


def explained(
    finding: Finding,
    origin: Literal["recomputed", "recorded"],
    roster: Roster,
    history: StepHistory | None,
    evidence: tuple[CitedRecord, ...],
    price_per_gpu_hour: float | None,
) -> Explanation:
    """An explanation of a finding as far as its figures can be told; what cannot is named in its notes.

    Args:
        finding: as it opened.
        origin: whether the engines made it again.
        roster: what was registered when it was made.
        history: of its job; null for findings of devices, and where no steps are there.
        evidence: records that it cites.
        price_per_gpu_hour: what was asked for; null takes the job's or the policy's.
    """
    job = roster.job(finding.job_id, finding.epoch or 0) if finding.job_id is not None else None
    notes = list(_notes(finding, origin, history, evidence))
    comparison: PeerComparison | None = None
    persistence: Persistence | None = None
    impact: Impact | None = None
    job_steps: tuple[JobStepRow, ...] = ()
    if history is not None and job is not None:
        compared = compare(history, finding, job) if finding.kind == "straggler" else None
        if compared is not None:
            comparison, lead = compared
            chart = str(finding.values.get("chart", "fast"))
            persistence = history.persistence(comparison.rank, chart)
            price = price_in_force(price_per_gpu_hour, job, roster.policy)
            impact = impact_of(history.kept[-1], lead, members_of(finding), finding, job, price)
            notes += _differences(finding, comparison)
        else:
            job_steps = history.job_rows(finding)
    return Explanation(
        finding=finding,
        origin=origin,
        policy=policy_name(roster.policy),
        formula=formula_of(finding.rule).lines,
        thresholds=thresholds_in_force(finding.rule, roster.policy, _part(finding, job, roster)),
        comparison=comparison,
        persistence=persistence,
        job_steps=job_steps,
        impact=impact,
        evidence=evidence,
        notes=tuple(notes),
    )


def _part(finding: Finding, job: JobRoster | None, roster: Roster) -> str | None:
    if job is not None and finding.subject.rank is not None and finding.subject.rank in job.seats:
        return job.seats[finding.subject.rank].sku
    node = roster.nodes.get(finding.subject.node_id) if finding.subject.node_id is not None else None
    return node.sku if node is not None else None


def _notes(
    finding: Finding, origin: str, history: StepHistory | None, evidence: tuple[CitedRecord, ...]
) -> tuple[str, ...]:
    notes = []
    if origin == "recorded":
        notes.append("read as it was recorded: the engines did not make it again from the records that are here")
        if history is not None:
            notes.append("earlier steps are judged with the noise of the finding's own step")
    if finding.step is not None and history is None:
        notes.append("the records of its step are not here: no peers can be shown")
    found = {(cited.topic, cited.partition, cited.offset) for cited in evidence if cited.is_cited}
    for cited in finding.evidence:
        if (cited.topic, cited.partition, cited.offset) not in found:
            notes.append(f"cited record {cited.topic} {cited.partition}@{cited.offset} is not here")
    return tuple(notes)


def _differences(finding: Finding, comparison: PeerComparison) -> list[str]:
    """Says so if the figures shown are not those that the finding carries."""
    told = finding.slowdown
    if told is None or abs(comparison.ratio - told) <= 2e-5 * told:
        return []
    given = f"the finding says {told:.6g} times its peers, the records give {comparison.ratio:.6g}"
    return [f"{given}: more was taken into account than own times, or records are missing"]

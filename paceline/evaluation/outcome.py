"""What is kept of one case and one detector: plain figures and texts that cross processes and go into files as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.evaluation.places import describe, is_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.labels import Truth
    from paceline.evaluation.matching import Judgement, TruthVerdict
    from schemas.findings import Finding

__all__ = ["CaseOutcome", "Cost", "TruthOutcome", "about", "outcome_of"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a detector took for a case: processor seconds of its own, and the process's peak memory in bytes."""

    cpu_s: float
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class TruthOutcome:
    """One truth and what became of it; texts for people, figures for metrics.

    `seconds` and `steps` are from the onset, `lag_s` from the event time of the evidence to the alert: delivery, closing
    of the step, settling and deciding. `heard_s` is from the onset to the first finding that warns and is an answer, which
    no act follows yet: it names a place of the truth, or the whole job and the truth's class; null where none did.
    """

    truth_id: str
    cause_class: str
    culprits: tuple[str, ...]
    acceptable: tuple[str, ...]
    severity: float
    impact_s: float
    onset_step: int
    end_step: int
    identifiable: bool
    advisory: bool
    counts: bool
    matched: bool
    exact: bool
    class_right: bool
    action_right: bool
    right_action: str
    actions: tuple[str, ...]
    said: str | None
    said_cause: str | None
    seconds: float
    steps: int
    lag_s: float
    lost_gpu_hours: float
    oracle_gpu_hours: float
    unlocalised: tuple[str, ...]
    falsely_blamed: int
    seen: tuple[str, ...]
    heard_s: float | None = None


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One case with one seed and one detector."""

    detector: str
    suite: str
    case_id: str
    scenario: str
    seed: int
    is_held_out: bool
    ranks: int
    steps: int
    gpu_days: float
    tags: dict[str, Any]
    expect: str
    truths: tuple[TruthOutcome, ...]
    alerts: tuple[dict[str, Any], ...]
    commands: tuple[dict[str, Any], ...]
    reasons: tuple[str, ...]
    asks_for_anything: bool
    naming_alerts: int
    false_alerts: int
    job_level_warnings: int
    false_remediations: int
    wrong_node_cordons: int
    victim_cordons: int
    cost: Cost
    verdict_sha256: str = ""
    other_findings: tuple[str, ...] = field(default=())
    false_findings: int = 0
    """Findings that warn and name a place of no truth."""
    records: int = 0
    """Records that the engine was given; 0 for other detectors."""
    late: int = 0
    """Those of them that it dropped because they came later than the lateness bound."""

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with what was said."""
        return not self.reasons

    @property
    def rank_steps(self) -> int:
        """Steps times ranks."""
        return self.ranks * self.steps

    @property
    def severity(self) -> float | None:
        """The case's own, else the greatest in it; null where nothing is wrong that asks for anything."""
        if not self.asks_for_anything:
            return None
        told = self.tags.get("severity")
        # The severity of a slow NIC or link follows from its speed and stands in the truth alone.
        return float(told) if isinstance(told, float) and told > 0 else max(t.severity for t in self.truths)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a line of JSON."""
        return {"record": "case", "right": self.is_right, **asdict(self)}


def outcome_of(
    detector: str,
    case: BenchmarkCase,
    seed: int,
    is_held_out: bool,
    judged: Judgement,
    cost: Cost,
    seconds: float,
    verdict_sha256: str = "",
    other_findings: tuple[str, ...] = (),
    findings: Judgement | None = None,
) -> CaseOutcome:
    """Plain figures of a judged case.

    Args:
        detector: its name.
        case: which case it is.
        seed: of it.
        is_held_out: whether that is a held-out seed.
        judged: the judgement.
        cost: what the detector took.
        seconds: length of the run in its own time.
        verdict_sha256: of everything that was given out.
        other_findings: findings that are about no truth, for people.
        findings: the judgement of findings taken as alerts.
    """
    heard = {v.truth.truth_id: _heard_s(v) for v in findings.truths} if findings is not None else {}
    told = judged.alerts
    start = min((v.truth.onset_ns for v in judged.truths), default=None)
    return CaseOutcome(
        detector=detector,
        suite=case.suite,
        case_id=case.case_id,
        scenario=case.scenario,
        seed=seed,
        is_held_out=is_held_out,
        ranks=case.ranks,
        steps=case.steps,
        gpu_days=case.ranks * seconds / 86_400,
        tags=dict(case.tags),
        expect=case.expect,
        truths=tuple(_truth(v, case.ranks, heard.get(v.truth.truth_id)) for v in judged.truths),
        alerts=tuple(
            {
                "fate": verdict.fate,
                "truth_id": verdict.truth_id,
                "id": verdict.alert.alert_id,
                "cause": verdict.alert.cause,
                "who": describe(verdict.alert.subject),
                "step": verdict.alert.step,
                "after_onset_s": round((verdict.alert.said_ns - start) / 1e9, 1) if start is not None else None,
                "summary": verdict.alert.summary,
                "note": verdict.note,
            }
            for verdict in told
        ),
        commands=tuple(
            {
                "kind": verdict.command.kind,
                "target": verdict.command.target,
                "incident_id": verdict.command.incident_id,
                "allowed": verdict.is_allowed,
                "wrong_node": verdict.is_wrong_node,
            }
            for verdict in judged.commands
        ),
        reasons=judged.reasons,
        asks_for_anything=judged.asks_for_anything,
        naming_alerts=sum(v.alert.is_naming and v.fate not in {"again", "companion"} for v in told),
        false_alerts=sum(v.is_false for v in told),
        job_level_warnings=sum(v.fate == "job-level" and v.alert.is_warning for v in told),
        false_remediations=sum(not v.is_allowed for v in judged.commands),
        wrong_node_cordons=sum(v.is_wrong_node for v in judged.commands),
        victim_cordons=sum(v.is_victim for v in judged.commands),
        cost=cost,
        verdict_sha256=verdict_sha256,
        other_findings=other_findings,
        false_findings=sum(v.fate in {"false", "early"} for v in findings.alerts) if findings is not None else 0,
    )


def _heard_s(verdict: TruthVerdict) -> float | None:
    """Seconds from the onset to the first answer among alerts; null where there was none."""
    answers = [alert.said_ns for alert in verdict.unlocalised if verdict.truth.cause_class in alert.classes]
    if verdict.alert is not None:
        answers.append(verdict.alert.said_ns)
    return round((min(answers) - verdict.truth.onset_ns) / 1e9, 3) if answers else None


def _truth(verdict: Any, ranks: int, heard_s: float | None) -> TruthOutcome:
    truth: Truth = verdict.truth
    # Of each hour a job spends (S - 1) / S on waiting for the fault.
    share = max(0.0, 1 - 1 / truth.impact_S) if truth.impact_S > 0 else 0.0
    span_s = max(0.0, (truth.end_ns - truth.onset_ns) / 1e9)
    step_s = span_s / max(1, truth.end_step - truth.onset_step)
    per_second = ranks * share / 3600
    return TruthOutcome(
        truth_id=truth.truth_id,
        cause_class=truth.cause_class,
        culprits=tuple(_place(place) for place in truth.culprits),
        acceptable=tuple(_place(place) for place in truth.acceptable),
        severity=truth.severity,
        impact_s=truth.impact_S,
        onset_step=truth.onset_step,
        end_step=truth.end_step,
        identifiable=truth.identifiable,
        advisory=truth.advisory,
        counts=verdict.counts_for_recall,
        matched=verdict.alert is not None,
        exact=verdict.is_exact,
        class_right=verdict.is_class_right,
        action_right=verdict.is_action_right,
        right_action=truth.right_action,
        actions=verdict.actions,
        said=verdict.alert.text() if verdict.alert is not None else None,
        said_cause=verdict.alert.cause if verdict.alert is not None else None,
        seconds=round(verdict.seconds, 3),
        steps=verdict.steps,
        lag_s=round((verdict.alert.said_ns - verdict.alert.evidence_ns) / 1e9, 3) if verdict.alert is not None else 0.0,
        lost_gpu_hours=per_second * min(span_s, verdict.seconds),
        oracle_gpu_hours=per_second * min(span_s, step_s),
        unlocalised=tuple(alert.cause for alert in verdict.unlocalised),
        falsely_blamed=len(verdict.falsely_blamed),
        seen=verdict.seen,
        heard_s=heard_s,
    )


def _place(place: Any) -> str:
    ranks = f" (rank {place.rank})" if place.rank is not None else ""
    return f"{place.level} {place.id}{ranks}"


def about(truth: Truth, findings: Iterable[Finding], until_ns: int) -> tuple[list[Finding], list[Finding]]:
    """Findings while a truth holds: those about its places, and the others.

    Args:
        truth: the truth.
        findings: as they opened.
        until_ns: end of the look, with the grace.
    """
    its: list[Finding] = []
    others: list[Finding] = []
    nodes = {place.node_id for place in truth.culprits if place.node_id is not None}
    for finding in findings:
        if not truth.onset_ns - 2_000_000_000 <= finding.event_time_ns <= until_ns:
            continue
        is_its = any(is_named(place, finding.subject) for place in (*truth.culprits, *truth.acceptable))
        (its if is_its or finding.subject.node_id in nodes else others).append(finding)
    return its, others

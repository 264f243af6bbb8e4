"""Reaction: the first finding that warns and is an answer counts, and findings that name somebody else count as alarms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_evaluation_matching import GPU, JOB, ONSET_NS, OTHER, STEP_NS, S, alert, subject, truth

from agents.simulation.benchmark.case import BenchmarkCase, FleetPlan, JobPlan
from paceline.evaluation.alerts import Alert, Heard
from paceline.evaluation.gates import gates_of
from paceline.evaluation.matching import judge
from paceline.evaluation.metrics import measure
from paceline.evaluation.outcome import CaseOutcome, Cost, outcome_of
from schemas.findings import Finding, Subject

CASE = BenchmarkCase(
    case_id="X/y",
    suite="greyhound",
    scenario="X",
    fleet=FleetPlan(nodes=2),
    jobs=(JobPlan("j", 2),),
    steps=200,
)


def finding(kind: str, who: Subject, at_s: float, severity: str = "warning", **fields: Any) -> Finding:
    at_ns = round(at_s * S)
    return Finding(
        finding_id=f"find-{kind}-{at_s}",
        site_id="s",
        rule=kind,
        kind=kind,
        severity=severity,
        state="open",
        job_id="j",
        step=104,
        subject=who,
        event_time_ns=at_ns,
        onset_ns=at_ns,
        **fields,
    )


def outcome(findings: list[tuple[float, Finding]], alerts: list[Alert], **of_truth: Any) -> CaseOutcome:
    """One case in which these findings were heard at these seconds."""
    heard = Heard()
    for said_s, one in findings:
        heard.take(round(said_s * S), one)
    truths = [truth(**of_truth)]
    warned = judge(truths, heard.finding_alerts(lambda job, at: 104), (), STEP_NS)
    judged = judge(truths, alerts, (), STEP_NS)
    return outcome_of("paceline", CASE, 0, False, judged, Cost(1.0, 1), 100.0, findings=warned)


def test_the_first_finding_that_names_the_culprit_is_the_reaction_and_the_incident_comes_later() -> None:
    result = outcome(
        [(1006.5, finding("straggler", subject("rank"), 1006)), (1009, finding("thermal", subject(), 1008))],
        [alert(subject(), 1025)],
    )
    (one,) = result.truths
    assert (one.heard_s, one.seconds) == (6.5, 25.0)
    metrics = measure([result])
    assert (metrics.mean_heard_s, metrics.mean_seconds, metrics.false_findings) == (6.5, 25.0, 0)


def test_an_incident_without_an_earlier_finding_is_the_reaction() -> None:
    result = outcome([], [alert(subject(), 1025)])
    assert result.truths[0].heard_s is None
    assert measure([result]).mean_heard_s == 25.0


@pytest.mark.parametrize(
    "one",
    [
        finding("straggler", subject("rank"), 1006, severity="info"),
        finding("node_silent", Subject(level="node", node_id="n1"), 1006),
        finding("low_mfu", Subject(level="job", job_id="j"), 1006),
        finding("straggler", OTHER, 1006),
    ],
    ids=["an observation", "about records", "no answer", "somebody else"],
)
def test_what_is_no_answer_is_no_reaction(one: Finding) -> None:
    assert outcome([(1006, one)], []).truths[0].heard_s is None


def test_a_job_level_finding_of_the_right_class_is_an_answer_and_blames_nobody() -> None:
    slow = finding("network_slowdown", Subject(level="job", job_id="j"), 1012)
    result = outcome([(1012, slow)], [], cause_class="link", culprits=(GPU,), acceptable=(JOB,))
    assert result.truths[0].heard_s == 12.0
    assert result.false_findings == 0
    assert outcome([(1012, slow)], [], cause_class="compute").truths[0].heard_s is None


def test_a_finding_that_names_somebody_else_is_a_false_alarm_of_the_suite() -> None:
    right = outcome([(1006, finding("straggler", subject("rank"), 1006))], [alert(subject(), 1025)])
    wrong = outcome([(1006, finding("straggler", OTHER, 1006))], [alert(subject(), 1025)])
    assert (right.false_findings, wrong.false_findings) == (0, 1)
    for result, holds in ((right, True), (wrong, False)):
        gates = {gate.name: gate for gate in gates_of("greyhound", [result], measure([result]))}
        assert gates["no false alarm, findings counted too"].holds is holds


def test_the_reaction_gate_tells_the_time_to_the_incident_too() -> None:
    quick = outcome([(1006, finding("straggler", subject("rank"), 1006))], [alert(subject(), 1025)])
    slow = outcome([(1020, finding("straggler", subject("rank"), 1019))], [alert(subject(), 1035)])
    for results, holds in (([quick], True), ([slow], False), ([quick, replace(slow, seed=1)], False)):
        gate = gates_of("greyhound", results, measure(results))[2]
        assert gate.holds is holds
        assert "to the incident" in gate.figure
    assert ONSET_NS == 1000 * S

"""Rules by which alerts are matched to truths, each with a look-alike that must not match."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agents.simulation.benchmark.labels import CAUSE_CLASSES, Place, Truth
from paceline.evaluation.alerts import Alert, Heard, SaidCommand
from paceline.evaluation.answers import CLASSES_OF_INCIDENT, CLASSES_OF_JOB_FINDING, classes_of_incident
from paceline.evaluation.matching import Judgement, grace_ns, judge
from paceline.evaluation.places import is_named
from schemas.findings import BLAMELESS_KINDS, Finding, Subject
from schemas.remediation import Cause, Command, Incident, Target
from streams.decisions import remedies

S = 1_000_000_000
STEP_NS = 2 * S
ONSET_NS, END_NS = 1000 * S, 1100 * S

GPU = Place("gpu", "n1/GPU-a", job_id="j", rank=9, node_id="n1", gpu_uuid="GPU-a", pci_bus_id="0000:1b:00")
NODE = Place("node", "n1", node_id="n1")
JOB = Place("job", "j", job_id="j")


def truth(**changes: Any) -> Truth:
    base = Truth(
        truth_id="T0001",
        scenario="A1",
        onset_step=100,
        end_step=150,
        onset_ns=ONSET_NS,
        end_ns=END_NS,
        cause_class="compute",
        culprits=(GPU,),
        acceptable=(NODE,),
        victims="all others",
        severity=0.2,
        impact_S=1.19,
        right_action="drain_node",
        forbidden_actions=("cordon_node:*!n1", "restart_job:*"),
        visible_from_step=100,
        identifiable=True,
    )
    return replace(base, **changes)


def subject(level: str = "gpu", **names: Any) -> Subject:
    if not names:
        names = {"node_id": "n1", "gpu_uuid": "GPU-a", "job_id": "j", "rank": 9}
    return Subject(level=level, **names)


OTHER = subject("gpu", node_id="n2", gpu_uuid="GPU-z", job_id="j", rank=17)


def alert(who: Subject | None, at_s: float = 1010, alert_id: str = "inc-1", **changes: Any) -> Alert:
    at_ns = round(at_s * S)
    base = Alert(alert_id, at_ns, at_ns, at_ns, 105, "compute", ("compute",), who, is_naming=True)
    return replace(base, **changes)


def job_level(kind: str, who: Subject | None, at_s: float = 1010, **changes: Any) -> Alert:
    classes = CLASSES_OF_JOB_FINDING.get(kind, ())
    return alert(who, at_s, kind, cause=kind, classes=classes, is_naming=False, **changes)


def judged(truths: list[Truth], alerts: list[Alert], commands: tuple[SaidCommand, ...] = ()) -> Judgement:
    return judge(truths, alerts, commands, STEP_NS)


def fates(judgement: Judgement) -> list[str]:
    return [verdict.fate for verdict in judgement.alerts]


def test_the_culprit_named_in_time_is_a_match_and_its_time_is_counted_from_the_onset() -> None:
    result = judged([truth()], [alert(subject())])
    (verdict,) = result.truths
    assert fates(result) == ["matched"]
    assert (verdict.is_exact, verdict.is_class_right, verdict.seconds, verdict.steps) == (True, True, 10.0, 5)
    assert result.reasons == ()


def test_an_acceptable_place_matches_without_being_exact() -> None:
    result = judged([truth()], [alert(subject("node", node_id="n1"))])
    assert fates(result) == ["matched"]
    assert not result.truths[0].is_exact


def test_another_device_is_false_and_the_truth_is_missed() -> None:
    result = judged([truth()], [alert(OTHER)])
    assert fates(result) == ["false"]
    assert result.truths[0].is_missed
    assert [a.alert_id for a in result.truths[0].falsely_blamed] == ["inc-1"]
    assert len(result.reasons) == 2


def test_an_alert_within_the_grace_matches_and_one_after_it_does_not() -> None:
    end_s = END_NS / S
    assert grace_ns(STEP_NS) == 300 * S
    assert grace_ns(30 * S) == 600 * S
    assert fates(judged([truth()], [alert(subject(), end_s + 300)])) == ["matched"]
    assert fates(judged([truth()], [alert(subject(), end_s + 301)])) == ["false"]


def test_the_right_name_before_the_onset_is_early_and_false() -> None:
    result = judged([truth()], [alert(subject(), 990)])
    assert fates(result) == ["early"]
    assert result.alerts[0].is_false
    assert result.truths[0].is_missed


def test_an_alert_said_after_the_onset_on_evidence_from_before_it_is_early() -> None:
    late_word = replace(alert(subject(), 1005), evidence_ns=990 * S)
    assert fates(judged([truth()], [late_word])) == ["early"]
    skewed = replace(alert(subject(), 1005), evidence_ns=999 * S)
    assert fates(judged([truth()], [skewed])) == ["matched"]


def test_the_same_incident_may_say_it_again_and_another_one_is_a_repeat() -> None:
    again = judged([truth()], [alert(subject("node", node_id="n1")), alert(subject(), 1020)])
    assert fates(again) == ["matched", "again"]
    assert again.truths[0].is_exact
    assert again.reasons == ()
    repeat = judged([truth()], [alert(subject()), alert(subject(), 1020, "inc-2")])
    assert fates(repeat) == ["matched", "repeat"]
    assert repeat.alerts[1].is_false


def test_one_incident_that_names_two_places_is_false_for_the_wrong_one() -> None:
    result = judged([truth()], [alert(OTHER), alert(subject(), 1020)])
    assert fates(result) == ["false", "matched"]


def test_two_faults_need_two_alerts() -> None:
    second = truth(truth_id="T0002", culprits=(replace(GPU, id="n2/GPU-z", node_id="n2", gpu_uuid="GPU-z", rank=17),))
    second = replace(second, acceptable=())
    one = judged([truth(), second], [alert(subject())])
    assert [verdict.is_missed for verdict in one.truths] == [False, True]
    both = judged([truth(), second], [alert(subject()), alert(OTHER, 1012, "inc-2")])
    assert fates(both) == ["matched", "matched"]


def test_of_two_truths_at_one_place_the_one_of_the_alerts_class_is_taken() -> None:
    thermal = truth(truth_id="T0002", cause_class="thermal", onset_ns=ONSET_NS + S)
    result = judged([truth(), thermal], [alert(subject(), cause="thermal", classes=("thermal",))])
    assert result.alerts[0].truth_id == "T0002"


def test_each_culprit_of_a_common_fault_may_be_named_once() -> None:
    others = tuple(replace(GPU, id=f"n1/GPU-{x}", gpu_uuid=f"GPU-{x}", rank=None, pci_bus_id=None) for x in "bc")
    zone = truth(culprits=(GPU, *others), acceptable=(Place("zone", "zone-1", zone="zone-1"),))
    second = subject("gpu", node_id="n1", gpu_uuid="GPU-b")
    result = judged([zone], [alert(subject()), alert(second, 1012, "inc-2"), alert(second, 1050, "inc-3")])
    assert fates(result) == ["matched", "companion", "repeat"]
    assert fates(judged([zone], [alert(subject("zone", zone="zone-1"))])) == ["matched"]


def test_a_job_level_answer_matches_a_truth_about_the_job_and_blames_nobody() -> None:
    fleet = truth(culprits=(JOB,), acceptable=(), cause_class="power")
    assert fates(judged([fleet], [job_level("job_slowdown", subject("job", job_id="j"))])) == ["matched"]
    assert fates(judged([fleet], [job_level("job_slowdown", subject("job", job_id="k"))])) == ["job-level"]


def test_a_job_level_answer_of_another_class_is_none_and_no_blame_either() -> None:
    fleet = truth(culprits=(JOB,), acceptable=(), cause_class="power")
    result = judged([fleet], [job_level("length_imbalance", subject("job", job_id="j"))])
    assert fates(result) == ["job-level"]
    assert result.truths[0].is_missed
    assert not result.alerts[0].is_false


def test_a_job_level_answer_does_not_match_a_truth_about_a_device() -> None:
    slow_link = truth(cause_class="link")
    result = judged([slow_link], [job_level("network_slowdown", subject("job", job_id="j"))])
    assert result.truths[0].is_missed
    content = truth(cause_class="link", acceptable=(JOB,))
    assert not judged([content], [job_level("network_slowdown", subject("job", job_id="j"))]).truths[0].is_missed


def test_a_naming_alert_is_preferred_to_a_job_level_answer_that_came_before_it() -> None:
    content = truth(cause_class="link", acceptable=(JOB,))
    told = [
        job_level("network_slowdown", subject("job", job_id="j"), 1005),
        alert(subject(), 1020, cause="link", classes=("link",)),
    ]
    result = judged([content], told)
    assert fates(result) == ["job-level", "matched"]
    assert result.truths[0].is_exact


def test_the_heavy_stage_is_named_by_the_advice_on_that_stage_alone() -> None:
    stage = truth(culprits=(Place("stage", "j/3", job_id="j", stage=3),), acceptable=(), cause_class="partition")
    assert fates(judged([stage], [job_level("stage_imbalance", subject("stage", job_id="j", stage=3))])) == ["matched"]
    other = judged([stage], [job_level("stage_imbalance", subject("stage", job_id="j", stage=0))])
    assert fates(other) == ["job-level"]


def test_a_truth_that_cannot_be_placed_is_no_miss_and_blame_during_it_is_remembered() -> None:
    hidden = truth(identifiable=False)
    assert judged([hidden], []).reasons == ()
    told = judged([hidden], [job_level("insufficient", subject("job", job_id="j"))])
    assert [a.cause for a in told.truths[0].unlocalised] == ["insufficient"]
    blamed = judged([hidden], [alert(OTHER)])
    assert blamed.truths[0].falsely_blamed
    assert blamed.reasons != ()


@pytest.mark.parametrize("changes", [{"advisory": True}, {"impact_S": 1.01}, {"identifiable": False}])
def test_what_costs_nobody_anything_is_no_miss(changes: dict[str, Any]) -> None:
    assert judged([truth()], []).truths[0].is_missed
    assert not judged([truth(**changes)], []).truths[0].is_missed


def test_where_nothing_is_wrong_a_warning_is_wrong_and_advice_is_not() -> None:
    job = subject("job", job_id="j")
    assert judged([], [job_level("length_imbalance", job, is_warning=False)]).reasons == ()
    assert judged([], [job_level("job_slowdown", job)]).reasons != ()
    assert judged([], [alert(subject())]).reasons != ()


def command(kind: str, node_id: str | None, at_s: float = 1010) -> SaidCommand:
    return SaidCommand(round(at_s * S), kind, "inc-1", node_id, node_id or "j")


@pytest.mark.parametrize(
    ("kind", "node_id", "at_s", "allowed", "wrong", "victim"),
    [
        ("cordon_node", "n1", 1010, True, False, False),
        ("cordon_node", "n2", 1010, False, True, True),
        ("drain_node", "n2", 1010, False, True, True),
        ("cordon_node", "n1", 900, False, True, False),
        ("restart_job", None, 1010, False, False, False),
        ("collect_evidence", "n2", 1010, True, False, False),
    ],
)
def test_a_command_is_allowed_where_a_truth_allows_it(
    kind: str, node_id: str | None, at_s: float, allowed: bool, wrong: bool, victim: bool
) -> None:
    (verdict,) = judged([truth()], [], (command(kind, node_id, at_s),)).commands
    assert (verdict.is_allowed, verdict.is_wrong_node, verdict.is_victim) == (allowed, wrong, victim)


def test_what_one_fault_forbids_elsewhere_another_one_may_allow() -> None:
    second = truth(
        truth_id="T0002", culprits=(Place("node", "n2", node_id="n2"),), forbidden_actions=("cordon_node:*!n2",)
    )
    (verdict,) = judged([truth(), second], [], (command("cordon_node", "n2"),)).commands
    assert verdict.is_allowed


def test_the_right_action_is_that_of_the_matching_incident() -> None:
    acted = judged([truth()], [alert(subject())], (command("drain_node", "n1"),))
    assert acted.truths[0].is_action_right
    assert not judged([truth()], [alert(subject())]).truths[0].is_action_right
    observed = truth(right_action="none")
    assert judged([observed], [alert(subject())], (command("collect_evidence", "n1"),)).truths[0].is_action_right
    assert not judged([observed], [alert(subject())], (command("drain_node", "n1"),)).truths[0].is_action_right


@pytest.mark.parametrize(
    ("place", "who", "expected"),
    [
        (GPU, subject(), True),
        (GPU, subject("gpu", node_id="n1", pci_bus_id="0000:1b:00"), True),
        (GPU, subject("rank", job_id="j", rank=9), True),
        (GPU, subject("rank", job_id="j", rank=9, node_id="n2", gpu_uuid="GPU-z"), False),
        (GPU, subject("gpu", node_id="n2", gpu_uuid="GPU-a"), False),
        (GPU, subject("node", node_id="n1"), False),
        (NODE, subject("node", node_id="n1"), True),
        (NODE, subject(), False),
        (
            Place("port", "n1/mlx5_0/1", node_id="n1", device="mlx5_0", port="1"),
            subject("port", node_id="n1", device="mlx5_0", port="1"),
            True,
        ),
        (
            Place("port", "n1/mlx5_0/1", node_id="n1", device="mlx5_0", port="1"),
            subject("port", node_id="n1", device="mlx5_1", port="1"),
            False,
        ),
        (
            Place("port", "leaf/Ethernet3", switch_id="leaf", port="Ethernet3"),
            subject("port", node_id="n1", device="mlx5_0", port="Ethernet3"),
            False,
        ),
        (Place("switch", "leaf-1", switch_id="leaf-1"), subject("switch", switch_id="leaf-1"), True),
        (Place("switch", "leaf-1", switch_id="leaf-1"), subject("switch", switch_id="leaf-2"), False),
        (
            Place("tp_group", "j/tp/1", job_id="j", ranks=(8, 9)),
            subject("rank_group", job_id="j", ranks=(8, 9)),
            True,
        ),
        (
            Place("tp_group", "j/tp/1", job_id="j", ranks=(8, 9)),
            subject("rank_group", job_id="j", ranks=(8, 10)),
            False,
        ),
    ],
)
def test_places_are_named_by_level_and_by_the_records_own_names(place: Place, who: Subject, expected: bool) -> None:
    assert is_named(place, who) is expected


def test_every_class_that_the_failure_table_knows_means_a_class_of_the_benchmark() -> None:
    for cause_class in remedies.ADVICE:
        assert set(classes_of_incident(cause_class)) <= set(CAUSE_CLASSES)
        assert classes_of_incident(cause_class), cause_class
    for classes in (*CLASSES_OF_INCIDENT.values(), *CLASSES_OF_JOB_FINDING.values()):
        assert set(classes) <= set(CAUSE_CLASSES)
    assert classes_of_incident("no such class") == ()


def test_job_level_answers_blame_nobody() -> None:
    assert {"job_slowdown", "network_slowdown", "stage_imbalance", "length_imbalance"} <= BLAMELESS_KINDS
    assert {"job_slowdown", "network_slowdown", "stage_imbalance", "length_imbalance"} <= set(CLASSES_OF_JOB_FINDING)


# --- From records to alerts ---------------------------------------------------------------------------------------


def finding(finding_id: str, kind: str, at_s: int, step: int | None = None, state: str = "open") -> Finding:
    return Finding(
        finding_id=finding_id,
        site_id="s",
        rule=kind,
        kind=kind,
        severity="warning",
        state=state,
        subject=subject() if kind == "straggler" else subject("job", job_id="j"),
        event_time_ns=at_s * S,
        onset_ns=at_s * S,
        step=step,
    )


def incident(at_s: int, culprit: Subject | None, cause_class: str = "compute", state: str = "open") -> Incident:
    return Incident(
        incident_id="inc-1",
        site_id="s",
        state=state,
        cause_class=cause_class,
        culprit=culprit,
        event_time_ns=at_s * S,
        onset_ns=ONSET_NS,
        findings=("f-1",),
    )


def heard(*said: tuple[int, Any]) -> Heard:
    book = Heard()
    for at_s, record in said:
        book.take(at_s * S, record)
    return book


def test_an_incident_is_one_alert_however_often_it_is_told() -> None:
    book = heard(
        (1012, finding("f-1", "straggler", 1004, step=102)),
        (1020, incident(1009, subject())),
        (1040, incident(1030, subject(), "thermal")),
        (1090, incident(1080, subject(), "thermal", "resolved")),
    )
    (told,) = book.alerts(lambda job, at: None)
    assert (told.said_ns, told.evidence_ns, told.step) == (1020 * S, 1004 * S, 102)
    assert (told.cause, told.classes, told.closed_ns) == ("thermal", ("thermal",), 1080 * S)


def test_an_incident_that_changes_its_culprit_is_two_alerts() -> None:
    book = heard((1020, incident(1009, OTHER)), (1040, incident(1030, subject())))
    first, second = book.alerts(lambda job, at: 7)
    assert (first.subject, second.subject) == (OTHER, subject())
    assert first.alert_id == second.alert_id
    assert first.step == 7


def test_an_incident_without_a_culprit_blames_nobody() -> None:
    (told,) = heard((1020, incident(1009, None, "pause_storm_unlocalised"))).alerts(lambda job, at: None)
    assert not told.is_naming


@pytest.mark.parametrize(
    ("who", "severity", "wants_to_be_heard"),
    [(None, "info", False), (None, "warning", True), (subject(), "info", True)],
)
def test_an_incident_that_blames_nobody_on_advice_alone_is_advice(
    who: Subject | None, severity: Any, wants_to_be_heard: bool
) -> None:
    basis = finding("f-1", "length_imbalance", 1004).model_copy(update={"severity": severity})
    book = heard((1012, basis), (1020, incident(1009, who, "workload")))
    (told,) = [alert for alert in book.alerts(lambda job, at: None) if alert.alert_id == "inc-1"]
    assert told.is_warning == wants_to_be_heard


def test_job_level_findings_are_alerts_and_observations_are_none() -> None:
    book = heard((1012, finding("f-2", "job_slowdown", 1010, step=104)), (1013, finding("f-3", "missing_ranks", 1010)))
    (told,) = book.alerts(lambda job, at: None)
    assert (told.cause, told.is_naming, told.step) == ("job_slowdown", False, 104)


def test_a_command_is_counted_once() -> None:
    order = Command(
        command_id="c",
        site_id="s",
        kind="drain_node",
        target=Target(level="node", node_id="n1"),
        audience="a",
        cause=Cause(incident_id="inc-1"),
        decided_at_ns=S,
        expires_at_ns=2 * S,
        sequence=0,
        mode="observe",
    )
    book = heard((1020, order), (1021, order))
    assert [(said.kind, said.node_id, said.incident_id) for said in book.commands] == [("drain_node", "n1", "inc-1")]

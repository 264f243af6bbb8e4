"""Figures, gates and tables of outcomes, and one small case from the generator to the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from agents.simulation.benchmark import TUNING_SEEDS, cases
from agents.simulation.benchmark.case import BenchmarkCase, DeliveryPlan, FaultPlan, FleetPlan, JobPlan
from paceline import evaluate_command as command
from paceline.evaluation.ablation import PARTS, policy_without, record_without
from paceline.evaluation.case_run import ENGINE, run_case
from paceline.evaluation.gates import CAVEAT, gates_of
from paceline.evaluation.metrics import compare_recall, confusion, measure
from paceline.evaluation.outcome import CaseOutcome, Cost, TruthOutcome
from paceline.evaluation.report import ablation_lines, explain, report_lines
from schemas.events import KernelEvent
from schemas.fleet import Job, Layout, RankPlacement
from schemas.steps import StepTiming
from streams.core.policy_file import check_policy
from streams.core.roster import Roster

if TYPE_CHECKING:
    from pathlib import Path

TRUTH = TruthOutcome(
    truth_id="T0001",
    cause_class="compute",
    culprits=("gpu n1/GPU-a",),
    acceptable=(),
    severity=0.2,
    impact_s=1.25,
    onset_step=10,
    end_step=50,
    identifiable=True,
    advisory=False,
    counts=True,
    matched=True,
    exact=True,
    class_right=True,
    action_right=True,
    right_action="drain_node",
    actions=("drain_node",),
    said="compute: gpu n1/GPU-a",
    said_cause="compute",
    seconds=9.0,
    steps=4,
    lag_s=5.0,
    lost_gpu_hours=4.0,
    oracle_gpu_hours=1.0,
    unlocalised=(),
    falsely_blamed=0,
    seen=(),
)
MISSED = replace(
    TRUTH, matched=False, exact=False, class_right=False, said=None, said_cause=None, seconds=100.0, steps=40
)


def outcome(*truths: TruthOutcome, **changes: Any) -> CaseOutcome:
    matched = sum(truth.matched for truth in truths)
    fields: dict[str, Any] = {
        "detector": ENGINE,
        "suite": "ci",
        "case_id": "A1/x/64",
        "scenario": "A1",
        "seed": 0,
        "is_held_out": False,
        "ranks": 64,
        "steps": 100,
        "gpu_days": 2.0,
        "tags": {},
        "expect": "the slow GPU",
        "truths": truths,
        "alerts": (),
        "commands": (),
        "reasons": tuple("missed T0001 (compute)" for truth in truths if truth.counts and not truth.matched),
        "asks_for_anything": bool(truths),
        "naming_alerts": matched,
        "false_alerts": 0,
        "job_level_warnings": 0,
        "false_remediations": 0,
        "wrong_node_cordons": 0,
        "victim_cordons": 0,
        "cost": Cost(0.5, 100 * 2**20),
    }
    return CaseOutcome(**{**fields, **changes})


FALSE = {"naming_alerts": 1, "false_alerts": 1, "reasons": ("false alert compute: gpu n9/GPU-z",)}


def test_shares_are_over_truths_and_alerts() -> None:
    figures = measure([outcome(TRUTH), outcome(TRUTH, MISSED), outcome(**FALSE)])
    assert (figures.precision.hits, figures.precision.total) == (2, 3)
    assert (figures.recall.hits, figures.recall.total) == (2, 3)
    assert (figures.right.hits, figures.right.total) == (1, 3)
    assert figures.steps.quantile(0.5) == 4
    assert figures.steps.quantile(0.95) is None
    assert figures.missed_loss == pytest.approx(4.0)
    assert figures.cpu_s_per_million == pytest.approx(1.5 / 19_200 * 1e6)
    assert figures.false_remediations_upper == pytest.approx(3 / 0.006)


def test_without_anything_to_count_a_figure_is_null() -> None:
    figures = measure([outcome()])
    assert figures.precision.value is None
    assert figures.recall.value is None
    assert figures.mean_seconds is None
    assert figures.missed_loss is None


def test_what_does_not_count_for_recall_is_in_neither_part_of_it() -> None:
    figures = measure([outcome(replace(MISSED, counts=False, identifiable=False, falsely_blamed=1))])
    assert figures.recall.total == 0
    assert (figures.honesty.hits, figures.honesty.total) == (0, 1)


def test_detectors_are_compared_on_the_truths_that_both_had() -> None:
    engine = [outcome(TRUTH, seed=seed) for seed in range(20)]
    plain = [outcome(MISSED, seed=seed, detector="B0") for seed in range(10)]
    assert compare_recall(engine, plain) == (1.0, 1.0, 1.0)
    assert compare_recall(engine, []) is None


def test_the_confusion_table_counts_words_and_silence() -> None:
    assert confusion([outcome(TRUTH, MISSED)]) == {"compute": {"compute": 1, "-": 1}}


def holds(suite: str, *outcomes: CaseOutcome) -> list[bool | None]:
    return [gate.holds for gate in gates_of(suite, outcomes, measure(outcomes))]


def test_the_gates_of_ci_hold_only_where_every_plain_case_is_right_and_every_look_alike_silent() -> None:
    silent = outcome(case_id="B9/x/64")
    assert holds("ci", outcome(TRUTH), silent) == [True, True, True]
    assert holds("ci", outcome(MISSED), silent) == [False, True, True]
    assert holds("ci", outcome(replace(MISSED, severity=0.05)), silent) == [None, True, True]
    assert holds("ci", outcome(TRUTH), outcome(**FALSE)) == [True, True, False]
    assert holds("ci", outcome(TRUTH, wrong_node_cordons=1), silent) == [True, False, True]
    assert holds("ci") == [None, None, None]


def test_the_gates_of_minder_are_lower_bounds_not_means() -> None:
    many = [outcome(TRUTH, seed=seed) for seed in range(150)]
    assert holds("minder", *many) == [True, True, True, True]
    few = [outcome(TRUTH, seed=seed) for seed in range(10)]
    assert holds("minder", *few)[:2] == [False, False]
    slow = [outcome(replace(TRUTH, seconds=31.0), seed=seed) for seed in range(150)]
    assert holds("minder", *slow)[2] is False


def test_the_gates_of_greyhound_are_all_episodes_no_alarm_and_the_mean() -> None:
    assert holds("greyhound", outcome(*[TRUTH] * 12)) == [True, True, True, True]
    assert holds("greyhound", outcome(*[TRUTH] * 11, MISSED))[0] is False
    assert holds("greyhound", outcome(*[TRUTH] * 12, false_alerts=1))[1] is False
    assert holds("greyhound", outcome(*[replace(TRUTH, seconds=10.56)] * 12))[2] is False


def test_tuning_and_held_out_seeds_stand_in_rows_of_their_own_under_the_caveat() -> None:
    told = [outcome(TRUTH), outcome(MISSED, seed=10, is_held_out=True)]
    lines = list(report_lines("ci", {ENGINE: told}, gates_of("ci", told, measure(told)), ("peer_key",)))
    assert CAVEAT in lines
    assert "without peer_key" in lines[0]
    rows = [line.split()[:4] for line in lines if line.startswith(ENGINE + "  ")]
    assert [row[1] for row in rows] == ["tuning", "held"]
    assert any(line.startswith("gate FAILED") for line in lines)


# --- A case from end to end ---------------------------------------------------------------------------------------


def small(severity: float = 0.5) -> BenchmarkCase:
    faults = (FaultPlan("gpu_compute", severity, 30, 60),) if severity else ()
    job = JobPlan(job_id="job-a", nodes=4, tensor=8, pipeline=1)
    return BenchmarkCase("A1/small/32", "ci", "A1", FleetPlan(nodes=4), (job,), 70, faults, expect="the slow GPU")


@pytest.fixture(scope="module")
def found() -> CaseOutcome:
    """What the engine alone makes of the small case and seed 3."""
    (outcome,) = run_case(small(), 3)
    return outcome


def test_a_slow_gpu_is_found_in_the_right_place_and_a_healthy_run_is_silent(found: CaseOutcome) -> None:
    (truth,) = found.truths
    assert found.is_right, found.reasons
    assert (truth.matched, truth.exact, truth.said_cause) == (True, True, "compute")
    assert 0 < truth.steps <= 6
    assert truth.seconds > truth.steps
    assert found.cost.cpu_s > 0
    text = "\n".join(explain(found))
    assert "found after" in text
    assert truth.culprits[0] in text
    (healthy,) = run_case(small(0), 3)
    assert healthy.is_right, healthy.reasons
    assert healthy.naming_alerts == 0


def test_the_same_case_gives_the_same_verdict_bytes(found: CaseOutcome) -> None:
    assert found.verdict_sha256 == run_case(small(), 3)[0].verdict_sha256
    assert found.verdict_sha256 != run_case(small(), 5)[0].verdict_sha256


def disturbed(variant: str, **delivery: Any) -> CaseOutcome:
    """The small case under a name of scenario B12, delivered without loss or delay but in this way."""
    plan = DeliveryPlan(
        delay_p50_ms=20.0, delay_p99_ms=200.0, out_of_order=0.0, loss=0.0, **{"duplicates": 0.0} | delivery
    )
    case = replace(small(), case_id=f"B12/{variant}/small", scenario="B12", delivery=plan)
    (outcome,) = run_case(case, 3)
    return outcome


def test_another_verdict_than_the_clean_stream_s_comes_of_records_later_than_the_bound_alone() -> None:
    told = [
        disturbed("clean"),
        disturbed("both-within-the-bound", reverse_window_s=9.0, duplicates=0.5, duplicate_copies=9),
        disturbed("reversed", reverse_window_s=60.0),
    ]
    assert [outcome.late > 0 for outcome in told] == [False, False, True]
    lines = report_lines("ci", {ENGINE: told}, gates_of("ci", told, measure(told)), ())
    late = f"{told[2].late:,} of {told[2].records:,} records later than the bound of 10 s"
    another = f"ANOTHER verdict than the clean stream, with {late}; names the same culprits"
    assert [line for line in lines if " verdict " in line] == [
        "B12/both-within-the-bound/small seed 3: the same verdict as the clean stream",
        f"B12/reversed/small seed 3: {another}",
    ]


def test_plain_rules_run_beside_the_engine() -> None:
    by_name = {told.detector: told for told in run_case(small(), 3, baselines=True)}
    assert by_name["B1"].truths[0].matched
    assert not by_name["B0"].truths[0].matched


@pytest.mark.parametrize("part", PARTS)
def test_every_ablation_is_a_policy_that_the_engine_takes_or_a_record_that_is_valid(part: str) -> None:
    without = frozenset({part})
    policy = policy_without(without, "site")
    if policy is not None:
        check_policy(policy)
    timing = StepTiming(
        job_id="j",
        node_id="n",
        agent_session="s",
        seq=0,
        event_time_ns=1,
        step=0,
        rank=(0,),
        step_us=(5,),
        tokens=(7,),
        wait_us=(1,),
    )
    placement = RankPlacement(
        job_id="j", effective_from_ns=0, node_id="n", rank=(0, 1), gpu_uuid=(None, None), stage=(0, 1)
    )
    job = Job(job_id="j", effective_from_ns=0, world_size=2, layout=Layout(pipeline=2))
    line = KernelEvent(node_id="n", agent_session="s", boot_id="b", kmsg_seq=1, event_time_ns=1, source="xid", code=43)
    read = (timing, placement, job, line)
    changed = [record for record in read if record_without(record, without) != record]
    assert bool(changed) is (part != "persistence")
    assert policy is not None or changed


def test_engines_that_lack_a_part_run_on_the_same_records_and_are_laid_side_by_side(found: CaseOutcome) -> None:
    outcomes = run_case(small(), 3, ablation=True)
    names = [told.detector for told in outcomes]
    assert names == ["paceline", *(f"without {part}" for part in PARTS)]
    assert outcomes[0].verdict_sha256 == found.verdict_sha256
    lines = list(ablation_lines({told.detector: [told] for told in outcomes}))
    assert [line.split("  ")[0] for line in lines[2:]] == names


def test_the_ablation_suite_is_a_fixed_part_of_ci() -> None:
    chosen = [case.case_id for case, _ in cases("ablation", TUNING_SEEDS, in_turn=True)]
    assert set(chosen) < {case.case_id for case, _ in cases("ci", (0,))}
    assert len(chosen) == len(set(chosen))
    assert {name.split("/")[0] for name in chosen} > {"A1", "A2", "A5", "B3", "B4", "B16", "B32"}


def test_without_the_peer_key_all_ranks_have_one_stage() -> None:
    roster = Roster()
    for record in (
        Job(job_id="j", effective_from_ns=0, world_size=4, layout=Layout(pipeline=2, data=2)),
        RankPlacement(
            job_id="j", effective_from_ns=0, node_id="n", rank=(0, 1, 2, 3), gpu_uuid=(None,) * 4, stage=(0, 0, 1, 1)
        ),
    ):
        cut = record_without(record, frozenset({"peer_key"}))
        assert cut is not None
        roster.take(cut)
    assert {seat.stage for seat in roster.job("j", 0).seats.values()} == {0}


def run(monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[BenchmarkCase, int]], **options: Any) -> int:
    def chosen(suite: str, seeds: tuple[int, ...], **limits: Any) -> tuple[tuple[BenchmarkCase, int], ...]:
        return tuple(pairs)

    monkeypatch.setattr(command, "cases", chosen)
    options.setdefault("seeds", 1)
    asked = {name: options.pop(name) for name in ("as_json", "verbose", "out") if name in options}
    return command.evaluate_command(
        command.EvaluateOptions(**options), asked.get("as_json", False), asked.get("verbose", False), asked.get("out")
    )


def test_the_command_says_what_holds_and_exits_by_the_gates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "figures.ndjson"
    assert run(monkeypatch, [(small(), 3)], as_json=True, out=out) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["record"] for line in lines] == ["case", "metrics", "gates"]
    assert lines[2]["caveat"] == CAVEAT
    assert out.read_text().splitlines()[0].startswith('{"record":"case"')
    hidden = replace(small(), faults=(FaultPlan("gpu_compute", 0.5, 67, 69),))
    assert run(monkeypatch, [(hidden, 3)], verbose=True) == 1
    told = capsys.readouterr().out
    assert "MISSED" in told
    assert "gate FAILED" in told


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"suite": "nothing"}, "no suite"),
        ({"seeds": 0}, "--seeds"),
        ({"jobs": 0}, "--jobs"),
        ({"without": ("sense",)}, "--without"),
        ({"pattern": "no-such-case"}, "no case"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: dict[str, Any], complaint: str
) -> None:
    assert run(monkeypatch, [(small(), 3)], **options) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert len(told.splitlines()) == 1

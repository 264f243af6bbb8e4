"""A sweep of a threshold over labelled archives: what appears and vanishes where, and which value is best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from factories import SITE, at, gpu_frame, step_timing, xid_event
from typer.testing import CliRunner

from agents.simulation.delivery import deliver
from agents.simulation.fleet_run import simulate
from agents.simulation.scenario import FaultPlan, JobPlan, Scenario, load_scenario
from agents.simulation.truth import truth, truth_lines
from paceline.cli import app
from paceline.tuning.outcome import Labelled, Outcome
from paceline.tuning.sweep import times_read
from paceline.tuning.trade_off import LEAST_FAULTS, Row, judge_rows
from paceline.tuning.tunable import Tunable, TunableError
from schemas.archive import ArchiveWriter
from schemas.fleet import Policy, RulePolicy

if TYPE_CHECKING:
    from pathlib import Path

START_NS = 1_767_225_600_000_000_000
SEVERITIES = {0: 0.10, 1: 0.25, 3: 0.50}
"""By node, how much slower one of its ranks is."""


def fleet(*faults: FaultPlan) -> Scenario:
    """A small job among everything that looks like a fault and is none."""
    healthy = load_scenario("healthy")
    job = JobPlan(job_id="job-1", model=healthy.jobs[1].model, step_time_ms=250.0, checkpoint_every_s=None)
    return Scenario(
        name="severities",
        nodes=5,
        gpus_per_node=4,
        nics_per_node=1,
        duration_s=20.0,
        tick_s=4.0,
        seed=3,
        jobs=(job,),
        faults=faults,
        look_alikes=healthy.look_alikes,
    )


def recorded(scenario: Scenario, path: Path) -> Path:
    """An archive with its truth beside it."""
    with ArchiveWriter.open(path) as archive:
        for arrival_ns, record in deliver(simulate(scenario, START_NS), seed=scenario.seed):
            archive.write(record, arrival_ns)
    beside = path.with_name(path.name.replace(".jsonl.zst", ".truth.jsonl"))
    beside.write_bytes(b"".join(truth_lines(truth(scenario, START_NS))))
    return path


@pytest.fixture(scope="module")
def slow_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks of three severities at once."""
    plans = [
        FaultPlan(kind="cpu_contention", job="job-1", onset=0.25, end=0.85, node=node, slowdown=(1 + over, 1 + over))
        for node, over in SEVERITIES.items()
    ]
    return recorded(fleet(*plans), tmp_path_factory.mktemp("slow") / "slow.jsonl.zst")


@pytest.fixture(scope="module")
def look_alikes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(fleet(), tmp_path_factory.mktemp("alike") / "alike.jsonl.zst")


@pytest.fixture
def one_slow_rank(tmp_path: Path) -> Path:
    """A few steps with one rank of 30 %, and a policy in the archive under which nobody hears of it."""
    rules = {"straggler": RulePolicy(thresholds={"floor": 0.5})}
    with ArchiveWriter.open(tmp_path / "one.jsonl") as archive:
        archive.write(Policy(policy_version="p", site_id=SITE, effective_from_ns=0, rules=rules), at(0))
        archive.write(gpu_frame(1), at(1))
        for number in range(40):
            own = [200_000] * 7 + [260_000 if number >= 10 else 200_000]
            archive.write(step_timing(number, 20 + number, own), at(20 + number))
    return tmp_path / "one.jsonl"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def told(*arguments: object) -> tuple[dict[float, dict[str, Any]], dict[str, Any]]:
    """Lines by value, and the trade-off."""
    ran = run(*arguments, "--json", "--processes", 1)
    assert ran.exit_code == 0, ran.stderr
    *lines, last = [orjson.loads(line) for line in ran.stdout.splitlines()]
    return {line["value"]: line for line in lines}, last


# --- A labelled archive ------------------------------------------------------------------------------------------------


def test_commands_appear_and_vanish_where_the_threshold_crosses_each_severity(
    slow_ranks: Path, look_alikes: Path
) -> None:
    floors = [0.09, 0.11, 0.23, 0.27, 0.46, 0.54]
    values = ",".join(map(str, floors))
    rows, trade_off = told(slow_ranks, look_alikes, "--threshold", "straggler.floor", "--values", values)
    for floor in floors:
        faulty, healthy = rows[floor]["archives"]
        above = [node for node, over in SEVERITIES.items() if over > floor]
        assert [c.partition("/")[0] for c in faulty["commands"]] == [f"collect_evidence node-000{n}" for n in above]
        assert len(faulty["labelled"]["found"]) == rows[floor]["found"] == rows[floor]["findings_of_rule"] == len(above)
        assert (healthy["commands"], healthy["of_rule"], rows[floor]["blamed"], rows[floor]["wrong_nodes"]) == (
            [],
            0,
            0,
            0,
        )
        assert len(rows[floor]["commands_fewer"]) == rows[floor]["missed"] == 3 - len(above)
        assert rows[floor]["commands_more"] == []
    assert rows[0.03]["in_force"]
    assert trade_off["not_dominated"] == [0.03, 0.09]
    assert trade_off["best"] is None
    assert "the sample is small (3 labelled faults, 3 found by some values" in trade_off["why"]


def test_an_archive_without_anything_to_judge_is_refused(tmp_path: Path) -> None:
    with ArchiveWriter.open(tmp_path / "policy.jsonl") as archive:
        archive.write(Policy(policy_version="p", site_id=SITE, effective_from_ns=0), at(0))
    ran = run(tmp_path / "policy.jsonl", "--threshold", "straggler.floor", "--values", "0.2", "--processes", 1)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "nothing was judged: it holds no frames, events or steps, only policy (1)" in ran.stderr


def test_a_name_neither_moves_the_cursor_nor_begins_a_line(tmp_path: Path) -> None:
    with ArchiveWriter.open(tmp_path / "odd.jsonl") as archive:
        archive.write(xid_event(1, 79, node_id="a\x1b[2J\nbest"), at(2))
    ran = run(tmp_path / "odd.jsonl", "--threshold", "xid.enabled", "--values", "false", "--processes", 1)
    assert r"cordon_node a\x1b[2J\nbest" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert "\nbest" not in ran.stdout


def test_the_table_marks_what_was_in_force_and_says_what_a_value_would_have_cost(slow_ranks: Path) -> None:
    ran = run(slow_ranks, "--threshold", "straggler.floor", "--values", "0.03,0.3", "--processes", 1)
    assert ran.exit_code == 0, ran.stderr
    marked = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("*")]
    assert marked == ["0.03"]
    assert "commands: 3 collect_evidence in force" in ran.stdout
    assert "  0.3: 1 collect_evidence; 0 more, 2 fewer\n    - collect_evidence node-0000/" in ran.stdout
    assert "woken for nothing the least: 0.03, with 0 blamed though healthy and 0 missed" in ran.stdout


def test_what_comes_out_does_not_depend_on_how_many_processes_it_took(one_slow_rank: Path, tmp_path: Path) -> None:
    asked = (one_slow_rank, "--threshold", "straggler.floor", "--values", "0.2,0.4,0.45")
    one = run(*asked, "--json", "--processes", 1, "-o", tmp_path / "one.ndjson")
    two = run(*asked, "--json", "--processes", 2)
    assert (one.exit_code, two.exit_code) == (0, 0)
    assert one.stdout == two.stdout == (tmp_path / "one.ndjson").read_text()


# --- Which policy ------------------------------------------------------------------------------------------------------


def test_the_value_holds_over_the_policies_of_the_archive(one_slow_rank: Path) -> None:
    rows, trade_off = told(one_slow_rank, "--threshold", "straggler.floor", "--values", "0.1,0.5")
    assert trade_off["values_in_force"] == [0.5]
    assert [(value, row["in_force"], row["findings_of_rule"]) for value, row in rows.items()] == [
        (0.1, False, 1),
        (0.5, True, 0),
    ]
    assert "no truth is given" in trade_off["why"]


def test_a_policy_file_is_taken_for_what_was_in_force(one_slow_rank: Path, tmp_path: Path) -> None:
    (tmp_path / "low.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.2 }\n")
    rows, trade_off = told(
        one_slow_rank, "--threshold", "straggler.enabled", "--values", "true,false", "--policy", tmp_path / "low.toml"
    )
    assert (rows[True]["findings_of_rule"], rows[False]["findings_of_rule"]) == (1, 0)
    assert (trade_off["values_in_force"], rows[True]["in_force"]) == ([True], True)


def test_values_that_come_to_the_same_are_said_to(one_slow_rank: Path) -> None:
    _, trade_off = told(one_slow_rank, "--threshold", "straggler.quiet_steps", "--values", "10,15")
    assert trade_off["why"] == "these archives cannot tell the values apart: all come to the same"


def test_a_value_holds_for_every_part() -> None:
    rules = {"sm_clock": RulePolicy(per_sku={"H200": {"ceiling_mhz": 1500.0, "hits": 4.0}})}
    was = Policy(policy_version="p", site_id=SITE, effective_from_ns=0, rules=rules, gpu_hour_cost=2.5)
    tuned = Tunable.named("sm_clock.ceiling_mhz").put(was, 1100.0, SITE)
    assert tuned.rules["sm_clock"] == RulePolicy(thresholds={"ceiling_mhz": 1100.0}, per_sku={"H200": {"hits": 4.0}})
    assert tuned.gpu_hour_cost == 2.5


# --- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("straggler.flor", "1", "has no threshold flor; there are burst_hits"),
        ("straggler", "1", "is a rule: write RULE.THRESHOLD"),
        ("nobody.floor", "1", "no rule nobody; there are barrier_wait"),
        ("straggler.floor", "0.1,-1", "straggler.floor is -1; it cannot be negative"),
        ("straggler.fast_hits", "0", "straggler.fast_hits is 0; it is a whole number from 1 on"),
        ("straggler.floor", "0.1,x", "'x' is no number"),
        ("straggler.enabled", "2", "its values are true and false"),
        ("settle_ns", "0.5", "settle_ns is 0.5; it is a whole number from 0 on"),
        ("settle_ns", "1e20", "settle_ns is 1e+20; at most 9.0072e+15 can be told exactly"),
    ],
)
def test_what_cannot_be_swept_is_named_with_what_there_is(name: str, values: str, why: str) -> None:
    with pytest.raises(TunableError, match=r".") as refused:
        Tunable.named(name).values(values)
    assert why in str(refused.value)


def test_a_range_is_even_or_by_equal_factors_and_whole_where_only_that_is_a_value() -> None:
    floor = Tunable.named("straggler.floor")
    assert floor.values_of_range("0.1:0.5:3") == (0.1, 0.3, 0.5)
    assert floor.values_of_range("0.01:1:3:log") == (0.01, 0.1, 1.0)
    assert Tunable.named("straggler.fast_hits").values_of_range("1:4:7") == (1, 2, 3, 4)
    for text in ("0.1:0.5", "0.5:0.1:3", "0.1:0.5:1", "0:1:3:log", "0.1:0.5:3:exp", "0.1:0.5:101"):
        with pytest.raises(TunableError, match="write FROM:TO:HOW_MANY"):
            floor.values_of_range(text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "--values 0.05,0.1,0.2 or with --range"),
        (("--values", "0.1", "--range", "0.1:0.2:2"), "either with --values"),
        (("--values", "0.1", "--processes", 0), "--processes is at least 1"),
        (("--values", "0.1", "--truth", "a", "--truth", "b"), "2 times --truth for 1 archive"),
        (("--values", "0.1", "--truth", "nowhere"), "nowhere: No such file"),
        (("--values", "0.1", "--policy", "nowhere.toml"), "nowhere.toml: No such file"),
        (("--values", "0.1", "-o", "nowhere/a"), "nowhere is no directory"),
        (("--values", "0.1", "."), ".: Is a directory"),
    ],
)
def test_bad_usage_is_status_2_and_one_message(options: tuple[object, ...], why: str, one_slow_rank: Path) -> None:
    ran = run(one_slow_rank, "--threshold", "straggler.floor", *options)
    assert (ran.exit_code, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert why in ran.stderr


def test_no_archive_is_written_over_or_counted_twice(one_slow_rank: Path) -> None:
    before = one_slow_rank.read_bytes()
    ran = run(one_slow_rank, "--threshold", "straggler.floor", "--values", "0.1", "-o", one_slow_rank)
    assert (ran.exit_code, ran.stderr) == (2, f"paceline: --output: {one_slow_rank} is there already\n")
    assert one_slow_rank.read_bytes() == before
    again = one_slow_rank.parent / ".." / one_slow_rank.parent.name / one_slow_rank.name
    ran = run(one_slow_rank, again, "--threshold", "straggler.floor", "--values", "0.1")
    assert (ran.exit_code, ran.stderr) == (2, f"paceline: {again} is given twice\n")


def test_the_truth_of_another_run_is_refused(slow_ranks: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.truth.jsonl"
    own = slow_ranks.with_name("slow.truth.jsonl").read_bytes()
    for name in (b"job-1", b"GPU-"):
        other.write_bytes(own.replace(name, name + b"0"))
        ran = run(slow_ranks, "--threshold", "straggler.floor", "--values", "0.1", "--processes", 1, "--truth", other)
        assert (ran.exit_code, ran.stdout) == (2, "")
        assert "it is of another run" in ran.stderr


@pytest.mark.parametrize("odd", [{"onset_ns": "noon"}, {"culprits": 5}, {"job_id": 4}, {"severity": None}])
def test_a_truth_of_other_types_is_none(slow_ranks: Path, tmp_path: Path, odd: dict[str, Any]) -> None:
    other = tmp_path / "other.truth.jsonl"
    own = orjson.loads(slow_ranks.with_name("slow.truth.jsonl").read_bytes().splitlines()[0])
    other.write_bytes(orjson.dumps({**own, **odd}))
    ran = run(slow_ranks, "--threshold", "straggler.floor", "--values", "0.1", "--processes", 1, "--truth", other)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "a line is no truth as paceline simulate --truth-file writes it" in ran.stderr


def test_a_torn_archive_is_judged_as_far_as_it_goes_and_told(slow_ranks: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl.zst"
    torn.write_bytes(slow_ranks.read_bytes()[:2000])
    ran = run(torn, "--threshold", "straggler.floor", "--values", "0.1", "--processes", 1)
    assert ran.exit_code == 2
    assert "torn.jsonl.zst" in ran.stderr


# --- Which value -------------------------------------------------------------------------------------------------------


def row(value: float, found: int, blamed: int = 0, wrong: int = 0, in_force: bool = False, of: int = 30) -> Row:
    names = tuple(f"T{number}" for number in range(of))
    known = Labelled(
        faults=names,
        found=names[:found],
        blamed=tuple(f"b{number}" for number in range(blamed)),
        wrong_nodes=tuple(f"n{number}" for number in range(wrong)),
        naming=found + blamed,
        naming_right=found,
        delays_s=tuple(float(10 + number) for number in range(of)),
    )
    commands = tuple(f"drain_node n{number}" for number in range(found + wrong))
    return Row(value, in_force, (Outcome(found, found, found, commands, {}, commands, 0.0, known),))


def test_a_wrong_node_weighs_more_than_any_number_of_missed_faults() -> None:
    low, high = row(0.05, found=30, wrong=1, in_force=True), row(0.2, found=10)
    verdict = judge_rows((low, high))
    assert verdict.best is high
    assert verdict.undominated == (low, high)
    assert "0 found more, 20 found less" in verdict.why


def test_a_value_that_finds_no_more_and_blames_more_is_dominated() -> None:
    rows = (row(0.05, 25, blamed=3), row(0.1, 25, in_force=True), row(0.2, 20))
    verdict = judge_rows(rows)
    assert verdict.undominated == (rows[1],)
    assert verdict.best is verdict.quietest is rows[1]
    assert "no value does better than what was in force" in verdict.why


def test_nothing_is_recommended_on_few_faults() -> None:
    few = LEAST_FAULTS - 1
    verdict = judge_rows((row(0.05, few, of=few), row(0.2, 3, of=few, in_force=True)))
    assert verdict.best is None
    assert f"the sample is small ({few} labelled faults, {few - 3} found by some" in verdict.why


def test_times_count_missed_faults_as_not_found_yet() -> None:
    assert row(0.1, found=30).alert_s.quantile(0.5) == 24
    assert row(0.1, found=10).alert_s.quantile(0.5) is None
    assert row(0.1, found=30).recall.low == pytest.approx(0.886, abs=1e-3)


@pytest.mark.parametrize(
    ("archives", "values", "processes", "times"), [(1, 9, 2, 2), (2, 9, 2, 1), (8, 9, 2, 1), (1, 3, 8, 4)]
)
def test_archives_are_split_where_processes_would_be_idle(
    archives: int, values: int, processes: int, times: int
) -> None:
    assert times_read(archives, values, processes) == times

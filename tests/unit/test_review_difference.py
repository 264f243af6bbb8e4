"""Two sides by id: what is the same, changed, missing and new, each with its reason; and what a policy would have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from factories import SITE, at, gpu_frame, job, placement, step_timing, xid_event
from typer.testing import CliRunner

from agents.simulation.truth import Truth
from paceline.cli import app
from paceline.replay_output import OtherReplayError, ReplayOutput
from paceline.review.difference import compare, counted, policy_changes
from paceline.review.said import Said
from paceline.review.told import wrong_node_commands
from schemas.archive import ArchiveWriter
from schemas.findings import Finding, Subject
from schemas.fleet import Policy, RulePolicy
from schemas.remediation import Cause, Command, Incident, Target
from streams.replay import ndjson_line

if TYPE_CHECKING:
    from pathlib import Path


def finding(second: int, name: str = "one", rule: str = "straggler", **fields: Any) -> Finding:
    return Finding(
        **{
            "finding_id": f"find-{name}",
            "site_id": SITE,
            "rule": rule,
            "kind": rule,
            "severity": "warning",
            "state": "open",
            "subject": Subject(level="rank", job_id="job-1", rank=3),
            "event_time_ns": at(second),
            "onset_ns": at(second),
            **fields,
        }
    )


def incident(second: int, name: str = "one", findings: tuple[str, ...] = ("find-one",), **fields: Any) -> Incident:
    return Incident(
        incident_id=f"inc-{name}",
        site_id=SITE,
        state=fields.pop("state", "open"),
        cause_class="thermal",
        culprit=Subject(level="node", node_id="node-1"),
        event_time_ns=at(second),
        onset_ns=at(second),
        findings=findings,
        **fields,
    )


def command(second: int, name: str = "one", node_id: str = "node-1", kind: Any = "drain_node") -> Command:
    return Command(
        command_id=f"cmd-{name}",
        site_id=SITE,
        kind=kind,
        target=Target(level="node", node_id=node_id),
        audience="actuators",
        cause=Cause(incident_id="inc-one", findings=("find-one",)),
        decided_at_ns=at(second),
        expires_at_ns=at(second + 60),
        sequence=second,
        mode="observe",
    )


def said(name: str, *records: Any, policy: Policy | None = None, until: int = 500) -> Said:
    side = Said(name, policy=policy)
    side.saw(xid_event(0, 13))
    side.saw(xid_event(until, 13))
    for record in records:
        side.take(record)
    return side


def policy(**thresholds: float) -> Policy:
    rules = {"straggler": RulePolicy(thresholds=thresholds)}
    return Policy(policy_version="other", site_id=SITE, effective_from_ns=0, rules=rules)


def only(a: Said, b: Said) -> Any:
    (difference,) = (difference for difference in compare(a, b) if difference.what != "same")
    return difference


def test_equal_sides_are_the_same_whatever_their_offsets_and_sequences() -> None:
    a = said("A", finding(5), incident(6), command(7))
    b = said("B", finding(5, evidence=({"topic": "t", "partition": 0, "offset": 3},)), incident(6))
    b.take(command(7).model_copy(update={"sequence": 99}))
    assert {family: dict(count) for family, count in counted(compare(a, b)).items()} == {
        "finding": {"same": 1},
        "incident": {"same": 1},
        "command": {"same": 1},
    }


def test_other_content_under_one_id_is_changed_and_told_by_field() -> None:
    found = only(said("A", finding(5, slowdown=1.5)), said("B", finding(5, slowdown=1.6)))
    assert (found.what, found.fields) == ("changed", {"slowdown": (1.5, 1.6)})
    assert "other in slowdown" in found.why


@pytest.mark.parametrize(
    ("a", "b", "what", "why"),
    [
        (said("A", finding(5)), said("B"), "missing", "nothing in the two sides explains it"),
        (said("A"), said("B", finding(5)), "new", "nothing in the two sides explains it"),
        (said("A", finding(400)), said("B", until=300), "missing", "B ends before it"),
        (said("A", finding(490)), said("B"), "missing", "of the last seconds"),
        (said("A", finding(5)), said("B", policy=policy(floor=0.2)), "missing", "floor default -> 0.2"),
    ],
)
def test_what_one_side_alone_says_is_explained(a: Said, b: Said, what: str, why: str) -> None:
    found = only(a, b)
    assert found.what == what
    assert why in found.why


def test_a_statement_with_another_onset_names_its_twin() -> None:
    missing, new = compare(said("A", finding(5)), said("B", finding(8, "two")))
    assert (missing.what, new.what) == ("missing", "new")
    assert "B says the same +3.0 s away (find-two)" in missing.why
    assert "A says the same -3.0 s away (find-one)" in new.why


def test_what_rests_on_a_difference_says_so() -> None:
    a = said("A", finding(5), incident(6), command(7))
    differences = {d.family: d for d in compare(a, said("B"))}
    assert "rests on find-one" in differences["incident"].why
    assert "rests on find-one" in differences["command"].why


def test_policies_are_told_apart_by_rule() -> None:
    off = Policy(
        policy_version="off",
        site_id=SITE,
        effective_from_ns=0,
        rules={"xid": RulePolicy(enabled=False, per_sku={"H": {}})},
    )
    assert policy_changes(None, policy()) == {}
    assert policy_changes(policy(floor=0.1), policy(floor=0.2)) == {"straggler": ["floor 0.1 -> 0.2"]}
    assert policy_changes(None, off) == {"xid": ["switched off", "limits by part"]}
    assert policy_changes(off, None)["xid"][0] == "switched on"


def test_a_command_on_a_healthy_node_is_wrong_and_one_that_costs_no_node_is_not() -> None:
    truth = Truth("T1", "s", "thermal", "job-1", 0, 1, ({"node_id": "node-1"},), (), (), 0.3, (), (), True)
    side = said("A", command(1), command(2, "two", "node-2"), command(3, "three", "node-3", "collect_evidence"))
    assert wrong_node_commands(side, [truth]) == ["drain_node node-2"]


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with one slow rank of 30 % and an Xid on another node."""
    path = tmp_path_factory.mktemp("slow") / "run.jsonl"
    with ArchiveWriter.open(path) as archive:
        archive.write(gpu_frame(1, node_id="node-2"), at(1))
        for number in range(60):
            own = [200_000] * 7 + [260_000 if 20 <= number < 40 else 200_000]
            archive.write(step_timing(number, 20 + number, own), at(20 + number))
        archive.write(xid_event(85, 79, node_id="node-2"), at(85))
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_threshold_changes_exactly_the_commands_of_its_rule(slow_rank: Path, tmp_path: Path) -> None:
    (tmp_path / "high.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.5 }\n")
    told = run("replay", str(slow_rank), "--what-if", "--policy", str(tmp_path / "high.toml"), "--json")
    assert told.exit_code == 1, told.stderr
    *lines, last = [orjson.loads(line) for line in told.stdout.splitlines()]
    assert last["policy"] == {"straggler": ["floor default -> 0.5"]}
    gone = [line["about"] for line in lines if line["family"] == "command"]
    assert {line["what"] for line in lines} == {"missing"}
    assert gone
    assert all("node-1" in about for about in gone)
    assert last["sides"][1]["commands"] == {"cordon_node": 1}
    assert last["sides"][0]["gpu_hours_lost"] >= last["sides"][1]["gpu_hours_lost"] == 0


def test_a_policy_that_changes_nothing_is_status_0(slow_rank: Path, tmp_path: Path) -> None:
    (tmp_path / "same.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.03 }\n")
    told = run("replay", str(slow_rank), "--what-if", "--policy", str(tmp_path / "same.toml"))
    assert told.exit_code == 0, told.stdout
    assert "changed 0, missing 0, new 0" in told.stdout


@pytest.mark.parametrize("asked", ["replay --what-if --policy same.toml", "report -o page.html"])
def test_a_record_from_ahead_of_its_arrival_is_named_wherever_it_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.03 }\n")
    with ArchiveWriter.open(tmp_path / "ahead.jsonl") as archive:
        archive.write(gpu_frame(1), at(1))
        archive.write(step_timing(1, 9_000, [200_000] * 8), at(2))
    told = run(*asked.split(), "ahead.jsonl")
    assert told.exit_code == 2
    assert "unusable: line 2: paceline.step-timings.v1: event time is more than" in told.stderr
    assert "bad_lines=1" in told.stderr


def test_a_name_neither_moves_the_cursor_nor_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    with ArchiveWriter.open(path) as archive:
        archive.write(xid_event(1, 79, node_id="a\x1b[2J\nnobody would have been cordoned or drained"), at(2))
    told = run("replay", str(path))
    assert r"a\x1b[2J\nnobody would" in told.stdout
    assert "\x1b" not in told.stdout
    assert "\nnobody" not in told.stdout
    out = tmp_path / "out.ndjson"
    assert run("replay", str(path), "-o", str(out)).exit_code == 0
    (tmp_path / "less.ndjson").write_bytes(out.read_bytes().splitlines(keepends=True)[0])
    assert "\x1b" not in run("diff", str(out), str(tmp_path / "less.ndjson")).stdout


@pytest.mark.parametrize("is_diff", [False, True])
def test_the_truth_of_another_run_is_refused(tmp_path: Path, is_diff: bool) -> None:
    source = str(tmp_path / "run.jsonl")
    with ArchiveWriter.open(tmp_path / "run.jsonl") as archive:
        for record in (job(8), placement(list(range(8))), step_timing(1, 1, [200_000] * 8)):
            archive.write(record, at(2))
        if is_diff:
            archive.write(finding(1), at(2))
    (tmp_path / "other.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.5 }\n")
    asked = (
        ("diff", source, source) if is_diff else ("replay", source, "--what-if", "--policy", f"{tmp_path}/other.toml")
    )
    for job_id, status in (("job-1", 0), ("job-2", 2)):
        truth = Truth("T1", "s", "thermal", job_id, 0, 1, (), (), (), 0.3, (), (), True)
        (tmp_path / "truth.jsonl").write_bytes(orjson.dumps(truth))
        ran = run(*asked, "--truth", str(tmp_path / "truth.jsonl"))
        assert ran.exit_code == status, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr == f"paceline: {source}: its truth names job-2, which is not in it: it is of another run\n"


def test_what_if_without_a_policy_is_bad_usage(slow_rank: Path) -> None:
    assert run("replay", str(slow_rank), "--what-if").exit_code == 2


def test_an_output_file_compares_with_the_archive_that_it_came_of(slow_rank: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ndjson"
    assert run("replay", str(slow_rank), "-o", str(out)).exit_code == 0
    same = run("diff", str(slow_rank), str(out))
    assert (same.exit_code, "missing 0, new 0" in same.stdout) == (0, True)
    fewer = [line for line in out.read_bytes().splitlines(keepends=True) if b"paceline.actions" not in line]
    (tmp_path / "fewer.ndjson").write_bytes(b"".join(fewer))
    differs = run("diff", str(out), str(tmp_path / "fewer.ndjson"))
    assert differs.exit_code == 1
    assert "missing  command" in differs.stdout


@pytest.mark.parametrize("topic", ["paceline.findings.v1", "paceline.tides.v1"])
def test_lines_that_cannot_be_used_are_named_by_side_and_never_end_in_the_status_of_the_same(
    tmp_path: Path, topic: str
) -> None:
    whole, torn = tmp_path / "whole.ndjson", tmp_path / "torn.ndjson"
    whole.write_bytes(ndjson_line(finding(1)))
    torn.write_bytes(whole.read_bytes() + b'{"topic":"%s","value":{}}\n' % topic.encode())
    told = run("diff", str(whole), str(torn))
    assert told.exit_code == 2
    assert "missing 0, new 0" in told.stdout
    assert f"unusable: B ({torn}): line 2: " in told.stderr
    assert run("diff", str(whole), str(whole)).exit_code == 0


def test_a_replay_goes_on_with_its_file_and_writes_the_same(slow_rank: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ndjson"
    run("replay", str(slow_rank), "-o", str(out))
    whole = out.read_bytes()
    assert run("replay", str(slow_rank), "-o", str(out)).exit_code == 2
    out.unlink()
    assert run("replay", str(slow_rank), "-o", str(out), "--resume").exit_code == 0
    assert out.read_bytes() == whole
    for cut in (0, len(whole) // 2, len(whole)):
        out.write_bytes(whole[:cut])
        assert run("replay", str(slow_rank), "-o", str(out), "--resume").exit_code == 0
        assert out.read_bytes() == whole
    out.write_bytes(whole.replace(b'"step":3', b'"step":4'))
    told = run("replay", str(slow_rank), "-o", str(out), "--resume")
    assert told.exit_code == 2
    assert "is of another replay" in told.stderr


def test_an_output_that_says_something_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"one\ntwo\n")
    with ReplayOutput(tmp_path / "x", is_resumed=True, to_stdout=False) as output:
        output.write(b"one\n")
        with pytest.raises(OtherReplayError, match="line 2"):
            output.write(b"three\n")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"


def test_a_span_of_an_archive_is_judged_after_its_warm_up(slow_rank: Path) -> None:
    first = at(60) // 10**9
    told = run("replay", str(slow_rank), "--json", "--from", str(first), "--warm-up", "60s", "--to", str(first + 15))
    records = [orjson.loads(line) for line in told.stdout.splitlines()]
    steps = [r["value"]["step"] for r in records if r["topic"] == "paceline.step-results.v1"]
    assert steps == list(range(40, 55))
    assert all(r["value"].get("event_time_ns", 2**63) >= at(60) for r in records)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "yesterday"),
        ("--rate", "0"),
        ("--resume",),
        ("--compare",),
        ("--site", ""),
        ("--warm-up", "soon"),
        ("--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"),
        ("--truth", "truth.jsonl"),
        ("--what-if", "--policy", "no.toml", "--summary"),
    ],
)
def test_bad_usage_of_replay_is_status_2_and_one_message(slow_rank: Path, arguments: tuple[str, ...]) -> None:
    told = run("replay", str(slow_rank), *arguments)
    assert told.exit_code == 2
    assert told.stderr.startswith("paceline: ")


def test_an_archive_of_no_bytes_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").touch()
    told = run("replay", str(tmp_path / "a.jsonl.zst"))
    assert (told.exit_code, told.stdout, "it is empty" in told.stderr) == (2, "", True)


def test_a_replay_that_nobody_read_to_its_end_is_none_that_went_well(
    slow_rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(ReplayOutput, "write", gone)
    assert run("replay", str(slow_rank), "--json").exit_code == 141


@pytest.fixture
def outputs_alone(tmp_path: Path) -> Path:
    """What somebody who recorded the wrong topics has."""
    with ArchiveWriter.open(tmp_path / "outputs.jsonl") as archive:
        for record in (policy(), finding(1), finding(2, "two"), incident(3)):
            archive.write(record, at(4))
    return tmp_path / "outputs.jsonl"


@pytest.mark.parametrize("asked", [(), ("--json",), ("--compare",), ("--summary",), ("--what-if",)])
def test_where_nothing_was_judged_nobody_is_cleared(
    outputs_alone: Path, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    (tmp_path / "other.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.5 }\n")
    other = ("--policy", str(tmp_path / "other.toml")) if "--what-if" in asked else ()
    ran = run("replay", str(outputs_alone), *asked, *other)
    assert (ran.exit_code, ran.stdout) == (2, "")
    told = "nothing was judged: it holds no frames, events or steps, only findings (2), incidents (1), policy (1)"
    assert ran.stderr.splitlines()[-1] == f"paceline: {outputs_alone}: {told}"


def test_a_range_without_anything_to_judge_clears_nobody(slow_rank: Path) -> None:
    ran = run("replay", str(slow_rank), "--from", "2035-01-01T00:00:00Z")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "nothing was judged: it holds no frames, events or steps in that range" in ran.stderr


def test_a_kafka_source_without_a_port_is_bad_usage() -> None:
    told = run("replay", "kafka://nowhere")
    assert (told.exit_code, "kafka://HOST:PORT" in told.stderr) == (2, True)

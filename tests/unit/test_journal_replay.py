"""Replay of the decisions journal: what is equal, what differs and how that is told, and which archives are refused."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from deciding import APPROVALS, RESULTS, approval, result
from decisions_worker import DecisionsWorker
from factories import SITE, at, finding, job, pci_of, placement, policy, uuid_of
from typer.testing import CliRunner

from paceline.cli import app
from schemas.archive import ArchiveLine, BadLine
from schemas.codec import decode_value, encode
from schemas.findings import ProgressMark, Subject
from schemas.remediation import Command, Decision
from streams.journal_replay import replay_journal
from streams.recorded_journal import UnusableJournalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FINDINGS, JOURNAL, INCIDENTS, ACTIONS = (
    f"paceline.{family}.v1" for family in ("findings", "decisions", "incidents", "actions")
)
RANK = Subject(level="rank", job_id="job-1", rank=1, node_id="node-0", gpu_uuid=uuid_of("node-0", 1))


def marks(worker: DecisionsWorker, second: float) -> None:
    for role in ("telemetry", "jobs"):
        worker.find(ProgressMark(site_id=SITE, role=role, partition=0, mark_ns=at(second)))


def hot_rank(second: float) -> list[Any]:
    figures = {"excess_us": 90_000, "step_time_us": 300_000}
    device = Subject(level="gpu", node_id="node-0", pci_bus_id=pci_of(1))
    return [
        finding("thermal_violation", second + 1, device, onset_s=second - 2, finding_id=f"hot-{second}"),
        finding("straggler", second, RANK, slowdown=1.4, job_id="job-1", values=figures, finding_id=f"slow-{second}"),
    ]


def lost_gpu(second: float) -> Any:
    device = Subject(level="gpu", node_id="node-1", pci_bus_id=pci_of(0))
    return finding("xid", second, device, urgent=True, values={"code": 79, "trusted": True})


def worker_with_references() -> DecisionsWorker:
    worker = DecisionsWorker(SITE, random.Random(1))
    for record in (job(4), placement([0, 1], node_id="node-0"), policy(gpu_hour_cost=2.0, settle_ns=3_000_000_000)):
        worker.publish(record)
    for _ in range(5):
        worker.read_some()
    return worker


@pytest.fixture
def lines() -> list[ArchiveLine]:
    """A slow rank with heat, a price that changes in between, and a lost GPU: two incidents, two commands."""
    worker = worker_with_references()
    marks(worker, 0)
    for record in hot_rank(5):
        worker.find(record)
    marks(worker, 20)
    worker.publish(policy(gpu_hour_cost=9.0).model_copy(update={"effective_from_ns": at(21)}))
    worker.read_some()
    marks(worker, 21)
    worker.find(lost_gpu(22))
    marks(worker, 40)
    return worker.lines


def of(lines: list[ArchiveLine], topic: str) -> list[int]:
    """Indices of a topic's lines."""
    return [index for index, line in enumerate(lines) if line.topic == topic]


def changed(line: ArchiveLine, **fields: Any) -> ArchiveLine:
    return replace(line, value={**line.value, **fields})


# --- What is compared -------------------------------------------------------------------------------------------------


def test_what_was_decided_comes_out_again_byte_for_byte(lines: list[ArchiveLine]) -> None:
    comparison = replay_journal(lines)
    assert comparison.differences == []
    assert comparison.same == len(of(lines, JOURNAL)) + len(of(lines, INCIDENTS)) + len(of(lines, ACTIONS))
    assert len(of(lines, ACTIONS)) == 2
    assert (comparison.repeated, comparison.beyond, comparison.restarts) == (0, 0, 0)


def test_the_order_of_the_lines_does_not_matter_and_neither_do_lines_that_come_twice(lines: list[ArchiveLine]) -> None:
    shuffled = lines + lines[::3]
    random.Random(4).shuffle(shuffled)
    assert replay_journal(shuffled).differences == []


def test_topics_of_other_roles_are_passed_over(lines: list[ArchiveLine]) -> None:
    frames = [ArchiveLine("paceline.gpu-frames.v1", 0, n, 1, "n", {"record": "gpu_frame"}) for n in (5, 9)]
    strange = ArchiveLine("somebody.elses", 0, 0, 1, None, "text")
    assert replay_journal([*frames, strange, *lines]).differences == []


def test_every_command_and_incident_is_named_by_an_entry_before_it(lines: list[ArchiveLine]) -> None:
    followed: set[str] = set()
    for line in lines:
        if line.topic == JOURNAL:
            followed |= set(line.value["followed"])
        elif line.topic in {INCIDENTS, ACTIONS}:
            assert line.value.get("command_id", line.value.get("incident_id")) in followed


def test_the_price_that_was_in_force_is_the_one_that_is_replayed(lines: list[ArchiveLine]) -> None:
    entries = [decode_value(line.topic, line.value) for line in lines if line.topic == JOURNAL]
    points = [entry for entry in entries if isinstance(entry, Decision) and entry.action == "reference_taken"]
    assert [point.source.offset for point in points if point.source] == [0, 6]
    assert points[0].detail == {name: count for name, count in points[1].detail.items() if "policy" not in name} | {
        name: count - 1 for name, count in points[1].detail.items() if "policy" in name
    }
    command = decode_value(ACTIONS, lines[of(lines, ACTIONS)[0]].value)
    assert isinstance(command, Command)
    assert command.cost_estimate["money_lost_per_hour"] == pytest.approx(
        2 * command.cost_estimate["gpu_hours_lost_per_hour"]
    )
    # The first point moved behind the second price: the first command would have cost more.
    late = [*lines]
    index = of(late, JOURNAL)[0]
    late[index] = changed(late[index], detail=points[1].detail)
    told = {difference.name for difference in replay_journal(late).differences}
    assert f"command {command.command_id}" in told


def signed_lines() -> list[ArchiveLine]:
    """A command without a key, one under a key, and after another restart one under the next key."""
    worker = worker_with_references()
    marks(worker, 0)
    for second, key_id in ((5, None), (40, "ed25519-a"), (80, "ed25519-b")):
        worker.key_id = key_id
        worker.snapshot()
        worker.kill()
        device = Subject(level="gpu", node_id=f"node-{second}", pci_bus_id=pci_of(0))
        worker.find(
            finding("xid", second, device, urgent=True, values={"code": 79, "trusted": True}, finding_id=f"x-{second}")
        )
    marks(worker, 100)
    return worker.lines


def test_the_key_that_signed_is_in_the_journal_and_comes_out_again() -> None:
    lines = signed_lines()
    entries = [decode_value(line.topic, line.value) for line in lines if line.topic == JOURNAL]
    taken = [
        entry.subject_id for entry in entries if isinstance(entry, Decision) if entry.action == "signing_key_taken"
    ]
    assert taken == ["ed25519-a", "ed25519-b"]
    assert [lines[index].value.get("key_id") for index in of(lines, ACTIONS)] == [None, "ed25519-a", "ed25519-b"]
    assert replay_journal(lines).differences == []


def test_a_command_that_names_another_key_than_the_journal_differs() -> None:
    lines = signed_lines()
    index = of(lines, ACTIONS)[1]
    lines[index] = changed(lines[index], key_id="ed25519-b")
    assert {difference.what for difference in replay_journal(lines).differences} == {"differs"}


def test_the_signature_itself_is_not_compared() -> None:
    lines = [
        replace(line, headers={**line.headers, "signature": "ed25519-a:00"}) if line.topic == ACTIONS else line
        for line in signed_lines()
    ]
    assert replay_journal(lines).differences == []


@pytest.mark.parametrize(
    ("topic", "fields", "name"),
    [
        (JOURNAL, {"subject_id": "find-other"}, "entry"),
        (INCIDENTS, {"summary": "it was somebody else"}, "incident"),
        (ACTIONS, {"expires_at_ns": at(99)}, "command"),
    ],
)
def test_one_changed_field_differs_and_both_sides_are_shown(
    lines: list[ArchiveLine], topic: str, fields: dict[str, Any], name: str
) -> None:
    index = of(lines, topic)[-1]
    original = lines[index]
    lines[index] = changed(original, **fields)
    (difference,) = replay_journal(lines).differences
    assert difference.what == "differs"
    assert difference.name.startswith(name)
    assert difference.replayed == orjson.dumps(original.value)
    assert difference.recorded == orjson.dumps(lines[index].value)


@pytest.mark.parametrize("fields", [{"key": "another"}, {"headers": {"schema": "paceline.command.v9"}}])
def test_another_key_or_other_headers_differ(lines: list[ArchiveLine], fields: dict[str, Any]) -> None:
    index = of(lines, ACTIONS)[0]
    lines[index] = replace(lines[index], **fields)
    (difference,) = replay_journal(lines).differences
    assert difference.what == "key or headers differ"


def test_an_archive_without_headers_is_compared_without_them(lines: list[ArchiveLine]) -> None:
    assert replay_journal([replace(line, headers={}) for line in lines]).differences == []


@pytest.mark.parametrize("topic", [JOURNAL, INCIDENTS, ACTIONS])
def test_a_lost_record_is_one_that_was_not_recorded(lines: list[ArchiveLine], topic: str) -> None:
    del lines[of(lines, topic)[0 if topic != JOURNAL else 2]]
    (difference,) = replay_journal(lines).differences
    assert difference.what == "not recorded"
    assert difference.recorded is None


def test_a_record_too_many_is_one_that_is_not_reproduced(lines: list[ArchiveLine]) -> None:
    more = lines[of(lines, ACTIONS)[0]]
    more = replace(changed(more, command_id="cmd-forged"), offset=99)
    (difference,) = replay_journal([*lines, more]).differences
    assert (difference.what, difference.name) == ("not reproduced", "command cmd-forged")


def test_an_entry_too_many_at_the_end_is_not_taken_for_one_that_is_not_recorded_yet(lines: list[ArchiveLine]) -> None:
    last = lines[of(lines, JOURNAL)[-1]]
    more = replace(changed(last, sequence=last.value["sequence"] + 1), offset=99)
    (difference,) = replay_journal([*lines, more]).differences
    assert difference.what == "not reproduced"


def test_another_order_of_incidents_differs(lines: list[ArchiveLine]) -> None:
    first, second = of(lines, INCIDENTS)[:2]
    lines[first], lines[second] = (
        replace(lines[first], offset=lines[second].offset),
        replace(lines[second], offset=lines[first].offset),
    )
    (difference,) = replay_journal(lines).differences
    assert difference.what == "out of order"


# --- Restarts ---------------------------------------------------------------------------------------------------------


def test_what_a_restart_wrote_again_counts_once() -> None:
    worker = worker_with_references()
    marks(worker, 0)
    worker.snapshot()
    for record in hot_rank(5):
        worker.find(record)
    marks(worker, 20)
    worker.kill()
    marks(worker, 30)
    comparison = replay_journal(worker.lines)
    assert comparison.differences == []
    assert comparison.repeated > 3
    assert comparison.restarts == 0


def test_what_was_decided_before_a_restart_under_an_older_policy_is_reproduced_too() -> None:
    worker = worker_with_references()
    marks(worker, 0)
    worker.snapshot()
    for record in hot_rank(5):
        worker.find(record)
    marks(worker, 20)
    worker.publish(policy(gpu_hour_cost=9.0).model_copy(update={"effective_from_ns": at(21)}))
    worker.kill()
    marks(worker, 30)
    commands = [orjson.loads(value) for value in worker.recorded("command")]
    assert len(commands) == 2
    assert commands[0]["command_id"] == commands[1]["command_id"]
    assert commands[0]["cost_estimate"] != commands[1]["cost_estimate"]
    comparison = replay_journal(worker.lines)
    assert comparison.differences == []
    assert comparison.restarts == 1
    forged = [changed(line, reason="forged") if line.value == commands[0] else line for line in worker.lines]
    assert [difference.what for difference in replay_journal(forged).differences] == ["not reproduced"]


def test_a_worker_without_a_snapshot_begins_its_journal_anew() -> None:
    worker = worker_with_references()
    marks(worker, 0)
    worker.find(lost_gpu(3))
    worker.publish(job(4, version=2))
    worker.kill()
    assert [orjson.loads(value)["sequence"] for value in worker.recorded("decision")] == [0, 1, 0, 1]
    assert replay_journal(worker.lines).differences == []


# --- Results and approvals --------------------------------------------------------------------------------------------


def answered_lines(word: str | None = None) -> list[ArchiveLine]:
    """A cordon that waits, consent to it, and that it was carried out, with a restart before the result is taken."""
    worker = DecisionsWorker(SITE, random.Random(3))
    worker.key_id, worker.words = "ed25519-a", (word,)
    worker.publish(policy(mode="approve", settle_ns=3_000_000_000))
    worker.kill()
    marks(worker, 0)
    worker.find(lost_gpu(3))
    marks(worker, 10)
    worker.snapshot()
    waiting = orjson.loads(worker.recorded("command")[0])["command_id"]
    worker.find(approval(12, waiting))
    marks(worker, 20)
    order = orjson.loads(worker.recorded("command")[-1])["command_id"]
    worker.find(result(25, order))
    worker.kill()
    marks(worker, 40)
    return worker.lines


def test_results_and_approvals_come_out_again_byte_for_byte() -> None:
    lines = answered_lines()
    states = [line.value["state"] for line in lines if line.topic == INCIDENTS]
    assert states[-1] == "verifying"
    comparison = replay_journal(lines)
    assert (comparison.differences, comparison.beyond) == ([], 0)
    shuffled = lines[::2] + lines[1::2]
    assert replay_journal(shuffled).differences == []


def test_an_approval_that_did_not_count_is_refused_again_without_its_signature() -> None:
    lines = answered_lines("bad_signature")
    assert [line.value["mode"] for line in lines if line.topic == ACTIONS] == ["approve"]
    assert replay_journal(lines).differences == []
    forged = [
        changed(line, detail={**line.value["detail"], "signature": "holds"})
        if line.topic == JOURNAL and line.value["action"] == "approval_refused"
        else line
        for line in lines
    ]
    assert {difference.what for difference in replay_journal(forged).differences} >= {"not recorded"}


@pytest.mark.parametrize("topic", [APPROVALS, RESULTS])
def test_a_changed_or_missing_answer_is_told(topic: str) -> None:
    lines = answered_lines()
    index = of(lines, topic)[0]
    other = [*lines]
    other[index] = changed(lines[index], command_id="cmd-another")
    assert replay_journal(other).differences != []
    assert "its journal says that it was taken" in refused(without(lines, index))


# --- Where a recording ends -------------------------------------------------------------------------------------------


def test_what_the_journal_does_not_reach_yet_is_counted_and_not_compared(lines: list[ArchiveLine]) -> None:
    cut = of(lines, JOURNAL)[-1]
    comparison = replay_journal(lines[:cut])
    assert comparison.differences == []
    assert comparison.beyond >= 1


def test_what_came_of_findings_that_were_not_recorded_any_more_is_counted_and_not_compared(
    lines: list[ArchiveLine],
) -> None:
    lost = next(index for index in of(lines, FINDINGS) if lines[index].value.get("urgent"))
    kept = [line for index, line in enumerate(lines) if index < lost or line.topic != FINDINGS]
    comparison = replay_journal(kept)
    assert comparison.differences == []
    assert comparison.beyond >= 3


# --- What a worker refuses --------------------------------------------------------------------------------------------


def refusals(worker: DecisionsWorker) -> list[Callable[[ArchiveLine], ArchiveLine]]:
    return [
        lambda line: replace(line, value=None),
        lambda line: replace(line, value={"record": "rumour"}),
        lambda line: replace(line, key="another-site"),
        lambda line: replace(line, timestamp_ms=line.timestamp_ms - 61_000),
        lambda line: changed(line, pad="x" * 1_000_001),
    ]


@pytest.mark.parametrize("number", range(5))
def test_findings_that_the_boundary_refuses_are_refused_in_replay(number: int) -> None:
    worker = worker_with_references()
    marks(worker, 0)
    before = len(worker.lines)
    worker.find(lost_gpu(3))
    told = replay_journal(worker.lines)
    assert told.differences == []
    spoiled = [
        refusals(worker)[number](line) if line.topic == FINDINGS and line.number == before + 1 else line
        for line in worker.lines
    ]
    # The worker did take it, so all that came of it is missing now: it has no effect at all.
    assert {difference.what for difference in replay_journal(spoiled).differences} == {"not reproduced"}
    assert len(replay_journal(spoiled).differences) == len(worker.lines) - before - 1


# --- Archives that cannot be used -------------------------------------------------------------------------------------


def refused(lines: list[ArchiveLine | BadLine]) -> str:
    with pytest.raises(UnusableJournalError) as raised:
        replay_journal(lines)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def without(lines: list[ArchiveLine], *gone: int) -> list[Any]:
    return [line for index, line in enumerate(lines) if index not in gone]


def test_an_archive_that_begins_in_the_middle_is_refused(lines: list[ArchiveLine]) -> None:
    journal, findings = of(lines, JOURNAL), of(lines, FINDINGS)
    assert "begins at entry 1" in refused(without(lines, journal[0]))
    assert "begins at offset 1" in refused(without(lines, findings[0]))


def test_what_is_missing_is_named(lines: list[ArchiveLine]) -> None:
    journal, findings = of(lines, JOURNAL), of(lines, FINDINGS)
    assert "no record of paceline.decisions.v1" in refused(without(lines, *journal))
    assert "no record of paceline.findings.v1/2" in refused(without(lines, *findings))
    assert f"gap at offset {lines[findings[3]].offset}" in refused(without(lines, findings[3]))
    reference = of(lines, "paceline.jobs.v1")
    assert "paceline.jobs.v1/" in refused(without(lines, reference[0]))
    assert "no record at offset 0" in refused(without(lines, reference[0]))


def test_lines_that_contradict_each_other_are_refused(lines: list[ArchiveLine]) -> None:
    other = changed(lines[of(lines, FINDINGS)[2]], explanation="another")
    assert "different records of paceline.findings.v1/2 at 2" in refused([*lines, other])


def test_a_journal_of_two_sites_is_refused(lines: list[ArchiveLine]) -> None:
    index = of(lines, JOURNAL)[1]
    lines[index] = changed(lines[index], site_id="site-2")
    assert "several sites: site-1, site-2" in refused(list(lines))


@pytest.mark.parametrize(
    "fields",
    [{"sequence": "first"}, {"source": None}, {"source": {"topic": JOURNAL, "partition": 0, "offset": 0}}],
)
def test_an_entry_that_is_none_is_refused(lines: list[ArchiveLine], fields: dict[str, Any]) -> None:
    index = of(lines, JOURNAL)[1]
    lines[index] = changed(lines[index], **fields)
    assert f"line {lines[index].number}" in refused(list(lines))


@pytest.mark.parametrize("counts", [{"paceline.jobs.v1/0": "two"}, {"paceline.jobs.v1/0": 1.5}, {"nowhere": 3}])
def test_counts_that_are_none_are_refused(lines: list[ArchiveLine], counts: dict[str, Any]) -> None:
    index = of(lines, JOURNAL)[0]
    lines[index] = changed(lines[index], detail=counts)
    assert refused(list(lines))


def test_a_line_that_is_none_is_refused(lines: list[ArchiveLine]) -> None:
    assert refused([*lines, BadLine(17, "no JSON")]) == "line 17: no JSON"


# --- The command line -------------------------------------------------------------------------------------------------


def write(path: Path, lines: list[ArchiveLine]) -> Path:
    with path.open("wb") as stream:
        for line in lines:
            fields = {"topic": line.topic, "partition": line.partition, "offset": line.offset}
            fields |= {"timestamp_ms": line.timestamp_ms, "key": line.key, "headers": line.headers}
            stream.write(orjson.dumps({**fields, "value": line.value}) + b"\n")
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["replay", *arguments])


def test_the_command_says_how_many_are_the_same_and_exits_0(lines: list[ArchiveLine], tmp_path: Path) -> None:
    result = run(str(write(tmp_path / "site.jsonl", lines)), "--journal")
    assert result.exit_code == 0
    assert result.stdout == f"same {replay_journal(lines).same}, differs 0\n"


def test_the_command_shows_the_first_that_differ_and_exits_1(lines: list[ArchiveLine], tmp_path: Path) -> None:
    original = {}
    for index in of(lines, JOURNAL):
        original[index] = encode(decode_value(JOURNAL, lines[index].value)).decode()
        lines[index] = changed(lines[index], event_time_ns=1)
    result = run(str(write(tmp_path / "site.jsonl", lines)), "--journal")
    assert result.exit_code == 1
    assert result.stdout == f"same {len(of(lines, INCIDENTS) + of(lines, ACTIONS))}, differs {len(original)}\n"
    assert result.stderr.count("differs: entry ") == 5
    assert f"  replayed: {next(iter(original.values()))}\n" in result.stderr
    assert f"and {len(original) - 5} more" in result.stderr
    as_json = run(str(tmp_path / "site.jsonl"), "--journal", "--json")
    assert as_json.exit_code == 1
    assert len(orjson.loads(as_json.stdout)["differences"]) == len(original)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no record of paceline.decisions.v1"),
        (b"{torn", "line 1: no JSON"),
        (b"\x28\xb5\x2f\xfdtorn", "compressed stream"),
        (None, "No such file"),
    ],
)
def test_an_archive_that_cannot_be_used_is_one_line_and_status_2(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "site.jsonl"
    if content is not None:
        path.write_bytes(content)
    result = run(str(path), "--journal")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("option", [["--summary"], ["--site", "other"], ["--policy", "policy.toml"]])
def test_options_that_a_journal_leaves_no_room_for_are_bad_usage(
    lines: list[ArchiveLine], tmp_path: Path, option: list[str]
) -> None:
    result = run(str(write(tmp_path / "site.jsonl", lines)), "--journal", *option)
    assert result.exit_code == 2
    assert "--journal takes site and policy from the archive" in result.stderr

"""Watchdog lines in logs speak for ranks without a dump, and say no more than they know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agents.decode.watchdog_line import watchdog_record
from agents.watchdog_digest import WatchdogLines
from paceline.cli import app
from schemas.steps import CollectiveDigest
from streams.detectors.hang import HangCase, judge
from streams.detectors.hang_verdict import HangVerdict
from tests.recorder_dumps import digest_of, entry, table, world


def failed(rank: int, seq: int, enqueued: int, group: str = "PG ID 0 PG GUID 0(default_pg)") -> str:
    return (
        f"[rank{rank}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:1785] [{group} Rank {rank}]  failure detected by watchdog at work"
        f" sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {seq - 1}"
    )


def caught(rank: int, seq: int, op: str = "ALLREDUCE", elements: int | None = 8, group: str | None = None) -> str:
    sizes = f"NumelIn={elements}, NumelOut={elements}, " if elements is not None else ""
    return (
        f"[rank{rank}]:[E x] [{group or 'PG ID 0 PG GUID 0(default_pg)'} Rank {rank}] Watchdog caught collective operation timeout:"
        f" WorkNCCL(SeqNum={seq}, OpType={op}, {sizes}Timeout(ms)=600000) ran for 600067 milliseconds before timing out."
    )


def told(*lines: str) -> list[CollectiveDigest]:
    found = WatchdogLines()
    for line in lines:
        record = watchdog_record(line)
        assert record is not None
        found.take(record)
    who: dict[str, Any] = {"job_id": "job", "epoch": 0, "node_id": "n", "agent_session": "s", "seq": 0}
    return [found.digest(rank, **who, event_time_ns=5, log_path="a.log") for rank in found.ranks]


def judged(dumps: dict[int, dict[str, Any]], *lines: str, rank_count: int | None = None) -> HangVerdict:
    return judge([*(digest_of(rank, dump) for rank, dump in dumps.items()), *told(*lines)], rank_count)


def test_a_line_clears_a_rank_whose_dump_is_lost() -> None:
    """Ranks 1 and 2 have no dump, and only one of them is known to wait."""
    dumps = {0: world(4, 6, 5), 3: world(4, 6, 5)}
    assert judged(dumps).verdict == "undecided"
    verdict = judged(dumps, failed(1, 6, 6))
    assert (verdict.cause, verdict.culprit_ranks, verdict.waiting_ranks) == ("not_entered", (2,), (0, 1, 3))
    assert (verdict.ranks_without_dump, verdict.watchdog_ranks) == ((1, 2), (1,))


def test_a_line_of_every_rank_says_that_all_entered() -> None:
    verdict = judged({0: world(3, 6, 5)}, failed(1, 6, 6), failed(2, 6, 6))
    assert (verdict.cause, verdict.culprit_ranks) == ("transport", ())


def test_a_device_that_lacks_what_peers_completed_is_seen_in_its_line() -> None:
    verdict = judged({0: world(3, 9, 8), 1: world(3, 9, 8)}, failed(2, 6, 9))
    assert (verdict.cause, verdict.culprit_ranks, verdict.waiting_ranks) == ("hardware", (2,), (0, 1))


def test_logs_alone_name_the_rank_that_says_nothing_if_the_number_of_ranks_is_given() -> None:
    lines = [failed(rank, 6, 6) for rank in (0, 1, 3)]
    assert judged({}, *lines).verdict == "undecided"
    verdict = judged({}, *lines, rank_count=4)
    assert (verdict.cause, verdict.culprit_ranks, verdict.watchdog_ranks) == ("not_entered", (2,), (0, 1, 3))


@pytest.mark.parametrize("other", [{"op": "_ALLGATHER_BASE"}, {"elements": 9}])
def test_logs_alone_name_the_minority(other: dict[str, Any]) -> None:
    verdict = judged({}, *(caught(rank, 6, **(other if rank == 1 else {})) for rank in range(4)), rank_count=4)
    assert (verdict.cause, verdict.culprit_ranks) == ("inconsistent", (1,))
    assert [side.op for side in verdict.sides] == [
        "all_reduce",
        "all_reduce" if "elements" in other else "_all_gather_base",
    ]


def test_sizes_that_some_lines_lack_are_not_compared() -> None:
    verdict = judged({}, *(caught(rank, 6, elements=8 if rank else None) for rank in range(4)), rank_count=4)
    assert (verdict.cause, verdict.culprit_ranks) == ("transport", ())


def test_what_a_line_calls_an_operation_is_not_held_against_a_dump() -> None:
    verdict = judged({0: world(2, 6, 5)}, caught(1, 6, op="ALLREDUCE", elements=8))
    assert verdict.cause == "transport"


def test_groups_of_which_no_line_tells_were_not_left_out() -> None:
    """Rank 1 is stuck with its pair, and its log says nothing of the pair; the lines of others do not make it a culprit."""
    pairs: list[Any] = [("0", "default_pg", [0, 1]), ("1", "TP", [0, 1])]
    dumps = {0: table(pairs, {"0": (5, 5), "1": (3, 2)}, [entry(3, group=("1", "TP"))])}
    verdict = judged(dumps, failed(1, 5, 5))
    assert verdict.culprit_ranks == ()


def test_a_group_with_a_name_of_many_is_the_one_that_the_rank_is_in() -> None:
    def pair(first: int) -> dict[str, Any]:
        groups: list[Any] = [("0", "default_pg", [0, 1, 2, 3]), ("1", "TP", [first, first + 1])]
        return table(groups, {"0": (5, 5), "1": (3, 2)}, [entry(3, group=("1", "TP"))])

    verdict = judged(
        {0: pair(0), 2: pair(2)}, failed(1, 3, 3, "PG ID 1 PG GUID 7(TP)"), failed(3, 3, 3, "PG ID 1 PG GUID 9(TP)")
    )
    assert verdict.cause == "transport"
    assert verdict.operation is not None
    assert verdict.operation.group.members() == (0, 1)


def test_a_dump_replaces_lines_whichever_came_first() -> None:
    dump, (line,) = digest_of(1, world(2, 6, 6)), told(failed(1, 6, 6))
    for order in ((dump, line), (line, dump)):
        case = HangCase()
        taken = [case.add(record) for record in order]
        assert taken == [True, order[0] is line]
        assert case.verdict().verdict == "healthy"


def test_lines_about_one_operation_add_up_and_later_operations_replace_it() -> None:
    (record,) = told(caught(1, 6, group="Rank 1] [PG 0 (default_pg)"), failed(1, 6, 9), failed(1, 6, 9))
    assert (record.groups[0]["enqueued"], record.groups[0]["completed"], record.pending[0]["op"]) == (
        9,
        5,
        "all_reduce",
    )
    (record,) = told(failed(1, 6, 9), caught(1, 2))
    assert (record.groups[0]["enqueued"], record.groups[0]["completed"]) == (2, 1)


def test_a_line_that_names_no_rank_is_of_the_rank_of_its_log() -> None:
    record = watchdog_record(failed(3, 6, 6, "PG ID 2 PG GUID 5(TP)").partition("]:")[2])
    assert record is not None
    assert (record["rank"], record["group_desc"], record["pg_id"]) == (None, "TP", "2")
    found = WatchdogLines()
    assert found.take(record) is None
    assert found.take(record, 11) == 11


def test_a_directory_of_dumps_and_logs(tmp_path: Path) -> None:
    for rank in (0, 3):
        (tmp_path / f"trace_rank_{rank}").write_text(json.dumps(world(4, 6, 5)))
    (tmp_path / "stderr_rank1.log").write_text(f"iteration 5\n{failed(1, 6, 6)}\n")
    (tmp_path / "notes.txt").write_text("nothing of it\n")
    result = CliRunner().invoke(app, ["diagnose", "hang", str(tmp_path), "--json"])
    verdict = json.loads(result.stdout)
    assert (result.exit_code, verdict["culprit_ranks"], verdict["watchdog_ranks"]) == (1, [2], [1])


def test_logs_without_dumps_need_the_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "all.log").write_text("".join(f"{failed(rank, 6, 6)}\n" for rank in (0, 1, 3)))
    runner = CliRunner()
    assert runner.invoke(app, ["diagnose", "hang", str(tmp_path)]).stdout.startswith("undecided")
    named = runner.invoke(app, ["diagnose", "hang", str(tmp_path), "--ranks", "4"])
    assert (named.exit_code, named.stdout.startswith("hang: rank 2, not_entered")) == (1, True)
    (tmp_path / "all.log").write_text("nothing\n")
    assert runner.invoke(app, ["diagnose", "hang", str(tmp_path)]).exit_code == 2

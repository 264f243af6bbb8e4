"""Who is named for a hang, on dumps small enough to be checked by eye."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agents.digest import DIGEST_BYTES
from paceline.cli import app
from streams.detectors.hang import HangCase, judge
from tests.recorder_dumps import digest_of, entry, table, verdict_of, world, write

TP, DP, PP = ("1", "TP"), ("2", "DP"), ("3", "PP")


def four(
    rank: int,
    tp: tuple[int, int],
    dp: tuple[int, int],
    entries: list[dict[str, Any]] | None = None,
    default: tuple[int, int] = (9, 9),
) -> dict[str, Any]:
    """A rank of tensor pairs (0, 1), (2, 3) and data pairs (0, 2), (1, 3)."""
    first = rank // 2 * 2
    groups = [
        ("0", "default_pg", [0, 1, 2, 3]),
        ("1", "TP", [first, first + 1]),
        ("2", "DP", [rank % 2, rank % 2 + 2]),
    ]
    pending = entries
    if pending is None:
        pending = [entry(seq, group=TP) for seq in range(tp[1] + 1, tp[0] + 1)]
        pending += [entry(seq, group=DP) for seq in range(dp[1] + 1, dp[0] + 1)]
        pending += [entry(seq) for seq in range(default[1] + 1, default[0] + 1)]
    pending = [one | {"record_id": place} for place, one in enumerate(pending)]
    return table(groups, {"0": default, "1": tp, "2": dp}, pending)


def test_a_rank_that_never_came_is_named() -> None:
    verdict = verdict_of({0: world(3, 6, 5), 1: world(3, 5, 5), 2: world(3, 6, 5)})
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "not_entered", (1,))
    assert verdict.waiting_ranks == (0, 2)
    assert verdict.operation is not None
    assert (verdict.operation.group.desc, verdict.operation.seq, verdict.operation.op) == (
        "default_pg",
        6,
        "all_reduce",
    )


def test_the_innermost_of_the_groups_that_lag_tells() -> None:
    """All lag in the large group, and one of them only because it waits in a small one."""
    verdict = verdict_of(
        {
            0: four(0, (5, 4), (3, 3)),
            1: four(1, (4, 4), (3, 3)),
            2: four(2, (5, 5), (4, 3)),
            3: four(3, (5, 5), (4, 3), default=(10, 9)),
        }
    )
    assert (verdict.culprit_ranks, verdict.waiting_ranks) == ((1,), (0, 2, 3))
    assert verdict.operation is not None
    assert verdict.operation.group.desc == "TP"


def test_nothing_pending_is_healthy_and_missing_dumps_do_not_change_that() -> None:
    verdict = verdict_of({0: world(3, 5, 5), 1: world(3, 5, 5)})
    assert (verdict.verdict, verdict.cause, verdict.ranks_without_dump) == ("healthy", None, (2,))


def test_a_device_that_lacks_what_its_peers_completed_is_named() -> None:
    verdict = verdict_of({0: world(3, 9, 8), 1: world(3, 9, 5), 2: world(3, 9, 8)})
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "hardware", (1,))
    assert verdict.waiting_ranks == (0, 2)


def test_one_missing_completion_counts_only_where_nothing_else_explains() -> None:
    late_look = {0: world(3, 7, 6), 1: world(3, 7, 5), 2: world(3, 6, 6)}
    assert verdict_of(late_look).culprit_ranks == (2,)
    assert verdict_of({0: world(2, 6, 6), 1: world(2, 6, 5)}).culprit_ranks == (1,)


def test_the_root_of_a_broadcast_may_be_ahead() -> None:
    verdict = verdict_of({0: world(2, 8, 8, op="broadcast"), 1: world(2, 8, 5, op="broadcast")})
    assert verdict.culprit_ranks == ()


def test_all_alike_and_none_complete_is_transport() -> None:
    verdict = verdict_of({rank: world(3, 6, 5) for rank in range(3)})
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "transport", ())


@pytest.mark.parametrize("what", [{"sizes": [[99]]}, {"dtype": "BFloat16"}, {"op": "_all_gather_base"}])
def test_the_minority_is_named_if_the_other_side_is_more_than_half(what: dict[str, Any]) -> None:
    verdict = verdict_of({rank: world(5, 6, 5, **(what if rank == 3 else {})) for rank in range(5)})
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "inconsistent", (3,))
    assert [side.ranks for side in verdict.sides] == [(0, 1, 2, 4), (3,)]
    assert verdict.waiting_ranks == (0, 1, 2, 4)


def test_half_of_a_group_is_no_majority_and_neither_are_few_dumps() -> None:
    half = verdict_of({rank: world(4, 6, 5, sizes=[[8 + rank // 2]]) for rank in range(4)})
    few = verdict_of({rank: world(8, 6, 5, sizes=[[8 + rank // 3]]) for rank in range(4)})
    for verdict, sides in ((half, [(0, 1), (2, 3)]), (few, [(0, 1, 2), (3,)])):
        assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "inconsistent", ())
        assert [side.ranks for side in verdict.sides] == sides


def test_shapes_with_as_many_elements_do_not_differ() -> None:
    verdict = verdict_of({0: world(2, 6, 5, sizes=[[2, 4]]), 1: world(2, 6, 5, sizes=[[8]])})
    assert verdict.cause == "transport"


@pytest.mark.parametrize("op", ["all_to_all", "gather", "scatter", "_broadcast_oop"])
def test_sizes_may_differ_by_right(op: str) -> None:
    verdict = verdict_of({rank: world(3, 6, 5, op=op, sizes=[[8 + rank]]) for rank in range(3)})
    assert verdict.cause == "transport"


def test_a_mismatch_shows_against_what_another_rank_completed() -> None:
    verdict = verdict_of({0: world(2, 6, 6), 1: world(2, 6, 5, sizes=[[9]])})
    assert verdict.cause == "inconsistent"


def test_a_silent_rank_is_named_if_two_wait_for_it_alone() -> None:
    verdict = verdict_of({0: world(3, 6, 5), 2: world(3, 6, 5)})
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "not_entered", (1,))
    assert (verdict.waiting_ranks, verdict.ranks_without_dump) == ((0, 2), (1,))


@pytest.mark.parametrize("size", [2, 4])
def test_one_waiter_or_two_silent_ranks_decide_nothing(size: int) -> None:
    dumps = {rank: world(size, 6, 5) for rank in range(max(1, size - 2))}
    verdict = verdict_of(dumps)
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("undecided", "insufficient", ())


def test_a_lost_dump_is_not_named_beside_a_rank_that_is() -> None:
    verdict = verdict_of({rank: world(4, 5 if rank == 1 else 6, 5) for rank in (0, 1, 2)})
    assert (verdict.culprit_ranks, verdict.ranks_without_dump) == ((1,), (3,))


def test_groups_meet_by_description_and_members_alone() -> None:
    """Two ranks call different groups by one name: nobody is missing from either."""
    groups = [("9", "DP", [0, 2]), ("9", "DP", [1, 3])]
    dumps = {rank: table([groups[rank % 2]], {"9": (17, 16)}, [entry(17, group=("9", "DP"))]) for rank in (0, 1)}
    assert verdict_of(dumps).verdict == "undecided"
    names = {0: "9", 2: "4"}
    dumps = {
        rank: table(
            [(name, "DP", [0, 2])], {name: (17, 16 + (rank == 2))}, [entry(17, group=(name, "DP"))] if rank == 0 else []
        )
        for rank, name in names.items()
    }
    assert verdict_of(dumps).cause == "hardware"


def test_equal_groups_are_told_apart_by_the_order_of_making() -> None:
    groups = [("0", "mesh", [0, 1]), ("1", "mesh", [0, 1])]
    first = table(groups, {"0": (5, 4), "1": (3, 3)}, [entry(5, group=("0", "mesh"))])
    second = table(groups, {"0": (4, 4), "1": (5, 5)}, [])
    assert verdict_of({0: first, 1: second}).culprit_ranks == (1,)


def pipeline(rank: int, status: tuple[int, int], entries: list[dict[str, Any]]) -> dict[str, Any]:
    groups = [("0", "default_pg", [4, 8, 12]), ("3", "PP", [4, 8, 12])]
    return table(groups, {"0": (2, 2), "3": status}, entries)


def test_counters_of_messages_may_differ_and_messages_match_in_order() -> None:
    verdict = verdict_of(
        {
            4: pipeline(4, (11_980, 11_979), [entry(2, "send 0->1", PP, p2p=11_980)]),
            8: pipeline(8, (13_694, 13_693), [entry(2, "recv 1<-2", PP, p2p=13_694)]),
            12: pipeline(12, (11_900, 11_900), []),
        }
    )
    assert (verdict.cause, verdict.culprit_ranks, verdict.waiting_ranks) == ("not_entered", (12,), (4, 8))
    assert verdict.operation is not None
    assert (verdict.operation.op, verdict.operation.number) == ("recv", 13_694)


def test_two_that_both_send_first_are_a_circle_and_nobody_is_named() -> None:
    verdict = verdict_of(
        {
            4: pipeline(4, (7, 6), [entry(2, "send 0->1", PP, p2p=7)]),
            8: pipeline(8, (9, 8), [entry(2, "send 1->0", PP, p2p=9)]),
            12: pipeline(12, (5, 5), []),
        }
    )
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "inconsistent", ())
    assert [side.ranks for side in verdict.sides] == [(4,), (8,)]


def test_messages_of_different_size_are_told() -> None:
    verdict = verdict_of(
        {
            4: pipeline(4, (7, 6), [entry(2, "send 0->1", PP, p2p=7)]),
            8: pipeline(8, (9, 8), [entry(2, "recv 1<-0", PP, p2p=9, sizes=[[16]])]),
            12: pipeline(12, (5, 5), []),
        }
    )
    assert (verdict.cause, verdict.culprit_ranks) == ("inconsistent", ())


def messages_under_way() -> dict[int, dict[str, Any]]:
    """Ranks 0 and 1 have a send to rank 2 under way; rank 1 did not come where 0 waits, nor where 2 does."""
    groups = [("1", "TP", [0, 1]), ("2", "DP", [1, 2]), ("3", "PP", [0, 1, 2])]
    before = entry(7, group=TP, state="completed", record=11)
    return {
        0: table(
            [groups[0], groups[2]],
            {"1": (8, 7), "3": (5, 4)},
            [entry(0, "send 0->2", PP, p2p=5, record=10), before, entry(8, group=TP, record=12)],
        ),
        1: table(
            groups, {"1": (7, 7), "2": (3, 3), "3": (5, 4)}, [entry(0, "send 1->2", PP, p2p=5, record=10), before]
        ),
        2: table(groups[1:], {"2": (4, 3), "3": (4, 4)}, [entry(4, group=DP, record=9)]),
    }


def test_a_message_that_nothing_waits_for_does_not_excuse_a_rank() -> None:
    verdict = verdict_of(messages_under_way())
    assert (verdict.cause, verdict.culprit_ranks, verdict.waiting_ranks) == ("not_entered", (1,), (0, 2))


def test_a_message_that_both_sides_wait_in_is_the_transfer_s_fault() -> None:
    dumps = messages_under_way()
    dumps[2]["entries"] = [entry(0, "recv 2<-1", PP, p2p=5, record=8), entry(0, "recv 2<-0", PP, p2p=6, record=9)]
    dumps[2]["pg_status"]["2"] = dumps[1]["pg_status"]["2"]
    verdict = verdict_of(dumps)
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("hang", "transport", ())


def test_the_parts_of_a_batch_end_with_it() -> None:
    groups = [("3", "PP", [0, 1])]

    def batch(rank: int, state: str) -> list[dict[str, Any]]:
        return [
            entry(0, f"send {rank}->{1 - rank}", PP, p2p=5, record=1),
            entry(0, f"recv {rank}<-{1 - rank}", PP, p2p=5, record=2),
            entry(0, "coalesced", PP, p2p=5, record=3, state=state, sizes=[]),
        ]

    done = {rank: table(groups, {"3": (5, 5)}, batch(rank, "completed")) for rank in (0, 1)}
    assert verdict_of(done).verdict == "healthy"
    active = {rank: table(groups, {"3": (5, 5)}, batch(rank, "completed")[:2]) for rank in (0, 1)}
    assert verdict_of(active).verdict == "healthy"
    open_ = {0: table(groups, {"3": (5, 4)}, batch(0, "scheduled")), 1: table(groups, {"3": (4, 4)}, [])}
    assert verdict_of(open_).culprit_ranks == (1,)


def test_progress_alone_tells_where_entries_are_missing() -> None:
    dumps = {0: world(2, 6, 5), 1: world(2, 5, 5)}
    for dump in dumps.values():
        del dump["entries"]
    verdict = verdict_of(dumps)
    assert (verdict.culprit_ranks, verdict.operation and verdict.operation.op) == ((1,), None)


def test_ranks_that_made_the_same_groups_lend_each_other_the_names_of_ids() -> None:
    """Rank 1 has nothing left that ties id 4 to its group, and a group that nobody uses leaves the order open."""
    groups = [("0", "default_pg", [0, 1]), ("3", "unused", [0, 1]), ("5", "TP", [0, 1])]
    waits = table(groups, {"0": (2, 2), "4": (7, 6)}, [entry(7, group=("5", "TP"), pg_id=4)])
    stuck = table(groups, {"0": (2, 2), "4": (6, 6)}, [])
    ahead = table(groups, {"0": (2, 2), "4": (9, 9)}, [])
    assert verdict_of({0: waits, 1: stuck}).cause == "not_entered"
    assert verdict_of({0: waits, 1: ahead}).cause == "hardware"


def test_entries_alone_tell_where_progress_is_missing() -> None:
    dumps = {0: world(2, 6, 5), 1: world(2, 5, 5)}
    for dump in dumps.values():
        del dump["pg_status"]
    assert verdict_of(dumps).culprit_ranks == (1,)


def test_without_members_nothing_is_decided() -> None:
    dumps = {0: world(2, 6, 5), 1: world(2, 5, 5)}
    for dump in dumps.values():
        del dump["pg_config"]
    assert verdict_of(dumps).verdict == "undecided"


def test_an_operation_that_timed_out_and_was_removed_is_still_stuck() -> None:
    dumps = {0: world(2, 6, 5), 1: world(2, 5, 5)}
    dumps[0]["entries"][-1]["retired"] = True
    assert verdict_of(dumps).culprit_ranks == (1,)


def test_two_culprits_of_two_causes_are_both_named_and_the_first_gives_the_cause() -> None:
    groups = [("0", "default_pg", [0, 1, 2, 3, 4, 5]), ("1", "A", [0, 1, 2]), ("2", "B", [3, 4, 5])]

    def rank(name: str, desc: str, enqueued: int, completed: int) -> dict[str, Any]:
        pending = [entry(seq, group=(name, desc)) for seq in range(completed + 1, enqueued + 1)]
        return table(groups, {"0": (1, 1), name: (enqueued, completed)}, pending)

    verdict = verdict_of(
        {
            0: rank("1", "A", 7, 6),
            1: rank("1", "A", 6, 6),
            2: rank("1", "A", 7, 6),
            3: rank("2", "B", 9, 8),
            4: rank("2", "B", 9, 4),
            5: rank("2", "B", 9, 8),
        }
    )
    assert (verdict.culprit_ranks, verdict.cause) == ((1, 4), "not_entered")
    assert dict(verdict.causes) == {1: "not_entered", 4: "hardware"}


def test_a_digest_is_small_and_judged_as_the_whole() -> None:
    ranks = list(range(16_384))
    deep = [entry(seq, group=TP, record=seq, sizes=[[4096, 1, 5120]]) for seq in range(100, 2100)]
    groups = [("0", "default_pg", ranks), ("1", "TP", [0, 1]), ("2", "odd", [rank * rank for rank in range(3000)])]
    ahead = table(groups, {"0": (3, 3), "1": (2099, 99)}, deep)
    behind = table(groups[:2], {"0": (3, 3), "1": (99, 99)}, [])
    small = [digest_of(0, ahead), digest_of(1, behind)]
    assert len(small[0].model_dump_json(exclude_none=True)) <= DIGEST_BYTES
    assert small[0].pending_total == 2000
    assert len(small[0].pending) > 50
    whole = [digest_of(0, ahead, None), digest_of(1, behind, None)]
    assert judge(small).culprit_ranks == judge(whole).culprit_ranks == (1,)


def test_a_case_takes_the_newest_digest_of_a_rank_and_survives_a_restart() -> None:
    case = HangCase()
    early, late = digest_of(0, world(2, 6, 6)), digest_of(0, world(2, 7, 6)).model_copy(update={"event_time_ns": 5})
    assert case.add(early)
    assert case.add(late)
    assert not case.add(early)
    assert not case.add(digest_of(1, world(2, 6, 6)).model_copy(update={"epoch": 0, "event_time_ns": 0, "rank": 0}))
    assert case.add(digest_of(1, world(2, 6, 6)))
    assert case.verdict().culprit_ranks == (1,)
    restored = HangCase.restore(type(late).model_validate(record) for record in case.snapshot())
    assert restored.verdict() == case.verdict()
    assert case.add(digest_of(0, world(2, 1, 1)).model_copy(update={"epoch": 1}))
    assert case.verdict().verdict == "healthy"
    assert not case.add(late)


def diagnose(directory: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["diagnose", "hang", str(directory), *options])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("encoding", ["pickle", "json"])
def test_the_command_prints_one_record_and_tells_by_its_status(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, {0: world(3, 6, 5), 1: world(3, 5, 5)}, encoding)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b'{"version": "2.5", "entries": [')
    (tmp_path / "notes.log").write_text("Rank 2 is to blame")
    status, out, err = diagnose(tmp_path, "--json")
    assert status == 1
    assert json.loads(out) == {
        "kind": "hang_verdict",
        "verdict": "hang",
        "cause": "not_entered",
        "culprit_ranks": [1],
        "waiting_ranks": [0],
        "group_desc": "default_pg",
        "seq": 6,
        "op": "all_reduce",
        "ranks_without_dump": [2],
        "unreadable": ["nccl_trace_rank_2"],
    }
    assert err.splitlines()[-1] == "dumps=2 unreadable=1"
    assert "nccl_trace_rank_2 could not be read: " in err
    assert "None" not in err
    assert "rank 1" in diagnose(tmp_path)[1]


def test_the_command_says_whose_dump_counts_and_whose_is_there_unread(tmp_path: Path) -> None:
    write(tmp_path, {0: world(3, 6, 5), 2: world(3, 6, 5)})
    assert "named without its dump" not in diagnose(tmp_path)[2]
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80")
    (tmp_path / "old_dump_0").write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes())
    status, out, err = diagnose(tmp_path)
    assert (status, "rank 1, not_entered" in out) == (1, True)
    assert "rank 1 is named without its dump, which is there" in err
    assert "rank 0 has 2 dumps; the latest counts" in err


def test_the_command_s_status_is_0_without_a_hang_and_2_without_a_dump(tmp_path: Path) -> None:
    assert diagnose(tmp_path)[0] == 2
    assert diagnose(tmp_path / "none")[0] == 2
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    assert diagnose(tmp_path, "--json")[0] == 2
    write(tmp_path, {0: world(2, 5, 5)})
    assert diagnose(tmp_path)[0] == 0
    write(tmp_path, {0: world(2, 6, 5)})
    assert diagnose(tmp_path)[0] == 0

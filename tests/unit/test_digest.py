"""Digests tie progress to groups only where a dump decides it, and keep what tells who hangs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agents.decode.flight_recorder_dump import read_dump
from agents.digest import digest
from agents.digest_groups import groups_of_ids, rank_runs
from tests.recorder_dumps import entry, table


def names_by_id(dump: dict[str, Any]) -> dict[str, str]:
    return {pg_id: group.name for pg_id, group in groups_of_ids(read_dump(dump, "x_rank_0")).items()}


def config(*names: str) -> list[tuple[str, str, list[int]]]:
    return [(name, f"group {name}", [0, 1]) for name in names]


def status(*ids: str) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(ids, (1, 1))


def test_an_entry_decides_first() -> None:
    assert names_by_id(table(config("0", "9"), status("5"), [entry(1, group=("9", "group 9"), pg_id=5)])) == {"5": "9"}


def test_as_many_ids_as_names_stand_in_the_order_of_making() -> None:
    found = names_by_id(table(config("0", "112", "33", "7"), status("0", "4", "17", "5"), []))
    assert found == {"0": "0", "4": "7", "5": "33", "17": "112"}


def test_between_two_known_ones_the_order_fills_what_leaves_no_choice() -> None:
    entries = [entry(1, group=("7", "group 7"), pg_id=4), entry(1, group=("40", "group 40"), pg_id=9)]
    found = names_by_id(table(config("0", "7", "33", "40", "50", "60"), status("0", "4", "5", "9", "12"), entries))
    assert found == {"0": "0", "4": "7", "5": "33", "9": "40"}


def test_names_that_are_not_counted_are_in_no_order() -> None:
    assert names_by_id(table(config("0", "b7f", "a11"), status("0", "1", "2"), [])) == {}
    entries = [entry(1), entry(1, group=("b7f", "group b7f"), pg_id=1)]
    assert names_by_id(table(config("0", "b7f", "a11"), status("0", "1", "2"), entries))["2"] == "a11"


def test_an_order_that_entries_contradict_is_none() -> None:
    entries = [entry(1, group=("9", "group 9"), pg_id=1), entry(1, group=("2", "group 2"), pg_id=3)]
    assert names_by_id(table(config("0", "2", "9", "11"), status("0", "1", "3", "4"), entries)) == {"1": "9", "3": "2"}


def test_progress_of_a_group_that_nothing_names_is_kept_apart() -> None:
    content = digest(read_dump(table(config("0", "7", "9"), {"5": (8, 7)}, []), "x_rank_0"))
    assert [group["desc"] for group in content.groups] == ["group 0", "group 7", "group 9", None]
    assert (content.groups[3]["enqueued"], content.groups[3]["ranks"]) == (8, None)


@given(st.sets(st.integers(0, 300), max_size=40))
def test_runs_stand_for_the_same_ranks(ranks: set[int]) -> None:
    runs = rank_runs(sorted(ranks))
    assert [first + step * i for first, step, count in runs for i in range(count)] == sorted(ranks)


def test_a_large_group_is_a_few_bytes() -> None:
    assert rank_runs(range(3, 16_384, 8)) == [[3, 8, 2048]]


def test_completed_operations_are_the_last_three_of_each_group() -> None:
    entries = [entry(seq, state="completed") for seq in range(1, 9)]
    entries += [entry(4, group=("7", "group 7"), state="completed", record=20)]
    content = digest(read_dump(table(config("0", "7"), {}, entries), "x_rank_0"))
    assert sorted((one["group"], one["seq"]) for one in content.completed) == [(0, 6), (0, 7), (0, 8), (1, 4)]


def test_a_later_completion_is_seen_in_full_dumps_and_in_those_of_active_ones() -> None:
    send = entry(0, "send 0->1", p2p=3, record=10)
    waiting = entry(6, record=12)
    done = entry(5, state="completed", record=11)
    for entries in ([send, done, waiting], [send, waiting]):
        content = digest(read_dump(table(config("0"), {}, entries), "x_rank_0"))
        assert [one.get("overtaken", False) for one in content.pending] == [True, False]


def test_collectives_of_a_batch_are_one_operation() -> None:
    parts = [entry(5, "all_reduce", record=i, sizes=[[i]]) for i in (1, 2)]
    content = digest(read_dump(table(config("0"), {}, [*parts, entry(5, "coalesced", record=3, sizes=[])]), "x_rank_0"))
    assert [(one["op"], one["seq"], one["input_sizes"]) for one in content.pending] == [("coalesced", 5, ((1,), (2,)))]

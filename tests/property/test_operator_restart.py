"""Every operator of streams.core: restored from a snapshot at any split it goes on as if nothing had been."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_restart_changes_nothing

from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.keyed import Keyed, SubjectState
from streams.core.progress import MarkPacer, PartitionClock
from streams.core.sequence import OrderedSources, SeenNumbers
from streams.core.settle import SettledOrder
from streams.core.standing import StandingCondition
from streams.core.trailing import TrailingHits, TrailingSum

S = 1_000_000_000
SPLIT = st.integers(0, 10_000)


def timed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    """Values at times that do not fall."""

    def accumulate(pairs: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        now, result = 0, []
        for gap, value in pairs:
            now += gap * S
            result.append((now, value))
        return result

    return st.lists(st.tuples(st.sampled_from([0, 1, 5, 20, 40, 61, 90]), values), min_size=10, max_size=40).map(
        accumulate
    )


@LAW
@given(timed(st.integers(0, 10**9)), SPLIT)
def test_a_trailing_sum_survives_a_restart(stream: list[tuple[int, int]], split: int) -> None:
    assert_restart_changes_nothing(lambda: TrailingSum(60 * S), lambda o, i: o.add(*i), stream, split)


@LAW
@given(timed(st.booleans()), SPLIT)
def test_trailing_hits_survive_a_restart(stream: list[tuple[int, bool]], split: int) -> None:
    assert_restart_changes_nothing(
        lambda: TrailingHits(3, 120 * S), lambda o, i: (o.add(*i), o.first_ns), stream, split
    )


@LAW
@given(timed(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 20))), SPLIT)
def test_a_counter_survives_a_restart(stream: list[tuple[int, tuple[str, int | None]]], split: int) -> None:
    assert_restart_changes_nothing(CounterIncrease, lambda o, i: o.read(i[1][0], i[0], i[1][1]), stream, split)


def edge_of(state: EdgeState, item: tuple[int, bool]) -> Any:
    edge = state.update(*item)
    return (edge, state.close()) if edge == "cleared" else (edge, state.onset_ns)


@LAW
@given(timed(st.booleans()), SPLIT)
def test_an_edge_survives_a_restart(stream: list[tuple[int, bool]], split: int) -> None:
    assert_restart_changes_nothing(EdgeState, edge_of, stream, split)


@LAW
@given(timed(st.booleans()), SPLIT)
def test_a_standing_condition_survives_a_restart(stream: list[tuple[int, bool]], split: int) -> None:
    assert_restart_changes_nothing(lambda: StandingCondition(3, 2), lambda o, i: o.update(*i), stream, split)


class _Pair(SubjectState):
    __slots__ = ("counter", "last")

    def __init__(self) -> None:
        self.counter = CounterIncrease()
        self.last = 0

    def read(self, at: int, value: int) -> Any:
        before, self.last = self.last, value
        return before, self.counter.read("s", at, value)


@LAW
@given(timed(st.tuples(st.sampled_from("abc"), st.integers(0, 9))), SPLIT)
def test_states_by_subject_survive_a_restart(stream: list[tuple[int, tuple[str, int]]], split: int) -> None:
    assert_restart_changes_nothing(
        lambda: Keyed(_Pair), lambda o, i: (o[i[1][0]].read(i[0], i[1][1]), len(o)), stream, split
    )


@LAW
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 30)), min_size=10, max_size=40), SPLIT
)
def test_restored_order_survives_a_restart(stream: list[tuple[str, int, int]], split: int) -> None:
    def offer(sources: OrderedSources[str], item: tuple[str, int, int]) -> Any:
        source, seq, seconds = item
        released = sources.offer(source, seq, seconds * S, f"{source}{seq}")
        late, sources.late = sources.late, []
        return released, late

    assert_restart_changes_nothing(OrderedSources, offer, stream, split)


@LAW
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), min_size=10, max_size=40), SPLIT)
def test_seen_numbers_survive_a_restart(stream: list[tuple[str, int]], split: int) -> None:
    assert_restart_changes_nothing(lambda: SeenNumbers(capacity=4), lambda o, i: o.is_new(*i), stream, split)


@LAW
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 900 * S)), min_size=10, max_size=40), SPLIT)
def test_partition_time_survives_a_restart(stream: list[tuple[str, int]], split: int) -> None:
    def observe(clock: PartitionClock, item: tuple[str, int]) -> int:
        clock.observe(*item)
        return clock.time_ns

    assert_restart_changes_nothing(PartitionClock, observe, stream, split)


@LAW
@given(st.lists(st.integers(0, 20 * S), min_size=10, max_size=40), SPLIT)
def test_the_pace_of_marks_survives_a_restart(stream: list[int], split: int) -> None:
    assert_restart_changes_nothing(MarkPacer, lambda o, i: o.due(i), stream, split)


MARKS = st.tuples(st.just("mark"), st.sampled_from("ab"), st.integers(0, 200 * S))
ITEMS = st.tuples(st.just("item"), st.sampled_from("uvwxyz"), st.integers(0, 200 * S))


def settle(order: SettledOrder[str], entry: tuple[str, str, int]) -> Any:
    kind, name, at = entry
    if kind == "mark":
        order.mark(name, at)
    else:
        order.add(at, f"{name}-{at}", name)
    left_out, order.newly_left_out = order.newly_left_out, []
    return order.release(), order.settled_ns, left_out


@LAW
@given(st.lists(MARKS | ITEMS, min_size=10, max_size=40), SPLIT)
def test_settled_order_survives_a_restart(stream: list[tuple[str, str, int]], split: int) -> None:
    assert_restart_changes_nothing(lambda: SettledOrder(10 * S), settle, stream, split)

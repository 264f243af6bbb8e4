"""Settled order: by event time, once every partition has passed it; a partition that stays away is left out, audibly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.core.settle import SettledOrder

S = 1_000_000_000


def order(**marks: float) -> SettledOrder[str]:
    settled = SettledOrder[str](10 * S)
    for source, seconds in marks.items():
        settled.mark(source, round(seconds * S))
    return settled


def test_nothing_settles_before_the_first_mark() -> None:
    settled = order()
    settled.add(0, "x", "x")
    assert settled.settled_ns == -1
    assert settled.release() == []


def test_an_item_settles_when_the_lowest_mark_is_past_it_by_the_span() -> None:
    settled = order(a=30, b=19.9)
    settled.add(10 * S, "x", "x")
    assert settled.release() == []
    settled.mark("b", 20 * S)
    assert settled.release() == ["x"]


def test_items_come_by_event_time_and_then_by_identity() -> None:
    settled = order(a=100)
    for at, identity in ((9, "b"), (7, "z"), (9, "a"), (8, "q")):
        settled.add(at * S, identity, identity)
    assert settled.release() == ["z", "q", "a", "b"]


def test_an_item_that_is_held_already_is_not_held_twice() -> None:
    settled = order(a=100)
    assert settled.add(S, "x", "first")
    assert not settled.add(S, "x", "second")
    assert settled.release() == ["first"]


def test_a_mark_that_falls_is_ignored() -> None:
    settled = order(a=50)
    settled.mark("a", 20 * S)
    assert settled.settled_ns == 40 * S


def test_a_partition_that_stays_away_for_a_minute_is_left_out_and_told_once() -> None:
    settled = order(a=100, b=100)
    settled.mark("a", 160 * S)
    assert (settled.settled_ns, settled.newly_left_out) == (90 * S, [])
    settled.mark("a", 161 * S)
    assert (settled.settled_ns, settled.newly_left_out) == (151 * S, ["b"])
    settled.mark("a", 170 * S)
    assert settled.newly_left_out == ["b"]


def test_a_partition_that_comes_back_counts_again() -> None:
    settled = order(a=100, b=100)
    settled.mark("a", 200 * S)
    settled.mark("b", 150 * S)
    assert settled.settled_ns == 140 * S


def test_what_comes_for_a_time_already_released_is_released_at_once() -> None:
    settled = order(a=100)
    assert settled.release() == []
    settled.add(5 * S, "late", "late")
    assert settled.release() == ["late"]


def test_at_the_end_of_the_input_everything_comes_out_in_order() -> None:
    settled = order()
    settled.add(2, "b", "b")
    settled.add(1, "a", "a")
    assert settled.release(everything=True) == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), unique=True), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(items: list[tuple[int, str]], rng: object) -> None:
    def released(arriving: list[tuple[int, str]]) -> list[str]:
        settled = order(a=100)
        for at, name in arriving:
            settled.add(at * S, f"{name}{at}", f"{name}{at}")
        return settled.release()

    mixed = list(items)
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert released(mixed) == released(items)

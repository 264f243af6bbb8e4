"""Event time of a partition: few laggards do not hold it back, and it never falls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.core.progress import MarkPacer, PartitionClock

S = 1_000_000_000


def test_before_anything_is_heard_it_is_zero() -> None:
    assert PartitionClock().time_ns == 0


def test_of_few_sources_the_slowest_counts() -> None:
    clock = PartitionClock()
    clock.observe("a", 100 * S)
    clock.observe("b", 90 * S)
    assert clock.time_ns == 90 * S


def test_a_tenth_of_the_sources_may_lag() -> None:
    clock = PartitionClock()
    for number in range(19):
        clock.observe(f"node-{number}", 100 * S)
    clock.observe("laggard", 60 * S)
    assert clock.time_ns == 100 * S


def test_a_source_that_is_a_minute_behind_is_not_live() -> None:
    clock = PartitionClock()
    clock.observe("a", 100 * S)
    clock.observe("gone", 39 * S)
    assert clock.time_ns == 100 * S


def test_a_record_from_the_past_moves_nothing() -> None:
    clock = PartitionClock()
    clock.observe("a", 100 * S)
    assert clock.time_ns == 100 * S
    clock.observe("a", 50 * S)
    assert clock.time_ns == 100 * S


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklm"), st.integers(0, 300 * S)), max_size=60))
def test_time_never_falls(heard: list[tuple[str, int]]) -> None:
    clock, last = PartitionClock(), 0
    for source, at in heard:
        clock.observe(source, at)
        assert clock.time_ns >= last
        last = clock.time_ns


def test_one_of_few_that_has_left_holds_nothing_back_until_it_is_heard_again() -> None:
    clock = PartitionClock()
    for source, at in (("a", 100 * S), ("b", 99 * S), ("silent", 60 * S)):
        clock.observe(source, at)
    assert clock.time_ns == 60 * S
    clock.leave("silent")
    clock.leave("never heard")
    assert clock.time_ns == 99 * S
    clock.observe("silent", 101 * S)
    clock.observe("a", 110 * S)
    clock.observe("b", 110 * S)
    assert clock.time_ns == 101 * S


def test_sources_that_left_long_ago_are_forgotten() -> None:
    clock = PartitionClock()
    clock.observe("gone", 0)
    clock.observe("a", 601 * S)
    clock.forget_idle()
    assert set(clock.snapshot()["latest"]) == {"a"}


def test_marks_are_a_second_apart_and_never_fall() -> None:
    pacer = MarkPacer()
    assert [pacer.due(at) for at in (0, S // 2, S, S // 2, 5 * S, 5 * S)] == [True, False, True, False, True, False]

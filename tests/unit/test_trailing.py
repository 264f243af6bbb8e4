"""Trailing windows: they end at the sample, and time counts rather than samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.core.trailing import TrailingHits, TrailingSum, span_at_pace

SECOND = 1_000_000_000


def test_a_sum_holds_the_last_span_and_its_start_is_outside() -> None:
    window = TrailingSum(60)
    assert [window.add(now, 10) for now in (0, 30, 59, 60, 90)] == [10, 20, 30, 30, 30]


def test_a_sum_falls_when_only_time_passes() -> None:
    window = TrailingSum(60)
    window.add(0, 10)
    assert window.add(59, 0) == 10
    assert window.add(60, 0) == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=50))
def test_a_sum_is_that_of_the_values_within_the_span(gaps: list[tuple[int, int]]) -> None:
    window, now, taken = TrailingSum(60), 0, []
    for gap, value in gaps:
        now += gap
        taken.append((now, value))
        assert window.add(now, value) == sum(value for at, value in taken if at > now - 60)


def test_hits_hold_at_the_first_sample_at_which_enough_are_in_the_span() -> None:
    window = TrailingHits(3, 5)
    assert [window.add(now, hit) for now, hit in ((0, True), (1, False), (2, True), (3, True))] == [
        False,
        False,
        False,
        True,
    ]
    assert window.first_ns == 0


def test_hits_that_are_older_than_the_span_do_not_count() -> None:
    window = TrailingHits(3, 5)
    assert not any(window.add(now, hit=True) for now in (0, 1, 5, 6, 10, 11))
    assert window.first_ns == 10


def test_changed_thresholds_hold_from_the_next_sample() -> None:
    window = TrailingHits(3, 5)
    window.add(0, hit=True)
    window.configure(2, 20)
    assert window.add(15, hit=True)


def test_a_window_without_hits_has_no_first() -> None:
    assert TrailingHits(1, 5).first_ns is None


def test_a_window_is_quiet_without_hits_unless_none_is_needed() -> None:
    window = TrailingHits(1, 5)
    assert window.is_quiet
    window.add(0, hit=True)
    assert not window.is_quiet
    window.add(5, hit=False)
    assert window.is_quiet
    window.configure(0, 5)
    assert not window.is_quiet


def test_the_span_of_a_slow_source_is_as_many_of_its_readings_and_a_gap_is_no_pace() -> None:
    assert [span_at_pace(3, 5, since) for since in (None, 1, 2)] == [5, 5, 6]
    assert span_at_pace(3, 5 * SECOND, 60 * SECOND) == 180 * SECOND
    assert span_at_pace(3, 5 * SECOND, 61 * SECOND) == 5 * SECOND

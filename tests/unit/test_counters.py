"""Cumulative counters: baselines at session starts, resets and gaps; absence is not zero."""

from __future__ import annotations

from streams.core.counters import CounterIncrease, Reading

S = 1_000_000_000


def increases(*readings: tuple[str, float, int | None]) -> list[int | None]:
    counter = CounterIncrease()
    read = [counter.read(session, round(seconds * S), value) for session, seconds, value in readings]
    return [step[0] if step is not None else None for step in read]


def test_the_first_value_is_a_baseline_however_large() -> None:
    assert increases(("s", 0, 10**15), ("s", 1, 10**15 + 5)) == [None, 5]


def test_a_new_session_makes_a_baseline() -> None:
    assert increases(("s1", 0, 10), ("s2", 1, 500), ("s2", 2, 501)) == [None, None, 1]


def test_a_reset_makes_a_baseline_and_is_no_decrease() -> None:
    assert increases(("s", 0, 100), ("s", 1, 3), ("s", 2, 7)) == [None, None, 4]


def test_a_gap_of_over_a_minute_makes_a_baseline_and_one_of_a_minute_does_not() -> None:
    assert increases(("s", 0, 1), ("s", 60, 4), ("s", 120.001, 9), ("s", 121, 10)) == [None, 3, None, 1]


def test_an_unknown_value_is_not_zero_and_leaves_the_baseline() -> None:
    assert increases(("s", 0, 7), ("s", 1, None), ("s", 2, 9)) == [None, None, 2]


def test_the_time_since_the_last_reading_comes_with_the_increase() -> None:
    counter = CounterIncrease()
    counter.read("s", 0, 1)
    assert counter.read("s", 5 * S, 4) == (3, 5 * S)


def test_a_counter_of_32_bits_that_runs_over_counts_on() -> None:
    assert increases(("s", 0, 2**32 - 100), ("s", 1, 20), ("s", 2, 25)) == [None, 120, 5]


def test_a_reset_far_from_the_end_of_32_bits_is_no_wrap() -> None:
    assert increases(("s", 0, 2**31), ("s", 1, 20)) == [None, None]
    assert increases(("s", 0, 2**32 - 100), ("s", 1, 2**30)) == [None, None]  # more than a wrap explains
    assert increases(("s", 0, 2**32 + 100), ("s", 1, 20)) == [None, None]  # it has more than 32 bits


def test_a_wrap_over_a_gap_or_into_another_session_is_a_baseline() -> None:
    assert increases(("s", 0, 2**32 - 100), ("s", 10, 20)) == [None, 120]
    assert increases(("s", 0, 2**32 - 100), ("s", 10.1, 20)) == [None, None]
    assert increases(("s", 0, 2**32 - 100), ("t", 1, 20)) == [None, None]


def test_counters_of_one_reading_move_on_with_its_time() -> None:
    one, other = CounterIncrease(), CounterIncrease()
    reading = Reading("s", 0)
    one.read_in(reading, 5)
    other.read("s", 0, 5)
    reading.at_ns = 50 * S
    later = Reading("s", 70 * S)
    assert one.read_in(later, 7) == (2, 20 * S)
    assert other.read_in(later, 7) is None
    assert one.snapshot() == ["s", 7, 70 * S]

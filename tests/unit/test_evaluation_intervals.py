"""Intervals and survival figures against known values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.evaluation.intervals import kaplan_meier, paired_bootstrap, rate_upper, share, wilson


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (594, 600, 0.9784, 0.9954),  # 0.99 of 600
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
    ],
)
def test_wilson_gives_published_values(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_a_share_lies_in_its_interval_and_the_interval_in_the_unit(counts: tuple[int, int]) -> None:
    hits, total = counts
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total <= high <= 1


def test_no_trials_have_no_share() -> None:
    assert share(0, 0).value is None


def test_more_hits_than_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson(3, 2)


def test_no_event_is_bounded_by_three_over_the_exposure() -> None:
    assert rate_upper(0, 300_000 / 1000) == pytest.approx(0.01)


def test_without_exposure_there_is_no_rate() -> None:
    assert rate_upper(0, 0) is None


@pytest.mark.parametrize(("events", "exact"), [(1, 4.7439), (5, 10.5130), (20, 29.0620)])
def test_the_upper_bound_of_a_count_is_that_of_a_poisson(events: int, exact: float) -> None:
    assert rate_upper(events, 1.0) == pytest.approx(exact, rel=0.01)


def test_kaplan_meier_gives_the_textbook_curve() -> None:
    # Remission times of the treated group of Freireich et al. (1963), as in every textbook.
    observed = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    curve = kaplan_meier([*observed, *censored], [True] * len(observed) + [False] * len(censored))
    assert list(curve.times) == [6, 7, 10, 13, 16, 22, 23]
    assert curve.surviving == pytest.approx((0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482), abs=5e-5)
    assert (curve.detected, curve.censored) == (9, 12)
    assert curve.quantile(0.5) == 23


def test_misses_keep_a_quantile_from_being_reached() -> None:
    curve = kaplan_meier([3, 4, 100, 100], [True, True, False, False])
    assert curve.quantile(0.5) == 4
    assert curve.quantile(0.95) is None
    assert kaplan_meier([], []).quantile(0.5) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_without_misses_the_quantile_is_that_of_the_times(times: list[int]) -> None:
    curve = kaplan_meier([float(t) for t in times], [True] * len(times))
    assert curve.quantile(1.0) == max(times)
    at_most_half = curve.quantile(0.5)
    assert at_most_half is not None
    assert sum(t <= at_most_half for t in times) * 2 >= len(times)


def test_the_paired_bootstrap_sees_a_difference_and_none_where_there_is_none() -> None:
    better = paired_bootstrap([1.0] * 40, [1.0] * 20 + [0.0] * 20)
    assert better is not None
    mean, low, high = better
    assert mean == pytest.approx(0.5)
    assert 0.3 < low < 0.5 < high < 0.7
    assert paired_bootstrap([1.0, 0.0], [1.0, 0.0]) == (0.0, 0.0, 0.0)
    assert paired_bootstrap([], []) is None
    assert paired_bootstrap([1.0] * 9, [0.0] * 9, seed=1) == paired_bootstrap([1.0] * 9, [0.0] * 9, seed=1)


def test_figures_of_different_truths_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1.0], [])

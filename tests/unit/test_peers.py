"""Peers: groups of equal keys and medians of all the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.peers import PeerGroups, group_by_key, leave_one_out_median, log_ratio_to_peers


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=60))
def test_the_median_of_all_others_is_what_leaving_each_out_gives(values: list[float]) -> None:
    array = np.array(values)
    plain = [float(np.median(np.delete(array, index))) for index in range(len(array))]
    assert leave_one_out_median(array).tolist() == pytest.approx(plain)


def test_a_value_alone_has_no_others() -> None:
    assert np.isnan(leave_one_out_median(np.array([5.0]))).all()


def test_groups_keep_the_order_of_first_appearance() -> None:
    assert [group.tolist() for group in group_by_key(["b", "a", "b", None, "a"])] == [[0, 2], [1, 4], [3]]


def test_a_ratio_is_taken_within_the_group_alone() -> None:
    values = np.array([100.0, 110.0, 100.0, 900.0, 900.0, 990.0])
    groups = PeerGroups([np.array([0, 1, 2]), np.array([3, 4, 5])])
    ratio = np.exp(log_ratio_to_peers(values, groups))
    assert ratio[[1, 5]].tolist() == pytest.approx([1.1, 1.1])
    assert ratio[3] == pytest.approx(900 / 945)


def test_the_unknown_are_left_out_of_every_median_and_have_no_ratio() -> None:
    values = np.array([100.0, np.nan, 0.0, 120.0])
    ratio = log_ratio_to_peers(values, PeerGroups([np.arange(4)]))
    assert np.isnan(ratio[[1, 2]]).all()
    assert np.exp(ratio[3]) == pytest.approx(1.2)


def test_who_has_no_known_peer_has_no_ratio() -> None:
    assert np.isnan(log_ratio_to_peers(np.array([100.0, np.nan]), PeerGroups([np.arange(2)]))).all()


def test_who_is_in_no_group_has_no_ratio_and_groups_of_two_sizes_have_no_rows() -> None:
    values = np.array([100.0, 110.0, 100.0, 120.0])
    ratio = log_ratio_to_peers(values, PeerGroups([np.array([0, 3])]))
    assert np.isnan(ratio[[1, 2]]).all()
    assert np.exp(ratio[[0, 3]]).tolist() == pytest.approx([100 / 120, 1.2])
    assert PeerGroups([np.array([0]), np.array([1, 2])]).rows(values) is None


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=40), st.integers(0, 39), st.floats(1.5, 10))
def test_making_one_slower_raises_nobody_elses_ratio(values: list[float], index: int, factor: float) -> None:
    before = np.array(values)
    after = before.copy()
    after[index % len(values)] *= factor
    groups = PeerGroups([np.arange(len(values))])
    others = np.arange(len(values)) != index % len(values)
    assert (log_ratio_to_peers(after, groups)[others] <= log_ratio_to_peers(before, groups)[others] + 1e-12).all()

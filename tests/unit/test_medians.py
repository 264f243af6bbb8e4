"""The quick median and the quick leave-one-out median against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.core.medians import median, row_medians
from streams.core.peers import PeerGroups, leave_one_out_median, log_ratio_to_peers


@given(st.integers(0, 2**32 - 1), st.integers(1, 600), st.booleans(), st.booleans())
def test_a_median_is_numpys_to_the_last_bit(seed: int, count: int, is_short: bool, has_ties: bool) -> None:
    values = np.random.default_rng(seed).random(count)
    values = np.round(values, 1) if has_ties else values
    values = values.astype(np.float32) if is_short else values
    before = values.copy()
    assert median(values) == float(np.median(values))
    assert (values == before).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 300))
def test_the_medians_of_rows_are_those_of_each(seed: int, rows: int, count: int) -> None:
    values = np.random.default_rng(seed).random((rows, count))
    assert row_medians(values).tolist() == [median(row) for row in values]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9))
def test_the_median_of_the_others_leaves_one_out(given_values: list[int]) -> None:
    values = np.array(given_values, dtype=np.float64)
    expected = [np.median(np.delete(values, place)) for place in range(len(values))]
    assert leave_one_out_median(values).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 9))
def test_groups_of_one_size_are_compared_as_each_by_itself(seed: int, groups: int, size: int) -> None:
    draws = np.random.default_rng(seed)
    values = draws.random(groups * size) + 0.1
    peers = PeerGroups(np.split(draws.permutation(groups * size), groups))
    expected = np.empty(groups * size)
    for group in peers:
        expected[group] = np.log(values[group] / leave_one_out_median(values[group]))
    assert log_ratio_to_peers(values, peers).tolist() == expected.tolist()

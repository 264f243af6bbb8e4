"""Whether columns are known, positive or equal, and which ranks are marked: against numpy's own words for it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.core.known import are_equal, are_known, are_positive
from streams.core.rank_marks import marked

COLUMNS = st.lists(st.sampled_from([np.nan, -1.0, 0.0, 1.0, 2.0]), max_size=6) | st.lists(st.just(3.0), max_size=6)


@given(COLUMNS)
def test_the_places_of_extremes_say_what_reductions_say(values: list[float]) -> None:
    column = np.array(values)
    assert are_known(column) == (not np.isnan(column).any())
    assert are_positive(column) == bool((column > 0).all())
    assert are_equal(column) == (not values or bool((column == column[0]).all()))


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_marks_are_what_isin_says(ranks: set[int], chosen: set[int]) -> None:
    ordered = np.array(sorted(ranks), dtype=np.int64)
    assert marked(ordered, chosen).tolist() == np.isin(ordered, sorted(chosen)).tolist()

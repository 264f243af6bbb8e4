"""Whether all values of a column are known, or above nothing: asked several times a step, and true in nearly all of them.

The place of the extreme answers both, since the first NaN counts as one; numpy finds it at a fifth of what a reduction
costs on the few values that a small job has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["are_equal", "are_known", "are_positive", "known_of"]


def are_known(values: NDArray[np.floating[Any]]) -> bool:
    """Whether no value is NaN; true of none."""
    if not values.size:
        return True
    largest = values[values.argmax()]
    return bool(largest == largest)


def known_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values that are not NaN, in their order; the very array where they are all."""
    return values if are_known(values) else values[~np.isnan(values)]


def are_positive(values: NDArray[np.floating[Any]]) -> bool:
    """Whether every value is above 0, NaN being none; true of none."""
    return not values.size or bool(values[values.argmin()] > 0)


def are_equal(values: NDArray[np.floating[Any]]) -> bool:
    """Whether all values are the same one, NaN being equal to nothing; true of none."""
    return not values.size or bool(values[values.argmin()] == values[values.argmax()])

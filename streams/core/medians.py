"""The median of an array, at a tenth of what `numpy.median` costs on the few hundred values that a job's step has.

Gives what `numpy.median` gives, to the last bit. Deliberately no NaN: callers leave out what is unknown first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["median"]

_SORTED_BELOW = 256
"""Fewer values are sorted whole sooner than they are divided in two; both give the same."""


def median(values: NDArray[np.floating[Any]]) -> float:
    """Median of values.

    Args:
        values: shape (n,), n above 0, no NaN.
    """
    middle, is_odd = divmod(values.size, 2)
    if values.size < _SORTED_BELOW:
        ranked = np.sort(values)
    else:
        ranked = values.copy()
        ranked.partition(middle if is_odd else (middle - 1, middle))
    # In the values' own precision, as numpy does.
    return float(ranked[middle] if is_odd else (ranked[middle - 1] + ranked[middle]) / 2)

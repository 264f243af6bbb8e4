"""Comparison of ranks with their peers: groups of ranks that should take equally long, and leave-one-out medians.

O(n log n) per group and step by one sort; no pairwise distances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

__all__ = ["group_by_key", "leave_one_out_median", "log_ratio_to_peers"]


def group_by_key(keys: Sequence[Hashable]) -> list[NDArray[np.int64]]:
    """Positions of equal keys, groups in order of first appearance."""
    positions: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return [np.array(group, dtype=np.int64) for group in positions.values()]


def leave_one_out_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of all other values, for each value.

    Args:
        values: shape (n,), no NaN.

    Returns:
        Shape (n,); NaN where there is no other.
    """
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    middle = count // 2
    if count % 2 == 0:
        # One of the two middle ones is left when any other is taken out.
        left: NDArray[np.float64] = np.where(place < middle, ranked[middle], ranked[middle - 1])
        return left
    below = (ranked[middle] + ranked[middle + 1]) / 2
    at = (ranked[middle - 1] + ranked[middle + 1]) / 2
    above = (ranked[middle - 1] + ranked[middle]) / 2
    result: NDArray[np.float64] = np.select([place < middle, place == middle], [below, at], above)
    return result


def log_ratio_to_peers(values: NDArray[np.float64], groups: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Natural logarithm of each value over the leave-one-out median of its group.

    Args:
        values: shape (n,); NaN and values that are not positive are left out of every median.
        groups: positions of peers.

    Returns:
        Shape (n,); NaN where the value or all its peers are unknown.
    """
    result = np.full(len(values), np.nan)
    for group in groups:
        known = group[values[group] > 0]
        if known.size < 2:
            continue
        result[known] = np.log(values[known] / leave_one_out_median(values[known]))
    return result

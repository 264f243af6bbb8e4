"""Comparison of ranks with their peers: groups of ranks that should take equally long, and leave-one-out medians.

O(n) per group and step; no pairwise distances.
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
        values: shape (..., n), no NaN; groups along the last axis.

    Returns:
        Same shape; NaN where there is no other.
    """
    count = values.shape[-1]
    if count < 2:
        return np.full(values.shape, np.nan)
    middle, is_odd = divmod(count, 2)
    ranked = np.partition(values, (middle - 1, middle, middle + 1) if is_odd else (middle - 1, middle), axis=-1)
    low, mid = ranked[..., middle - 1, None], ranked[..., middle, None]
    if not is_odd:
        # One of the two middle ones is left when any other is taken out.
        left: NDArray[np.float64] = np.where(values < mid, mid, low)
        return left
    high = ranked[..., middle + 1, None]
    # Of several that equal the middle one it makes no difference which is taken out.
    beside = np.where(values < mid, (mid + high) / 2, (low + mid) / 2)
    result: NDArray[np.float64] = np.where(values == mid, (low + high) / 2, beside)
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
    if len(groups) > 1 and len({group.size for group in groups}) == 1 and (values > 0).all():
        # All groups at once: a job has as many of one size as it has stages.
        together = np.concatenate(groups)
        grouped = values[together].reshape(len(groups), -1)
        result[together] = np.log(grouped / leave_one_out_median(grouped)).reshape(-1)
        return result
    for group in groups:
        known = group[values[group] > 0]
        if known.size < 2:
            continue
        result[known] = np.log(values[known] / leave_one_out_median(values[known]))
    return result

"""Comparison of ranks with their peers: groups of ranks that should take equally long, and leave-one-out medians.

O(n) per group and step; no pairwise distances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streams.core.known import are_positive
from streams.core.medians import ranked_at

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["PeerGroups", "group_by_key", "leave_one_out_median", "log_ratio_to_peers"]


class PeerGroups:
    """Positions of peers, by group; no position is in two.

    Args:
        groups: the positions of each.
    """

    __slots__ = ("_follow_on", "_groups", "_order")

    def __init__(self, groups: Iterable[NDArray[np.int64]]) -> None:
        self._groups = tuple(groups)
        sizes = {group.size for group in self._groups}
        self._order = np.concatenate(self._groups) if len(sizes) == 1 and 0 not in sizes else None
        """All positions, where groups are of one size: a job has as many of one as it has stages."""
        self._follow_on = self._order is not None and bool((self._order == np.arange(self._order.size)).all())
        """Whether that is the order of the values themselves."""

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def rows(self, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Values with a group a row, perhaps a view; None where groups differ in size."""
        if self._order is None:
            return None
        together = values if self._follow_on and values.size == self._order.size else values[self._order]
        return together.reshape(len(self._groups), -1)

    def spread(self, rows: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """What `rows` made, in the order of the values again; NaN for who is in no group.

        Args:
            rows: a group a row.
            count: how many values there are.
        """
        flat: NDArray[np.float64] = rows.reshape(-1)
        if self._follow_on and flat.size == count:
            return flat
        result = np.full(count, np.nan)
        result[self._order] = flat
        return result


def group_by_key(keys: Sequence[Hashable]) -> PeerGroups:
    """Positions of equal keys, groups in order of first appearance."""
    positions: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return PeerGroups(np.array(group, dtype=np.int64) for group in positions.values())


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
    ranked = ranked_at(values, (middle - 1, middle, middle + 1) if is_odd else (middle - 1, middle))
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


def log_ratio_to_peers(values: NDArray[np.float64], groups: PeerGroups) -> NDArray[np.float64]:
    """Natural logarithm of each value over the leave-one-out median of its group.

    Args:
        values: shape (n,); NaN and values that are not positive are left out of every median.
        groups: positions of peers.

    Returns:
        Shape (n,); NaN where the value or all its peers are unknown.
    """
    if are_positive(values):
        rows = groups.rows(values)
        if rows is not None:
            return groups.spread(np.log(rows / leave_one_out_median(rows)), len(values))
    result = np.full(len(values), np.nan)
    for group in groups:
        known = group[values[group] > 0]
        if known.size < 2:
            continue
        result[known] = np.log(values[known] / leave_one_out_median(values[known]))
    return result

"""A table of rows over time whose size does not grow with time: when there are too many columns, two become one.

Of what falls into one cell the worst counts, so that one bad second of one rank in hours of thousands is still seen. For
drawing, rows are put together in the same way, and each cell remembers whose value it shows.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

__all__ = ["HeatMap"]

_COLUMNS = 512
_DRAWN_COLUMNS = 420
_DRAWN_ROWS = 256
_UNKNOWN = 255


class HeatMap:
    """Collects values by row and time.

    Args:
        worst: whether high or low values are the bad ones.
        cell_ns: span of a column to begin with.
    """

    def __init__(self, worst: Literal["high", "low"] = "high", cell_ns: int = 1_000_000_000) -> None:
        self._sign = 1.0 if worst == "high" else -1.0
        self.worst = worst
        self.cell_ns = cell_ns
        self._origin: int | None = None
        self._rows: dict[Hashable, int] = {}
        self._cells: NDArray[np.float32] = np.full((64, _COLUMNS), -np.inf, dtype=np.float32)
        self._last = -1

    def __bool__(self) -> bool:
        """Whether there is any value: rows alone, of sources that do not know it, are none."""
        return self._last >= 0

    def knows(self, key: Hashable) -> bool:
        """Whether a row has a value."""
        return key in self._rows and bool(np.isfinite(self._cells[self._rows[key]]).any())

    @property
    def keys(self) -> list[Hashable]:
        """Keys of all rows, in the order in which they came."""
        return list(self._rows)

    def rows_of(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        """Row numbers of keys; a new one gets the next row."""
        for key in keys:
            if key not in self._rows:
                self._rows[key] = len(self._rows)
        while len(self._rows) > len(self._cells):
            self._cells = np.concatenate([self._cells, np.full_like(self._cells, -np.inf)])
        return np.array([self._rows[key] for key in keys], dtype=np.int64)

    def add(self, rows: NDArray[np.int64], at_ns: int, values: NDArray[np.float64]) -> None:
        """Take values at a time, one a row; NaN is unknown, and what is older than the first column counts to it."""
        known = ~np.isnan(values)
        if not known.any():
            return
        if self._origin is None:
            self._origin = at_ns - at_ns % self.cell_ns
        column = max(0, (at_ns - self._origin) // self.cell_ns)
        while column >= _COLUMNS:
            self._halve()
            column = max(0, (at_ns - self._origin) // self.cell_ns)
        at = rows[known]
        cells = self._cells[at, column]
        np.maximum(cells, (self._sign * values[known]).astype(np.float32), out=cells)
        self._cells[at, column] = cells
        self._last = max(self._last, int(column))

    def _halve(self) -> None:
        cells = self._cells.reshape(len(self._cells), _COLUMNS // 2, 2).max(axis=2)
        self._cells = np.full_like(self._cells, -np.inf)
        self._cells[:, : _COLUMNS // 2] = cells
        self.cell_ns *= 2
        self._last //= 2

    def drawn(self, order: Sequence[Hashable], low: float, high: float) -> dict[str, Any]:
        """What a page draws.

        Args:
            order: keys of rows from top to bottom; those without values are left out.
            low: value of the palette's beginning.
            high: value of its end.

        Returns:
            `rows` and `columns`, `group` (rows that are put together), `t0_ms`, `cell_ms`, `low`, `high`, `beyond` (whether
            a value is worse than the palette's end), `cells` (base64, one byte a cell from 0 to 254, 255 is unknown), `who`
            (base64, which row of the group it is of) and `keys` (positions in `order`).
        """
        there = [index for index, key in enumerate(order) if key in self._rows]
        cells = self._cells[[self._rows[order[index]] for index in there], : self._last + 1]
        per_column = _drawn_width(np.asarray(np.isfinite(cells).any(axis=0)))
        cells = _folded(cells, per_column, axis=1).max(axis=2)
        group = max(1, -(-len(there) // _DRAWN_ROWS))
        grouped = _folded(cells, group, axis=0)
        who = grouped.argmax(axis=1).astype(np.uint8)
        values = self._sign * grouped.max(axis=1).astype(np.float64)
        known = np.isfinite(values)
        end = low if self.worst == "low" else high
        scaled = np.clip((values - low) / (high - low), 0.0, 1.0) * 254
        scaled = np.where(known, scaled, _UNKNOWN)
        return {
            "rows": int(values.shape[0]),
            "columns": int(values.shape[1]),
            "group": group,
            "t0_ms": (self._origin or 0) / 1e6,
            "cell_ms": self.cell_ns * per_column / 1e6,
            "low": low,
            "high": high,
            "worst": self.worst,
            "beyond": bool(np.any(self._sign * (values[known] - end) > 0)),
            "cells": base64.b64encode(scaled.astype(np.uint8).tobytes()).decode(),
            "who": base64.b64encode(who.tobytes()).decode() if group > 1 else None,
            "keys": there,
        }

    def row(self, key: Hashable) -> tuple[list[float], list[float | None]]:
        """Times in seconds and values of one row; null is unknown."""
        if key not in self._rows or self._origin is None:
            return [], []
        values = self._sign * self._cells[self._rows[key], : self._last + 1].astype(np.float64)
        times = [(self._origin + (column + 0.5) * self.cell_ns) / 1e9 for column in range(len(values))]
        return times, [round(float(value), 4) if np.isfinite(value) else None for value in values]

    def quantile(self, share: float) -> float | None:
        """A quantile of all known cells."""
        cells = self._cells[: len(self._rows), : self._last + 1]
        known = cells[np.isfinite(cells)]
        return float(self._sign * np.quantile(known, share)) if known.size else None


def _drawn_width(is_filled: NDArray[np.bool_]) -> int:
    """How many columns are drawn as one: few enough to draw, and wide enough for what comes more rarely than a column."""
    width = -(-len(is_filled) // _DRAWN_COLUMNS)
    gaps = np.diff(np.flatnonzero(is_filled))
    return max(1, width, int(np.quantile(gaps, 0.75, method="higher")) if gaps.size else 1)


def _folded(cells: NDArray[np.float32], size: int, axis: int) -> NDArray[np.float32]:
    """An axis split into pieces of a size, the last one filled up with nothing."""
    length = cells.shape[axis]
    missing = -length % size
    if missing:
        fill = list(cells.shape)
        fill[axis] = missing
        cells = np.concatenate([cells, np.full(fill, -np.inf, dtype=cells.dtype)], axis=axis)
    shape = list(cells.shape)
    shape[axis : axis + 1] = [shape[axis] // size, size]
    return cells.reshape(shape)

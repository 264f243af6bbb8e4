"""Running figures of transfers, per communicator of one kind, in arrays: what the network rule decides on.

Per communicator: its name, how many steps were seen while it was learnt, its reference transfer, the running mean of the
change from step to step, the last transfer, its most members, and for how many steps it has been slow. 17 bytes a
communicator beside its name, and 20 more during its first 20 steps. Communicators are told apart by name, so that a step
without some of them mixes nothing up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.medians import median
from streams.core.slow_reference import FOLLOW, REFERENCE_STEPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SlowNetworkThresholds", "TransferCharts"]

_BLOCK = 5
"""The reference is the mean of medians of five: one long step in five does not move it, and four blocks are 20 steps."""

_MOST_MEMBERS = np.iinfo(np.uint16).max

_NONE: NDArray[np.int64] = np.array([], dtype=np.int64)

_MEMORY = 16
"""Steps that the running mean of changes remembers."""

_KINDS: dict[str, Any] = {
    "seen": np.uint8,
    "reference": np.float32,
    "change": np.float32,
    "last": np.float32,
    "members": np.uint16,
    "run": np.uint8,
    "named": np.bool_,
}


@dataclass(frozen=True, slots=True)
class SlowNetworkThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        ratio: transfer over its reference above which a communicator is slow.
        scales: how many noise scales the logarithm of that ratio must be above as well.
        min_scale: lower bound of the noise scale (natural logarithm).
        steps: recorded steps in a row before a communicator is slow.
        gather_steps: recorded steps that the finding then waits at most, so that those that become slow together are in it.
        quiet_steps: recorded steps after the last slow one before it is cleared.
        least_us: shorter transfers are launch time and noise.
        least_share: and so are those of a smaller share of the step.
        own_flat: only while the median own time is below this multiple of its reference.
    """

    ratio: float = 1.25
    scales: float = 6.0
    min_scale: float = 0.02
    steps: int = 5
    gather_steps: int = 3
    quiet_steps: int = 10
    least_us: int = 1000
    least_share: float = 0.01
    own_flat: float = 1.05


class TransferCharts:
    """Running figures of the communicators of one kind, arrays in the order of `names`."""

    __slots__ = (
        "_in_order",
        "_met",
        "change",
        "first",
        "last",
        "members",
        "most",
        "name",
        "named",
        "reference",
        "run",
        "seen",
    )

    def __init__(self, name: tuple[str, ...] = ()) -> None:
        self.name = name
        self.most = 0
        """Most communicators of a step."""
        self.seen: NDArray[np.uint8]
        self.reference: NDArray[np.float32]
        self.change: NDArray[np.float32]
        self.last: NDArray[np.float32]
        self.members: NDArray[np.uint16]
        self.run: NDArray[np.uint8]
        self.named: NDArray[np.bool_]
        for column, kind in _KINDS.items():
            setattr(self, column, np.zeros(len(name), dtype=kind))
        self.first: NDArray[np.float32] | None = np.zeros((_BLOCK, len(name)), dtype=np.float32)
        """The latest steps of those that are still learnt from; None once all have been."""
        self._met: NDArray[np.int64] | None = None
        """Members of a step in which all were whole: where the next step has this very array, they are again."""
        self._in_order: NDArray[np.int64] | None = None
        """Rows of a step that were all, in their order."""

    def rows_of(self, names: tuple[str, ...]) -> NDArray[np.int64] | None:
        """Rows of these communicators after all are admitted; None where they are all, in order.

        Names that come and go for ever would grow without end: beyond twice what a step ever had, those that are away go.
        """
        if names == self.name:
            return None
        self.most = max(self.most, len(names))
        place = {name: row for row, name in enumerate(self.name)}
        if not place.keys() >= set(names):
            merged = sorted(place.keys() | set(names))
            if len(merged) > 2 * self.most:
                merged = sorted(names)
            self._rearrange(tuple(merged), place)
            if names == self.name:
                return None
            place = {name: row for row, name in enumerate(self.name)}
        return np.array([place[name] for name in names], dtype=np.int64)

    def _rearrange(self, names: tuple[str, ...], place: dict[str, int]) -> None:
        grown = TransferCharts(names)
        kept = [(row, place[name]) for row, name in enumerate(names) if name in place]
        new, old = np.array(kept, dtype=np.int64).reshape(-1, 2).T
        for column in _KINDS:
            getattr(grown, column)[new] = getattr(self, column)[old]
        if self.first is not None and grown.first is not None:
            grown.first[:, new] = self.first[:, old]
        for column in (*_KINDS, "first", "name", "_met", "_in_order"):
            setattr(self, column, getattr(grown, column))

    def fold(
        self,
        rows: NDArray[np.int64],
        transfer_us: NDArray[np.float64],
        members: NDArray[np.int64],
        least_us: float,
        may_be_slow: bool,
        limits: SlowNetworkThresholds,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take a step's transfers; returns the rows that could be judged, and those of them that were slow in this step.

        A communicator of which fewer members report than did before is left out: those that are there may all have waited for
        the one that is not.

        Args:
            rows: of the communicators of the step.
            transfer_us: their shortest durations, above 0.
            members: how many members reported one; the very array of the step before where nothing has changed.
            least_us: shorter ones are never slow.
            may_be_slow: false while own time is not flat: then nobody is called slow.
            limits: thresholds.
        """
        if members is not self._met:
            rows, transfer_us = self._with_all_members(rows, transfer_us, members)
        x = transfer_us
        at = self._places(rows)
        log = np.log(x)
        moved = np.abs(log - self.last[at])
        if self.first is None:
            self.change[at] += (moved - self.change[at]) * (1.0 / _MEMORY)
            self.last[at] = log
            # All have been seen so often that how often makes no difference any more.
            watched = self.change
        else:
            learnt = self._advance(rows, x, log, moved)
            rows, x = rows[learnt], x[learnt]
            at = self._places(rows)
            watched = self.change[self.seen > 1]
        # For a normal variable the mean absolute difference of two draws is 1.128 standard deviations.
        scale = max(median(watched) / 1.128, limits.min_scale) if watched.size else limits.min_scale
        reference = self.reference[at]
        above = x / reference > max(limits.ratio, math.exp(limits.scales * scale))
        is_any = np.count_nonzero(above) > 0
        if is_any or np.count_nonzero(self.named):
            # What has got slower does not become usual, whether or not it is blamed on the network.
            follows = ~above & ~self.named[at]
            self.reference[at] = np.where(follows, reference + FOLLOW * (x - reference), reference)
        else:
            self.reference[at] += FOLLOW * (x - reference)
        if not (is_any and may_be_slow):
            self.run[at] = 0
            return rows, _NONE
        slow = above & (x >= least_us)
        self.run[at] = np.where(slow, np.minimum(self.run[at], 254) + 1, 0)
        return rows, rows[slow]

    def _with_all_members(
        self, rows: NDArray[np.int64], transfer_us: NDArray[np.float64], members: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Those of which as many members report as ever did."""
        whole = members >= np.maximum(self.members[rows], 2)
        if np.count_nonzero(whole) < whole.size:
            self._met = None
            rows, transfer_us, members = rows[whole], transfer_us[whole], members[whole]
        else:
            self._met = members
        self.members[rows] = np.minimum(members, _MOST_MEMBERS)
        return rows, transfer_us

    def _places(self, rows: NDArray[np.int64]) -> Any:
        """Rows as an index: a slice where they are all, in their order, which is a view and not a copy each time."""
        if rows is not self._in_order:
            if rows.size != len(self.name) or not (rows[1:] > rows[:-1]).all():
                return rows
            self._in_order = rows
        return slice(None)

    def _advance(
        self, rows: NDArray[np.int64], x: NDArray[np.float64], log: NDArray[np.float64], moved: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Take a step while some are still learnt from; returns which of the rows are not any more."""
        seen = self.seen[rows].astype(np.int64)
        weight = 1.0 / np.minimum(np.maximum(seen, 1), _MEMORY)
        self.change[rows] += np.where(seen > 0, weight * (moved - self.change[rows]), 0.0)
        self.last[rows] = log
        learnt: NDArray[np.bool_] = seen >= REFERENCE_STEPS
        self._learn(rows[~learnt], x[~learnt])
        self.seen[rows] = np.minimum(seen + 1, 255)
        if (self.seen >= REFERENCE_STEPS).all():
            self.first = None
        return learnt

    def may_be_named(self, run: int) -> bool:
        """Whether one that is not named has been slow for so many steps in a row."""
        return bool((~self.named & (self.run >= run)).any())

    def _learn(self, rows: NDArray[np.int64], x: NDArray[np.float64]) -> None:
        assert self.first is not None
        seen = self.seen[rows].astype(np.int64)
        self.first[seen % _BLOCK, rows] = x
        full = rows[seen % _BLOCK == _BLOCK - 1]
        blocks = self.seen[full] // _BLOCK + 1
        self.reference[full] += (np.median(self.first[:, full], axis=0) - self.reference[full]) / blocks

    def snapshot(self) -> dict[str, Any]:
        """Plain data and arrays that nobody else changes, as `restored` takes them."""
        learning = self.first.reshape(-1).copy() if self.first is not None else None
        columns = {column: getattr(self, column).copy() for column in _KINDS}
        return {"name": list(self.name), "most": self.most, "first": learning, **columns}

    @classmethod
    def restored(cls, snapshot: dict[str, Any]) -> TransferCharts:
        """Charts of a snapshot."""
        charts = cls(tuple(snapshot["name"]))
        charts.most = snapshot["most"]
        first = snapshot["first"]
        charts.first = None if first is None else np.array(first, dtype=np.float32).reshape(_BLOCK, -1)
        for column, kind in _KINDS.items():
            setattr(charts, column, np.array(snapshot[column], dtype=kind))
        return charts

"""Running figures of own time against peers, per rank, in arrays: what the straggler rule decides on.

Per rank: how many steps were seen, the running mean of the log ratio to the peers, the running mean of its change from step
to step, the last ratio, which of the last 64 steps were slow and which of the last 16 leaned that way. 40 bytes a rank in
a snapshot, no history.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import are_known
from streams.core.medians import median

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PaceCharts", "StragglerThresholds"]

_COLUMNS = ("rank", "steps", "mean", "change", "last", "hits", "lean")
_KEPT_AS: dict[str, Any] = {"rank": np.int32, "steps": np.uint16, "hits": np.uint64, "lean": np.uint16}
_HISTORY = 64
"""Steps of which it is known whether each was slow: the bits of a word. More than these do not count."""

_MOST_STEPS = np.iinfo(np.uint16).max

_LEANING_STEPS, _LEANING_OF = 3, 5
_LEANING_SCALES = 2.0
"""Half of the floor must be so many noise scales."""

_MEMORY = 16
"""Steps that the running mean remembers (it weighs each new step by 1/16 once that many were seen)."""

_ONE_STEP, _ONE_LEAN = np.uint64(1), np.uint16(1)
_NOBODY: NDArray[np.int64] = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class StragglerThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        floor: smallest slowdown that counts (ratio above 1).
        scales: how many noise scales a slow step, or standard errors a slow mean, must be above. 6 gave exact results on
            three published traces and leaves room for 10^6 rank-steps of skewed noise.
        min_scale: lower bound of the noise scale (natural logarithm): healthy ranks differ by 0.3 % for ever.
        fast_hits, fast_steps: m of n of the fast chart.
        slow_steps: steps before the slow chart speaks.
        slow_share: share of the last 16 steps that must be in the slow direction.
        quiet_steps: recorded steps without a hit after which a straggler is cleared.
        burst_hits, burst_steps: m of n of the burst chart, for a rank that is slow now and then.
        burst_quiet_steps: recorded steps without a hit after which such a one is cleared.
        gather_steps: recorded steps that a slow rank waits while most of its node or tensor group leans the same way.
    """

    floor: float = 0.03
    scales: float = 6.0
    min_scale: float = 0.005
    fast_hits: int = 4
    fast_steps: int = 5
    slow_steps: int = 10
    slow_share: float = 0.6
    quiet_steps: int = 20
    burst_hits: int = 8
    burst_steps: int = 50
    burst_quiet_steps: int = 60
    gather_steps: int = 3

    def limit(self, noise_scale: float) -> float:
        """What a rank's score (natural logarithm) must be above in a slow step: the floor and the noise."""
        return max(self.log_floor, self.scales * noise_scale)

    @property
    def log_floor(self) -> float:
        """The floor as a natural logarithm."""
        return _log_of_floor(self.floor)


@dataclass(slots=True)
class PaceCharts:
    """Running figures per rank, arrays in the order of `rank`."""

    rank: NDArray[np.int64]
    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    change: NDArray[np.float64]
    last: NDArray[np.float64]
    hits: NDArray[np.uint64]
    lean: NDArray[np.uint16]
    is_settled: bool = False
    """Whether every rank has been seen so often that each new step weighs the same; found again after a restart."""

    @classmethod
    def empty(cls, rank: NDArray[np.int64]) -> PaceCharts:
        """Charts of ranks of which nothing is known."""
        count = len(rank)
        return cls(
            rank,
            np.zeros(count, dtype=np.int64),
            np.zeros(count),
            np.zeros(count),
            np.full(count, np.nan),
            np.zeros(count, dtype=np.uint64),
            np.zeros(count, dtype=np.uint16),
        )

    def admit(self, rank: NDArray[np.int64]) -> PaceCharts:
        """Charts that also hold these ranks, in rank order; the same ones when nothing is new."""
        if rank is self.rank:
            return self
        if np.array_equal(rank, self.rank):
            # Nearly always the next step has this very array.
            self.rank = rank
            return self
        fresh = np.setdiff1d(rank, self.rank, assume_unique=True)
        if not fresh.size:
            return self
        merged = np.union1d(self.rank, fresh)
        grown = PaceCharts.empty(merged)
        place = np.searchsorted(merged, self.rank)
        for name in ("steps", "mean", "change", "last", "hits", "lean"):
            getattr(grown, name)[place] = getattr(self, name)
        return grown

    def places(self, rank: NDArray[np.int64]) -> Any:
        """Rows of these ranks, all of them admitted: a slice where they are all, which is a view and not a copy each time."""
        return slice(None) if rank.size == self.rank.size else self.rank.searchsorted(rank)

    def fold(
        self, at: Any, log_ratio: NDArray[np.float64], limits: StragglerThresholds
    ) -> tuple[float, NDArray[np.int64]]:
        """Take the step into the running figures.

        Args:
            at: rows of the step's ranks, as `places` has them.
            log_ratio: own time over the peers', as a natural logarithm; NaN where that is unknown.
            limits: thresholds.

        Returns:
            (noise scale, positions in the step of the ranks that were slow in it).
        """
        rows, e = at, log_ratio
        if not are_known(log_ratio):
            known = ~np.isnan(log_ratio)
            rows, e = (known if isinstance(at, slice) else at[known]), log_ratio[known]
        self._advance(rows, e)
        watched = self.change if self.is_settled else self.change[self.steps > 1]
        # For a normal variable the mean absolute difference of two draws is 1.128 standard deviations.
        scale = median(watched) / 1.128 if watched.size else 0.0
        if not watched.size and e.size > 2:
            # One step alone has no change yet: its spread over ranks stands in.
            scale = 1.4826 * median(np.abs(e - median(e)))
        noise_scale = max(scale, limits.min_scale)
        self.hits[at] <<= _ONE_STEP
        self.lean[at] <<= _ONE_LEAN
        limit, half_floor = limits.limit(noise_scale), 0.5 * limits.log_floor
        if not e.size or e[e.argmax()] <= min(limit, half_floor):
            return noise_scale, _NOBODY
        # NaN is above nothing.
        is_hit = log_ratio > limit
        self.hits[at] |= is_hit
        self.lean[at] |= log_ratio > half_floor
        return noise_scale, is_hit.nonzero()[0]

    def _advance(self, rows: Any, e: NDArray[np.float64]) -> None:
        """The running means of those with a known score."""
        self.steps[rows] += 1
        if e.size and self.steps[self.steps.argmax()] > _MOST_STEPS:
            np.minimum(self.steps, _MOST_STEPS, out=self.steps)
        moved = np.abs(e - self.last[rows])
        if self.is_settled:
            self.change[rows] += (moved - self.change[rows]) * (1.0 / _MEMORY)
            self.mean[rows] += (e - self.mean[rows]) * (1.0 / _MEMORY)
        else:
            steps = self.steps[rows]
            change_weight = 1.0 / np.minimum(np.maximum(steps - 1, 1), _MEMORY)
            change = self.change[rows]
            self.change[rows] = np.where(np.isnan(moved), change, change + change_weight * (moved - change))
            self.mean[rows] += 1.0 / np.minimum(steps, _MEMORY) * (e - self.mean[rows])
            self.is_settled = bool((self.steps >= _MEMORY).all())
        self.last[rows] = e

    def suspects(
        self, at: Any, log_ratio: NDArray[np.float64], scale: float, limits: StragglerThresholds
    ) -> dict[str, NDArray[np.int64]]:
        """Positions in a step of ranks that each chart calls slow, by the chart's name; the first that does so speaks for a rank.

        Args:
            at: as for `fold`.
            log_ratio: as for `fold`.
            scale: the noise scale of the step.
            limits: thresholds.
        """
        found: dict[str, NDArray[np.int64]] = {}
        all_steps, all_hits = self.steps[at], self.hits[at]
        # Most have no slow step among those that are remembered, and no long mean: they are not looked at any closer.
        places = all_hits.nonzero()[0]
        if places.size:
            hits, is_known = all_hits[places], ~np.isnan(log_ratio[places])
            is_fast = (all_steps[places] >= limits.fast_steps) & (_count(hits, limits.fast_steps) >= limits.fast_hits)
            found["fast"] = places[is_known & is_fast]
        means = self.mean[at]
        long = (means > limits.log_floor).nonzero()[0]
        if long.size:
            found["slow"] = long[self._are_slow(at, long, means[long], scale, limits) & ~np.isnan(log_ratio[long])]
        if places.size:
            # Said in a slow step, so that the finding's figures are of one.
            is_burst = (_count(hits, 1) == 1) & (_count(hits, limits.burst_steps) >= limits.burst_hits)
            found["burst"] = places[is_known & is_burst]
        return found

    def _are_slow(
        self, at: Any, places: NDArray[np.int64], mean: NDArray[np.float64], scale: float, limits: StragglerThresholds
    ) -> NDArray[np.bool_]:
        """Which of some places have been slow in the mean, whose mean is above the floor."""
        steps = self.steps[at][places]
        seen = np.minimum(steps, _MEMORY)
        # Effective number of steps behind an exponentially weighted mean of memory m is 2m - 1.
        behind = np.where(steps <= _MEMORY, seen, 2 * _MEMORY - 1)
        error = scale / np.sqrt(np.maximum(behind, 1))
        leaning = np.bitwise_count(self.lean[at][places])
        slow: NDArray[np.bool_] = (
            (steps >= limits.slow_steps) & (mean > limits.scales * error) & (leaning >= limits.slow_share * seen)
        )
        return slow

    def leaning(
        self, at: Any, scale: float, limits: StragglerThresholds
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """Ranks that were above half of the floor in most of the last steps, and in the last; None where that is noise."""
        if 0.5 * limits.log_floor < _LEANING_SCALES * scale:
            return None
        lean = self.lean[at]
        often = np.bitwise_count(lean & np.uint16(_mask(_LEANING_OF))) >= _LEANING_STEPS
        return often, (lean & np.uint16(1)) == 1

    def hits_of(self, rank: int, steps: int) -> int:
        """How many of a rank's last steps were slow."""
        return int(self._last_hits(rank, steps)).bit_count()

    def hit_share(self, rank: int, steps: int) -> float:
        """Share of slow steps among those up to a rank's last slow one, at most so many and as far as they are known."""
        hits = int(self._last_hits(rank, _HISTORY))
        since = (hits & -hits).bit_length() - 1
        known = min(steps, _HISTORY - since)
        return ((hits >> since) & int(_mask(known))).bit_count() / known if hits else 0.0

    def first_hit(self, rank: int, steps: int) -> int:
        """How many steps ago the earliest of a rank's slow steps among its last ones was; 0 is the last step, or none."""
        return max(int(self._last_hits(rank, steps)).bit_length() - 1, 0)

    def forget_hits(self, ranks: set[int]) -> None:
        """Start anew for ranks that keep pace again: one long step does not bring back what is over."""
        self.hits[self.rank.searchsorted(sorted(ranks))] = 0

    def _last_hits(self, rank: int, steps: int) -> np.uint64:
        hits: np.uint64 = self.hits[self.rank.searchsorted(rank)]
        return hits & _mask(steps)

    def snapshot(self) -> dict[str, Any]:
        """Arrays that nobody else changes, as `restore` takes them."""
        return {name: getattr(self, name).astype(_KEPT_AS.get(name, np.float64)) for name in _COLUMNS}

    @classmethod
    def restored(cls, snapshot: dict[str, Any]) -> PaceCharts:
        """Charts of a snapshot."""
        kinds: dict[str, Any] = {"rank": np.int64, "steps": np.int64, "hits": np.uint64, "lean": np.uint16}
        columns: dict[str, Any] = {
            name: np.array(value, dtype=kinds.get(name, np.float64)) for name, value in snapshot.items()
        }
        return cls(**columns)


@lru_cache(maxsize=16)
def _log_of_floor(floor: float) -> float:
    return float(np.log1p(floor))


@lru_cache(maxsize=_HISTORY)
def _mask(steps: int) -> np.uint64:
    """The bits of the last steps."""
    return np.uint64((1 << min(steps, _HISTORY)) - 1)


def _count(hits: NDArray[np.uint64], steps: int) -> NDArray[np.uint8]:
    """How many of the last steps were slow."""
    counts: NDArray[np.uint8] = np.bitwise_count(hits & _mask(steps))
    return counts

"""How much of a rank's own time the work explains that it was given: its tokens and the squares of its documents' lengths.

One linear fit a job, over all ranks and the last 200 steps or so, kept as five running sums: the excess of own time over
the peers' median against the excess of work over the peers' median. Residuals beyond three of their robust scales count as
three, so that a slow rank does not teach the fit that work is slow. What is explained is between nothing and time in
proportion. Nothing is explained where all ranks have equal work or do not tell it. O(ranks) a step; no history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import are_equal, are_positive
from streams.core.medians import median, row_medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streams.core.peers import PeerGroups
    from streams.core.step_join import ClosedStep

__all__ = ["COVARIATES", "Explained", "WorkloadFit", "explained_by", "relative_work"]

COVARIATES = ("tokens", "sum_squared_lengths")
"""Columns that tell how much work a rank was given, in the order of the slopes."""

_MEMORY = 200.0
"""Steps that the fit remembers."""
_STEEPEST = 1.0
"""Own time grows at most in proportion to work: one slow rank with much work must not set its own excuse."""
_CLIP_SCALES = 3.0
_LEAST_SCALE = 0.005
_ROUNDS = 2
_RIDGE = 1e-3
_LEAST_FACTOR = 0.1
_SPREAD_MEMORY = 16


@dataclass(frozen=True, slots=True)
class Explained:
    """What the work of a step explains.

    Attributes:
        factor: per rank, own time that its work explains over that of the peers' median of work; 1 where work is unknown.
        tokens_factor: the same of tokens alone.
        slopes: of own time against each of `COVARIATES`; 1 is in proportion.
    """

    factor: NDArray[np.float64]
    tokens_factor: NDArray[np.float64]
    slopes: tuple[float, float]


class WorkloadFit:
    """Follows the ranks of one epoch of one job."""

    def __init__(self) -> None:
        self._xx = np.zeros((2, 2))
        self._xy = np.zeros(2)
        self._steps = 0
        self.spread = 0.0
        """Running mean of the scatter of what work explains over ranks, as a natural logarithm."""

    def on_step(self, step: ClosedStep, groups: PeerGroups) -> Explained | None:
        """Take a step of phase `train`; None where its work explains nothing.

        Args:
            step: the step.
            groups: positions of peers.
        """
        work = relative_work(step, groups)
        explained = self._fit(work, step.own_us, groups) if work is not None else None
        scatter = 1.4826 * median(np.abs(np.log(explained.factor))) if explained is not None else 0.0
        self._steps = min(self._steps + 1, _SPREAD_MEMORY)
        self.spread += (scatter - self.spread) / self._steps
        return explained

    def _fit(self, work: NDArray[np.float64], own: NDArray[np.float64], groups: PeerGroups) -> Explained:
        excess = _excess(own, groups)
        told = [known for group in groups if (known := group[own[group] > 0]).size > 1]
        at = np.concatenate(told) if told else np.array([], dtype=np.int64)
        self._xx *= 1.0 - 1.0 / _MEMORY
        self._xy *= 1.0 - 1.0 / _MEMORY
        if at.size:
            # Against the means of each group: whose work and time the medians are makes no difference then.
            x = _centred(work, told)[:, at]
            xx = (x[:, None] * x[None]).sum(axis=2)
            # Whom the step's own fit leaves out is no matter of what was usual: work that has begun to cost time is seen at once.
            moment = (x * excess[at]).sum(axis=1)
            for _ in range(_ROUNDS):
                slopes = _slopes(xx, moment)
                guess = slopes[0] * work[0, at] + slopes[1] * work[1, at]
                residual = excess[at] - guess
                middle = median(residual)
                reach = _CLIP_SCALES * max(1.4826 * median(np.abs(residual - middle)), _LEAST_SCALE)
                moment = (x * (guess + np.clip(residual, middle - reach, middle + reach))).sum(axis=1)
            self._xx += xx
            self._xy += moment
        slopes = _slopes(self._xx, self._xy)
        return explained_by(work, (float(slopes[0]), float(slopes[1])))

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [self._xx.ravel().tolist(), self._xy.tolist(), self._steps, self.spread]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._xx = np.array(snapshot[0]).reshape(2, 2)
        self._xy = np.array(snapshot[1])
        self._steps, self.spread = snapshot[2], snapshot[3]


def explained_by(work: NDArray[np.float64], slopes: tuple[float, float]) -> Explained:
    """What work explains by given slopes.

    Args:
        work: excess of each covariate over its peers' median, shape (2, ranks), as `relative_work` gives it.
        slopes: of own time against each.
    """
    of_tokens = np.maximum(1.0 + slopes[0] * work[0], _LEAST_FACTOR)
    return Explained(np.maximum(of_tokens + slopes[1] * work[1], _LEAST_FACTOR), of_tokens, slopes)


def relative_work(step: ClosedStep, groups: PeerGroups) -> NDArray[np.float64] | None:
    """Excess of each covariate over its peers' median, shape (2, ranks); 0 where unknown, None where all is equal."""
    work = None
    for place, name in enumerate(COVARIATES):
        column = step.columns[name]
        # Most jobs give all ranks equal work, or do not tell it.
        if are_equal(column) or not np.count_nonzero(column > 0):
            continue
        excess = _excess(column, groups)
        if np.count_nonzero(excess):
            work = np.zeros((len(COVARIATES), len(step.rank))) if work is None else work
            work[place] = excess
    return work


def _excess(column: NDArray[np.float64], groups: PeerGroups) -> NDArray[np.float64]:
    """Of each value over the median of its peers, as a share of that; 0 where it is not known to be above 0."""
    rows = groups.rows(column) if are_positive(column) else None
    if rows is not None and len(groups) * rows.shape[1] == len(column):
        return groups.spread(rows / row_medians(rows)[:, None] - 1.0, len(column))
    excess = np.zeros(len(column))
    for group in groups:
        known = group[column[group] > 0]
        if known.size > 1:
            excess[known] = column[known] / median(column[known]) - 1.0
    return excess


def _centred(work: NDArray[np.float64], groups: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    centred = np.zeros_like(work)
    for group in groups:
        centred[:, group] = work[:, group] - work[:, group].mean(axis=1, keepdims=True)
    return centred


def _slopes(xx: NDArray[np.float64], xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares of two slopes, each between nothing and the steepest; a slope at a bound leaves the rest to the other."""
    own = np.diag(xx)
    if not own.any():
        return np.zeros(2)
    eased = xx + _RIDGE * np.diag(own) + np.diag(np.where(own > 0, 0.0, 1.0))
    slopes: NDArray[np.float64] = np.linalg.solve(eased, xy)
    for one, other in ((0, 1), (1, 0)):
        bounded = float(np.clip(slopes[one], 0.0, _STEEPEST))
        if bounded != slopes[one]:
            rest = (xy[other] - xx[one, other] * bounded) / eased[other, other]
            slopes = np.zeros(2)
            slopes[one], slopes[other] = bounded, float(np.clip(rest, 0.0, _STEEPEST))
    return slopes

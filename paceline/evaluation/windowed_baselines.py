"""Published rules that look at a window of steps, written from their descriptions: none is its authors' code or model.

- `B5-bocd`: Bayesian online change points of the job's step time, verified by the means of ten steps before and after, which
  must differ by 10 % (Greyhound's detection). It names nobody.
- `B6` Minder-like: each figure of the nodes over a window, distances of each node to all others summed, the farthest one
  if its z is above 2, for 240 s without a break; the first figure that tells one counts. Figures as they are in place of
  the published encoder, whose weights do not exist.
- `B7` Mahalanobis: distance of each node's mean figures over the window from the median node's, by the scatter within
  nodes, above its 99.9th percentile; for 240 s without a break.
- `B8` Aegis-like: z of a node's mean own time over ten minutes, above 2.

One of n nodes cannot have a z above (n - 1) / sqrt(n): of eight 2.47, which is why the bar is 2. Second-level counters of
hosts, which Minder and Aegis read, are not here: all rules get the same steps.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streams.core.step_join import ClosedStep

__all__ = ["ChangePoint", "LongTermZ", "Mahalanobis", "SummedDistance"]

_FIGURES = ("own_us", "compute_us", "host_us", "data_us", "wait_us")
_WINDOW = 8
_CONTINUITY_NS = 240_000_000_000
_LONG_NS = 600_000_000_000
_Z = 2.0
_LONGEST_RUN = 200

_CHI_SQUARE_999 = (10.83, 13.82, 16.27, 18.47, 20.52)
"""99.9th percentile by degrees of freedom, from 1 on."""


class ChangePoint:
    """Change points of a series (Adams and MacKay 2007: normal with unknown mean and variance), verified."""

    def __init__(self, hazard: float = 1 / 250, verified_steps: int = 10, verified_ratio: float = 1.10) -> None:
        self._log_change, self._log_stay = math.log(hazard), math.log1p(-hazard)
        self._steps, self._ratio = verified_steps, verified_ratio
        self._log_p = np.zeros(1)
        self._mean, self._kappa = np.zeros(1), np.full(1, 0.01)
        self._alpha, self._beta = np.ones(1), np.full(1, 1e-4)
        self._recent: deque[float] = deque(maxlen=2 * verified_steps)
        self._usual: float | None = None

    def take(self, figure: float) -> bool:
        """Whether the series is above what it was, after one more figure above 0."""
        run = self._run_length(math.log(figure))
        self._recent.append(figure)
        last = list(self._recent)[-self._steps :]
        if self._usual is not None:
            if np.mean(last) < self._ratio * self._usual:
                self._usual = None
        elif run == self._steps and len(self._recent) == self._recent.maxlen:
            before = float(np.mean(list(self._recent)[: self._steps]))
            if np.mean(last) >= self._ratio * before:
                self._usual = before
        return self._usual is not None

    def _run_length(self, x: float) -> int:
        """The likeliest number of steps since the last change."""
        wide = 2 * self._alpha
        square = self._beta * (self._kappa + 1) / (self._alpha * self._kappa)
        gamma = np.array([math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) for nu in wide.tolist()])
        told = gamma - 0.5 * np.log(np.pi * wide * square)
        told -= (wide + 1) / 2 * np.log1p((x - self._mean) ** 2 / (wide * square))
        joint = self._log_p + told
        grown = np.concatenate([[np.logaddexp.reduce(joint) + self._log_change], joint + self._log_stay])
        self._log_p = (grown - np.logaddexp.reduce(grown))[:_LONGEST_RUN]
        beta = self._beta + self._kappa * (x - self._mean) ** 2 / (2 * (self._kappa + 1))
        mean = (self._kappa * self._mean + x) / (self._kappa + 1)
        self._mean = np.concatenate([[x], mean])[:_LONGEST_RUN]
        self._kappa = np.concatenate([[0.01], self._kappa + 1])[:_LONGEST_RUN]
        self._alpha = np.concatenate([[1.0], self._alpha + 0.5])[:_LONGEST_RUN]
        self._beta = np.concatenate([[1e-4], beta])[:_LONGEST_RUN]
        return int(np.argmax(self._log_p))


def _by_node(step: ClosedStep) -> tuple[list[str], NDArray[np.float64]]:
    """Nodes of a step and the mean of each figure over their ranks, (figures, nodes); NaN where no rank told it."""
    names, node = np.unique(np.array(step.node_id), return_inverse=True)
    means = np.full((len(_FIGURES), len(names)), np.nan)
    for row, figure in enumerate(_FIGURES):
        values = step.columns[figure]
        known = ~np.isnan(values)
        counts = np.bincount(node[known], minlength=len(names))
        sums = np.bincount(node[known], weights=values[known], minlength=len(names))
        told = counts > 0
        means[row, told] = sums[told] / counts[told]
    return [str(name) for name in names], means


class _Window:
    """The last steps of the same nodes."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.steps: deque[NDArray[np.float64]] = deque(maxlen=_WINDOW)

    def take(self, step: ClosedStep) -> NDArray[np.float64] | None:
        """(steps, figures, nodes) once the window is full of figures that all nodes told; else null."""
        nodes, means = _by_node(step)
        if nodes != self.nodes:
            self.nodes = nodes
            self.steps.clear()
        self.steps.append(means)
        if len(self.steps) < _WINDOW or len(nodes) < 3:
            return None
        window = np.stack(self.steps)
        return window[:, ~np.isnan(window).any(axis=(0, 2))]


class _Continuity:
    """The same node without a break for long enough."""

    def __init__(self) -> None:
        self._node: str | None = None
        self._since_ns = 0

    def take(self, node: str | None, now_ns: int) -> set[str]:
        if node != self._node:
            self._node, self._since_ns = node, now_ns
        return {node} if node is not None and now_ns - self._since_ns >= _CONTINUITY_NS else set()


class SummedDistance:
    """B6."""

    def __init__(self) -> None:
        self._window, self._continuity = _Window(), _Continuity()

    def on_step(self, step: ClosedStep) -> set[str]:
        """Nodes that are named after a step."""
        return self._continuity.take(self._farthest(step), step.event_time_ns)

    def _farthest(self, step: ClosedStep) -> str | None:
        window = self._window.take(step)
        if window is None:
            return None
        for values in np.moveaxis(window, 1, 0):
            least = values.min(axis=1, keepdims=True)
            spread = values.max(axis=1, keepdims=True) - least
            vectors = ((values - least) / np.maximum(spread, 1e-12)).T
            summed = np.sqrt(((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)).sum(axis=1)
            z = (summed - summed.mean()) / max(float(summed.std()), 1e-12)
            if z.max() > _Z:
                return self._window.nodes[int(np.argmax(z))]
        return None


class Mahalanobis:
    """B7."""

    def __init__(self) -> None:
        self._window, self._continuity = _Window(), _Continuity()

    def on_step(self, step: ClosedStep) -> set[str]:
        """Nodes that are named after a step."""
        window = self._window.take(step)
        farthest = None
        if window is not None and window.shape[1]:
            samples = np.moveaxis(window, 1, 2)  # (steps, nodes, figures)
            means = samples.mean(axis=0)
            # Scatter within nodes: over all nodes, one of eight could not be far away by its own weight.
            within = (samples - means).reshape(-1, samples.shape[2])
            away = means - np.median(means, axis=0)
            square = np.einsum("nf,fg,ng->n", away, np.linalg.pinv(within.T @ within / len(within)), away)
            place = int(np.argmax(square))
            if square[place] > _CHI_SQUARE_999[samples.shape[2] - 1]:
                farthest = self._window.nodes[place]
        return self._continuity.take(farthest, step.event_time_ns)


class LongTermZ:
    """B8."""

    def __init__(self) -> None:
        self._nodes: list[str] = []
        self._steps: deque[tuple[int, NDArray[np.float64]]] = deque()

    def on_step(self, step: ClosedStep) -> set[str]:
        """Nodes that are named after a step."""
        nodes, means = _by_node(step)
        if nodes != self._nodes:
            self._nodes = nodes
            self._steps.clear()
        self._steps.append((step.event_time_ns, means[0]))
        is_full = False
        while step.event_time_ns - self._steps[0][0] >= _LONG_NS:
            is_full = True
            self._steps.popleft()
        mean = np.mean([own for _, own in self._steps], axis=0)
        if not is_full or len(nodes) < 3 or np.isnan(mean).any():
            return set()
        z = (mean - mean.mean()) / max(float(mean.std()), 1e-12)
        return {nodes[place] for place in np.flatnonzero(z > _Z).tolist()}

"""Intervals and survival figures for shares, zero counts, times to detect and paired comparisons.

Textbook formulas with known values behind the tests. Nothing here knows what is being counted. The bootstrap draws from
a seeded generator: same arguments, same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KaplanMeier", "Share", "kaplan_meier", "paired_bootstrap", "rate_upper", "share", "wilson"]

Z95 = 1.959963984540054
"""Two-sided 95 % of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `total` with its Wilson 95 % interval; all null where the total is 0."""

    hits: int
    total: int
    value: float | None
    low: float | None
    high: float | None


def wilson(hits: int, total: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a share.

    Args:
        hits: successes, 0 to total.
        total: trials, at least 1.
        z: quantile of the standard normal distribution; 95 % two-sided by default.

    Raises:
        ValueError: there are no trials, or more hits than trials.
    """
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} of {total} is no share")
    p = hits / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return (0.0 if hits == 0 else centre - half), (1.0 if hits == total else centre + half)


def share(hits: int, total: int) -> Share:
    """A share with its interval; null figures where nothing was counted."""
    if total == 0:
        return Share(hits, total, None, None, None)
    low, high = wilson(hits, total)
    return Share(hits, total, hits / total, low, high)


def rate_upper(events: int, exposure: float) -> float | None:
    """Upper 95 % bound of a rate of rare events: 3 / exposure for none (rule of three), else Poisson by Byar's formula.

    Args:
        events: how many were seen.
        exposure: how long was watched, in the unit that the rate is per; null is returned for 0.
    """
    if exposure <= 0:
        return None
    if events == 0:
        return 3.0 / exposure
    upper = events + 1
    # Byar's approximation of the exact limit; within 1 % from one event on. One-sided 95 %, as the rule of three is.
    return upper * (1 - 1 / (9 * upper) + 1.6448536269514722 / (3 * math.sqrt(upper))) ** 3 / exposure


@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """A survival curve: share not yet detected after each time at which something was detected.

    Attributes:
        times: times of detections, rising.
        surviving: share that is undetected after each of them.
        detected, censored: how many of each.
    """

    times: tuple[float, ...]
    surviving: tuple[float, ...]
    detected: int
    censored: int

    def quantile(self, q: float) -> float | None:
        """Smallest time at which at least a share q is detected; null where misses keep the curve above 1 - q."""
        for time, left in zip(self.times, self.surviving, strict=True):
            if left <= 1 - q + 1e-12:
                return time
        return None


def kaplan_meier(times: Sequence[float], observed: Sequence[bool]) -> KaplanMeier:
    """The product-limit estimate.

    Args:
        times: time to detection, or for a miss the time until which it was watched; any unit.
        observed: true for a detection, false for a miss (censored).

    Raises:
        ValueError: the arguments differ in length.
    """
    if len(times) != len(observed):
        raise ValueError(f"{len(times)} times and {len(observed)} flags")
    # At one time detections come before what is censored: who leaves at t was at risk at t.
    order = sorted(zip(times, (not seen for seen in observed), strict=True))
    at_risk, left = len(order), 1.0
    steps: list[tuple[float, float]] = []
    index = 0
    while index < len(order):
        time = order[index][0]
        same = [missed for t, missed in order[index:] if t == time]
        events = same.count(False)
        if events:
            left *= 1 - events / at_risk
            steps.append((time, left))
        at_risk -= len(same)
        index += len(same)
    detected = sum(observed)
    return KaplanMeier(tuple(t for t, _ in steps), tuple(s for _, s in steps), detected, len(times) - detected)


def paired_bootstrap(
    first: Sequence[float], second: Sequence[float], draws: int = 2000, seed: int = 0
) -> tuple[float, float, float] | None:
    """Mean of first - second over the same units, with its percentile 95 % interval; null without units.

    Args:
        first: figures of one detector, by truth.
        second: figures of another one on the same truths, in the same order.
        draws: resamples.
        seed: of the resampling.

    Raises:
        ValueError: the arguments differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} figures cannot be paired with {len(second)}")
    if not first:
        return None
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(difference), size=(draws, len(difference)))
    means = difference[chosen].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)

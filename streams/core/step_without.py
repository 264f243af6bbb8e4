"""What a step would take without its culprit: by how much everybody else would have to wait less.

Peers who do the same work wait for the culprit where all meet; the one of them that waits least there is the first to
be waited for instead. So the step would be shorter by

    gain = least over the peers of (waiting outside point-to-point) - the culprit's own, between 0 and its excess

A hand-over between stages is left out because a pipeline's bubbles stay. Where waiting is not reported, the longest own
time of the step stands in. An estimate from sums over the step: scatter between microbatches is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streams.core.step_join import ClosedStep

__all__ = ["StepGain", "step_gain"]

_POINT_TO_POINT = frozenset({"pp", "p2p"})


@dataclass(frozen=True, slots=True)
class StepGain:
    """By how much a step would be shorter if one rank kept its peers' pace, and how that was told.

    Attributes:
        gain_us: microseconds, from 0 to `excess_us`.
        excess_us: the rank's own time beyond its peers' median.
        way: `waits`, from what its peers waited; `own_times`, from the next longest own time.
        least_wait_us: least waiting of a peer outside point-to-point; null for `own_times`.
        own_wait_us: the rank's own, likewise.
    """

    gain_us: int
    excess_us: int
    way: Literal["waits", "own_times"]
    least_wait_us: int | None = None
    own_wait_us: int | None = None


def step_gain(
    step: ClosedStep,
    lead: int,
    members: NDArray[np.int64],
    peers: NDArray[np.int64],
    work: NDArray[np.float64] | None = None,
) -> StepGain | None:
    """What one step would gain.

    Args:
        step: the step.
        lead: position of the culprit, or of the slowest of several.
        members: positions of all that are slow as one (a tensor group, a node), `lead` among them.
        peers: positions of those who do the same work; members among them are left out.
        work: per rank, how much more own time its work explains than the peers' (a factor); null for equal work.

    Returns:
        The gain, or None where own times are unknown or there is no peer.
    """
    others = np.setdiff1d(peers, members)
    own = step.own_us
    others = others[~np.isnan(own[others])]
    if not others.size or np.isnan(own[lead]):
        return None
    factor = np.ones(len(own)) if work is None else work
    usual = float(np.median(own[others] / factor[others])) * float(factor[lead])
    excess = max(0.0, float(own[lead]) - usual)
    wait = _wait_at_meetings(step)
    known = others[~np.isnan(wait[others])]
    if known.size and not np.isnan(wait[lead]):
        least = float(wait[known].min())
        gain = min(max(0.0, least - float(wait[lead])), excess)
        return StepGain(round(gain), round(excess), "waits", round(least), round(float(wait[lead])))
    rest = np.setdiff1d(np.flatnonzero(~np.isnan(own)), members)
    next_longest = max(float(own[rest].max()), usual) if rest.size else usual
    gain = min(max(0.0, float(own[lead]) - next_longest), excess)
    return StepGain(round(gain), round(excess), "own_times")


def _wait_at_meetings(step: ClosedStep) -> NDArray[np.float64]:
    """Waiting less point-to-point, per rank; NaN where waiting is unknown."""
    wait = step.columns["wait_us"].copy()
    for name, collective in step.collectives.items():
        if name.lower() in _POINT_TO_POINT or collective.group.lower() in _POINT_TO_POINT:
            wait -= np.nan_to_num(collective.duration_us)
    return np.maximum(wait, 0.0)

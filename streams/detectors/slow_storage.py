"""Slow storage: nearly all ranks of a job wait longer for their data than they did, and for nothing else.

The median `data_us` of all ranks is held against its own slow reference. It is said when the growth costs a share of the
step, when nearly all ranks have it, and when it is most of what the ranks' own time has grown by. One host's loader is the
`straggler` rule's matter. Says it of the job and names no node: what all of them read from is not on any of them. Storage
that was slow from the start is not seen, nor what is loaded ahead and costs no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import are_known
from streams.core.limits import LimitsInForce
from streams.core.medians import median
from streams.core.slow_reference import SlowReference
from streams.core.standing import StandingCondition
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.step_join import ClosedStep

__all__ = ["SlowStorage", "SlowStorageThresholds"]

RULE = "slow_storage"

_STEPS, _QUIET_STEPS = 5, 20


@dataclass(frozen=True, slots=True)
class SlowStorageThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        ratio: median data time over its reference above which it is slow.
        share: share of the step that it must have grown by.
        covered: share of the ranks that must have at least half of that growth.
        of_excess: share of the growth of the median own time that must be data time.
    """

    ratio: float = 1.5
    share: float = 0.02
    covered: float = 0.9
    of_excess: float = 0.5


class SlowStorage:
    """Follows the data time of one epoch of one job."""

    def __init__(self, site_id: str, defaults: SlowStorageThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or SlowStorageThresholds(), RULE)
        self._data = SlowReference()
        self._own = SlowReference()
        self._standing = StandingCondition(_STEPS, _QUIET_STEPS)
        self.excess_us = 0.0
        """By how much the data time of the last step was above its reference; 0 unless slow storage stands."""

    def on_step(self, step: ClosedStep, policy: Policy | None, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order."""
        self.excess_us = 0.0
        limits = self._limits.of(policy)
        data, own, own_median = step.columns["data_us"], step.own_us, step.own_median_us
        if own_median is None:
            return
        if not are_known(data) or step.known_own_us is not own:
            known = ~np.isnan(data) & ~np.isnan(own)
            if not known.any():
                return
            data = data[known]
            own_median = median(own[known])
        data_median = median(data)
        usual_data, usual_own = self._data.value, self._own.value
        is_slow = False
        if usual_data is not None and usual_own is not None:
            is_slow = self._is_slow(step, data, data_median, own_median - usual_own, usual_data, limits)
        edge = self._standing.update(step.event_time_ns, is_slow)
        stands = self._standing.onset_ns is not None
        # What is slow does not become usual while it is being told.
        self._data.take(data_median, frozen=stands or is_slow)
        self._own.take(own_median, frozen=stands or is_slow)
        if stands and usual_data is not None:
            self.excess_us = max(0.0, data_median - usual_data)
        if edge is not None:
            yield self._finding(step, edge[0], edge[1], data_median, usual_data or 0.0, evidence)

    @staticmethod
    def _is_slow(
        step: ClosedStep,
        data: NDArray[np.float64],
        data_median: float,
        own_excess: float,
        usual: float,
        limits: SlowStorageThresholds,
    ) -> bool:
        excess = data_median - usual
        is_long = data_median > limits.ratio * usual and excess > limits.share * (step.step_time_us or own_excess)
        if not is_long or excess < limits.of_excess * own_excess:
            return False
        return bool(np.mean(data > usual + 0.5 * excess) >= limits.covered)

    def _finding(
        self, step: ClosedStep, state: str, onset_ns: int, data_us: float, usual_us: float, evidence: Evidence | None
    ) -> Finding:
        step_us = step.step_time_us
        excess_us = data_us - usual_us
        cost = f" and cost {100 * excess_us / step_us:.3g} % of the step" if step_us else ""
        said = f"all ranks wait {data_us / 1000:.4g} ms for their data, {usual_us / 1000:.4g} ms usually{cost}: storage, no node"
        return self._rule.of_step(
            "storage_slowdown",
            step,
            state=state,
            severity="warning",
            onset_ns=onset_ns,
            explanation=said if state == "open" else "data comes as fast as it did",
            values={
                "data_median_us": round(data_us),
                "reference_us": round(usual_us),
                "excess_us": round(excess_us),
                "step_time_us": step_us,
                "ratio": data_us / usual_us if usual_us > 0 else None,
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "data": self._data.snapshot(),
            "own": self._own.snapshot(),
            "standing": self._standing.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._data.restore(snapshot["data"])
        self._own.restore(snapshot["own"])
        self._standing.restore(snapshot["standing"])

"""Barrier wait: ranks that spend much of the step waiting in collectives. It names nobody, and is never a command.

It fires when the 99th percentile over ranks of the waiting share of the step is above 40 % in 3 recorded steps in a
row. Who waits most is a victim; whom they wait for is the straggler rule's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.limits import LimitsInForce
from streams.core.standing import StandingCondition
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.step_join import ClosedStep

__all__ = ["BarrierWait", "BarrierWaitThresholds", "wait_shares"]

RULE = "barrier_wait"


@dataclass(frozen=True, slots=True)
class BarrierWaitThresholds:
    """Thresholds of the rule.

    Attributes:
        share: waiting share of the step above which it counts (ratio).
    """

    share: float = 0.40


def wait_shares(step: ClosedStep) -> tuple[float, float] | None:
    """Median and 99th percentile over ranks of the waiting share of the step; None where no rank says."""
    return step.wait_shares


class BarrierWait:
    """Follows the waiting of one epoch of one job."""

    def __init__(self, site_id: str, defaults: BarrierWaitThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or BarrierWaitThresholds(), RULE)
        self._standing = StandingCondition(needed=3, quiet=10)

    def on_step(self, step: ClosedStep, policy: Policy | None, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order."""
        shares = wait_shares(step)
        if shares is None:
            return
        limits = self._limits.of(policy)
        median, high = shares
        edge = self._standing.update(step.event_time_ns, high > limits.share)
        if edge is None:
            return
        state, onset_ns = edge
        yield self._rule.of_step(
            "barrier_wait",
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation=f"P99 of waiting in collectives is {100 * high:.0f} % of the step",
            values={
                "wait_share_p99": high,
                "wait_share_p50": median,
                "limit": limits.share,
                "step_time_us": step.step_time_us,
            },
            evidence=evidence,
        )

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return self._standing.snapshot()

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._standing.restore(snapshot)

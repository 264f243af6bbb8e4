"""Uneven work: some ranks are given more tokens than their peers and take longer in proportion, so all others wait.

In a mixture of experts that is a hot expert, and it moves with the data; without experts it is how batches are dealt out.
Reads what `workload_fit` explains by tokens, so work that does not cost time is not said. Advice on routing or batching: no
rank is slow, and none is named. Lengths that vary from rank to rank in every step are `job_pace`'s `length_imbalance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.limits import LimitsInForce
from streams.core.standing import StandingCondition
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep
    from streams.detectors.workload_fit import Explained

__all__ = ["UnevenWork", "UnevenWorkThresholds"]

RULE = "uneven_work"

_STEPS, _QUIET_STEPS = 10, 20
_TOLD_RANKS = 64
_ABOUT_AS_MUCH = 0.9


@dataclass(frozen=True, slots=True)
class UnevenWorkThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        factor: own time that a rank's tokens explain, over that of its peers' median, from which it is said.
    """

    factor: float = 1.05


class UnevenWork:
    """Follows how evenly the ranks of one epoch of one job are given work."""

    def __init__(self, site_id: str, defaults: UnevenWorkThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or UnevenWorkThresholds(), RULE)
        self._standing: dict[str, StandingCondition] = {
            kind: StandingCondition(_STEPS, _QUIET_STEPS) for kind in ("expert_imbalance", "token_imbalance")
        }

    def on_step(
        self,
        step: ClosedStep,
        roster: JobRoster,
        explained: Explained | None,
        policy: Policy | None,
        evidence: Evidence | None = None,
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order.

        Args:
            step: the step.
            roster: whether the job has experts.
            explained: what the step's work explains, as `Straggler.explained` has it.
            policy: the site's.
            evidence: where the step is.
        """
        limits = self._limits.of(policy)
        largest = float(explained.tokens_factor.max()) if explained is not None else 1.0
        has_experts = roster.job is not None and roster.job.layout.expert > 1
        for kind, standing in self._standing.items():
            is_its = has_experts == (kind == "expert_imbalance")
            edge = standing.update(step.event_time_ns, is_its and largest >= limits.factor)
            if edge is not None:
                factors = explained.tokens_factor if explained is not None else np.ones(len(step.rank))
                yield self._finding(kind, step, edge, factors, evidence)

    def _finding(
        self,
        kind: str,
        step: ClosedStep,
        edge: tuple[str, int],
        factors: NDArray[np.float64],
        evidence: Evidence | None,
    ) -> Finding:
        state, onset_ns = edge
        largest = float(factors.max())
        given = step.rank[factors - 1.0 >= _ABOUT_AS_MUCH * (largest - 1.0)].tolist() if largest > 1.0 else []
        lead = int(np.argmax(factors))
        own_us, step_us = step.own_us[lead], step.step_time_us
        lost_us = round(float(own_us) * (1.0 - 1.0 / largest)) if own_us > 0 else None
        whose = "experts get" if kind == "expert_imbalance" else "batches have"
        said = (
            f"the {whose} so many tokens on {len(given)} ranks that their own time is {largest:.3g} times their peers': "
            f"advice on {'routing' if kind == 'expert_imbalance' else 'batching'}, no rank is slow"
        )
        return self._rule.of_step(
            kind,
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation=said if state == "open" else "work is dealt out evenly again",
            values={
                "largest_factor": largest,
                "ranks": given[:_TOLD_RANKS],
                "given_more": len(given),
                "lost_us": lost_us,
                "lost_share": lost_us / step_us if lost_us is not None and step_us else None,
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {kind: standing.snapshot() for kind, standing in self._standing.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        for kind, standing in self._standing.items():
            standing.restore(snapshot[kind])

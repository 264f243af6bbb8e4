"""Scattered pauses: now one rank stops for a moment, now another, and each time all others wait for it.

It is what garbage collection looks like when every rank collects on its own: no rank is slow, and yet the job loses time in
many steps. Advice to let all ranks collect in the same step. A pause is one long step of a rank that had none in the four
steps before and does not stand as a straggler, most of it in host time. Names nobody; where host time is not reported
nothing is said.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import known_of
from streams.core.limits import LimitsInForce
from streams.core.medians import median
from streams.core.statement import Rule
from streams.detectors.work_peers import work_peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = ["ScatteredPauses", "ScatteredPausesThresholds"]

RULE = "scattered_pauses"

_WINDOW = 64
"""Recorded steps that are looked back on, and that must be quieter before it is over."""
_KEPT_A_STEP = 8
"""So many pauses of a step are kept, those of the longest."""


@dataclass(frozen=True, slots=True)
class ScatteredPausesThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        share: share of the last 64 recorded steps with a pause from which it is said.
        quiet_share: below this share for 64 recorded steps it is over.
        least_ranks: so many ranks must have paused.
        most_of_one: no rank may have more than this share of the pauses.
        host_share: share of a pause's excess that must be host time.
    """

    share: float = 0.25
    quiet_share: float = 0.125
    least_ranks: int = 5
    most_of_one: float = 0.25
    host_share: float = 0.5


class ScatteredPauses:
    """Follows the pauses of one epoch of one job."""

    def __init__(self, site_id: str, defaults: ScatteredPausesThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or ScatteredPausesThresholds(), RULE)
        self._steps: deque[tuple[int, list[int], int, int]] = deque(maxlen=_WINDOW)
        """Time, ranks that paused, longest excess and step time of each of the last steps."""
        self._paused = 0
        """In how many of them some rank paused."""
        self._onset_ns: int | None = None
        self._quiet = 0

    def on_step(
        self,
        step: ClosedStep,
        roster: JobRoster,
        pauses: NDArray[np.int64],
        policy: Policy | None,
        evidence: Evidence | None = None,
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order.

        Args:
            step: the step.
            roster: who does the same work as whom.
            pauses: positions in it of ranks with one long step, as `Straggler.pauses` has them.
            policy: the site's.
            evidence: where the step is.
        """
        limits = self._limits.of(policy)
        excess = self._of_host(step, roster, pauses, limits) if pauses.size else []
        if len(self._steps) == _WINDOW and self._steps[0][1]:
            self._paused -= 1
        self._steps.append(
            (
                step.event_time_ns,
                [rank for _, rank in excess],
                max((us for us, _ in excess), default=0),
                step.step_time_us or 0,
            )
        )
        if excess:
            self._paused += 1
        if self._onset_ns is None:
            if self._paused < limits.share * _WINDOW:
                return
            paused = self._steps_with_pauses()
            if not self._are_scattered(paused, limits):
                return
            self._onset_ns, self._quiet = paused[0][0], 0
            yield self._finding(step, "open", self._onset_ns, paused, evidence)
            return
        self._quiet = self._quiet + 1 if self._paused < limits.quiet_share * _WINDOW else 0
        if self._quiet >= _WINDOW:
            onset_ns, self._onset_ns = self._onset_ns, None
            yield self._finding(step, "cleared", onset_ns, self._steps_with_pauses(), evidence)

    def _steps_with_pauses(self) -> list[tuple[int, list[int], int, int]]:
        return [entry for entry in self._steps if entry[1]]

    @staticmethod
    def _of_host(
        step: ClosedStep, roster: JobRoster, pauses: NDArray[np.int64], limits: ScatteredPausesThresholds
    ) -> list[tuple[int, int]]:
        """(excess in microseconds, rank) of the pauses that lie in host time, the longest first, as many as are kept."""
        host, own = step.columns["host_us"], step.own_us
        pausing = np.zeros(len(own), dtype=np.bool_)
        pausing[pauses] = True
        found: list[tuple[int, int]] = []
        for group in work_peers(step, roster):
            theirs = group[pausing[group]]
            if not theirs.size:
                continue
            told, owns = known_of(host[group]), known_of(own[group])
            if not told.size:
                continue
            usual_host, usual_own = median(told), median(owns)
            for position in theirs.tolist():
                excess = own[position] - usual_own
                # NaN compares as false.
                if excess > 0 and host[position] - usual_host > limits.host_share * excess:
                    found.append((int(excess), int(step.rank[position])))
        return sorted(found, key=lambda pause: (-pause[0], pause[1]))[:_KEPT_A_STEP]

    @staticmethod
    def _are_scattered(paused: list[tuple[int, list[int], int, int]], limits: ScatteredPausesThresholds) -> bool:
        counts = Counter(rank for entry in paused for rank in entry[1])
        return len(counts) >= limits.least_ranks and max(counts.values()) <= limits.most_of_one * counts.total()

    def _finding(
        self,
        step: ClosedStep,
        state: str,
        onset_ns: int,
        paused: list[tuple[int, list[int], int, int]],
        evidence: Evidence | None,
    ) -> Finding:
        lost_us = sum(entry[2] for entry in paused)
        total_us = sum(entry[3] for entry in self._steps)
        share, ranks = len(paused) / len(self._steps), {rank for entry in paused for rank in entry[1]}
        lost_share = lost_us / total_us if total_us else None
        said = (
            f"in {100 * share:.0f} % of the steps one of {len(ranks)} ranks pauses in host time and all wait for it: "
            "let all collect garbage in the same step"
        )
        return self._rule.of_step(
            "scattered_pauses",
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation=said if state == "open" else "pauses have become rare",
            values={
                "share_of_steps": share,
                "distinct_ranks": len(ranks),
                "mean_excess_us": round(lost_us / len(paused)) if paused else None,
                "lost_us_per_step": round(lost_us / len(self._steps)),
                "lost_share": lost_share,
                "recorded_steps": len(self._steps),
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "steps": [[at, list(ranks), excess, step_us] for at, ranks, excess, step_us in self._steps],
            "onset_ns": self._onset_ns,
            "quiet": self._quiet,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        steps = ((at, list(ranks), excess, step_us) for at, ranks, excess, step_us in snapshot["steps"])
        self._steps = deque(steps, maxlen=_WINDOW)
        self._paused = len(self._steps_with_pauses())
        self._onset_ns = snapshot["onset_ns"]
        self._quiet = snapshot["quiet"]

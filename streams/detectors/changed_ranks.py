"""Which ranks of a job have become slower than they were, each held against its own past.

Against peers a rank is told by the `straggler` rule. When more than half of the peers change (a rack, a zone), their median
changes with them and nobody is told; the ranks' own references still know who changed. Says it of the job and blames
nobody: what the ranks have in common is for others to find out. Nothing is said when nearly all have changed, when the
ranks do not fall into two clear parts, or when those that changed are given more tokens than the others. An epoch starts
anew, since its ranks are numbered anew. 12 bytes a rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.known import are_positive
from streams.core.limits import LimitsInForce
from streams.core.medians import median
from streams.core.rank_marks import marked
from streams.core.slow_reference import FOLLOW, REFERENCE_STEPS
from streams.core.standing import StandingCondition
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.step_join import ClosedStep

__all__ = ["ChangedRanks", "ChangedRanksThresholds"]

RULE = "changed_ranks"

_SMOOTH = 0.5
"""Share of the way to the present ratio that the smoothed one goes each step."""
_SMOOTHED_SCALE = math.sqrt(_SMOOTH / (2.0 - _SMOOTH))
"""Noise of the smoothed ratio, in noise of one step's."""
_MIN_SCALE = 0.005
_STEPS, _QUIET_STEPS = 10, 20
_TOLD_RANKS = 4096


@dataclass(frozen=True, slots=True)
class ChangedRanksThresholds:
    """Thresholds of the rule; sources in docs/rules.md.

    Attributes:
        ratio: own time over its reference above which a rank has changed.
        others_ratio: the median of all others must be below this.
        scales: how many noise scales must lie between the lowest changed rank and the highest other one.
        least_ranks: fewer are stragglers, or noise.
        most_share: from this share of all ranks on it is the job that has changed.
    """

    ratio: float = 1.05
    others_ratio: float = 1.02
    scales: float = 6.0
    least_ranks: int = 3
    most_share: float = 0.95


class ChangedRanks:
    """Follows the ranks of one epoch of one job against their own past."""

    def __init__(self, site_id: str, defaults: ChangedRanksThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or ChangedRanksThresholds(), RULE)
        self._standing = StandingCondition(_STEPS, _QUIET_STEPS)
        self._rank: NDArray[np.int64] = np.array([], dtype=np.int64)
        self._seen: NDArray[np.int32] = np.array([], dtype=np.int32)
        self._reference: NDArray[np.float32] = np.array([], dtype=np.float32)
        self._pace: NDArray[np.float32] = np.array([], dtype=np.float32)
        self._rows: NDArray[np.int64] = np.array([], dtype=np.int64)
        """Of all ranks."""
        self._are_learnt = False
        """Whether every rank has its reference; found again after a restart."""

    def on_step(
        self,
        step: ClosedStep,
        noise_scale: float,
        named: frozenset[int],
        is_job_slow: bool,
        policy: Policy | None,
        evidence: Evidence | None = None,
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order.

        Args:
            step: the step.
            noise_scale: noise of own time between peers, as a natural logarithm.
            named: ranks that stand as stragglers: their references stand still.
            is_job_slow: whether a slowdown of the whole job stands: all references stand still.
            policy: the site's.
            evidence: where the step is.
        """
        limits = self._limits.of(policy)
        at, own = self._admit(step.rank), step.own_us
        if not are_positive(own):
            known = own > 0
            at, own = at[known], own[known]
        rows, learnt_own = at, own
        if not self._are_learnt:
            is_learnt = self._seen[at] >= REFERENCE_STEPS
            rows, learnt_own = at[is_learnt], own[is_learnt]
        places = self._places(rows)
        self._pace[places] += _SMOOTH * (learnt_own / self._reference[places] - self._pace[places])
        changed = self._changed(rows, noise_scale, limits)
        if changed is not None and self._given_more(step, self._rank[rows], changed):
            changed = None
        edge = self._standing.update(step.event_time_ns, changed is not None)
        self._follow(at, own, rows, learnt_own, changed, named, is_job_slow)
        if edge is None:
            return
        yield self._finding(step, edge[0], edge[1], rows, changed, evidence)

    def _admit(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of these ranks, new ones admitted."""
        if rank is self._rank:
            return self._rows
        if np.array_equal(self._rank, rank):
            # Nearly always the next step has this very array.
            self._rank = rank
        else:
            merged = np.union1d(self._rank, rank)
            if len(merged) > len(self._rank):
                place = np.searchsorted(merged, self._rank)
                for name in ("_seen", "_reference", "_pace"):
                    old = getattr(self, name)
                    grown = np.zeros(len(merged), dtype=old.dtype)
                    grown[place] = old
                    setattr(self, name, grown)
                self._rank, self._are_learnt = merged, False
        if self._rows.size != self._rank.size:
            self._rows = np.arange(self._rank.size)
        return self._rows if rank.size == self._rank.size else self._rank.searchsorted(rank)

    def _places(self, rows: NDArray[np.int64]) -> Any:
        """Rows as an index: a slice where they are all, which is a view and not a copy each time."""
        return slice(None) if rows is self._rows else rows

    def _changed(
        self, rows: NDArray[np.int64], noise_scale: float, limits: ChangedRanksThresholds
    ) -> NDArray[np.bool_] | None:
        """Which of the rows have changed, if they are some of them, clearly apart from the others."""
        pace = self._pace[self._places(rows)]
        changed: NDArray[np.bool_] = pace > limits.ratio
        count = int(np.count_nonzero(changed))
        if count < limits.least_ranks or count >= min(limits.most_share * len(rows), len(rows)):
            return None
        others = pace[~changed]
        gap = limits.scales * max(noise_scale, _MIN_SCALE) * _SMOOTHED_SCALE
        if median(others) >= limits.others_ratio or float(pace[changed].min()) < float(others.max()) + gap:
            return None
        return changed

    @staticmethod
    def _given_more(step: ClosedStep, ranks: NDArray[np.int64], changed: NDArray[np.bool_]) -> bool:
        """Whether those that changed have more tokens than the others in this step: then their work has changed."""
        tokens = step.columns["tokens"][np.searchsorted(step.rank, ranks)]
        theirs, others = tokens[changed], tokens[~changed]
        if np.isnan(theirs).any() or np.isnan(others).any():
            return False
        return median(theirs) > 1.02 * median(others)

    def _follow(
        self,
        at: NDArray[np.int64],
        own: NDArray[np.float64],
        rows: NDArray[np.int64],
        learnt_own: NDArray[np.float64],
        changed: NDArray[np.bool_] | None,
        named: frozenset[int],
        is_job_slow: bool,
    ) -> None:
        if not self._are_learnt:
            learning = self._seen[at] < REFERENCE_STEPS
            new, first_own = at[learning], own[learning]
            self._seen[new] += 1
            self._reference[new] += (first_own - self._reference[new]) / self._seen[new]
            self._pace[new] = 1.0
            self._are_learnt = bool((self._seen >= REFERENCE_STEPS).all())
        if is_job_slow or self._standing.onset_ns is not None:
            return
        if changed is not None or named:
            follows = np.ones(len(rows), dtype=np.bool_) if changed is None else ~changed
            if named:
                follows &= ~marked(self._rank, named)[self._places(rows)]
            rows, learnt_own = rows[follows], learnt_own[follows]
        places = self._places(rows)
        self._reference[places] += FOLLOW * (learnt_own - self._reference[places])

    def _finding(
        self,
        step: ClosedStep,
        state: str,
        onset_ns: int,
        rows: NDArray[np.int64],
        changed: NDArray[np.bool_] | None,
        evidence: Evidence | None,
    ) -> Finding:
        values: dict[str, Any] = {"of": len(rows)}
        explanation = "no rank is slower than it was"
        if changed is not None:
            ranks = self._rank[rows[changed]].tolist()
            ratio = median(self._pace[rows[changed]])
            values |= {"ranks": ranks[:_TOLD_RANKS], "changed": len(ranks), "ratio": ratio}
            explanation = (
                f"{len(ranks)} of {len(rows)} ranks take {ratio:.3g} times as long as they did, the others do not"
            )
        return self._rule.of_step(
            "changed_ranks",
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation=explanation,
            values=values,
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data and arrays that nobody else changes, as `restore` takes them."""
        return {
            "standing": self._standing.snapshot(),
            "rank": self._rank.astype(np.int32),
            "seen": self._seen.astype(np.uint8),
            "reference": self._reference.copy(),
            "pace": self._pace.copy(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._standing.restore(snapshot["standing"])
        self._are_learnt = False
        self._rank = np.array(snapshot["rank"], dtype=np.int64)
        self._seen = np.array(snapshot["seen"], dtype=np.int32)
        self._reference = np.array(snapshot["reference"], dtype=np.float32)
        self._pace = np.array(snapshot["pace"], dtype=np.float32)

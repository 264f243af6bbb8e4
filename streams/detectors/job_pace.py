"""Slowness that blames no rank: of the whole job, of a stage, of the data's lengths; missing ranks.

- `job_slowdown`: the median own time of all ranks is 3 % above the job's own reference for 10 recorded steps; of a job
  that is less steady 3 times what it moves by from step to step, 5 % at most.
- `stage_imbalance`: the median own time of one stage is 10 % above that of the others for 10 steps: partition advice.
- `length_imbalance`: the longest own time moves from rank to rank (entropy above 0.8 of the greatest) and the noise
  between peers is above 5 %: the data is uneven, no rank is slow.
- `missing_ranks`: expected ranks did not report a step. They are counted, and not called dead.

The reference is the median of the first 20 recorded steps, and follows at 1 % a step while nothing stands. Transfers are
`slow_network`'s matter, who of the ranks has changed is `changed_ranks`'.
"""

from __future__ import annotations

import statistics
from collections import deque
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.findings import Subject
from streams.core.known import known_of
from streams.core.medians import median, row_medians
from streams.core.peers import PeerGroups
from streams.core.slow_reference import SlowReference
from streams.core.standing import StandingCondition
from streams.core.statement import Rule
from streams.core.thresholds import is_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.edges import Edge
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = ["JobPace", "MissingRanks"]

RULE = "job_pace"
MISSING = "missing_ranks"

_JOB_SLOW = 1.03
_JOB_SLOW_UNSTEADY = 1.05
"""A power cap that costs 5 % of compute costs less of own time, which has the host's part in it. The median of all ranks of
a job of fixed lengths moves by 0.5 % from step to step in public traces, and by 2.3 % where it is least steady."""
_JOB_SCALES = 3.0
_WOBBLE_MEMORY = 32
_STEP_OVER_SIGMA = 1.128
"""Mean distance of two independent normal values in sigmas."""

_STAGE_HEAVY = 1.10
_LENGTH_NOISE = 0.05
_LENGTH_ENTROPY = 0.8
_ENTROPY_STEPS = 32


class JobPace:
    """Follows the pace of one epoch of one job as a whole."""

    def __init__(self, site_id: str) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._own = SlowReference()
        self._wobble = 0.0
        self._moves = 0
        self._last_own = 0.0
        self._conditions = {
            "job_slowdown": StandingCondition(10, 20),
            "stage_imbalance": StandingCondition(10, 20),
            "length_imbalance": StandingCondition(10, 20),
        }
        self._longest: deque[int] = deque(maxlen=_ENTROPY_STEPS)

    def on_step(
        self,
        step: ClosedStep,
        roster: JobRoster,
        noise_scale: float,
        evidence: Evidence | None = None,
        explained_us: float = 0.0,
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order.

        Args:
            step: the step.
            roster: stages of ranks.
            noise_scale: noise of own time between peers.
            evidence: where the step is.
            explained_us: own time of all ranks that another finding accounts for, such as slow storage.
        """
        own_median = step.own_median_us
        if own_median is None:
            return
        own_median = max(own_median - explained_us, 0.0)
        own_ratio = self._own.take(own_median, self.is_job_slow)
        limit = self._job_limit(own_median)
        edge = self._edge(step, "job_slowdown", own_ratio is not None and own_ratio > limit)
        if edge is not None:
            yield self._finding(
                step,
                "job_slowdown",
                edge,
                f"own time of the whole job is {own_ratio or 0:.3g} times its reference: power, heat or code, not one rank",
                {"own_ratio": own_ratio, "own_median_us": int(own_median), "limit_ratio": limit},
                evidence,
            )
        yield from self._stages(step, roster, evidence)
        yield from self._lengths(step, noise_scale, evidence)

    def _job_limit(self, own_median: float) -> float:
        """The ratio above which a step of this job is slow: what the job moves by from step to step has to be small."""
        if self._last_own > 0 and own_median > 0:
            moved = abs(log(own_median / self._last_own)) / _STEP_OVER_SIGMA
            self._moves = min(self._moves + 1, _WOBBLE_MEMORY)
            self._wobble += (moved - self._wobble) / self._moves
        self._last_own = own_median
        return min(max(_JOB_SLOW, 1.0 + _JOB_SCALES * self._wobble), _JOB_SLOW_UNSTEADY)

    @property
    def is_job_slow(self) -> bool:
        """Whether a slowdown of the whole job stands."""
        return self._conditions["job_slowdown"].onset_ns is not None

    def _stages(self, step: ClosedStep, roster: JobRoster, evidence: Evidence | None) -> Iterator[Finding]:
        medians = _stage_medians(step, roster)
        if len(medians) < 2:
            return
        heaviest = max(sorted(medians), key=medians.__getitem__)
        others = statistics.median(value for stage, value in medians.items() if stage != heaviest)
        ratio = medians[heaviest] / others if others > 0 else None
        edge = self._edge(step, "stage_imbalance", ratio is not None and ratio > _STAGE_HEAVY)
        if edge is not None:
            yield self._finding(
                step,
                "stage_imbalance",
                edge,
                f"stage {heaviest} takes {ratio or 0:.3g} times the others' own time: advice on the partition, no rank is slow",
                {"stage": heaviest, "stage_ratio": ratio},
                evidence,
                stage=heaviest,
            )

    def _lengths(self, step: ClosedStep, noise_scale: float, evidence: Evidence | None) -> Iterator[Finding]:
        own = step.own_us
        longest = own.argmax() if step.known_own_us is own else np.nanargmax(own)
        self._longest.append(int(step.rank[int(longest)]))
        entropy = None
        # Where the noise is low and nothing stands, nothing can open or be cleared.
        may_change = noise_scale > _LENGTH_NOISE or self._conditions["length_imbalance"].onset_ns is not None
        if may_change and len(self._longest) >= 10:
            _, counts = np.unique(np.array(self._longest), return_counts=True)
            shares = counts / counts.sum()
            greatest = np.log(min(len(self._longest), len(step.rank)))
            entropy = float(-(shares * np.log(shares)).sum() / greatest) if greatest > 0 else None
        is_uneven = entropy is not None and entropy > _LENGTH_ENTROPY and noise_scale > _LENGTH_NOISE
        edge = self._edge(step, "length_imbalance", is_uneven)
        if edge is not None:
            yield self._finding(
                step,
                "length_imbalance",
                edge,
                "the longest own time moves from rank to rank: the lengths of the data are uneven",
                {"entropy_share": entropy, "noise_scale": noise_scale},
                evidence,
            )

    def _edge(self, step: ClosedStep, kind: str, holds: bool) -> tuple[Edge, int] | None:
        return self._conditions[kind].update(step.event_time_ns, holds)

    def _finding(
        self,
        step: ClosedStep,
        kind: str,
        edge: tuple[Edge, int],
        explanation: str,
        values: dict[str, Any],
        evidence: Evidence | None,
        stage: int | None = None,
    ) -> Finding:
        state, onset_ns = edge
        return self._rule.of_step(
            kind,
            step,
            subject=Subject(level="stage", job_id=step.job_id, stage=stage) if kind == "stage_imbalance" else None,
            state=state,
            severity="warning" if kind == "job_slowdown" else "info",
            onset_ns=onset_ns,
            explanation=explanation if state == "open" else f"{kind.replace('_', ' ')} is over",
            values=values,
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "own": self._own.snapshot(),
            "wobble": [self._wobble, self._moves, self._last_own],
            "conditions": {kind: condition.snapshot() for kind, condition in sorted(self._conditions.items())},
            "longest": list(self._longest),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._own.restore(snapshot["own"])
        self._wobble, self._moves, self._last_own = snapshot.get("wobble", (0.0, 0, 0.0))
        for kind, value in snapshot["conditions"].items():
            self._conditions[kind].restore(value)
        self._longest = deque(snapshot["longest"], maxlen=_ENTROPY_STEPS)


def _stage_medians(step: ClosedStep, roster: JobRoster) -> dict[int, float]:
    """Median own time of each pipeline stage of which one is known, in the order of stages."""
    stages, groups = roster.derived("stages", step.rank, _stages_of)
    if len(stages) < 2:
        return {}
    own = step.own_us
    rows = groups.rows(own) if step.known_own_us is own else None
    if rows is not None:
        return dict(zip(stages, row_medians(rows).tolist(), strict=True))
    medians = {}
    for stage, positions in zip(stages, groups, strict=True):
        known = known_of(own[positions])
        if known.size:
            medians[stage] = median(known)
    return medians


def _stages_of(ranks: NDArray[np.int64], roster: JobRoster) -> tuple[list[int], PeerGroups]:
    """Pipeline stages in their order, and the positions of the ranks of each, those of unknown stage left out."""
    positions: dict[int, list[int]] = {}
    for position, rank in enumerate(ranks.tolist()):
        seat = roster.seats.get(rank)
        stage = seat.stage if seat is not None else roster.stage_of(rank)
        if stage is not None and stage >= 0:
            positions.setdefault(stage, []).append(position)
    stages = sorted(positions)
    return stages, PeerGroups(np.array(positions[stage], dtype=np.int64) for stage in stages)


class MissingRanks:
    """Says when expected ranks stay away from steps, once, and when all report again."""

    def __init__(self, site_id: str) -> None:
        self._rule = Rule(MISSING, 1, site_id)
        self._standing = StandingCondition(needed=1, quiet=3)

    def on_step(self, step: ClosedStep, policy: Policy | None, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one closed step, masked phases included."""
        if not is_enabled(policy, MISSING):
            return
        absent = step.expected - len(step.rank)
        edge = self._standing.update(step.event_time_ns, absent > 0)
        if edge is None:
            return
        state, onset_ns = edge
        yield self._rule.of_step(
            "missing_ranks",
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation=f"{absent} of {step.expected} ranks did not report the step"
            if state == "open"
            else "all ranks report again",
            values={"missing": absent, "expected": step.expected, "first_missing": list(step.missing[:16])},
            evidence=evidence,
        )

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return self._standing.snapshot()

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._standing.restore(snapshot)

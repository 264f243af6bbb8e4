"""The last recorded steps of one job, with the straggler rule's own figures for each: kept while a job is replayed.

The same pure functions as the rule's make the figures, so what is shown is what decided. At most 64 steps are kept, as
many as the rule remembers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from paceline.explanation.model import JobStepRow, PeerComparison, PeerRow, Persistence, RankStepRow
from streams.core.collectives import transfers
from streams.core.peers import log_ratio_to_peers
from streams.core.thresholds import thresholds_for
from streams.detectors.pace_charts import PaceCharts, StragglerThresholds
from streams.detectors.work_peers import work_peers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schemas.findings import Finding
    from schemas.fleet import Policy
    from schemas.results import StepResult
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep
    from streams.detectors.workload_fit import Explained

__all__ = ["KeptStep", "StepHistory", "compare", "members_of"]

_KEPT = 64
_MEMORY = 16
_JOB_ROWS = 24


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One closed step with the rule's figures: score and noise as the rule had them when it judged the step.

    `work` is by how much more time each rank's work explains than its peers' (a factor, 1 for equal work).
    """

    step: ClosedStep
    result: StepResult | None
    work: NDArray[np.float64]
    log_ratio: NDArray[np.float64]
    mean: NDArray[np.float64]
    noise_scale: float
    limit: float


@dataclass(slots=True)
class StepHistory:
    """Steps of one epoch of one job, in step order."""

    kept: deque[KeptStep] = field(default_factory=lambda: deque(maxlen=_KEPT))
    limits: StragglerThresholds = field(default_factory=StragglerThresholds)
    _charts: PaceCharts = field(default_factory=lambda: PaceCharts.empty(np.array([], dtype=np.int64)))

    def take(
        self,
        step: ClosedStep,
        result: StepResult | None,
        roster: JobRoster,
        policy: Policy | None,
        explained: Explained | None = None,
    ) -> None:
        """Note a step; of masked phases no figures are made, since no rule looks at them.

        Args:
            step: the step.
            result: what was published of it.
            roster: who does the same work.
            policy: thresholds.
            explained: what the rule says that its ranks' work explains.
        """
        work = np.ones(len(step.rank))
        if step.phase != "train":
            unknown = np.full(len(step.rank), np.nan)
            self.kept.append(KeptStep(step, result, work, unknown, unknown, 0.0, 0.0))
            return
        if explained is not None and len(explained.factor) == len(work):
            work = explained.factor
        self.limits = limits = thresholds_for(StragglerThresholds(), policy, "straggler")
        self._charts = charts = self._charts.admit(step.rank)
        at = charts.places(step.rank)
        log_ratio = log_ratio_to_peers(step.own_us / work, work_peers(step, roster))
        noise_scale, _ = charts.fold(at, log_ratio, limits)
        limit = limits.limit(noise_scale)
        self.kept.append(KeptStep(step, result, work, log_ratio, charts.mean[at].copy(), noise_scale, limit))

    def changes(self) -> dict[int, float]:
        """By rank, the running mean of the change of its score; of ranks that were seen more than once."""
        charts = self._charts
        seen = charts.steps > 1
        return dict(zip(charts.rank[seen].tolist(), charts.change[seen].tolist(), strict=True))

    def persistence(self, rank: int, chart: str) -> Persistence:
        """The steps that a chart of the rule counts, for one rank."""
        limits = self.limits
        steps, needed = {
            "fast": (limits.fast_steps, f"at least {limits.fast_hits} of the last {limits.fast_steps} are hits"),
            "burst": (limits.burst_steps, f"at least {limits.burst_hits} of the last {limits.burst_steps} are hits"),
            "slow": (
                _MEMORY,
                f"running mean above the limit of the slow chart, over at least {limits.slow_steps} steps",
            ),
        }.get(chart, (limits.fast_steps, chart))
        trained = [kept for kept in self.kept if kept.step.phase == "train"][-steps:]
        rows = tuple(_rank_row(kept, rank) for kept in trained)
        return Persistence(chart, needed, sum(row.is_hit for row in rows), len(rows), rows)

    def job_rows(self, finding: Finding) -> tuple[JobStepRow, ...]:
        """The last steps as a whole, with the transfers of the communicators that a finding names."""
        named = finding.values.get("slow_instances")
        instances = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        return tuple(_job_row(kept, instances[:8]) for kept in list(self.kept)[-_JOB_ROWS:])


def members_of(finding: Finding) -> tuple[int, ...]:
    """The ranks that a finding names."""
    if finding.subject.ranks is not None:
        return finding.subject.ranks
    return (finding.subject.rank,) if finding.subject.rank is not None else ()


def compare(history: StepHistory, finding: Finding, roster: JobRoster) -> tuple[PeerComparison, int] | None:
    """Whom the subject was held against in the last step, and its position in it; of several ranks the slowest is judged.

    Returns:
        None where no rank of the finding reported the step or none has a peer.
    """
    kept = history.kept[-1]
    step = kept.step
    positions = np.flatnonzero(np.isin(step.rank, members_of(finding)))
    known = positions[~np.isnan(kept.log_ratio[positions])]
    if not known.size:
        return None
    lead = max(known.tolist(), key=lambda position: (kept.log_ratio[position], -position))
    peers = next(group for group in work_peers(step, roster) if lead in group)
    others = (step.own_us / kept.work)[peers[peers != lead]]
    others = others[others > 0]
    median = float(np.median(others))
    rank = int(step.rank[lead])
    seat = roster.seats.get(rank)
    comparison = PeerComparison(
        key={
            "stage": seat.stage if seat is not None else roster.stage_of(rank),
            "part": seat.sku if seat is not None else None,
            "role": seat.role if seat is not None else None,
        },
        rank=rank,
        rows=tuple(_peer_row(kept, position, set(positions.tolist())) for position in peers.tolist()),
        own_us=int(step.own_us[lead]),
        work=float(kept.work[lead]),
        peer_median_us=median,
        peer_mad_us=float(np.median(np.abs(others - median))),
        ratio=float(step.own_us[lead]) / float(kept.work[lead]) / median,
        log_ratio=float(kept.log_ratio[lead]),
        noise_scale=kept.noise_scale,
        changes=history.changes(),
        limit=kept.limit,
    )
    return comparison, lead


def _peer_row(kept: KeptStep, position: int, subjects: set[int]) -> PeerRow:
    step = kept.step
    return PeerRow(
        int(step.rank[position]),
        step.node_id[position],
        _whole(step.own_us[position]),
        _whole(step.columns["wait_us"][position]),
        float(kept.work[position]),
        position in subjects,
    )


def _rank_row(kept: KeptStep, rank: int) -> RankStepRow:
    step = kept.step
    here = np.flatnonzero(step.rank == rank)
    own = log_ratio = mean = work = None
    if here.size:
        work = float(kept.work[here[0]])
        own = _whole(step.own_us[here[0]])
        log_ratio = _known(kept.log_ratio[here[0]])
        mean = _known(kept.mean[here[0]])
    return RankStepRow(
        step.step,
        step.event_time_ns,
        step.first_offset,
        own,
        work,
        own / work / float(np.exp(log_ratio)) if own is not None and work and log_ratio is not None else None,
        log_ratio,
        kept.noise_scale,
        kept.limit,
        log_ratio is not None and log_ratio > kept.limit,
        mean,
        step.step_time_us,
    )


def _job_row(kept: KeptStep, instances: list[str]) -> JobStepRow:
    step, result = kept.step, kept.result
    found: dict[str, int] = {}
    for group, collective in step.collectives.items():
        numbers, shortest, _ = transfers(collective)
        for number, duration in zip(numbers.tolist(), shortest.tolist(), strict=True):
            name = f"{group}/{collective.name_of(number)}"
            if name in instances:
                found[name] = round(duration)
    return JobStepRow(
        step.step,
        step.event_time_ns,
        step.first_offset,
        step.phase,
        len(step.rank),
        step.expected,
        step.step_time_us,
        result.own_median_us if result is not None else None,
        result.own_max_us if result is not None else None,
        result.own_max_rank if result is not None else None,
        result.wait_share_p50 if result is not None else None,
        result.wait_share_p99 if result is not None else None,
        result.mfu if result is not None else None,
        found or None,
    )


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else int(value)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

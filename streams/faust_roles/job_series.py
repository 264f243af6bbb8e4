"""What the metrics page says of jobs: figures of the last closed step, and for how many steps they have been bad.

Bounded: the `MAX_JOBS` jobs that closed a step last have series. Those of a job that is registered as ended, or that has
closed no step for `SILENT_S`, are taken off, because a figure that no longer changes is no longer true. Only steps of
phase `train` count. The limits of "bad" are those of the rules, with the site's policy and the job's own target; whether
something is said about it is the rules' business.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from streams.core.thresholds import thresholds_for
from streams.detectors.barrier_wait import BarrierWaitThresholds
from streams.detectors.mfu import LowMfuThresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from schemas.results import StepResult
    from streams.core.roster import Roster

__all__ = ["MAX_JOBS", "SILENT_S", "WAIT_BUCKETS_MS", "JobSeries"]

MAX_JOBS = 256
"""Jobs with series in one worker at most."""

SILENT_S = 900.0
"""A job that closed no step for this long has no series. Longer than a checkpoint or a slow step."""

WAIT_BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 60_000.0)
"""Upper bounds of `nccl_allreduce_wait_ms`: from a fabric's own jitter to a step of a minute."""


@dataclass(slots=True)
class _Job:
    epoch: int
    stepped_at: float = 0.0
    mfu: float | None = None
    hfu: float | None = None
    wait_share_p50: float | None = None
    wait_share_p99: float | None = None
    step_time_s: float | None = None
    low_mfu_steps: int = 0
    high_wait_steps: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BUCKETS_MS) + 1))
    wait_sum_ms: float = 0.0


_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("calculated_cluster_mfu", "mfu", "Model FLOP utilisation of the last train step, 0..1."),
    ("calculated_cluster_hfu", "hfu", "Hardware FLOP utilisation of the last train step, 0..1."),
    ("paceline_step_time_seconds", "step_time_s", "How long the last train step took."),
    ("paceline_low_mfu_steps", "low_mfu_steps", "Consecutive train steps with an MFU below the job's target."),
    ("paceline_high_wait_steps", "high_wait_steps", "Consecutive train steps with a P99 of waiting above the limit."),
)


class JobSeries(Collector):
    """The jobs whose steps one worker closes.

    Args:
        roster: who runs, the policy and the jobs' own targets.
        clock: seconds.
        max_jobs: jobs with series at most.
    """

    def __init__(self, roster: Roster | None, clock: Callable[[], float], max_jobs: int = MAX_JOBS) -> None:
        self._roster = roster
        self._clock = clock
        self._max_jobs = max_jobs
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._partitions: OrderedDict[str, int] = OrderedDict()
        self._pushed_out = 0

    def seen(self, job_id: str, partition: int) -> None:
        """A report of a job's ranks came in a partition."""
        if self._partitions.get(job_id) == partition:
            return
        with self._lock:
            self._partitions[job_id] = partition
            while len(self._partitions) > 4 * self._max_jobs:
                self._partitions.popitem(last=False)

    def take(self, result: StepResult) -> None:
        """A step was closed."""
        low_below, wait_above = self._limits(result.job_id, result.epoch)
        with self._lock:
            job = self._jobs.get(result.job_id)
            if job is None:
                job = self._jobs[result.job_id] = _Job(result.epoch)
            if result.epoch < job.epoch:
                return
            if result.epoch > job.epoch:
                job.epoch, job.low_mfu_steps, job.high_wait_steps = result.epoch, 0, 0
            job.stepped_at = self._clock()
            self._jobs.move_to_end(result.job_id)
            while len(self._jobs) > self._max_jobs:
                self._jobs.popitem(last=False)
                self._pushed_out += 1
            if result.phase == "train":
                _utilisation(job, result, low_below)
                _waiting(job, result, wait_above)

    def forget(self, partitions: set[int]) -> None:
        """The partitions went to another worker, and their jobs with them."""
        with self._lock:
            for job_id in [job_id for job_id, place in self._partitions.items() if place in partitions]:
                del self._partitions[job_id]
                self._jobs.pop(job_id, None)

    def collect(self) -> Iterator[Metric]:
        """The page's part."""
        gauges = {name: GaugeMetricFamily(name, text, labels=["job_id"]) for name, _, text in _GAUGES}
        share = GaugeMetricFamily(
            "paceline_wait_share",
            "Share of the last train step that ranks waited in collectives, percentile over ranks.",
            labels=["job_id", "percentile"],
        )
        waits = HistogramMetricFamily(
            "nccl_allreduce_wait_ms",
            "Per closed train step: P99 over ranks of the milliseconds spent waiting in collectives.",
            labels=["job_id"],
        )
        pushed_out = CounterMetricFamily("paceline_jobs_pushed_out", "Jobs whose series made room for another job's.")
        with self._lock:
            self._drop_finished()
            pushed_out.add_metric([], self._pushed_out)
            for job_id, job in self._jobs.items():
                for name, attribute, _ in _GAUGES:
                    figure = getattr(job, attribute)
                    if figure is not None:
                        gauges[name].add_metric([job_id], figure)
                for percentile, figure in (("50", job.wait_share_p50), ("99", job.wait_share_p99)):
                    if figure is not None:
                        share.add_metric([job_id, percentile], figure)
                if any(job.waits):
                    bounds = [*(f"{bound:g}" for bound in WAIT_BUCKETS_MS), "+Inf"]
                    waits.add_metric([job_id], list(zip(bounds, accumulate(job.waits), strict=True)), job.wait_sum_ms)
        yield from gauges.values()
        yield share
        yield waits
        yield pushed_out

    def _limits(self, job_id: str, epoch: int) -> tuple[float, float]:
        """MFU below which, and waiting share above which, a step of a job counts: what the rules go by."""
        policy = self._roster.policy if self._roster is not None else None
        low = thresholds_for(LowMfuThresholds(), policy, "low_mfu").target
        wait = thresholds_for(BarrierWaitThresholds(), policy, "barrier_wait").share
        described = self._roster.job(job_id, epoch).job if self._roster is not None else None
        if described is not None and described.mfu_target is not None:
            low = described.mfu_target
        return low, wait

    def _drop_finished(self) -> None:
        oldest = self._clock() - SILENT_S
        for job_id in [
            job_id for job_id, job in self._jobs.items() if job.stepped_at < oldest or self._ended(job_id, job)
        ]:
            del self._jobs[job_id]
            self._partitions.pop(job_id, None)

    def _ended(self, job_id: str, job: _Job) -> bool:
        described = self._roster.job(job_id, job.epoch).job if self._roster is not None else None
        return described is not None and described.state == "ended"


def _utilisation(job: _Job, result: StepResult, low_below: float) -> None:
    if result.impossible:
        # The description is wrong: there is no figure, and as in the rule nothing is counted.
        job.mfu = job.hfu = None
        return
    job.mfu, job.hfu = result.mfu, result.hfu
    if result.mfu is not None:
        job.low_mfu_steps = job.low_mfu_steps + 1 if result.mfu < low_below else 0


def _waiting(job: _Job, result: StepResult, wait_above: float) -> None:
    job.step_time_s = result.step_time_us / 1e6 if result.step_time_us is not None else None
    job.wait_share_p50, job.wait_share_p99 = result.wait_share_p50, result.wait_share_p99
    if result.wait_share_p99 is None or result.step_time_us is None:
        return
    job.high_wait_steps = job.high_wait_steps + 1 if result.wait_share_p99 > wait_above else 0
    wait_ms = result.step_time_us * result.wait_share_p99 / 1000
    job.waits[bisect_left(WAIT_BUCKETS_MS, wait_ms)] += 1
    job.wait_sum_ms += wait_ms

"""MFU and HFU per step, and what they give cause to say: low, or impossible. Neither is ever a command by itself.

Low is below the job's own target, else 40 %, for more than 3 consecutive recorded steps; it is `info` unless it is also
10 % below the job's own best hour. Impossible is above what the hardware can do: an error in the job's description,
said so once, and while it stands nothing is called low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas import gpu_parts
from schemas.gpu_parts import precision_named
from streams.core.flops import ModelShape
from streams.core.known import are_known, known_of
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.thresholds import is_enabled
from streams.core.utilisation import (
    Peak,
    TokenFlops,
    Utilisation,
    dense_peak,
    token_flops,
    utilisation,
    utilisation_of_flops,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Job, Policy
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = ["LowMfuThresholds", "MfuRules", "step_utilisation"]

LOW = "low_mfu"
IMPOSSIBLE = "impossible_mfu"
_AGAIN_NS = 60_000_000_000
"""At most one opening a minute: a job that hovers about its target says so once."""

_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class LowMfuThresholds:
    """Thresholds of the rule.

    Attributes:
        target: MFU below which a step counts where the job names no target. 40 % is what a well-tuned dense job on
            Hopper holds (published levels: docs/rules.md).
        steps: more than this many consecutive recorded steps.
        below_best: share of the job's best hour below which the finding is a warning.
        best_hour_steps: steps that an hour must have to count as the best one.
    """

    target: float = 0.40
    steps: int = 3
    below_best: float = 0.9
    best_hour_steps: int = 10


def step_utilisation(step: ClosedStep, roster: JobRoster) -> tuple[Utilisation | None, int | None, str | None]:
    """Utilisation of a step with the tokens that it rests on.

    Returns:
        (utilisation, tokens, reason): the utilisation is None where the description does not suffice, and the reason
        then says what is wrong with it, or is None where there simply is none.
    """
    job = roster.job
    step_us = step.step_time_us
    if job is None or job.model is None or not step_us:
        return None, None, None
    tokens = _tokens(step, job)
    if not tokens:
        return None, None, None
    described = roster.derived("mfu", step.rank, _described)
    if described.shape is None:
        return None, tokens, described.error
    squared = step.columns["sum_squared_lengths"]
    packed = job.workload == "training" and squared.size and are_known(squared) and not step.missing
    try:
        if described.counted is not None and not packed:
            flops, peak, compute_precision = described.counted
            result = utilisation_of_flops(
                flops,
                tokens=tokens,
                step_time_us=step_us,
                gpus=job.world_size,
                peak=peak,
                compute_precision=compute_precision,
            )
        else:
            result = utilisation(
                **_as_counted(job, described.shape),
                tokens=tokens,
                step_time_us=step_us,
                gpus=job.world_size,
                peak_tflops=described.peak.tflops,
                precision=described.peak.precision,
                peak_source=described.peak.source,
                sum_squared_lengths=float(squared.sum()) if packed else None,
                compute_precision=job.precision,
            )
    except ValueError as error:
        return None, tokens, str(error)
    return result, tokens, None


@dataclass(frozen=True, slots=True)
class _Description:
    """What follows from a job's description for every step.

    Attributes:
        peak: of its parts.
        shape: of its model; None, and `error` why, where the description contradicts itself.
        error: that.
        counted: FLOP per token where documents are not packed, and the peak and what the job computes in, by the names of
            precisions; None where they cannot be counted.
    """

    peak: Peak
    shape: ModelShape | None
    error: str | None = None
    counted: tuple[TokenFlops, Peak, str] | None = None


def _described(_: NDArray[np.int64], roster: JobRoster) -> _Description:
    job = roster.job
    assert job is not None
    assert job.model is not None
    peak = _peak(job, roster)
    try:
        shape = ModelShape(
            **job.model.model_dump(exclude={"gated_mlp"}, exclude_none=True), gated_mlp=job.model.gated_mlp
        )
    except ValueError as error:
        return _Description(peak, None, str(error))
    try:
        flops = token_flops(**_as_counted(job, shape))
        named = Peak(peak.tflops, precision_named(peak.precision), peak.source)
        return _Description(peak, shape, counted=(flops, named, precision_named(job.precision or peak.precision)))
    except ValueError:
        # The step says why, with what else is wrong with it.
        return _Description(peak, shape)


def _as_counted(job: Job, shape: ModelShape) -> dict[str, Any]:
    """How the FLOP of a job are counted."""
    return {
        "workload": job.workload,
        "shape": shape,
        "convention": job.flop_convention,
        "recompute": job.recompute if job.workload == "training" else "none",
        "seq_len": job.seq_len,
    }


def _tokens(step: ClosedStep, job: Job) -> int | None:
    """Tokens of the whole job in the step: what the ranks counted, scaled for those that share a batch, or the job's."""
    if job.tokens_per_step is not None:
        return job.tokens_per_step
    known = known_of(step.columns["tokens"])
    # Ranks of one data-parallel replica see the same batch: each counts it whole.
    replica = job.layout.tensor * job.layout.context * job.layout.pipeline
    if known.size != job.world_size or job.world_size % replica:
        return None
    return int(known.sum() / replica)


def _peak(job: Job, roster: JobRoster) -> Peak:
    if job.peak_tflops is not None:
        return Peak(job.peak_tflops, job.precision, "given by the job")
    skus: set[str | None] = {seat.sku for seat in roster.seats.values() if seat.sku is not None} or {job.sku}
    if len(skus) != 1:
        return Peak(None, job.precision, "the job runs on unlike parts")
    sku = next(iter(skus))
    return dense_peak(gpu_parts.find(sku) if sku is not None else None, job.precision)


class MfuRules:
    """Follows the utilisation of one epoch of one job."""

    def __init__(self, site_id: str, defaults: LowMfuThresholds | None = None) -> None:
        self._low = Rule(LOW, 1, site_id)
        self._impossible = Rule(IMPOSSIBLE, 1, site_id)
        self._limits = LimitsInForce(defaults or LowMfuThresholds(), LOW)
        self._below = 0
        self._onset_ns: int | None = None
        self._opened_ns: int | None = None
        self._first_below_ns = 0
        self._impossible_ns: int | None = None
        self._hour = (-1, 0, 0.0)
        self._best_hour: float | None = None

    def on_step(
        self,
        step: ClosedStep,
        roster: JobRoster,
        result: Utilisation | None,
        policy: Policy | None,
        evidence: Evidence | None = None,
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`, given its utilisation."""
        if result is None or result.mfu is None or roster.job is None:
            return
        if result.impossible:
            if is_enabled(policy, IMPOSSIBLE):
                yield from self._say_impossible(step, result, evidence)
            return
        if self._impossible_ns is not None:
            yield self._impossible.of_step(
                "impossible_mfu",
                step,
                state="cleared",
                severity="warning",
                onset_ns=self._impossible_ns,
                explanation="MFU is possible again",
                values={"mfu": result.mfu},
                evidence=evidence,
            )
            self._impossible_ns = None
        self._remember(step.event_time_ns, result.mfu, self._limits.of(policy).best_hour_steps)
        if is_enabled(policy, LOW):
            yield from self._say_low(step, roster.job, result, policy, evidence)

    def _say_impossible(self, step: ClosedStep, result: Utilisation, evidence: Evidence | None) -> Iterator[Finding]:
        if self._impossible_ns is not None:
            return
        self._impossible_ns = step.event_time_ns
        yield self._impossible.of_step(
            "impossible_mfu",
            step,
            state="open",
            severity="warning",
            onset_ns=step.event_time_ns,
            explanation=result.impossible_reason or "",
            values={
                "mfu": result.mfu,
                "hfu": result.hfu,
                "flop_convention": result.convention,
                "peak_tflops": result.peak_tflops,
                "peak_source": result.peak_source,
            },
            evidence=evidence,
        )

    def _remember(self, now_ns: int, mfu: float, steps_needed: int) -> None:
        hour, count, total = self._hour
        if now_ns // _HOUR_NS != hour:
            hour, count, total = now_ns // _HOUR_NS, 0, 0.0
        count, total = count + 1, total + mfu
        self._hour = (hour, count, total)
        if count >= steps_needed:
            self._best_hour = max(self._best_hour or 0.0, total / count)

    def _say_low(
        self, step: ClosedStep, job: Job, result: Utilisation, policy: Policy | None, evidence: Evidence | None
    ) -> Iterator[Finding]:
        limits = self._limits.of(policy)
        target = limits.target if job.mfu_target is None else job.mfu_target
        assert result.mfu is not None
        if result.mfu >= target:
            self._below = 0
            if self._onset_ns is not None:
                onset_ns, self._onset_ns = self._onset_ns, None
                yield self._low.of_step(
                    "low_mfu",
                    step,
                    state="cleared",
                    severity="info",
                    onset_ns=onset_ns,
                    explanation="MFU is above its target again",
                    values={"mfu": result.mfu, "target": target},
                    evidence=evidence,
                )
            return
        self._below += 1
        if self._below == 1:
            self._first_below_ns = step.event_time_ns
        if self._below <= limits.steps or self._onset_ns is not None:
            return
        if self._opened_ns is not None and step.event_time_ns - self._opened_ns < _AGAIN_NS:
            return
        self._opened_ns = step.event_time_ns
        self._onset_ns = self._first_below_ns
        best = self._best_hour
        fallen = best is not None and result.mfu < limits.below_best * best
        yield self._low.of_step(
            "low_mfu",
            step,
            state="open",
            severity="warning" if fallen else "info",
            onset_ns=self._onset_ns,
            explanation=f"MFU {100 * result.mfu:.1f} % is below {100 * target:.0f} % for {self._below} steps"
            + (f" and below the job's best hour of {100 * best:.1f} %" if fallen and best is not None else ""),
            values={
                "mfu": result.mfu,
                "target": target,
                "best_hour_mfu": best,
                "flop_convention": result.convention,
                "steps_below": self._below,
            },
            evidence=evidence,
        )

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [
            self._below,
            self._onset_ns,
            self._first_below_ns,
            self._opened_ns,
            self._impossible_ns,
            list(self._hour),
            self._best_hour,
        ]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._below, self._onset_ns, self._first_below_ns, self._opened_ns, self._impossible_ns = snapshot[:5]
        hour, self._best_hour = snapshot[5:]
        self._hour = (hour[0], hour[1], hour[2])

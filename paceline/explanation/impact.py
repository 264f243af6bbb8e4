"""What a finding's step would be without its culprit, in time, MFU, GPU-hours and money."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.explanation.model import Impact
from streams.core.step_without import step_gain
from streams.detectors.work_peers import work_peers

if TYPE_CHECKING:
    from paceline.explanation.step_history import KeptStep
    from schemas.findings import Finding
    from schemas.fleet import Policy
    from streams.core.roster import JobRoster
    from streams.core.step_without import StepGain

__all__ = ["impact_of", "price_in_force"]


def price_in_force(asked: float | None, roster: JobRoster, policy: Policy | None) -> tuple[float | None, str | None]:
    """Price of a GPU-hour and where it is from: what was asked for, else the job's, else the policy's, else none."""
    if asked is not None:
        return asked, "--price-per-gpu-hour"
    if roster.job is not None and roster.job.gpu_hour_cost is not None:
        return roster.job.gpu_hour_cost, f"job {roster.job.job_id}"
    if policy is not None and policy.gpu_hour_cost is not None:
        return policy.gpu_hour_cost, f"policy {policy.policy_version}"
    return None, None


def impact_of(
    kept: KeptStep,
    lead: int,
    members: tuple[int, ...],
    finding: Finding,
    roster: JobRoster,
    price: tuple[float | None, str | None],
) -> Impact | None:
    """The impact of one rank, or of several that are slow as one, in one step.

    Args:
        kept: the finding's step.
        lead: position of the judged rank.
        members: all ranks that the finding names.
        finding: since when it has been.
        roster: world size.
        price: of a GPU-hour, and its source.

    Returns:
        None where the step's time or the gain is unknown.
    """
    step = kept.step
    peers = next(group for group in work_peers(step, roster) if lead in group)
    gain = step_gain(step, lead, np.flatnonzero(np.isin(step.rank, members)), peers, kept.work)
    total_us = step.step_time_us
    if gain is None or not total_us:
        return None
    share = min(1.0, gain.gain_us / total_us)
    mfu = kept.result.mfu if kept.result is not None else None
    without = mfu / (1 - share) if mfu is not None and share < 1 else None
    gpus = roster.job.world_size if roster.job is not None else None
    per_hour = gpus * share if gpus is not None else None
    hours = max(0, finding.event_time_ns - finding.onset_ns) / 3.6e12
    per_gpu_hour, source = price
    return Impact(
        step_ms=total_us / 1000,
        step_without_ms=(total_us - gain.gain_us) / 1000,
        gain_ms=gain.gain_us / 1000,
        excess_ms=gain.excess_us / 1000,
        way=gain.way,
        arithmetic=_arithmetic(gain, int(step.rank[lead])),
        mfu_percent=100 * mfu if mfu is not None else None,
        mfu_without_percent=100 * without if without is not None else None,
        mfu_points=100 * (without - mfu) if without is not None and mfu is not None else None,
        gpus=gpus,
        gpu_hours_lost_per_hour=per_hour,
        gpu_hours_lost=per_hour * hours if per_hour is not None else None,
        price_per_gpu_hour=per_gpu_hour,
        price_source=source,
        money_lost_per_hour=per_hour * per_gpu_hour if per_hour is not None and per_gpu_hour is not None else None,
        share_of_excess=_share_of_excess(kept, lead),
    )


def _arithmetic(gain: StepGain, rank: int) -> str:
    if gain.way == "own_times":
        return f"own time of rank {rank} less the next longest own time = {gain.gain_us} us, at most its excess {gain.excess_us} us"
    assert gain.least_wait_us is not None
    assert gain.own_wait_us is not None
    return (
        f"least waiting of a peer outside point-to-point {gain.least_wait_us} us - rank {rank}'s own {gain.own_wait_us} us "
        f"= {gain.least_wait_us - gain.own_wait_us} us, at most its excess {gain.excess_us} us"
    )


def _share_of_excess(kept: KeptStep, lead: int) -> float | None:
    """Of the time that ranks have beyond their peers' medians, in those above the rule's limit, the culprit's part."""
    own = kept.step.own_us
    slow = np.flatnonzero(kept.log_ratio > kept.limit)
    excess = own[slow] * -np.expm1(-kept.log_ratio[slow])
    if lead not in slow or not excess.sum():
        return None
    return float(excess[slow == lead][0] / excess.sum())

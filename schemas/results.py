"""What the job processors make of a step: performance figures, no verdicts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import EventTimeNs, Identifier, Record

__all__ = ["JobPerformance", "StepResult"]


class StepResult(Record):
    """One closed step of one job.

    Times are integer microseconds, ratios 0..1. `flop_convention` names how FLOPs were counted: an MFU without it
    says nothing. Nulls are unknown: a part without a known peak has no MFU.
    """

    record: Literal["step_result"] = "step_result"
    job_id: Identifier
    epoch: int
    step: int
    event_time_ns: EventTimeNs
    phase: str
    ranks_expected: int
    ranks_reported: int
    missing_ranks: tuple[int, ...] = ()
    step_time_us: int | None
    own_median_us: int | None = None
    own_max_us: int | None = None
    own_max_rank: int | None = None
    wait_share_p50: float | None = None
    wait_share_p99: float | None = None
    tokens: int | None = None
    mfu: float | None = None
    hfu: float | None = None
    waste: float | None = None
    model_tflops_per_gpu: float | None = None
    recompute_tflops_per_gpu: float | None = None
    peak_tflops: float | None = None
    flop_convention: str | None = None
    impossible: bool = False
    description_error: str | None = Field(default=None, max_length=500)
    slowest_ranks: tuple[int, ...] = ()
    slowest_own_us: tuple[int, ...] = ()


class JobPerformance(Record):
    """Bandwidth of one kind of communicator of a job over a window of event time, GB/s.

    Figures are medians over its communicators, and over the steps of the window that were looked at. The slowest is the one of
    the lowest bus bandwidth, in the middle of the window's steps. Nothing here blames anybody.
    """

    record: Literal["job_performance"] = "job_performance"
    job_id: Identifier
    epoch: int
    window_start_ns: EventTimeNs
    window_end_ns: EventTimeNs
    group: str
    op: str | None = None
    bytes_per_collective: int | None = Field(default=None, ge=0)
    algorithm_bandwidth_gb_s: float | None = None
    bus_bandwidth_gb_s: float | None = None
    wait_share: float | None = None
    steps: int | None = None
    communicators: int | None = None
    ranks_per_communicator: int | None = None
    transfer_us: float | None = None
    """Of all the collectives of one step together."""
    slowest_instance: str | None = None
    slowest_bus_bandwidth_gb_s: float | None = None

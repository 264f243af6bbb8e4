"""The figures of a profile as verdicts take them: plain, frozen, in microseconds.

Guarantees: a figure that a trace could not give is None. `sum_of` adds steps and devices up; medians and percentiles have
no sum and are left out of it. Deliberately not: where the figures came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["StepFigures", "Work", "sum_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels, copies or collectives of one sort: how many, and their durations added up."""

    count: int
    total_us: float


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one step of one device went into, microseconds.

    `compute_us` is the union of kernels, copies and sets; `kernel_us` that of kernels alone, communication excepted.
    Exposed means: not covered by kernels of either sort (communication: not by computation). `idle_us` is the time with
    nothing on the GPU; `idle_input_us` the part in which the host waited for its data loader, `idle_unlaunched_us` the
    part before the next work had been launched.
    """

    window_us: float
    kernel_us: float
    compute_us: float
    comm_us: float
    exposed_comm_us: float
    exposed_to_device_us: float
    exposed_to_host_us: float
    idle_us: float
    idle_input_us: float
    idle_unlaunched_us: float | None = None
    kernel_count: int = 0
    launch_latency_median_us: float | None = None
    step: int | None = None
    device: int | None = None
    families: Mapping[str, Work] = field(default_factory=dict)
    collectives: Mapping[str, Work] = field(default_factory=dict)


def sum_of(steps: Iterable[StepFigures]) -> StepFigures | None:
    """All steps and devices as one; None where there is none."""
    held = list(steps)
    if not held:
        return None
    unlaunched = [step.idle_unlaunched_us for step in held if step.idle_unlaunched_us is not None]
    return StepFigures(
        window_us=sum(step.window_us for step in held),
        kernel_us=sum(step.kernel_us for step in held),
        compute_us=sum(step.compute_us for step in held),
        comm_us=sum(step.comm_us for step in held),
        exposed_comm_us=sum(step.exposed_comm_us for step in held),
        exposed_to_device_us=sum(step.exposed_to_device_us for step in held),
        exposed_to_host_us=sum(step.exposed_to_host_us for step in held),
        idle_us=sum(step.idle_us for step in held),
        idle_input_us=sum(step.idle_input_us for step in held),
        idle_unlaunched_us=sum(unlaunched) if len(unlaunched) == len(held) else None,
        kernel_count=sum(step.kernel_count for step in held),
        families=_added(step.families for step in held),
        collectives=_added(step.collectives for step in held),
    )


def _added(parts: Iterable[Mapping[str, Work]]) -> dict[str, Work]:
    counts: Counter[str] = Counter()
    totals: dict[str, float] = {}
    for part in parts:
        for name, work in part.items():
            counts[name] += work.count
            totals[name] = totals.get(name, 0.0) + work.total_us
    return {name: Work(counts[name], totals[name]) for name in sorted(totals)}

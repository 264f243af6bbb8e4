"""The roofline of a GPU: whether its arithmetic or its memory sets the pace, and whether either is kept busy.

Two sources. *Activity* is what DCGM's profiling fields say over a period: the share of cycles in which tensor pipes and
memory worked. *Work* is counted FLOP and bytes over a time, as a profile with recorded shapes gives them. Guarantees: a
figure against a peak is None where the part, or that peak of it, is not in the table; an unknown ratio is no zero.

A regime is a description and no alarm: a decode and element-wise phases are bound by memory by right. Deliberately not:
caches, other pipes than tensor ones, and the peak at another clock than the datasheet's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from schemas.gpu_parts import GpuPart, precision_named

__all__ = [
    "MEMORY_BUSY",
    "SM_BUSY",
    "TENSOR_BUSY",
    "Activity",
    "ActivityRegime",
    "JobRegime",
    "Regime",
    "Roof",
    "WorkRegime",
    "activity_regime",
    "job_regime",
    "roof_of",
    "work_regime",
]

Regime = Literal["compute", "memory", "latency", "idle", "unknown"]

SM_BUSY: Final = 0.5
"""Ratio of SM activity below which a GPU is not put to use: DCGM's user guide calls less than 0.5 likely ineffective."""

TENSOR_BUSY: Final = 0.5
"""Ratio of tensor activity from which arithmetic sets the pace. A judgement: the best matrix products keep the pipes of
a Hopper busy for some 80 % of the time, and a training step is not all matrix products."""

MEMORY_BUSY: Final = 0.5
"""Ratio of DRAM activity from which memory sets the pace. A judgement, of the same height so that the two compare."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A part's peaks.

    Attributes:
        peak_tflops: Dense, of one device, in TFLOP/s; None where not known.
        bandwidth_gb_s: Of its memory, GB/s; None where not known.
        precision: What the peak is for.
        part: The part's model; None where it is not known.
    """

    peak_tflops: float | None
    bandwidth_gb_s: float | None
    precision: str
    part: str | None = None

    @property
    def ridge_flop_per_byte(self) -> float | None:
        """Arithmetic intensity above which arithmetic is the bound, FLOP a byte."""
        if self.peak_tflops is None or self.bandwidth_gb_s is None:
            return None
        return self.peak_tflops * 1000 / self.bandwidth_gb_s


def roof_of(part: GpuPart | None, precision: str) -> Roof:
    """The roof of one device of a part.

    Args:
        part: From `schemas.gpu_parts.find`; None where it is not known.
        precision: Of the matrix products, `bf16`, `fp8`, also in a framework's words.
    """
    name = precision_named(precision)
    if part is None:
        return Roof(None, None, name)
    bandwidth = part.memory_bandwidth_gb_s
    per_device = None if bandwidth is None else bandwidth / part.devices_per_part
    return Roof(part.device_peak_tflops(name), per_device, name, part.model)


@dataclass(frozen=True, slots=True)
class Activity:
    """Mean ratios of a GPU over a period, 0..1; None where not read."""

    sm_active_ratio: float | None
    tensor_active_ratio: float | None
    dram_active_ratio: float | None


@dataclass(frozen=True, slots=True)
class ActivityRegime:
    """A GPU's regime by its activity.

    Attributes:
        regime: `compute`, `memory`, `latency` (SMs busy, neither of the two), `idle` (SMs not put to use), `unknown`.
        reason: The ratio that led to it, and its limit.
        tensor_tflops: At most so much was computed on tensor cores, TFLOP/s: active cycles times the peak.
        dram_gb_s: Memory traffic, GB/s.
        intensity_flop_per_byte: The first over the second: at most.
        ridge_flop_per_byte: Of the part.
    """

    regime: Regime
    reason: str
    tensor_tflops: float | None
    dram_gb_s: float | None
    intensity_flop_per_byte: float | None
    ridge_flop_per_byte: float | None


def activity_regime(activity: Activity, roof: Roof) -> ActivityRegime:
    """The regime of one GPU over one period."""
    regime, reason = _by_activity(activity)
    tflops = _product(activity.tensor_active_ratio, roof.peak_tflops)
    bandwidth = _product(activity.dram_active_ratio, roof.bandwidth_gb_s)
    intensity = tflops * 1000 / bandwidth if tflops is not None and bandwidth else None
    return ActivityRegime(regime, reason, tflops, bandwidth, intensity, roof.ridge_flop_per_byte)


def _by_activity(activity: Activity) -> tuple[Regime, str]:
    sm, tensor, dram = activity.sm_active_ratio, activity.tensor_active_ratio, activity.dram_active_ratio
    if tensor is not None and tensor >= TENSOR_BUSY and (dram is None or tensor >= dram):
        return "compute", f"tensor pipes active {tensor:.0%} (limit {TENSOR_BUSY:.0%})"
    if dram is not None and dram >= MEMORY_BUSY:
        return "memory", f"memory active {dram:.0%} (limit {MEMORY_BUSY:.0%})"
    if sm is None:
        return "unknown", "SM activity was not read"
    if sm < SM_BUSY:
        return "idle", f"SMs active {sm:.0%} (limit {SM_BUSY:.0%}): it waits for launches, input or peers"
    if tensor is None or dram is None:
        return "unknown", "tensor or memory activity was not read"
    return "latency", f"SMs active {sm:.0%}, tensor pipes {tensor:.0%}, memory {dram:.0%}: neither sets the pace"


@dataclass(frozen=True, slots=True)
class JobRegime:
    """The regime of a job's GPUs: the commonest, how many have each, and the mean activity."""

    regime: Regime
    gpus: int
    counts: dict[str, int]
    mean: Activity


def job_regime(gpus: Iterable[tuple[Activity, ActivityRegime]]) -> JobRegime:
    """The regime of several GPUs together; `unknown` for none. Of two that are as common the first by name is taken."""
    held = list(gpus)
    counts = Counter(found.regime for _, found in held)
    regime: Regime = min(counts, key=lambda name: (-counts[name], name)) if counts else "unknown"
    mean = Activity(
        _mean(activity.sm_active_ratio for activity, _ in held),
        _mean(activity.tensor_active_ratio for activity, _ in held),
        _mean(activity.dram_active_ratio for activity, _ in held),
    )
    return JobRegime(regime, len(held), dict(sorted(counts.items())), mean)


@dataclass(frozen=True, slots=True)
class WorkRegime:
    """Counted work against a roof.

    Attributes:
        regime: `compute` or `memory`, by the side of the ridge on which the intensity lies; `unknown` without a ridge.
        tflops: Achieved, TFLOP/s.
        gb_s: Of the bytes that must move at least, GB/s; a cache that does not hold an operand makes it more.
        intensity_flop_per_byte: FLOP a byte.
        ridge_flop_per_byte: Of the part.
        attainable_tflops: The roof at that intensity, TFLOP/s.
        roof_share: `tflops` over `attainable_tflops`.
    """

    regime: Regime
    tflops: float
    gb_s: float
    intensity_flop_per_byte: float
    ridge_flop_per_byte: float | None
    attainable_tflops: float | None
    roof_share: float | None


def work_regime(flops: float, moved_bytes: float, time_us: float, roof: Roof) -> WorkRegime:
    """Where so many FLOP and bytes in so much time lie under a roof.

    Raises:
        ValueError: A figure is not above zero.
    """
    if min(flops, moved_bytes, time_us) <= 0:
        raise ValueError("flops, moved_bytes and time_us must be above zero")
    tflops, gb_s = flops / time_us / 1e6, moved_bytes / time_us / 1e3
    intensity, ridge = flops / moved_bytes, roof.ridge_flop_per_byte
    attainable = None
    if roof.peak_tflops is not None and roof.bandwidth_gb_s is not None:
        attainable = min(roof.peak_tflops, intensity * roof.bandwidth_gb_s / 1000)
    regime: Regime = "unknown"
    if ridge is not None:
        regime = "compute" if intensity >= ridge else "memory"
    share = tflops / attainable if attainable else None
    return WorkRegime(regime, tflops, gb_s, intensity, ridge, attainable, share)


def _product(ratio: float | None, peak: float | None) -> float | None:
    return None if ratio is None or peak is None else ratio * peak


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Model and hardware FLOP utilisation of a step: what share of its GPUs' peak a job turned into work.

MFU counts the FLOP that the model needs, HFU also those that recomputed activations cost; both carry the convention
they are counted by and the peak they are held against. Guarantees: an unknown peak makes both None, never a figure
against another part's peak; a figure above what the hardware can do is marked impossible, with a reason.

Deliberately not: no clock, no choice of the peak (the caller names it), no rounding, and no share of a run's wall time
(checkpoints and restarts are goodput). Matrix products alone reach about 80 % of a Hopper's dense peak, so a figure
between that and 100 % is doubtful too, and is not marked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from schemas.gpu_parts import GpuPart, precision_named
from streams.core.flops import (
    FlopConvention,
    IncompleteShapeError,
    ModelShape,
    Recompute,
    convention_named,
    forward_flops_per_token,
    hardware_flops_per_token,
    inference_flops_per_token,
    training_flops_per_token,
)

__all__ = [
    "Peak",
    "TokenFlops",
    "Utilisation",
    "Workload",
    "dense_peak",
    "run_time_s",
    "scaled_to_hardware",
    "token_flops",
    "tokens_per_s_per_gpu",
    "utilisation",
    "utilisation_of_flops",
    "utilisation_of_rate",
]

Workload = Literal["training", "forward_only", "inference"]

WORKLOADS: tuple[Workload, ...] = ("training", "forward_only", "inference")

_EIGHT_BIT = frozenset({"fp8", "int8"})
_SIXTEEN_BIT = frozenset({"bf16", "fp16"})

# The dense 8-bit peak is twice the 16-bit peak on every part that has both; the tables round it by up to 1.3 %.
_EIGHT_BIT_OVER_SIXTEEN = 2.03


@dataclass(frozen=True)
class Peak:
    """The denominator: a dense peak of one device."""

    tflops: float | None
    precision: str
    source: str
    """Where the figure is from, or why there is none."""


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """The numerator: FLOP of one step per model token."""

    model: float
    hardware: float | None
    """With what is computed again; None where that is not known."""
    convention: str
    """As it is told with the figures."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Utilisation:
    """One step's utilisation. Ratios: 0.41 is 41 %."""

    mfu: float | None
    hfu: float | None
    model_tflops_per_gpu: float | None
    """Achieved TFLOP/s per GPU that the model needs."""
    hardware_tflops_per_gpu: float | None
    """Achieved TFLOP/s per GPU with what was computed again."""
    recompute_tflops_per_gpu: float | None
    waste: float | None
    """hfu - mfu: the share of the peak that went into recomputing."""
    convention: str
    gpus: int
    peak_tflops: float | None
    peak_precision: str
    peak_source: str
    impossible: bool
    """Above what the hardware can do: an error in the job's description, not a fast job."""
    impossible_reason: str | None
    notes: tuple[str, ...] = ()
    """Why a figure is None, or how it must be read."""

    @property
    def hardware_tflops(self) -> float | None:
        """Achieved TFLOP/s of all GPUs together, recompute included."""
        return None if self.hardware_tflops_per_gpu is None else self.hardware_tflops_per_gpu * self.gpus


def dense_peak(part: GpuPart | None, precision: str) -> Peak:
    """The dense peak of one device of a part.

    Args:
        part: From `schemas.gpu_parts.find`; None for a part that is not known.
        precision: What the job's matrix products run in: `fp8` for an fp8 job, else `bf16`, ...

    Returns:
        The peak; `tflops` is None where the part, or that precision of it, is not in the table.
    """
    name = precision_named(precision)
    if part is None:
        return Peak(None, name, "unknown part")
    tflops = part.device_peak_tflops(name)
    if tflops is None:
        return Peak(None, name, f"no dense {name} peak is known of {part.model}")
    return Peak(tflops, name, f"table: {part.model}")


def utilisation(
    *,
    workload: Workload,
    shape: ModelShape,
    convention: FlopConvention | str,
    recompute: Recompute,
    seq_len: int | None,
    tokens: int,
    step_time_us: int,
    gpus: int,
    peak_tflops: float | None,
    precision: str,
    peak_source: str = "given",
    sum_squared_lengths: float | None = None,
    compute_precision: str | None = None,
) -> Utilisation:
    """Utilisation of one step.

    Args:
        workload: `training`; `forward_only` for one forward pass by the convention (evaluation); `inference` for 2N
            per token and attention where the shape gives it, whatever the convention.
        shape: The model.
        convention: Whose count of FLOP.
        recompute: What the backward pass computes again; must be `none` without a backward pass.
        seq_len: Tokens in a sequence; for `inference` the tokens that one attends to, on average.
        tokens: Model tokens of the whole job in the step, padding left out.
        step_time_us: Duration of the step, in microseconds.
        gpus: Devices of the job.
        peak_tflops: Dense peak of one device, in TFLOP/s; None where the part is not known.
        precision: The precision that this peak is for.
        peak_source: Where the peak is from.
        sum_squared_lengths: Of the step's documents, where packed ones do not attend to each other.
        compute_precision: What the job's products run in, where that is not `precision`. An fp8 job held against a
            bf16 peak may pass 100 % (only some of its products run at the doubled rate), so it is impossible only
            above twice that peak; against the fp8 peak its figures are low by the part that runs in bf16.

    Returns:
        The step's utilisation. HFU is None where `selective` recompute redoes an attention core of unknown size.

    Raises:
        IncompleteShapeError: The convention needs what the shape does not give.
        ValueError: A figure is not above zero, a word is not known, or the figures contradict each other.
    """
    _check_positive(tokens=tokens, step_time_us=step_time_us, gpus=gpus)
    return utilisation_of_flops(
        token_flops(
            workload=workload,
            shape=shape,
            convention=convention,
            recompute=recompute,
            seq_len=seq_len,
            sum_squared_lengths=sum_squared_lengths,
            tokens=tokens,
        ),
        tokens=tokens,
        step_time_us=step_time_us,
        gpus=gpus,
        peak=Peak(peak_tflops, precision_named(precision), peak_source),
        compute_precision=precision_named(compute_precision or precision),
    )


def token_flops(
    *,
    workload: Workload,
    shape: ModelShape,
    convention: FlopConvention | str,
    recompute: Recompute,
    seq_len: int | None,
    sum_squared_lengths: float | None = None,
    tokens: int | None = None,
) -> TokenFlops:
    """FLOP per model token: one figure for all steps of a job, unless packed documents make it another in each.

    Args and errors: as for `utilisation`; `tokens` may be None without `sum_squared_lengths`.
    """
    if workload not in WORKLOADS:
        msg = f"workload is {workload!r}; give one of: {', '.join(WORKLOADS)}"
        raise ValueError(msg)
    if workload != "training" and recompute != "none":
        msg = f"recompute is {recompute!r} but {workload} has no backward pass; give 'none'"
        raise ValueError(msg)
    counted_by = convention_named(convention)
    label = counted_by.value
    hardware: float | None
    notes: list[str] = []
    packed_tokens = None if sum_squared_lengths is None or tokens is None else float(tokens)
    if workload == "training":
        packed = (sum_squared_lengths, packed_tokens)
        model = training_flops_per_token(shape, seq_len, counted_by, *packed)
        try:
            hardware = hardware_flops_per_token(shape, seq_len, counted_by, recompute, *packed)
        except IncompleteShapeError as error:
            hardware = None
            notes.append(f"HFU is unknown: {error}")
    elif workload == "forward_only":
        model = forward_flops_per_token(shape, seq_len, counted_by, sum_squared_lengths, packed_tokens)
        hardware = model
    else:
        if sum_squared_lengths is not None:
            raise ValueError("sum_squared_lengths is not for inference; give the attended length as seq_len")
        model = hardware = inference_flops_per_token(shape, seq_len)
        weights_alone = inference_flops_per_token(shape)
        label = "2N" if model == weights_alone else "2N+4LHQT"
    return TokenFlops(model, hardware, label, tuple(notes))


def utilisation_of_flops(
    flops: TokenFlops,
    *,
    tokens: int,
    step_time_us: int,
    gpus: int,
    peak: Peak,
    compute_precision: str,
) -> Utilisation:
    """Utilisation of one step whose FLOP per token are counted.

    Args and errors: as for `utilisation`; precisions by the names that `precision_named` gives them.
    """
    _check_positive(tokens=tokens, step_time_us=step_time_us, gpus=gpus)
    tokens_per_gpu_us = tokens / step_time_us / gpus
    # 1e6 FLOP/us is 1 TFLOP/s.
    return _held_against_peak(
        model_tflops=flops.model * tokens_per_gpu_us / 1e6,
        hardware_tflops=None if flops.hardware is None else flops.hardware * tokens_per_gpu_us / 1e6,
        convention=flops.convention,
        gpus=gpus,
        peak=peak,
        compute_precision=compute_precision,
        notes=list(flops.notes),
    )


def utilisation_of_rate(
    *,
    tflops_per_gpu: float,
    includes_recompute: bool | None,
    convention: str,
    gpus: int,
    peak_tflops: float | None,
    precision: str,
    peak_source: str = "given",
    compute_precision: str | None = None,
) -> Utilisation:
    """Utilisation from the TFLOP/s per GPU that a trainer prints itself.

    Args:
        tflops_per_gpu: The printed rate.
        includes_recompute: True where the trainer's formula counts recomputed FLOP (the rate gives HFU, and MFU is
            unknown), False where it leaves them out (MFU alone), None where nothing is recomputed (both).
        convention: How the trainer counts, in its own words.
        gpus: Devices of the job.
        peak_tflops: As for `utilisation`, like the arguments after it.
        precision: The precision that this peak is for.
        peak_source: Where the peak is from.
        compute_precision: What the job's products run in, where that is not `precision`.

    Raises:
        ValueError: A figure is not above zero.
    """
    _check_positive(tflops_per_gpu=tflops_per_gpu, gpus=gpus)
    notes = []
    if includes_recompute is not None:
        missing, verb = ("MFU", "includes") if includes_recompute else ("HFU", "leaves out")
        notes.append(f"{missing} is unknown: the printed rate {verb} recompute")
    return _held_against_peak(
        model_tflops=None if includes_recompute else tflops_per_gpu,
        hardware_tflops=None if includes_recompute is False else tflops_per_gpu,
        convention=convention,
        gpus=gpus,
        peak=Peak(peak_tflops, precision_named(precision), peak_source),
        compute_precision=precision_named(compute_precision or precision),
        notes=notes,
    )


def scaled_to_hardware(mfu: float, model_flops: float, hardware_flops: float) -> float:
    """HFU from MFU and a job's own count of both FLOP, in any one unit.

    Raises:
        ValueError: A figure is not above zero, or the hardware did less than the model needs.
    """
    _check_positive(mfu=mfu, model_flops=model_flops, hardware_flops=hardware_flops)
    if hardware_flops < model_flops:
        msg = f"hardware_flops ({hardware_flops:.6g}) is less than model_flops ({model_flops:.6g})"
        raise ValueError(msg)
    return mfu * hardware_flops / model_flops


def tokens_per_s_per_gpu(flops_per_token: float, tflops_per_gpu: float) -> float:
    """Tokens per second that one GPU gets through at an achieved rate.

    Raises:
        ValueError: A figure is not above zero.
    """
    _check_positive(flops_per_token=flops_per_token, tflops_per_gpu=tflops_per_gpu)
    return tflops_per_gpu * 1e12 / flops_per_token


def run_time_s(tokens: float, gpus: int, tokens_per_s_per_gpu: float) -> float:
    """Seconds that a run over so many tokens takes at a steady rate, nothing lost.

    Raises:
        ValueError: A figure is not above zero.
    """
    _check_positive(tokens=tokens, gpus=gpus, tokens_per_s_per_gpu=tokens_per_s_per_gpu)
    return tokens / (tokens_per_s_per_gpu * gpus)


def _held_against_peak(
    *,
    model_tflops: float | None,
    hardware_tflops: float | None,
    convention: str,
    gpus: int,
    peak: Peak,
    compute_precision: str,
    notes: list[str],
) -> Utilisation:
    if peak.tflops is not None:
        _check_positive(peak_tflops=peak.tflops)
        if not math.isfinite(max(model_tflops or 0.0, hardware_tflops or 0.0) / peak.tflops):
            raise ValueError(f"a peak of {peak.tflops:g} TFLOP/s gives no ratio")
    both_known = model_tflops is not None and hardware_tflops is not None
    mfu = _ratio(model_tflops, peak.tflops)
    hfu = _ratio(hardware_tflops, peak.tflops)
    if peak.tflops is None:
        notes = [*notes, f"MFU and HFU are unknown: no peak ({peak.source})"]
    limit = 1.0
    if compute_precision in _EIGHT_BIT and peak.precision in _SIXTEEN_BIT:
        limit = _EIGHT_BIT_OVER_SIXTEEN
        notes = [*notes, f"computes in {compute_precision}, held against the {peak.precision} peak: may pass 100 %"]
    reason = _impossible_reason(mfu, hfu, limit, peak, gpus)
    return Utilisation(
        mfu=mfu,
        hfu=hfu,
        model_tflops_per_gpu=model_tflops,
        hardware_tflops_per_gpu=hardware_tflops,
        recompute_tflops_per_gpu=_difference(hardware_tflops, model_tflops) if both_known else None,
        waste=_difference(hfu, mfu),
        convention=convention,
        gpus=gpus,
        peak_tflops=peak.tflops,
        peak_precision=peak.precision,
        peak_source=peak.source,
        impossible=reason is not None,
        impossible_reason=reason,
        notes=tuple(notes),
    )


def _impossible_reason(mfu: float | None, hfu: float | None, limit: float, peak: Peak, gpus: int) -> str | None:
    for name, value in (("MFU", mfu), ("HFU", hfu)):
        if value is not None and value > limit:
            return (
                f"{name} of {100 * value:,.0f} % is above what the hardware can do ({100 * limit:.0f} % of "
                f"{peak.tflops:.6g} dense {peak.precision} TFLOP/s on each of {gpus} GPUs): the job's description is "
                "wrong; check parameters, tokens, GPUs, recompute, precision and step time"
            )
    return None


def _ratio(value: float | None, of: float | None) -> float | None:
    return None if value is None or of is None else value / of


def _difference(larger: float | None, smaller: float | None) -> float | None:
    return None if larger is None or smaller is None else larger - smaller


def _check_positive(**figures: float) -> None:
    for name, value in figures.items():
        if not math.isfinite(value) or value <= 0:
            msg = f"{name} is {value}; it must be a finite number above zero"
            raise ValueError(msg)

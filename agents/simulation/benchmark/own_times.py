"""What each rank itself needs for its steps: drawn, never waited for.

Compute follows the device (a constant offset), what all ranks share (step to step, a slow walk, the time of day), the
stage, the part, and with variable lengths the documents of each microbatch: T = a N + b sum of squared lengths. Draws are
keyed by device, replica, step and purpose. A replica's documents are those of its number in the job. Scatter of operations
is of a tensor group, scatter of blocks of layers of each of its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.benchmark.pipeline import run_exact
from agents.simulation.noise import entity_key, part_keys

if TYPE_CHECKING:
    from agents.simulation.benchmark.case import BenchmarkCase, JobPlan
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment
    from agents.simulation.noise import FloatArray, KeyArray, Noise, StepArray

__all__ = [
    "BACKWARD_SHARE",
    "CommonMode",
    "HealthyTimes",
    "Nominal",
    "healthy_times",
    "nominal_times",
    "stage_factors",
    "step_time_us",
]

FORWARD_SHARE, BACKWARD_SHARE, OPTIMIZER_SHARE = 0.32, 0.64, 0.04
"""A backward pass is twice a forward one; the rest of the compute time is the optimizer's."""

_BACKWARD_OF_LAST_STAGE = 0.4
"""Of what the last stage's forward pass has above the others', its backward pass has this share (1.07:0.42, 0.06:0.03)."""

_DOCUMENTS = 16
_DOCUMENT_LOG_SIGMA = 1.2
_MEAN_SQUARES = 0.16468
"""Mean of the sum of squared shares of 16 log-normal lengths of that log-sigma (measured over 200,000 draws)."""
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Nominal:
    """A job's healthy durations without noise, microseconds: compute of a rank that is not on the last stage."""

    compute: float
    step: float
    host: float
    data: float


@dataclass(frozen=True)
class HealthyTimes:
    """Own times of steps without faults, microseconds.

    Rank arrays have shape (steps, stages, replicas, tensor); `block` has an axis of blocks of layers after the steps, factors
    around 1.
    `forward_scatter` and `backward_scatter` are factors of operations, (steps, stages, replicas, microbatches), lengths
    included. `squares` is the sum of squared document lengths in squares of a microbatch's tokens, (steps, replicas);
    null with fixed lengths.
    """

    forward: FloatArray
    backward: FloatArray
    optimizer: FloatArray
    host: FloatArray
    data: FloatArray
    block: FloatArray
    forward_scatter: FloatArray
    backward_scatter: FloatArray
    squares: FloatArray | None


def step_time_us(plan: JobPlan, replicas: int, compute: float, stages: tuple[FloatArray, FloatArray]) -> float:
    """Time of a healthy step without noise.

    Args:
        plan: the job.
        replicas: its data-parallel degree.
        compute: compute time of a rank that is not on the last stage.
        stages: as of `stage_factors`.
    """
    step, shares = plan.step_s * 1e6, plan.transfers
    exchange = (shares.tensor if plan.tensor > 1 else 0.0) + (shares.expert if plan.expert > 1 else 0.0)
    half = exchange * step / (2 * plan.microbatches)
    forward = (compute * FORWARD_SHARE * stages[0] + plan.host_share * step) / plan.microbatches + half
    backward = compute * BACKWARD_SHARE * stages[1] / plan.microbatches + half
    one = np.ones((1, plan.pipeline, 1, plan.microbatches))
    times = run_exact(
        np.full((1, plan.pipeline, 1), plan.data_share * step),
        one * forward[None, :, None, None],
        one * backward[None, :, None, None],
        np.full((1, max(0, plan.pipeline - 1), 1), shares.hop * step),
        plan.virtual_pipeline,
    )
    ring = shares.data * step if replicas > 1 else 0.0
    norm = shares.norm * step if plan.pipeline * plan.tensor > 1 else 0.0
    return float(times.done.max()) + ring + norm + compute * OPTIMIZER_SHARE


@lru_cache(maxsize=128)
def nominal_times(plan: JobPlan, replicas: int) -> Nominal:
    """Durations at which a step without noise takes the plan's time (secants: piecewise linear and rising)."""
    step, stages = plan.step_s * 1e6, stage_factors(plan)
    low, high = 0.0, step
    at_low, at_high = (step_time_us(plan, replicas, compute, stages) for compute in (low, high))
    compute = low
    for _ in range(8):
        compute = low + (step - at_low) * (high - low) / (at_high - at_low)
        value = step_time_us(plan, replicas, compute, stages)
        if abs(value - step) < 1e-6 * step:
            break
        if value < step:
            low, at_low = compute, value
        else:
            high, at_high = compute, value
    return Nominal(compute=compute, step=step, host=plan.host_share * step, data=plan.data_share * step)


def stage_factors(plan: JobPlan) -> tuple[FloatArray, FloatArray]:
    """Factors on forward and backward of each stage."""
    forward, backward = np.ones(plan.pipeline), np.ones(plan.pipeline)
    if plan.pipeline > 1:
        forward[-1] = plan.last_stage_factor
        backward[-1] = 1.0 + _BACKWARD_OF_LAST_STAGE * (plan.last_stage_factor - 1.0)
    return forward, backward


class CommonMode:
    """What all ranks of a job share: a factor by step. Steps are asked for in order, without gaps."""

    def __init__(self, case: BenchmarkCase, plan: JobPlan, noise: Noise) -> None:
        self._noise, self._plan, self._sigmas = noise, plan, case.noise
        self._key = np.array([entity_key(plan.job_id)], dtype=np.uint64)
        self._phase = noise.draw("time-of-day", plan.job_id)
        self._walk = 0.0

    def factors(self, steps: StepArray) -> FloatArray:
        """The factor of each step."""
        sigmas = self._sigmas
        keep = float(np.exp(-1.0 / max(1.0, sigmas.walk_steps)))
        push = sigmas.walk * float(np.sqrt(1.0 - keep * keep))
        walk = np.empty(len(steps))
        for place, draw in enumerate(self._noise.normal_steps("walk", self._key, steps)[:, 0].tolist()):
            self._walk = keep * self._walk + push * draw
            walk[place] = self._walk
        fast = sigmas.common * self._noise.normal_steps("common", self._key, steps)[:, 0]
        hour = self._phase + steps * self._plan.step_s / _DAY_S
        day = 0.5 * sigmas.diurnal * np.sin(2 * np.pi * hour)
        result: FloatArray = np.exp(walk + fast + day)
        return result


def healthy_times(
    case: BenchmarkCase,
    segment: Segment,
    inventory: Inventory,
    steps: StepArray,
    common: FloatArray,
    noise: Noise,
) -> HealthyTimes:
    """Draw own times of steps, faults left out.

    Args:
        case: for its noise and its parts.
        segment: the membership in these steps.
        inventory: the hardware.
        steps: their numbers.
        common: `CommonMode.factors` of them.
        noise: of the seed.
    """
    plan, sigmas = segment.plan, case.noise
    nominal = nominal_times(plan, segment.replicas)
    keys = segment.device_keys(inventory)
    units = np.ascontiguousarray(keys[:, :, 0])
    device = np.exp(sigmas.device * noise.normal("device-offset", keys))
    slower = np.array([machine.is_other_sku for machine in inventory.machines])[segment.hardware]
    device = device * np.where(slower, 1.0 + case.fleet.other_sku_slowdown, 1.0)
    shared = common[:, None, None, None] * device[None]
    forward_stage, backward_stage = stage_factors(plan)
    forward = nominal.compute * FORWARD_SHARE * shared * forward_stage[None, :, None, None]
    backward = nominal.compute * BACKWARD_SHARE * shared * backward_stage[None, :, None, None]
    optimizer = nominal.compute * OPTIMIZER_SHARE * shared

    blocks = sigmas.blocks if plan.tensor > 1 else 1
    sigma = sigmas.block if plan.tensor > 1 else sigmas.block / np.sqrt(sigmas.blocks)
    block = np.exp(sigma * noise.normal_steps("block", part_keys(keys, blocks), steps))
    operations = part_keys(units, plan.microbatches)
    forward_scatter = np.exp(sigmas.microbatch_forward * noise.normal_steps("forward", operations, steps))
    backward_scatter = np.exp(sigmas.microbatch_backward * noise.normal_steps("backward", operations, steps))
    squares = None
    if plan.lengths == "variable":
        relative, squares = _documents(plan, segment.replicas, steps, noise)
        forward_scatter *= (1.0 - sigmas.variable_forward + sigmas.variable_forward * relative)[:, None]
        backward_scatter *= (1.0 - sigmas.variable_backward + sigmas.variable_backward * relative)[:, None]

    host = nominal.host * np.exp(sigmas.host * noise.normal_steps("host", keys, steps)) * common[:, None, None, None]
    if sigmas.gc_every_steps:
        host += _collections(case, keys, steps, noise)
    data = nominal.data * np.exp(sigmas.loader * noise.normal_steps("loader", keys, steps))
    return HealthyTimes(
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        host=host,
        data=data,
        block=np.moveaxis(block, -1, 1),
        forward_scatter=forward_scatter,
        backward_scatter=backward_scatter,
        squares=squares,
    )


def _collections(case: BenchmarkCase, keys: KeyArray, steps: StepArray, noise: Noise) -> FloatArray:
    """Each rank's interpreter collects every so many steps, at a phase of its own."""
    every, (low, high) = case.noise.gc_every_steps, case.noise.gc_ms
    phase = np.floor(noise.uniform("gc-phase", keys) * every).astype(np.int64)
    collects = (steps.reshape(-1, *(1,) * keys.ndim) + phase) % every == 0
    result: FloatArray = collects * (low + (high - low) * noise.uniform_steps("gc", keys, steps)) * 1e3
    return result


def _documents(plan: JobPlan, replicas: int, steps: StepArray, noise: Noise) -> tuple[FloatArray, FloatArray]:
    """Sum of squared lengths of each microbatch over its mean, and of each replica's step in squared microbatches.

    A microbatch is packed to a fixed number of tokens with documents of log-normal lengths.
    """
    replica_keys = part_keys(np.array([entity_key(plan.job_id)], dtype=np.uint64), replicas)[0]
    documents = part_keys(part_keys(replica_keys, plan.microbatches), _DOCUMENTS)
    lengths = np.exp(_DOCUMENT_LOG_SIGMA * noise.normal_steps("document", documents, steps))
    share = lengths / lengths.sum(axis=-1, keepdims=True)
    squares = (share * share).sum(axis=-1)
    return squares / _MEAN_SQUARES, squares.sum(axis=-1)

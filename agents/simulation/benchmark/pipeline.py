"""A step's pipeline: exact max-plus over (data replica, stage, microbatch), and a closed form that is faster.

Own durations in, waits out; nothing is drawn here. Many steps are computed at once: before the optimizer all ranks of a
job meet (the norm of the gradients), so within one step only the times since that meeting matter. Arrays are float
microseconds with axes (steps, stages, replicas), operations with a last axis of microbatches.

The closed form (level L2) takes the worst stage of each replica with the fill, the drain and the two idle spells that
its neighbours leave it; it knows no scatter between microbatches but by a correction for their maximum, and is meant for
fixed lengths and 1F1B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.benchmark.schedule import Operation, pipeline_order

if TYPE_CHECKING:
    from agents.simulation.noise import FloatArray

__all__ = ["PipelineTimes", "run_exact", "run_fast"]


@dataclass(frozen=True)
class PipelineTimes:
    """When each stage of each replica has done its last operation, and what it waited for others on the way there.

    Both have shape (steps, stages, replicas), in the time of `ready`.
    """

    done: FloatArray
    waited: FloatArray


def run_exact(
    ready: FloatArray, forward: FloatArray, backward: FloatArray, hop: FloatArray, chunks: int = 1
) -> PipelineTimes:
    """The recursion itself.

    Args:
        ready: when each unit can begin, (steps, stages, replicas).
        forward: durations of forward operations, (steps, stages, replicas, microbatches), of all chunks together.
        backward: of backward operations, likewise.
        hop: one hand-over between stage s and s + 1, (steps, stages - 1, replicas); around the ring the mean of them.
        chunks: chunks of layers a stage (interleaved schedule).
    """
    _, stages, _, microbatches = forward.shape
    durations = {
        True: np.ascontiguousarray(forward.transpose(1, 3, 0, 2)) / chunks,
        False: np.ascontiguousarray(backward.transpose(1, 3, 0, 2)) / chunks,
    }
    around = hop.mean(axis=1) if stages > 1 else np.zeros_like(ready[:, 0])
    clock = [ready[:, stage].copy() for stage in range(stages)]
    waited = [np.zeros_like(now) for now in clock]
    finished: dict[Operation, FloatArray] = {}
    for operation in pipeline_order(stages, microbatches, chunks):
        stage = operation.stage
        now = clock[stage]
        source = operation.source(stages, chunks)
        if source is not None:
            distance = abs(source.stage - stage)
            travel = hop[:, min(source.stage, stage)] if distance == 1 else around * (distance > 0)
            begin = np.maximum(now, finished.pop(source) + travel)
            waited[stage] += begin - now
            now = begin
        clock[stage] = finished[operation] = now + durations[operation.is_forward][stage, operation.microbatch]
        if not _is_needed(operation, stages, chunks):
            del finished[operation]
    return PipelineTimes(done=np.stack(clock, axis=1), waited=np.stack(waited, axis=1))


def _is_needed(operation: Operation, stages: int, chunks: int) -> bool:
    last = (stages - 1, chunks - 1) if operation.is_forward else (0, 0)
    return (operation.stage, operation.chunk) != last


def run_fast(ready: FloatArray, forward: FloatArray, backward: FloatArray, hop: FloatArray) -> PipelineTimes:
    """The closed form; arguments and result as of `run_exact` without chunks."""
    _, stages, _, microbatches = forward.shape
    forward_mean, backward_mean = forward.mean(axis=3), backward.mean(axis=3)
    work = forward.sum(axis=3) + backward.sum(axis=3)
    if stages == 1:
        done = ready + work
        return PipelineTimes(done=done, waited=np.zeros_like(done))
    travel = np.concatenate([np.zeros_like(hop[:, :1]), hop], axis=1)  # into a stage from the one before
    # Up to and including each stage: what a microbatch takes to come there from the first, and back again.
    down = np.cumsum(forward[..., 0] + travel, axis=1) - forward[..., 0]
    up = np.cumsum(backward[..., -1] + travel, axis=1) - backward[..., -1]
    pair = forward_mean + backward_mean + 2 * travel
    below = pair.sum(axis=1, keepdims=True) - np.cumsum(pair, axis=1)  # a round trip from each stage to the last one
    others = np.arange(stages - 1, -1, -1)[None, :, None]
    idle_first = np.maximum(0.0, below - np.minimum(others, microbatches - 1) * forward_mean)
    idle_last = np.maximum(0.0, below - np.minimum(others, microbatches - 1) * backward_mean)
    # Stages of nearly one length wait for whichever is the slowest of them at the time: the mean excess of a maximum,
    # fitted to the recursion at 2, 4 and 8 stages. A stage that is far slower than the others waits for nobody.
    scatter = np.maximum((forward + backward).std(axis=3), 1e-9)
    behind = (pair[:, :, None] - pair[:, None]) / scatter[:, :, None]
    close = np.exp(-np.clip(behind, 0.0, 50.0)).sum(axis=2) - 1.0
    coupled = 0.68 * scatter * (microbatches - 1) * np.log1p(close)
    start = np.maximum.accumulate(ready - down, axis=1) + down
    total = (start + work + idle_first + idle_last + up + coupled).max(axis=1, keepdims=True)
    done = np.maximum(total - up, ready + work)
    return PipelineTimes(done=done, waited=done - ready - work)

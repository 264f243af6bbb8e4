"""One optimizer step of one job as a max-plus recursion: own durations in, waits out.

Data-parallel replicas of pipeline stages of tensor groups: a tensor group moves as its slowest member (a sync in every
layer), stages hand microbatches on in 1F1B order, and the gradient all-reduce ends when its last member has come and the
transfer is done. No wait is ever drawn. Time per microbatch is a rank's step total split evenly (their scatter within a
step is left out), the optimizer is not sharded, and transfers do not overlap with computation.
Arrays have shape (pipeline, data, tensor); flat order is rank order. Times are float microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from agents.simulation.noise import FloatArray

__all__ = ["OwnTimes", "StepOutcome", "Transfers", "nominal_compute_us", "one_forward_one_backward", "run_step"]

FORWARD_SHARE = 0.32
BACKWARD_SHARE = 0.64
OPTIMIZER_SHARE = 0.04
"""A backward pass is twice a forward one; the rest of the compute time is the optimizer's."""


@dataclass(frozen=True)
class OwnTimes:
    """What each rank itself needs for a step. `pause` is time after the optimizer (writing a checkpoint)."""

    forward: FloatArray
    backward: FloatArray
    optimizer: FloatArray
    host: FloatArray
    data: FloatArray
    pause: FloatArray

    def total(self) -> FloatArray:
        """Own time: everything but waiting and transfers."""
        result: FloatArray = self.forward + self.backward + self.optimizer + self.host + self.data + self.pause
        return result


@dataclass(frozen=True)
class Transfers:
    """Time of the communication itself, without waiting; 0 where a job has no such communicator.

    `tensor` is a step's in all, `hop` one hand-over between two stages, `data` one all-reduce, shape (pipeline, tensor).
    """

    tensor: float
    hop: float
    data: FloatArray


@dataclass(frozen=True)
class StepOutcome:
    """What came of a step: when each rank ended it and what it spent in each kind of communicator, waiting included."""

    end: FloatArray
    step: FloatArray
    tensor: FloatArray
    pipeline: FloatArray
    data: FloatArray


@lru_cache(maxsize=64)
def one_forward_one_backward(stages: int, microbatches: int) -> tuple[tuple[int, bool, int], ...]:
    """All operations (stage, is_forward, microbatch) of a 1F1B step, in an order in which each one's inputs come first."""
    queues: list[list[tuple[bool, int]]] = []
    for stage in range(stages):
        warmup = min(stages - 1 - stage, microbatches)
        queue = [(True, index) for index in range(warmup)]
        for index in range(microbatches - warmup):
            queue += [(True, warmup + index), (False, index)]
        queue += [(False, index) for index in range(microbatches - warmup, microbatches)]
        queues.append(queue)
    done: set[tuple[int, bool, int]] = set()
    order: list[tuple[int, bool, int]] = []
    positions = [0] * stages
    while len(order) < 2 * stages * microbatches:
        for stage, queue in enumerate(queues):
            while positions[stage] < len(queue):
                forward, index = queue[positions[stage]]
                source = stage - 1 if forward else stage + 1
                if 0 <= source < stages and (source, forward, index) not in done:
                    break
                done.add((stage, forward, index))
                order.append((stage, forward, index))
                positions[stage] += 1
    return tuple(order)


def run_step(start: FloatArray, own: OwnTimes, transfers: Transfers, microbatches: int) -> StepOutcome:
    """Run one step from the times at which the ranks ended the one before.

    Returns:
        The outcome; for every rank `step` = own time + `tensor` + `pipeline` + `data`.
    """
    stages, replicas, _ = start.shape
    # The batch is loaded first; the tensor group starts together.
    ready = start + own.data
    unit_ready = ready.max(axis=2)
    tensor_wait = unit_ready[:, :, None] - ready

    forward = (own.forward + own.host) / microbatches
    backward = own.backward / microbatches
    operation_transfer = transfers.tensor / (2 * microbatches)
    unit_forward = forward.max(axis=2) + operation_transfer
    unit_backward = backward.max(axis=2) + operation_transfer
    tensor_wait += microbatches * (unit_forward + unit_backward)[:, :, None] - microbatches * (forward + backward)

    clock = [unit_ready[stage].copy() for stage in range(stages)]
    waited = [np.zeros_like(clock[stage]) for stage in range(stages)]
    finished: dict[tuple[int, bool, int], FloatArray] = {}
    for stage, is_forward, index in one_forward_one_backward(stages, microbatches):
        source = stage - 1 if is_forward else stage + 1
        now = clock[stage]
        if 0 <= source < stages:
            begin = np.maximum(now, finished.pop((source, is_forward, index)) + transfers.hop)
            waited[stage] += begin - now
            now = begin
        now = now + (unit_forward[stage] if is_forward else unit_backward[stage])
        clock[stage] = now
        if 0 <= (stage + 1 if is_forward else stage - 1) < stages:
            finished[(stage, is_forward, index)] = now

    reached = np.stack(clock)
    last = reached.max(axis=1)[:, None, None] if replicas > 1 else reached[:, :, None]
    synced = np.broadcast_to(last + transfers.data[:, None, :], start.shape)
    end = synced + own.optimizer + own.pause
    return StepOutcome(
        end=end,
        step=end - start,
        tensor=tensor_wait,
        pipeline=np.broadcast_to(np.stack(waited)[:, :, None], start.shape),
        data=synced - reached[:, :, None],
    )


def nominal_compute_us(
    step_us: float,
    stages: int,
    microbatches: int,
    last_stage_factor: float,
    host_us: float,
    data_us: float,
    transfers: Transfers,
) -> float:
    """Compute time of a rank (not of the last stage) at which a noise-free step takes `step_us`."""
    one = np.ones((stages, 1, 1))

    def step_of(compute_us: float) -> float:
        work = one * compute_us
        if stages > 1:
            work[-1] *= last_stage_factor
        own = OwnTimes(
            forward=work * FORWARD_SHARE,
            backward=work * BACKWARD_SHARE,
            optimizer=work * OPTIMIZER_SHARE,
            host=one * host_us,
            data=one * data_us,
            pause=one * 0.0,
        )
        return float(run_step(one * 0.0, own, transfers, microbatches).step.max())

    low, high = 0.0, step_us
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if step_of(middle) < step_us else (low, middle)
    return (low + high) / 2

"""One job as it runs: draws each step's own times, runs the step, and keeps where the ranks stand.

The job's state is the time at which every rank ended its last step; steps follow each other without a pause. A step
takes the faults that hold when it starts. When a GPU is lost, the step under way never ends: the job stands from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.look_alikes import GC_SPIKE_EVERY_STEPS
from agents.simulation.training import (
    BACKWARD_SHARE,
    FORWARD_SHARE,
    OPTIMIZER_SHARE,
    OwnTimes,
    Transfers,
    nominal_compute_us,
    run_step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.simulation.faults import FaultEffects, RankEffects
    from agents.simulation.fleet import JobShape
    from agents.simulation.noise import FloatArray, KeyArray, Noise
    from schemas.steps import Phase

__all__ = ["CompletedStep", "JobRun"]

# Shares of the nominal step; choices without a published value, of the size that profiles of such jobs show.
_HOST_SHARE = 0.03
_DATA_SHARE = 0.01
_TENSOR_TRANSFER_SHARE = 0.04
_DATA_TRANSFER_SHARE = 0.08
_HOP_SHARE = 0.0005

# Measured on public step traces: own time against stage peers 0.4 % a step, constant offset of a device 0.3 %.
_COMPUTE_LOG_SIGMA = 0.0038
_DEVICE_LOG_SIGMA = 0.003
# What all ranks share from step to step; half a per cent gives the step time's measured variation.
_COMMON_LOG_SIGMA = 0.004
_HOST_LOG_SIGMA = 0.03
_DATA_LOG_SIGMA = 0.08
_TRANSFER_LOG_SIGMA = 0.015
_STARVED_LOG_SIGMA = 0.03

_WARMUP_FACTORS = (2.6, 1.9, 1.5, 1.25, 1.12)
_CHECKPOINT_STEPS = 2.5
"""A checkpoint step takes about this many ordinary steps longer."""

_GC_SPIKE_US = (80_000.0, 300_000.0)
_APPLICATION_CLOCKS_FACTOR = 1.01
"""What a GPU whose clocks its owner has lowered loses: little, its work is bound by memory."""


@dataclass(frozen=True)
class CompletedStep:
    """One step of all ranks, integer microseconds in rank order; `end_us` is since the start of the run."""

    step: int
    phase: Phase
    end_us: NDArray[np.int64]
    step_us: NDArray[np.int64]
    forward_us: NDArray[np.int64]
    backward_us: NDArray[np.int64]
    optimizer_us: NDArray[np.int64]
    host_us: NDArray[np.int64]
    data_us: NDArray[np.int64]
    tensor_us: NDArray[np.int64]
    pipeline_us: NDArray[np.int64]
    reduce_us: NDArray[np.int64]

    @property
    def compute_us(self) -> NDArray[np.int64]:
        """Forward, backward and optimizer."""
        return self.forward_us + self.backward_us + self.optimizer_us

    @property
    def own_us(self) -> NDArray[np.int64]:
        """Compute, host and data: everything but waiting and transfers."""
        return self.compute_us + self.host_us + self.data_us


class JobRun:
    """A running job. `advance` gives its steps one after the other."""

    def __init__(
        self,
        job: JobShape,
        keys: KeyArray,
        noise: Noise,
        effects: FaultEffects,
        look_alikes: tuple[str, ...],
        application_clocks_rank: int | None,
        duration_s: float,
    ) -> None:
        self.job = job
        self._keys = keys
        self._job_key = job.index
        self._noise = noise
        self._effects = effects
        self._gc_spikes = "gc_spike" in look_alikes
        plan = job.plan
        step_us = plan.step_time_ms * 1e3
        self.step_us = step_us
        self.starts_ns = round(plan.starts_s * 1e9)
        loss = effects.loss_of(job)
        self.lost_rank = loss.rank if loss else None
        self.stands_from_ns = loss.onset_ns if loss else None
        ends_s = duration_s if plan.ends_s is None else min(plan.ends_s, duration_s)
        self.ends_ns = round(ends_s * 1e9)
        self._transfers = Transfers(
            tensor=_TENSOR_TRANSFER_SHARE * step_us if plan.tensor > 1 else 0.0,
            hop=_HOP_SHARE * step_us if plan.pipeline > 1 else 0.0,
            data=np.full((plan.pipeline, plan.tensor), _DATA_TRANSFER_SHARE * step_us if job.data > 1 else 0.0),
        )
        compute = nominal_compute_us(
            step_us,
            plan.pipeline,
            plan.microbatches,
            plan.last_stage_factor,
            _HOST_SHARE * step_us,
            _DATA_SHARE * step_us,
            Transfers(self._transfers.tensor, self._transfers.hop, self._transfers.data[:, :1]),
        )
        stage_factor = np.ones(job.shape)
        if plan.pipeline > 1:
            stage_factor[-1] = plan.last_stage_factor
        offsets = np.exp(_DEVICE_LOG_SIGMA * noise.normal("device-offset", keys))
        if application_clocks_rank is not None:
            offsets[application_clocks_rank] *= _APPLICATION_CLOCKS_FACTOR
        self._compute = compute * stage_factor * offsets.reshape(job.shape)
        self._own_nominal = compute * stage_factor.reshape(-1) + (_HOST_SHARE + _DATA_SHARE) * step_us
        self._end = np.full(job.shape, plan.starts_s * 1e6)
        self._checkpoint_steps = (
            max(2, round(plan.checkpoint_every_s * 1e6 / step_us)) if plan.checkpoint_every_s is not None else None
        )
        self.next_step = 0
        self.last: CompletedStep | None = None
        self._ahead: CompletedStep | None = None

    def running(self, at_ns: int) -> bool:
        """Whether the job holds its GPUs (it may stand)."""
        return self.starts_ns <= at_ns < self.ends_ns

    def standing(self, at_ns: int) -> bool:
        """Whether the job has lost a GPU and waits for it for ever."""
        return self.stands_from_ns is not None and at_ns >= self.stands_from_ns and self.running(at_ns)

    def advance(self, until_ns: int) -> list[CompletedStep]:
        """The steps that all ranks end before `until_ns`, in order; none beyond the job's end or the loss of a GPU."""
        stop_ns = min(until_ns, self.ends_ns, self.stands_from_ns if self.stands_from_ns is not None else until_ns)
        completed: list[CompletedStep] = []
        while True:
            if self._ahead is None:
                if self._end.max() * 1e3 >= stop_ns:
                    return completed
                self._ahead = self._run()
            if int(self._ahead.end_us.max()) * 1000 >= stop_ns:
                return completed
            self.last = self._ahead
            completed.append(self._ahead)
            self.next_step = self._ahead.step + 1
            self._ahead = None

    def phase_of(self, step: int) -> Phase:
        """A step's phase: the first ones are warm-up, then one every `checkpoint_every_s` writes a checkpoint."""
        if step < self.job.plan.warmup_steps:
            return "warmup"
        if self._checkpoint_steps is not None and step % self._checkpoint_steps == 0:
            return "checkpoint"
        return "train"

    def _run(self) -> CompletedStep:
        step = self.next_step
        phase = self.phase_of(step)
        start = self._end
        effects = self._effects.on_ranks(self.job, round(float(start.max()) * 1e3))
        own = self._own_times(step, phase, effects)
        transfers = self._step_transfers(step, effects.transfer_extra_share)
        outcome = run_step(start, own, transfers, self.job.plan.microbatches)
        self._end = outcome.end
        end_us = _whole(outcome.end)
        return CompletedStep(
            step=step,
            phase=phase,
            end_us=end_us,
            step_us=end_us - _whole(start),
            forward_us=_whole(own.forward),
            backward_us=_whole(own.backward),
            optimizer_us=_whole(own.optimizer),
            host_us=_whole(own.host + own.pause),
            data_us=_whole(own.data),
            tensor_us=_whole(outcome.tensor),
            pipeline_us=_whole(outcome.pipeline),
            reduce_us=_whole(outcome.data),
        )

    def _own_times(self, step: int, phase: Phase, rank_effects: RankEffects) -> OwnTimes:
        noise, keys, shape = self._noise, self._keys, self.job.shape
        common = np.exp(_COMMON_LOG_SIGMA * noise.normal("common", np.array([self._job_key], dtype=np.uint64), step)[0])
        slow = 1.0
        if phase == "warmup":
            slow = _WARMUP_FACTORS[min(step, len(_WARMUP_FACTORS) - 1)]
        compute = self._compute * np.exp(_COMPUTE_LOG_SIGMA * noise.normal("compute", keys, step)).reshape(shape)
        compute *= common * slow * rank_effects.compute_factor.reshape(shape)

        starved = self._own_nominal * np.exp(_STARVED_LOG_SIGMA * noise.normal("starved", keys, step))
        host = _HOST_SHARE * self.step_us * slow * np.exp(_HOST_LOG_SIGMA * noise.normal("host", keys, step))
        host += starved * rank_effects.host_share
        data = _DATA_SHARE * self.step_us * np.exp(_DATA_LOG_SIGMA * noise.normal("data", keys, step))
        data += starved * rank_effects.data_share
        self._spike(host, step)

        pause = np.zeros(shape)
        if phase == "checkpoint":
            written = np.exp(0.1 * noise.normal("checkpoint", keys, step))
            pause = (_CHECKPOINT_STEPS * self.step_us * written).reshape(shape)
        return OwnTimes(
            forward=compute * FORWARD_SHARE,
            backward=compute * BACKWARD_SHARE,
            optimizer=compute * OPTIMIZER_SHARE,
            host=host.reshape(shape),
            data=data.reshape(shape),
            pause=pause,
        )

    def _spike(self, host: FloatArray, step: int) -> None:
        cycle, position = divmod(step, GC_SPIKE_EVERY_STEPS)
        if not self._gc_spikes:
            return
        noise, entity = self._noise, self.job.plan.job_id
        if position != noise.pick("gc-step", GC_SPIKE_EVERY_STEPS, entity, cycle):
            return
        rank = noise.pick("gc-rank", self.job.world, entity, cycle)
        host[rank] += noise.between("gc-length", *_GC_SPIKE_US, entity, cycle)

    def _step_transfers(self, step: int, extra: float) -> Transfers:
        nominal = self._transfers
        count = nominal.data.size
        keys = np.arange(count, dtype=np.uint64) + np.uint64(self._job_key << 32)
        factor = np.exp(_TRANSFER_LOG_SIGMA * self._noise.normal("transfer", keys, step)).reshape(nominal.data.shape)
        data = nominal.data * factor
        if extra and self.job.data > 1:
            # A storm holds all rings of the job alike: one draw for the step, not one for each communicator.
            swing = self._noise.normal("storm", np.array([self._job_key], dtype=np.uint64), step)[0]
            data = data + extra * self.step_us * float(np.exp(0.05 * swing))
        return Transfers(nominal.tensor, nominal.hop, data)


def _whole(values: FloatArray) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64).reshape(-1)

"""A job's steps in blocks: own times drawn, faults applied, the pipeline run, waits read off.

A step begins when its rank ended the one before, and all ranks meet once in it: the gradient norm, before the optimizer.
The recursion is run for a whole block at once, from one meeting to the next. Each block also runs it with each active
fault alone and with none, with the same draws: the ratio of the two is the fault's impact. A fault after which the job stands makes the step
under way the last one; nothing of it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.benchmark.fault_effects import effects_of
from agents.simulation.benchmark.fault_places import STANDING_KINDS
from agents.simulation.benchmark.own_times import (
    BACKWARD_SHARE,
    CommonMode,
    healthy_times,
    nominal_times,
    stage_factors,
)
from agents.simulation.benchmark.pipeline import run_exact, run_fast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from agents.simulation.benchmark.case import BenchmarkCase, JobPlan
    from agents.simulation.benchmark.fault_effects import StepEffects
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment
    from agents.simulation.benchmark.own_times import HealthyTimes
    from agents.simulation.noise import FloatArray, Noise, StepArray

__all__ = ["BLOCK_STEPS", "JobSteps", "StepBlock"]

BLOCK_STEPS = 64
_RANK_STEPS = 2_000_000
"""Rank-steps of a block at most, so that the largest jobs stay in memory."""


@dataclass(frozen=True)
class StepBlock:
    """Consecutive steps of one segment. Rank columns have shape (steps, ranks), whole microseconds, in rank order.

    Attributes:
        segment: the membership.
        steps: step numbers.
        phases: phase of each step.
        begin_us, met_us: when all ranks met before each step and in it, float, since the run's start.
        end_us: when each rank ended the step.
        columns: own parts: forward, backward, optimizer, host, data, pause.
        collectives: time in each kind of communicator, waiting included.
        load: factor on the tokens of each rank, or null.
        squares: see `HealthyTimes`.
        stands: whether the last step of the block never ends.
    """

    segment: Segment
    steps: StepArray
    phases: tuple[str, ...]
    begin_us: FloatArray
    met_us: FloatArray
    end_us: NDArray[np.int64]
    columns: dict[str, NDArray[np.int64]]
    collectives: dict[str, NDArray[np.int64]]
    load: FloatArray | None
    squares: FloatArray | None
    stands: bool

    @property
    def compute_us(self) -> NDArray[np.int64]:
        """Forward, backward and optimizer."""
        return self.columns["forward"] + self.columns["backward"] + self.columns["optimizer"]

    @property
    def own_us(self) -> NDArray[np.int64]:
        """Compute, host and data: the pause after a step is nobody's work."""
        return self.compute_us + self.columns["host"] + self.columns["data"]

    @property
    def step_us(self) -> NDArray[np.int64]:
        """All of a rank's step: own time, communicators and pause."""
        return self.own_us + self.wait_us + self.columns["pause"]

    @property
    def wait_us(self) -> NDArray[np.int64]:
        """Time in communicators."""
        return sum(self.collectives.values(), np.zeros_like(self.columns["data"]))


class JobSteps:
    """One job's steps, block by block, and what its faults cost."""

    def __init__(
        self,
        case: BenchmarkCase,
        segments: Sequence[Segment],
        inventory: Inventory,
        faults: Sequence[PlacedFault],
        noise: Noise,
        job_index: int = 0,
    ) -> None:
        self._case, self._segments, self._inventory, self._noise = case, segments, inventory, noise
        self.plan: JobPlan = segments[0].plan
        network_wide = {"switch_degraded", "pause_storm", "slow_receiver"}
        self._faults = [fault for fault in faults if fault.plan.job == job_index or fault.kind in network_wide]
        standing = [
            fault.plan.onset_step for fault in faults if fault.plan.job == job_index and fault.kind in STANDING_KINDS
        ]
        self.stands_at = min(standing, default=None)
        self.costs: dict[str, list[float]] = {fault.truth_id: [0.0, 0.0] for fault in self._faults}
        """By truth: time of the active steps with that fault alone, and without any."""

    def blocks(self) -> Iterator[StepBlock]:
        """All blocks, in order."""
        common = CommonMode(self._case, self.plan, self._noise)
        met = 0.0
        tail: FloatArray | None = None
        for segment in self._segments:
            step = segment.first_step
            size = max(1, min(BLOCK_STEPS, _RANK_STEPS // segment.world))
            tail = None if tail is None or tail.shape[1:] != segment.shape else tail
            while step < segment.stop_step:
                stop = min(step + size, segment.stop_step)
                if self.stands_at is not None:
                    stop = min(stop, self.stands_at + 1)
                steps = np.arange(step, stop)
                block, tail = self._block(segment, steps, common.factors(steps), met, tail)
                met = float(block.met_us[-1])
                yield block
                if block.stands:
                    return
                step = stop

    def _block(
        self, segment: Segment, steps: StepArray, common: FloatArray, met: float, tail: FloatArray | None
    ) -> tuple[StepBlock, FloatArray]:
        case, plan = self._case, self.plan
        healthy = healthy_times(case, segment, self._inventory, steps, common, self._noise)
        phases, factors, pause_us = _phases(plan, steps)
        own = _own_nominal(segment)
        active = [fault for fault in self._faults if fault.intensity(steps).any()]

        def outcome(faults: list[PlacedFault]) -> tuple[_Outcome, StepEffects]:
            effects = effects_of(faults, segment, self._inventory, steps, own, self._noise)
            return self._run(segment, steps, healthy, effects, factors, pause_us, tail), effects

        result, effects = outcome(active)
        without = outcome([])[0] if active else result
        for fault in active:
            held = fault.intensity(steps) > 0
            alone = result if len(active) == 1 else outcome([fault])[0]
            self.costs[fault.truth_id][0] += float(alone.span[held].sum())
            self.costs[fault.truth_id][1] += float(without.span[held].sum())
        span = result.span.copy()
        stands = self.stands_at is not None and int(steps[-1]) == self.stands_at
        if stands:
            span[-1] = (case.steps - int(steps[-1])) * plan.step_s * 1e6
        met_us = met + np.cumsum(span)
        begin_us = np.concatenate([[met], met_us[:-1]])
        flat = (len(steps), segment.world)
        end_us = _whole(met_us[:, None] + result.after.reshape(flat))
        block = StepBlock(
            segment=segment,
            steps=steps,
            phases=phases,
            begin_us=begin_us,
            met_us=met_us,
            end_us=end_us,
            columns={name: _whole(values.reshape(flat)) for name, values in result.columns.items()},
            collectives={
                name: _whole(np.maximum(0.0, values).reshape(flat))
                for name, values in result.collectives.items()
                if name in segment.instances
            },
            load=None if effects.load is None else effects.load.reshape(flat),
            squares=healthy.squares,
            stands=stands,
        )
        return block, result.after[-1:]

    def _run(
        self,
        segment: Segment,
        steps: StepArray,
        healthy: HealthyTimes,
        effects: StepEffects,
        factors: FloatArray,
        pause_us: FloatArray,
        tail: FloatArray | None,
    ) -> _Outcome:
        plan, shape = self.plan, (len(steps), *segment.shape)
        slow = factors[:, None, None, None]
        forward, backward = healthy.forward * effects.compute * slow, healthy.backward * effects.compute * slow
        optimizer = healthy.optimizer * effects.compute * slow
        host = healthy.host * slow + effects.host
        data = healthy.data + effects.data
        pause = np.broadcast_to(pause_us[:, None, None, None], shape) * (
            1.0 + 0.02 * self._noise.normal_steps("pause", segment.device_keys(self._inventory), steps)
        )
        after = optimizer + pause
        # A rank comes to a step from its own end of the one before, and then loads its batch.
        before = np.concatenate([np.zeros((1, *segment.shape)) if tail is None else tail, after[:-1]])
        ready = before + data
        step_us, shares = plan.step_s * 1e6, plan.transfers
        operations = plan.microbatches
        tensor = shares.tensor * step_us if plan.tensor > 1 else 0.0

        # Host time goes with the forward pass; a tensor group moves as its slowest member in every block of layers.
        blocks = healthy.block.shape[1]
        member_forward = (forward[:, None] * healthy.block + host[:, None]) / blocks
        member_backward = backward[:, None] * healthy.block / blocks
        unit_forward = member_forward.max(axis=-1).sum(axis=1)
        unit_backward = member_backward.max(axis=-1).sum(axis=1)
        own_forward, own_backward = member_forward.sum(axis=1), member_backward.sum(axis=1)
        scatter_forward = healthy.forward_scatter.mean(axis=-1)[..., None]
        scatter_backward = healthy.backward_scatter.mean(axis=-1)[..., None]
        unit_ready = ready.max(axis=-1)
        tensor_time = tensor + (unit_ready[..., None] - ready)
        tensor_time = tensor_time + scatter_forward * (unit_forward[..., None] - own_forward)
        tensor_time = tensor_time + scatter_backward * (unit_backward[..., None] - own_backward)

        half = tensor / (2 * operations)
        op_forward = unit_forward[..., None] * healthy.forward_scatter / operations + half
        op_backward = unit_backward[..., None] * healthy.backward_scatter / operations + half
        expert_time = np.zeros(shape)
        if plan.expert > 1:
            op_forward, op_backward, unit_ready, waited = _expert_sync(
                plan, op_forward, op_backward, unit_ready, step_us
            )
            expert_time = np.broadcast_to(waited[..., None], shape)
        hop = shares.hop * step_us * effects.hop
        if self._case.level == "L2":
            times = run_fast(unit_ready, op_forward, op_backward, hop)
        else:
            times = run_exact(unit_ready, op_forward, op_backward, hop, plan.virtual_pipeline)

        ring_us = shares.data * step_us if segment.replicas > 1 else 0.0
        keys = segment.device_keys(self._inventory)[:, 0]
        ring = (
            ring_us * effects.ring * np.exp(self._case.noise.transfer * self._noise.normal_steps("ring", keys, steps))
        )
        synced = times.done.max(axis=2)[..., None] + ring if segment.replicas > 1 else None
        done = times.done[..., None]
        data_end = np.broadcast_to(done if synced is None else synced[:, :, None, :], shape)
        norm = shares.norm * step_us if plan.pipeline * plan.tensor > 1 else 0.0
        met = data_end.reshape(len(steps), -1).max(axis=1) + norm
        return _Outcome(
            span=met,
            after=after,
            columns={
                "forward": forward * healthy.block.mean(axis=1) * scatter_forward,
                "backward": own_backward * scatter_backward,
                "optimizer": optimizer,
                "host": host * scatter_forward,
                "data": data,
                "pause": pause,
            },
            collectives={
                "tp": tensor_time,
                "ep": expert_time,
                "pp": np.broadcast_to(times.waited[..., None], shape),
                "dp": data_end - done,
                "mp": met[:, None, None, None] - data_end,
            },
        )


@dataclass(frozen=True)
class _Outcome:
    """A run of a block: time between meetings, what each rank does after one, own parts and communicators."""

    span: FloatArray
    after: FloatArray
    columns: dict[str, FloatArray]
    collectives: dict[str, FloatArray]


def _whole(values: FloatArray) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _own_nominal(segment: Segment) -> FloatArray:
    """Healthy own time of each rank without noise, (stages, replicas, tensor)."""
    nominal = nominal_times(segment.plan, segment.replicas)
    forward, backward = stage_factors(segment.plan)
    compute = nominal.compute * (forward * (1.0 - BACKWARD_SHARE) + backward * BACKWARD_SHARE)
    own = compute + nominal.host + nominal.data
    return np.broadcast_to(own[:, None, None], segment.shape)


def _phases(plan: JobPlan, steps: StepArray) -> tuple[tuple[str, ...], FloatArray, FloatArray]:
    """Phase, factor on compute and host, and pause after the optimizer of each step."""
    phases: list[str] = []
    factors, pauses = np.ones(len(steps)), np.zeros(len(steps))
    given = plan.phases
    for place, step in enumerate(steps.tolist()):
        phase = "train"
        if step < given.warmup_steps:
            phase = "warmup"
            factors[place] = given.warmup_factors[step] if step < len(given.warmup_factors) else 1.0
        elif step in given.compile_at:
            phase = "compile"
            factors[place] = 1.0 + given.compile_steps
        elif given.checkpoint_every and step % given.checkpoint_every == given.checkpoint_every - 1:
            phase = "checkpoint"
            pauses[place] = given.checkpoint_steps * plan.step_s * 1e6
        elif given.evaluation_every and step % given.evaluation_every == given.evaluation_every - 1:
            phase = "evaluation"
            pauses[place] = given.evaluation_steps * plan.step_s * 1e6
        phases.append(phase)
    return tuple(phases), factors, pauses


def _expert_sync(
    plan: JobPlan, forward: FloatArray, backward: FloatArray, ready: FloatArray, step_us: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """An expert-parallel group moves together: operations of its members take as long as the longest, with an exchange."""
    transfer = plan.transfers.expert * step_us / (2 * plan.microbatches)

    def together(values: FloatArray) -> FloatArray:
        grouped = values.reshape(*values.shape[:2], -1, plan.expert, *values.shape[3:])
        result: FloatArray = np.repeat(grouped.max(axis=3), plan.expert, axis=2)
        return result

    all_forward, all_backward = together(forward) + transfer, together(backward) + transfer
    all_ready = together(ready)
    waited = (all_forward - forward + all_backward - backward).sum(axis=-1) + all_ready - ready
    return all_forward, all_backward, all_ready, waited

"""What every GPU is doing at given moments, read off its job's steps: the common ground of device, port and host readings.

A rank that waits runs a communication kernel and looks busy; between steps that write a checkpoint or evaluate it does not.
A step under way is known with its durations, so a fault shows in readings from its first step on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.job_steps import StepBlock
    from agents.simulation.noise import FloatArray, StepArray

__all__ = ["Activity", "Lifetimes", "activity_at", "strength_at"]


@dataclass(frozen=True)
class Lifetimes:
    """From when to when each machine is there, microseconds since the start, shape (machines,)."""

    from_us: FloatArray
    to_us: FloatArray

    def alive(self, at_us: FloatArray) -> NDArray[np.bool_]:
        """Whether each machine is there at its moments, shape (moments, machines)."""
        return (at_us >= self.from_us) & (at_us < self.to_us)


@dataclass(frozen=True)
class Activity:
    """At moments, per GPU: arrays of shape (moments, machines, GPUs), those of nodes (moments, machines).

    Attributes:
        held: whether a job holds the GPU and is not between steps.
        work: share of time in own compute.
        math: share of time that the healthy compute of the step would take: what tensor pipes see.
        idle_host: share of time without a kernel, waiting for the host.
        pace: healthy step time over that of the step under way, per node: traffic follows it.
        step: number of the step under way, -1 where there is none, per node.
        stands: whether the job stands, per node.
    """

    held: NDArray[np.bool_]
    work: FloatArray
    math: FloatArray
    idle_host: FloatArray
    pace: FloatArray
    step: StepArray
    stands: NDArray[np.bool_]


def activity_at(
    at_us: FloatArray, blocks: Iterable[StepBlock], inventory: Inventory, math_us: dict[str, float]
) -> Activity:
    """Look moments up in blocks.

    Args:
        at_us: moments of each machine, (moments, machines).
        blocks: of all jobs, those that cover the moments.
        inventory: the hardware.
        math_us: healthy compute time of a rank by job.
    """
    shape = (*at_us.shape, inventory.plan.gpus_per_node)
    held = np.zeros(shape, dtype=np.bool_)
    work, math, idle_host = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    pace, step = np.zeros(at_us.shape), np.full(at_us.shape, -1, dtype=np.int64)
    stands = np.zeros(at_us.shape, dtype=np.bool_)
    for block in blocks:
        nodes = list(block.segment.nodes)
        moments = at_us[:, nodes]
        inside = (moments >= block.begin_us[0]) & (moments < block.met_us[-1])
        if not inside.any():
            continue
        place = np.minimum(np.searchsorted(block.met_us, moments, side="right"), len(block.steps) - 1)
        span = (block.met_us - block.begin_us)[place]
        by_node = (len(block.steps), len(nodes), -1)
        columns = np.arange(len(nodes))[None, :]

        def share(values: NDArray[np.int64]) -> FloatArray:
            found = values.reshape(by_node)[place, columns]  # noqa: B023 - used in this turn only
            return found / span[..., None]  # noqa: B023

        pauses = block.columns["pause"].reshape(by_node)[np.maximum(place - 1, 0), columns] * (place > 0)[..., None]
        paused = (moments - block.begin_us[place])[..., None] < pauses
        standing = (place == len(block.steps) - 1) & block.stands
        runs = inside[..., None] & ~paused
        held[:, nodes] |= runs
        at_work = runs & ~standing[..., None]
        work[:, nodes] = np.where(at_work, np.minimum(share(block.compute_us), 1.0), work[:, nodes])
        healthy = math_us[block.segment.plan.job_id] / span[..., None]
        math[:, nodes] = np.where(at_work, np.minimum(healthy, 1.0), math[:, nodes])
        host = share(block.columns["host"] + block.columns["data"])
        idle_host[:, nodes] = np.where(at_work, np.minimum(host, 1.0), idle_host[:, nodes])
        moving = inside & ~standing & ~paused.any(axis=-1)
        pace[:, nodes] = np.where(moving, block.segment.plan.step_s * 1e6 / span, pace[:, nodes])
        step[:, nodes] = np.where(inside, block.steps[place], step[:, nodes])
        stands[:, nodes] |= inside & standing
    return Activity(held, work, math, idle_host, pace, step, stands)


def strength_at(fault: PlacedFault, activity: Activity) -> FloatArray:
    """How strongly a fault holds at each moment of each machine, (moments, machines); 0 where no step is under way."""
    steps = activity.step
    return np.where(steps >= 0, fault.intensity(steps), 0.0)

"""Orders of a pipeline's operations: 1F1B and interleaved 1F1B, one for all replicas.

Each stage does its own operations in a fixed order; the orders are merged so that every operation comes after what it
waits for. Durations play no part here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from agents.simulation.errors import ScenarioError

__all__ = ["Operation", "pipeline_order"]


class Operation(NamedTuple):
    """One forward or backward pass of one microbatch through one chunk of layers of one stage."""

    stage: int
    chunk: int
    is_forward: bool
    microbatch: int

    def source(self, stages: int, chunks: int) -> Operation | None:
        """The operation whose output this one needs from another stage (or another chunk); none at the ends."""
        step = -1 if self.is_forward else 1
        stage, chunk = self.stage + step, self.chunk
        if not 0 <= stage < stages:
            stage, chunk = stage % stages, chunk + step
        if not 0 <= chunk < chunks:
            return None
        return Operation(stage, chunk, self.is_forward, self.microbatch)


@lru_cache(maxsize=64)
def pipeline_order(stages: int, microbatches: int, chunks: int = 1) -> tuple[Operation, ...]:
    """All operations of a step in an order in which each one's inputs come first.

    Args:
        stages: pipeline stages.
        microbatches: microbatches of a replica and step.
        chunks: chunks of layers on each stage; above 1 the schedule is interleaved.

    Raises:
        ScenarioError: interleaved, and the microbatches are no multiple of the stages.
    """
    if chunks > 1 and microbatches % stages:
        raise ScenarioError(f"interleaved: {microbatches} microbatches are no multiple of {stages} stages")
    queues = [_stage_queue(stage, stages, microbatches, chunks) for stage in range(stages)]
    done: set[Operation] = set()
    order: list[Operation] = []
    positions = [0] * stages
    total = sum(map(len, queues))
    while len(order) < total:
        before = len(order)
        for stage, queue in enumerate(queues):
            while positions[stage] < len(queue):
                operation = queue[positions[stage]]
                source = operation.source(stages, chunks)
                if source is not None and source not in done:
                    break
                done.add(operation)
                order.append(operation)
                positions[stage] += 1
        if len(order) == before:
            raise ScenarioError(f"no schedule of {stages} stages, {microbatches} microbatches, {chunks} chunks")
    return tuple(order)


def _stage_queue(stage: int, stages: int, microbatches: int, chunks: int) -> list[Operation]:
    forward = [Operation(stage, *unit) for unit in _units(stages, microbatches, chunks, is_forward=True)]
    backward = [Operation(stage, *unit) for unit in _units(stages, microbatches, chunks, is_forward=False)]
    if chunks == 1:
        warmup = stages - 1 - stage
    elif microbatches == stages:
        warmup = len(forward)
    else:
        warmup = 2 * (stages - 1 - stage) + (chunks - 1) * stages
    warmup = min(warmup, len(forward))
    queue = forward[:warmup]
    for index in range(len(forward) - warmup):
        queue += [forward[warmup + index], backward[index]]
    return queue + backward[len(forward) - warmup :]


def _units(stages: int, microbatches: int, chunks: int, *, is_forward: bool) -> list[tuple[int, bool, int]]:
    """(chunk, direction, microbatch) in a stage's order: groups of `stages` microbatches go through all chunks in turn."""
    group = stages if chunks > 1 else microbatches
    order = range(chunks) if is_forward else range(chunks - 1, -1, -1)
    return [
        (chunk, is_forward, first + index)
        for first in range(0, microbatches, group)
        for chunk in order
        for index in range(group)
    ]

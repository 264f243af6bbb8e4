"""One logged step turned into the record of a step timing, whether its log was read whole or is being followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schemas.steps import StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agents.importers.step_lines import LoggedStep, Row

__all__ = ["rank_rows", "step_timing"]

_ROWS_AT_MOST: Final = 4096
"""Ranks of one record: eight columns of so many stay far below what a message may hold."""


def rank_rows(step: LoggedStep) -> Iterator[list[tuple[int, Row]]]:
    """The rows of a step whose ranks are known, in as many lists as it needs records."""
    rows = sorted((rank, row) for rank, row in step.rows.items() if rank is not None)
    for first in range(0, len(rows), _ROWS_AT_MOST):
        yield rows[first : first + _ROWS_AT_MOST]


def step_timing(
    step: LoggedStep,
    rows: list[tuple[int, Row]],
    *,
    job_id: str,
    first_epoch: int,
    node_id: str,
    agent_session: str,
    sequence: int,
) -> StepTiming:
    """The record of a step and some of its ranks.

    Own time is not given: readers take forward and backward without `batch-generator`, which Megatron-LM measures
    inside forward and which is `data_us` here. `wait_us` is the sum of point-to-point and gradient timers.

    Args:
        step: the step; its event time is set.
        rows: ranks and their rows.
        job_id: the job.
        first_epoch: the epoch that the log begins with.
        node_id: who reports.
        agent_session: of the reporter.
        sequence: the record's number.
    """
    parts = [_parts(row.timers) for _, row in rows]

    def column(name: str) -> tuple[int | None, ...] | None:
        values = tuple(part.get(name) for part in parts)
        return values if any(value is not None for value in values) else None

    return StepTiming(
        job_id=job_id,
        epoch=first_epoch + step.epoch,
        node_id=node_id,
        agent_session=agent_session,
        seq=sequence,
        event_time_ns=step.event_ns,
        step=step.step,
        rank=tuple(rank for rank, _ in rows),
        step_us=tuple(row.step_us for _, row in rows),
        compute_us=column("compute"),
        forward_us=column("forward"),
        backward_us=column("backward"),
        optimizer_us=column("optimizer"),
        data_us=column("data"),
        wait_us=column("wait"),
    )


def _parts(timers: dict[str, int]) -> dict[str, int]:
    """A rank's timers as columns that do not overlap."""
    parts: dict[str, int] = {name: timers[name] for name in ("forward", "backward", "optimizer") if name in timers}
    if "data" in timers and timers["data"] <= parts.get("forward", 0):
        parts["data"] = timers["data"]
        parts["forward"] -= timers["data"]
    if "forward" in parts and "backward" in parts:
        parts["compute"] = parts["forward"] + parts["backward"]
    # `all-grads-sync` encloses the gradient timers of its parts.
    prefix = ("wait:",) if "sync" in timers else ("wait:", "part:")
    waits = [time_us for name, time_us in timers.items() if name == "sync" or name.startswith(prefix)]
    if waits:
        parts["wait"] = sum(waits)
    return parts

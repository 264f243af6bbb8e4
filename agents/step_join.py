"""The reports of a node's ranks on one step, joined into one record.

Guarantees: a step leaves once all ranks that it waits for have reported it, or when it has waited long enough; a rank
that comes later makes a record of its own; a measure that no rank has is null, and a rank without it too. State is
bounded by the number of open steps. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from agents.trainer_messages import StepReport
from schemas.steps import CollectiveTiming, Phase

__all__ = ["Reports", "StepJoin", "is_due", "step_columns"]

Reports = dict[int, StepReport]
"""What each rank said of one step, by rank."""

_MOST_OPEN_STEPS = 64

_PHASE_ORDER: tuple[Phase, ...] = ("compile", "checkpoint", "evaluation", "warmup", "train")
"""Which phase a step is of when its ranks differ: one rank's checkpoint is everybody's wait."""

_Communicator = tuple[str, tuple[int | str, ...] | None, str | None]
"""Kind, instance and operation."""

_MEASURES = (
    "step_us",
    "own_us",
    "compute_us",
    "forward_us",
    "backward_us",
    "optimizer_us",
    "host_us",
    "data_us",
    "wait_us",
    "tokens",
    "sum_squared_lengths",
)


@dataclass(slots=True)
class _OpenStep:
    since_ns: int
    reports: Reports = field(default_factory=dict)


class StepJoin:
    """The steps of one attempt of a job that are not whole yet."""

    def __init__(self) -> None:
        self._steps: dict[int, _OpenStep] = {}

    def add(self, rank: int, report: StepReport, now_ns: int) -> list[Reports]:
        """Take a report; the steps that must leave for it: this one's earlier pass, or the oldest of too many."""
        left: list[Reports] = []
        held = self._steps.get(report.step)
        if held is not None and rank in held.reports:  # a loop that went back to an earlier step
            left.append(self._take(report.step))
        if report.step not in self._steps and len(self._steps) >= _MOST_OPEN_STEPS:
            left.append(self._take(min(self._steps, key=lambda step: self._steps[step].since_ns)))
        self._steps.setdefault(report.step, _OpenStep(now_ns)).reports[rank] = report
        return left

    def take_whole(self, ranks: AbstractSet[int]) -> list[Reports]:
        """The steps that all of `ranks` have reported."""
        return [self._take(step) for step, held in list(self._steps.items()) if ranks <= held.reports.keys()]

    def take_late(self, now_ns: int, timeout_ns: int) -> list[Reports]:
        """The steps that have waited for `timeout_ns`."""
        return [
            self._take(step) for step, held in list(self._steps.items()) if is_due(held.since_ns, now_ns, timeout_ns)
        ]

    def _take(self, step: int) -> Reports:
        return dict(sorted(self._steps.pop(step).reports.items()))


def step_columns(reports: Reports) -> dict[str, Any]:
    """The fields of a step timing that follow from its ranks' reports, ranks in ascending order."""
    phases = {report.phase for report in reports.values()}
    columns: dict[str, Any] = {
        "step": next(iter(reports.values())).step,
        "phase": next(phase for phase in _PHASE_ORDER if phase in phases),
        "rank": tuple(reports),
        "collectives": _collectives(reports),
    }
    for name in _MEASURES:
        column = tuple(getattr(report, name) for report in reports.values())
        if any(value is not None for value in column):
            columns[name] = column
    return columns


def is_due(since_ns: int | None, now_ns: int, period_ns: int) -> bool:
    """Whether a period has passed since a time; None is for ever ago.

    A clock that was set back must not stop what is periodic until it has caught up, so a jump either way is due.
    """
    return since_ns is None or abs(now_ns - since_ns) >= period_ns


def _collectives(reports: Mapping[int, StepReport]) -> tuple[CollectiveTiming, ...]:
    durations: dict[_Communicator, dict[int, int]] = {}
    sizes: dict[_Communicator, dict[int, int | None]] = {}
    for rank, report in reports.items():
        for spent in report.collectives:
            key = (spent.group, spent.instance, spent.op)
            of_rank = durations.setdefault(key, {})
            of_rank[rank] = of_rank.get(rank, 0) + spent.duration_us
            size_of_rank = sizes.setdefault(key, {})
            before = size_of_rank.get(rank, 0)
            size_of_rank[rank] = None if before is None or spent.size_bytes is None else before + spent.size_bytes
    return tuple(
        CollectiveTiming(
            group=group,
            instance=instance,
            op=op,
            duration_us=tuple(map(of_rank.get, reports)),
            size_bytes=_column(sizes[group, instance, op], reports),
        )
        for (group, instance, op), of_rank in durations.items()
    )


def _column(of_rank: Mapping[int, int | None], reports: Mapping[int, StepReport]) -> tuple[int | None, ...] | None:
    column = tuple(map(of_rank.get, reports))
    return column if any(value is not None for value in column) else None

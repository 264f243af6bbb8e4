"""Small benchmark runs with one fault, and their records as tables: what tests of the generator look at."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from agents.simulation.benchmark import BenchmarkCase, GeneratedRun, Truth
from agents.simulation.benchmark.case import FaultKind, FaultPlan
from agents.simulation.benchmark.shapes import SHAPES, one_fault
from schemas.base import Record
from schemas.frames import FabricFrame
from schemas.steps import StepTiming

ONSET, END, STEPS = 20, 50, 60
RAIL = SHAPES["tp8-dp8"]


def faulty(kind: FaultKind, severity: float = 0.3, shape: str = "tp8-dp8", **changes: Any) -> BenchmarkCase:
    given = {name: changes.pop(name) for name in tuple(changes) if name in FaultPlan.__dataclass_fields__}
    fault = FaultPlan(kind, severity, ONSET, END, **given)
    return one_fault("X", kind, SHAPES[shape], fault, "", steps=STEPS, **changes)


@lru_cache(maxsize=3)
def published(run: GeneratedRun) -> tuple[Record, ...]:
    """All records of a run, made once for several looks."""
    return tuple(record for _, record in run.published())


def timings(run: GeneratedRun) -> list[StepTiming]:
    return [record for record in published(run) if isinstance(record, StepTiming)]


def per_rank(run: GeneratedRun, column: str, job_id: str = "job-0") -> np.ndarray[Any, np.dtype[np.float64]]:
    """(steps, ranks) of a column."""
    found: dict[tuple[int, int], float] = {}
    for record in timings(run):
        if record.job_id == job_id:
            for rank, value in zip(record.rank, getattr(record, column), strict=True):
                found[record.step, rank] = float(value)
    shape = max(step for step, _ in found) + 1, max(rank for _, rank in found) + 1
    table = np.full(shape, np.nan)
    for place, value in found.items():
        table[place] = value
    return table


def in_group(run: GeneratedRun, group: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """((steps, ranks) durations in a kind of communicator, instance of each rank)."""
    durations: dict[tuple[int, int], float] = {}
    instances: dict[int, Any] = {}
    for record in timings(run):
        for collective in record.collectives:
            if collective.group == group:
                assert collective.instance is not None
                for rank, number, value in zip(record.rank, collective.instance, collective.duration_us, strict=True):
                    durations[record.step, rank] = float(value or 0)
                    instances[rank] = number
    shape = max(step for step, _ in durations) + 1, len(instances)
    table = np.zeros(shape)
    for where, spent in durations.items():
        table[where] = spent
    return table, np.array([instances[rank] for rank in range(len(instances))])


def frames(run: GeneratedRun, kind: type[Any], during: bool, truth: Truth) -> list[Any]:
    """Records of a family well inside the fault, or before it."""
    low, high = (
        (truth.onset_ns + 15_000_000_000, truth.end_ns - 2_000_000_000) if during else (0, truth.onset_ns - 10**9)
    )
    return [record for record in published(run) if isinstance(record, kind) and low <= record.event_time_ns < high]


def only(run: GeneratedRun) -> Truth:
    [truth] = run.truths
    return truth


def port_values(run: GeneratedRun, truth: Truth, column: str, view: str = "host") -> dict[str, float]:
    """Growth over the fault of each port's column or counter, or its last value for a float column."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for record in frames(run, FabricFrame, True, truth):
        if record.view != view:
            continue
        values = record.counters.get(column) if column in record.counters else getattr(record, column)
        for place, value in enumerate(values):
            name = f"{record.publisher_id}/{record.device[place]}/{record.port[place]}".replace("/None/", "/")
            first.setdefault(name, value)
            last[name] = value
    return last if column == "rate_gbps" else {name: last[name] - first[name] for name in last}

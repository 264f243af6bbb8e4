"""A small fleet of three jobs in which the clocks of three nodes are wrong, and the same fleet without that.

`job-clean` has good clocks and two faults. One node of `job-behind` is an hour behind. Of `job-ahead` one node is an hour
ahead, and another jumps ten minutes ahead for a while and comes back. What is wrong is the time that a record says; when
it arrives stays as it is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from agents.simulation import deliver, simulate
from agents.simulation.scenario import FaultPlan, Scenario, default_scenario

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["AHEAD", "BEHIND", "CLEAN_JOB", "DURATION_S", "JUMPING", "JUMP_S", "arrivals", "with_bad_clocks"]

S = 1_000_000_000
DURATION_S = 330.0
"""A clock that is behind must have been so for eight half minutes."""

CLEAN_JOB = "job-clean"
BEHIND, AHEAD, JUMPING = "node-0003", "node-0005", "node-0006"
JUMP_S = (90.0, 190.0)
"""While the jumping clock is ahead, in seconds of the run."""


def fleet() -> Scenario:
    base = default_scenario(nodes=8, duration_s=DURATION_S, seed=11, scenario="healthy")
    plan = base.jobs[0].model_copy(update={"tensor": 8, "pipeline": 1, "step_time_ms": 2000.0})

    def job(name: str, first: int, stop: int) -> object:
        return plan.model_copy(update={"job_id": name, "nodes_from": first, "nodes_to": stop})

    jobs = (job(CLEAN_JOB, 0, 3), job("job-behind", 3, 5), job("job-ahead", 5, 8))
    faults = (
        FaultPlan(kind="thermal", job=CLEAN_JOB, onset=0.3, end=0.5, node=1),
        FaultPlan(kind="cpu_contention", job=CLEAN_JOB, onset=0.4, end=0.6, node=2),
    )
    fields = base.model_dump() | {"jobs": jobs, "faults": faults, "tick_s": 2.0, "look_alikes": ()}
    return Scenario.model_validate(
        {**fields, "jobs": [j.model_dump() for j in jobs], "faults": [f.model_dump() for f in faults]}
    )  # type: ignore[attr-defined]


@cache
def arrivals(start_ns: int) -> tuple[tuple[int, Record], ...]:
    """(arrival, record) of the whole run, by arrival."""
    return tuple(deliver(simulate(fleet(), start_ns), seed=11))


def with_bad_clocks(start_ns: int) -> list[tuple[int, Record]]:
    """The same arrivals with the times that the bad clocks say."""
    return [(arrival_ns, _as_told(record, arrival_ns - start_ns)) for arrival_ns, record in arrivals(start_ns)]


def _as_told(record: Record, since_start_ns: int) -> Record:
    shift_s = {BEHIND: -3600, AHEAD: 3600}.get(getattr(record, "node_id", None) or "", 0)
    at_ns = getattr(record, "event_time_ns", None)
    if getattr(record, "node_id", None) == JUMPING and JUMP_S[0] * S <= since_start_ns < JUMP_S[1] * S:
        shift_s = 600
    if at_ns is None or not shift_s:
        return record
    return record.model_copy(update={"event_time_ns": at_ns + shift_s * S})

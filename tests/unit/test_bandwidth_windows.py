"""Live bandwidth of communicators: a record per kind and minute, from steps that tell bytes, and nothing from others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from schemas.base import Record
from schemas.results import JobPerformance
from schemas.steps import CollectiveTiming, StepTiming
from streams.core.bandwidth_windows import BandwidthWindows
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine

S = 10**9
NODES, LOCAL = 4, 2
SIZE = 400_000_000


def timing(step: int, node: int, sizes: bool = True, slow_tp: int | None = None) -> StepTiming:
    """A node of a tensor pair; pairs meet along both places in all-gathers and reduce-scatters of one kind.

    The last node comes last: the others wait 10 ms for it in the data-parallel group.
    """
    ranks = tuple(range(node * LOCAL, node * LOCAL + LOCAL))
    tensor_us = 20_000 if node == slow_tp else 10_000

    def size(value: int) -> tuple[int, ...] | None:
        return (value,) * LOCAL if sizes else None

    collectives = [
        CollectiveTiming(
            group="tp", instance=(ranks[0], 1, 2), op="all_reduce", duration_us=(tensor_us,) * 2, size_bytes=size(SIZE)
        )
    ]
    for place, rank in enumerate(ranks):
        column: list[int | None] = [None, None]
        column[place] = 20_000 + 10_000 * (node != NODES - 1)
        told: list[int | None] = [None, None]
        told[place] = SIZE
        for op in ("all_gather", "_reduce_scatter_base"):
            collectives.append(
                CollectiveTiming(
                    group="dp",
                    instance=(rank % LOCAL, LOCAL, NODES),
                    op=op,
                    duration_us=tuple(column),
                    size_bytes=tuple(told) if sizes else None,
                )
            )
    return StepTiming(
        job_id="job",
        node_id=f"node-{node}",
        agent_session="s",
        seq=step,
        event_time_ns=(step + 1) * S,
        step=step,
        rank=ranks,
        step_us=(900_000,) * LOCAL,
        own_us=(500_000,) * LOCAL,
        collectives=tuple(collectives),
    )


def run(steps: range, engine: JobsEngine | None = None, seed: int | None = None, **what: Any) -> list[Record]:
    engine = engine or JobsEngine("site", 0, Roster())
    found: list[Record] = []
    for step in steps:
        nodes = list(range(NODES))
        if seed is not None:
            random.Random(f"{seed}/{step}").shuffle(nodes)
        for node in nodes:
            record = timing(step, node, **what)
            position = Position("paceline.step-timings.v1", 0, step * NODES + node, record.event_time_ns // 1_000_000)
            found += engine.on_record(record, position)
    return found


def performance(records: list[Record]) -> list[JobPerformance]:
    return [record for record in records if isinstance(record, JobPerformance)]


def test_a_minute_gives_one_record_per_kind() -> None:
    dp, tp = performance(run(range(90)))
    assert (dp.group, tp.group) == ("dp", "tp")
    assert dp.window_end_ns - dp.window_start_ns == 60 * S
    # 400 MB between two ranks in 10 ms.
    assert (tp.algorithm_bandwidth_gb_s, tp.bus_bandwidth_gb_s) == (40.0, 40.0)
    assert (tp.communicators, tp.ranks_per_communicator, tp.transfer_us, tp.wait_share) == (NODES, 2, 10_000, 0.0)
    # 400 MB gathered and 400 MB scattered between four, in 40 ms together; three wait another 20.
    assert (dp.bytes_per_collective, dp.algorithm_bandwidth_gb_s, dp.bus_bandwidth_gb_s) == (2 * SIZE, 20.0, 15.0)
    assert (dp.communicators, dp.transfer_us, dp.steps) == (LOCAL, 40_000, 8)
    assert dp.wait_share == pytest.approx(3 * 20 / (4 * 40 + 3 * 20), rel=1e-5)


def test_the_slowest_communicator_is_told() -> None:
    tp = performance(run(range(90), slow_tp=2))[1]
    assert (tp.bus_bandwidth_gb_s, tp.slowest_bus_bandwidth_gb_s, tp.slowest_instance) == (40.0, 20.0, "4-1-2")


def test_reports_without_bytes_give_nothing() -> None:
    assert performance(run(range(90), sizes=False)) == []


def test_the_order_of_nodes_makes_no_difference() -> None:
    assert performance(run(range(90), seed=1)) == performance(run(range(90), seed=2)) == performance(run(range(90)))


def test_a_restart_in_the_middle_of_a_window_changes_nothing() -> None:
    engine = JobsEngine("site", 0, Roster())
    first = run(range(30), engine)
    again = JobsEngine("site", 0, Roster())
    last = 30 * NODES - 1
    again.restore(engine.snapshot(), {"paceline.step-timings.v1": last})
    topic = "paceline.step-timings.v1"
    for offset in range(engine.resume_offsets().get(topic, last + 1), last + 1):
        record = timing(offset // NODES, offset % NODES)
        again.on_record(record, Position(topic, 0, offset, record.event_time_ns // 1_000_000))
    second = run(range(30, 90), again)
    assert performance([*first, *second]) == performance(run(range(90)))


def test_a_snapshot_with_open_steps_has_what_their_reports_said_of_bytes() -> None:
    engine = JobsEngine("site", 0, Roster())
    first = run(range(33), engine)
    again = JobsEngine("site", 0, Roster())
    again.restore(engine.snapshot(with_waiting=True), {})
    assert performance([*first, *run(range(33, 90), again)]) == performance(run(range(90)))


def test_bytes_of_steps_that_never_close_are_bounded() -> None:
    windows = BandwidthWindows()
    for step in range(0, 8 * 200, 8):
        windows.on_timing(timing(step, 0))
    assert len(windows._sizes) == 64

"""The step join: each step closes once, whole or at its deadline, in step order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from factories import SITE, at, job, placement, position_of, progress, step_timing

from schemas.findings import ProgressMark
from schemas.results import StepResult
from schemas.steps import CollectiveTiming, StepTiming
from streams.core.roster import Roster
from streams.core.step_join import ClosedStep, StepJoin, StepJoinConfig, instances
from streams.engines.jobs import JobsEngine

LATENESS_S = 10
MEMBERS = frozenset(range(4))


def halves(step: int, seconds: float, **columns: Any) -> list[StepTiming]:
    """Both nodes' shares of a step of four ranks."""
    return [
        step_timing(step, seconds, [100, 110], node_id="node-0", first_rank=0, **columns),
        step_timing(step, seconds, [120, 130], node_id="node-1", first_rank=2, **columns),
    ]


def close(join: StepJoin, seconds: float, expected: int | None = 4, *, final: bool = False) -> list[ClosedStep]:
    return join.close(at(seconds), expected, MEMBERS, final)


def joined(*timings: StepTiming) -> ClosedStep:
    join = StepJoin()
    for timing in timings:
        join.add(timing)
    (step,) = close(join, 0, final=True)
    return step


def test_the_first_whole_step_waits_for_earlier_ones_until_the_lateness_has_passed() -> None:
    join = StepJoin()
    for timing in halves(5, 0):
        join.add(timing)
    assert close(join, LATENESS_S - 0.001) == []
    (step,) = close(join, LATENESS_S)
    assert (step.step, step.rank.tolist(), step.missing) == (5, [0, 1, 2, 3], ())


def test_a_whole_step_that_follows_the_last_one_closes_at_once() -> None:
    join = StepJoin()
    for timing in halves(5, 0) + halves(6, 11):
        join.add(timing)
    assert [step.step for step in close(join, 11)] == [5, 6]


def test_after_a_gap_in_the_numbers_a_whole_step_waits_for_the_lateness() -> None:
    join = StepJoin()
    for timing in halves(5, 0) + halves(404, 11):
        join.add(timing)
    assert [step.step for step in close(join, 11)] == [5]
    assert [step.step for step in close(join, 21)] == [404]


def test_steps_close_in_order_of_their_numbers_whatever_comes_first() -> None:
    join = StepJoin()
    for timing in halves(6, 1) + halves(5, 0):
        join.add(timing)
    assert [step.step for step in close(join, LATENESS_S)] == [5, 6]


def test_a_step_with_missing_ranks_closes_at_its_deadline_and_names_them() -> None:
    join = StepJoin()
    join.add(halves(5, 0)[0])
    assert close(join, LATENESS_S - 1) == []
    (step,) = close(join, LATENESS_S)
    assert (step.rank.tolist(), step.missing, step.expected) == ([0, 1], (2, 3), 4)


def test_the_deadline_is_three_median_step_times_where_that_is_longer() -> None:
    join = StepJoin()
    for number in range(3):
        for timing in halves(number, 40.0 * number, step_us=40_000_000):
            join.add(timing)
    assert len(close(join, 90)) == 3
    join.add(halves(3, 120)[0])
    assert close(join, 239) == []
    assert [step.missing for step in close(join, 240)] == [(2, 3)]


def test_a_rank_that_did_not_report_is_not_read_as_zero() -> None:
    step = joined(halves(5, 0)[1])
    assert step.rank.tolist() == [2, 3]
    assert step.own_us.tolist() == [120.0, 130.0]


def test_a_value_that_was_not_said_is_unknown() -> None:
    step = joined(step_timing(0, 0, [100, None], step_us=200))
    assert step.own_us[0] == 100
    assert np.isnan(step.own_us[1])


def test_own_time_is_the_sum_of_its_parts_where_it_is_not_reported() -> None:
    parts = step_timing(0, 0, [100, 100], host_us=(5, 7), data_us=(1, None))
    assert joined(parts).own_us.tolist() == [106.0, 107.0]
    assert joined(parts.model_copy(update={"own_us": (90, None)})).own_us.tolist() == [90.0, 107.0]


def test_own_time_rests_on_forward_and_backward_where_compute_is_unknown() -> None:
    timing = step_timing(0, 0, [None, None], step_us=500, forward_us=(100, 110), backward_us=(200, 220), host_us=(5, 5))
    assert joined(timing).own_us.tolist() == [305.0, 335.0]


def test_waiting_is_what_a_collective_takes_beyond_its_fastest_member() -> None:
    left, right = halves(0, 0)
    left = left.model_copy(
        update={"collectives": (CollectiveTiming(group="dp", instance=(0, 1), duration_us=(500, 70)),)}
    )
    right = right.model_copy(
        update={"collectives": (CollectiveTiming(group="dp", instance=(0, 1), duration_us=(40, 90)),)}
    )
    assert joined(left, right).columns["wait_us"].tolist() == [460.0, 0.0, 0.0, 20.0]


def test_operations_in_one_communicator_add_up_and_an_unknown_one_makes_the_sum_unknown() -> None:
    twice = tuple(CollectiveTiming(group="dp", instance=(0, 0), duration_us=(100, d)) for d in (20, None))
    step = joined(step_timing(0, 0, [1, 1]).model_copy(update={"collectives": twice}))
    assert step.collectives["dp"].duration_us[0] == 200
    assert np.isnan(step.collectives["dp"].duration_us[1])
    assert [members.tolist() for members in instances(step.collectives["dp"])] == [[0]]


def test_a_report_that_comes_twice_counts_once() -> None:
    join = StepJoin()
    for timing in [*halves(5, 0), *halves(5, 0)]:
        assert join.add(timing)
    assert join.repeats == 2
    (step,) = close(join, LATENESS_S)
    assert step.rank.tolist() == [0, 1, 2, 3]


def test_a_repeat_of_a_closed_step_is_a_repeat_and_a_new_rank_is_late() -> None:
    join = StepJoin()
    join.add(halves(5, 0)[0])
    assert len(close(join, LATENESS_S)) == 1
    assert join.add(halves(5, 0)[0])
    assert not join.add(halves(5, 0)[1])
    assert close(join, 100) == []


def test_where_unequal_reports_overlap_the_same_one_counts_in_any_order() -> None:
    first = step_timing(0, 0, [100, 110], node_id="node-0", first_rank=0)
    second = step_timing(0, 0, [910, 120], node_id="node-1", first_rank=1)
    assert joined(first, second).own_us.tolist() == joined(second, first).own_us.tolist() == [100.0, 110.0, 120.0]


def test_a_step_is_masked_when_any_node_says_so() -> None:
    train, checkpoint = halves(0, 0)[0], halves(0, 0, phase="checkpoint")[1]
    assert joined(train, checkpoint).phase == "checkpoint"


def test_of_too_many_open_steps_the_oldest_closes() -> None:
    join = StepJoin(StepJoinConfig(open_steps=3))
    for number in range(5):
        join.add(halves(number, 0)[0])
    assert [step.step for step in close(join, 0)] == [0, 1]


def test_an_unknown_job_has_its_steps_closed_at_the_deadline() -> None:
    join = StepJoin()
    for timing in halves(5, 0):
        join.add(timing)
    (step,) = join.close(at(LATENESS_S), None, frozenset())
    assert (step.expected, step.missing) == (4, ())


def test_the_step_time_is_the_longest_that_any_rank_reported() -> None:
    assert joined(*halves(5, 0, step_us=200)).step_time_us == 200
    assert joined(step_timing(0, 0, [1, 1]).model_copy(update={"step_us": (None, None)})).step_time_us is None


# --- In the engine ------------------------------------------------------------------------------------------------


def engine_with(*jobs: str) -> JobsEngine:
    roster = Roster()
    for name in jobs:
        roster.take(job(4, job_id=name))
        roster.take(placement([0, 1], node_id="node-0", job_id=name))
        roster.take(placement([2, 3], node_id="node-1", job_id=name))
    return JobsEngine(SITE, 0, roster)


def steps_of(records: list[object]) -> list[tuple[str, int, int]]:
    return [(r.job_id, r.step, r.ranks_reported) for r in records if isinstance(r, StepResult)]


def test_the_progress_of_a_job_that_hangs_closes_its_last_step() -> None:
    engine = engine_with("job-1")
    outputs: list[object] = []
    for number in range(3):
        for timing in halves(number, 20.0 + number):
            outputs += engine.on_record(timing, position_of(timing))
    last = halves(3, 23)[0]
    outputs += engine.on_record(last, position_of(last))
    for second in range(25, 60, 5):
        for node in ("node-0", "node-1"):
            record = progress(second, node_id=node)
            outputs += engine.on_record(record, position_of(record))
    assert steps_of(outputs) == [("job-1", 0, 4), ("job-1", 1, 4), ("job-1", 2, 4), ("job-1", 3, 2)]


def test_an_open_step_of_a_job_that_ended_does_not_hold_back_another_jobs_marks() -> None:
    engine = engine_with("job-1", "job-2")
    outputs: list[object] = []
    last = halves(0, 20)[0]
    outputs += engine.on_record(last, position_of(last))
    for number in range(90):
        for timing in halves(number, 21.0 + number, job_id="job-2"):
            outputs += engine.on_record(timing, position_of(timing))
    assert ("job-1", 0, 2) in steps_of(outputs)
    marks = [record.mark_ns for record in outputs if isinstance(record, ProgressMark)]
    assert marks[-1] > at(105)


def test_a_report_of_an_unknown_job_is_joined_and_judged_by_nobody_expected() -> None:
    engine = engine_with()
    outputs: list[object] = []
    for number in range(20):
        for timing in halves(number, 20.0 + number):
            outputs += engine.on_record(timing, position_of(timing))
    outputs += engine.flush()
    assert len(steps_of(outputs)) == 20
    assert all(r.mfu is None and r.missing_ranks == () for r in outputs if isinstance(r, StepResult))


@pytest.mark.parametrize("lateness_s", [0, 3])
def test_what_comes_after_the_close_is_late_and_changes_nothing(lateness_s: int) -> None:
    engine = engine_with("job-1")
    first, second = halves(0, 20)
    outputs: list[object] = []
    outputs += engine.on_record(first, position_of(first))
    for number in (1, 2, 3):
        for timing in halves(number, 20.0 + 10 * number):
            outputs += engine.on_record(timing, position_of(timing))
    late = second.model_copy(update={"event_time_ns": at(20 + lateness_s)})
    outputs += engine.on_record(late, position_of(late))
    assert [record for record, _ in engine.take_late()] == [late]
    assert engine.take_late() == []
    assert ("job-1", 0, 2) in steps_of(outputs)

"""Slow ranks named together: a whole node or group, told as one matter even where some members show it a step later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from factories import at, job, step_timing

from streams.core.roster import JobRoster, Roster
from streams.core.step_join import ClosedStep, StepJoin
from streams.detectors.slow_units import Leaning, slow_units

if TYPE_CHECKING:
    from collections.abc import Iterable

NODE = frozenset(range(4, 8))


def a_step(nodes: int = 4, per_node: int = 4) -> ClosedStep:
    join, world = StepJoin(), nodes * per_node
    for node in range(nodes):
        join.add(step_timing(0, 0.0, [200_000] * per_node, node_id=f"n{node}", first_rank=node * per_node))
    (step,) = join.close(at(0), world, frozenset(range(world)), final=True)
    return step


def roster_of(world: int = 16, tensor: int = 1) -> JobRoster:
    roster = Roster()
    roster.take(job(world, layout={"tensor": tensor, "data": world // tensor}))
    return roster.job("job-1", 0)


def units(
    suspects: Iterable[int],
    ratios: dict[int, float],
    often: Iterable[int] = (),
    now: Iterable[int] = (),
    waits: Iterable[int] = (),
    tensor: int = 1,
) -> list[set[int]]:
    ratio = np.zeros(16)
    for rank, value in ratios.items():
        ratio[rank] = value
    leaning = Leaning(frozenset(often), frozenset(now))
    return slow_units(a_step(), roster_of(tensor=tensor), set(suspects), ratio, leaning, set(waits))


def test_a_node_whose_ranks_are_all_slow_is_one_unit() -> None:
    assert units(NODE, dict.fromkeys(NODE, 0.05)) == [set(NODE)]


def test_a_node_some_of_whose_ranks_lean_as_far_is_one_unit() -> None:
    assert units({4, 6}, dict.fromkeys(NODE, 0.045), often=NODE, now=NODE, waits=NODE) == [set(NODE)]


def test_slow_ranks_of_a_node_that_is_about_to_be_whole_wait_and_then_are_named_one_by_one() -> None:
    ratios = dict.fromkeys(NODE, 0.045)
    assert units({4, 6}, ratios, often={5}, now=NODE, waits=NODE) == []
    assert units({4, 6}, ratios, often={5}, now=NODE) == [{4}, {6}]


def test_one_slow_rank_does_not_wait_for_a_node_that_keeps_pace() -> None:
    assert units({4}, {4: 0.05}, waits=NODE) == [{4}]
    assert units({4}, {4: 0.05, 5: 0.02}, now={5}, waits=NODE) == [{4}]


def test_two_slow_ranks_of_a_node_are_two() -> None:
    assert units({4, 6}, {4: 0.2, 6: 0.2}, waits=NODE) == [{4}, {6}]


def test_others_that_lean_far_less_do_not_make_the_node_slow() -> None:
    ratios = {4: 0.2, 5: 0.2, 6: 0.02, 7: 0.02}
    assert units({4, 5}, ratios, often=NODE, now=NODE) == [{4}, {5}]


def test_one_member_far_above_the_others_is_named_alone() -> None:
    ratios = {4: 0.3, 5: 0.05, 6: 0.05, 7: 0.05}
    assert units(NODE, ratios) == [{4}, {5}, {6}, {7}]


def test_a_tensor_group_within_a_node_is_one_unit() -> None:
    assert units({4, 5}, {4: 0.1, 5: 0.1}, tensor=2) == [{4, 5}]


def test_nobody_slow_is_no_unit() -> None:
    assert units((), {}, often=NODE, now=NODE) == []

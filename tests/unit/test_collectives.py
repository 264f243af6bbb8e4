"""Collectives of a step: communicators keep their names, and both forms of a report are read."""

from __future__ import annotations

import numpy as np
from factories import at

from schemas.steps import CollectiveTiming, StepTiming
from streams.core.collectives import Collective, instances, transfers
from streams.core.step_join import ClosedStep, StepJoin


def joined(*nodes: tuple[CollectiveTiming, ...], ranks: int = 4) -> ClosedStep:
    """A step of nodes of `ranks` ranks that report these collectives."""
    join = StepJoin()
    for node, collectives in enumerate(nodes):
        join.add(
            StepTiming(
                job_id="job-1",
                node_id=f"node-{node}",
                agent_session="s1",
                seq=0,
                event_time_ns=at(1),
                step=1,
                rank=tuple(range(node * ranks, (node + 1) * ranks)),
                step_us=(1000,) * ranks,
                collectives=collectives,
            )
        )
    world = ranks * len(nodes)
    (step,) = join.close(at(1), world, frozenset(range(world)), final=True)
    return step


def timing(
    durations: tuple[int | None, ...],
    instance: tuple[int | str, ...] | None = None,
    group: str = "dp",
    op: str | None = None,
) -> CollectiveTiming:
    return CollectiveTiming(group=group, instance=instance, op=op, duration_us=durations)


def by_name(collective: Collective) -> dict[str, list[int]]:
    return {
        collective.name_of(int(collective.instance[members[0]])): members.tolist() for members in instances(collective)
    }


def test_a_column_says_for_each_rank_in_which_communicator_it_is() -> None:
    step = joined((timing((5, 6, 7, 8), (0, 1, 0, 1), op="all_reduce"),), (timing((1, 2, 3, 4), (0, 1, 0, 1)),))
    dp = step.collectives["dp"]
    assert (dp.names, dp.op) == (("0", "1"), "all_reduce")
    assert by_name(dp) == {"0": [0, 2, 4, 6], "1": [1, 3, 5, 7]}
    numbers, shortest, members = transfers(dp)
    assert [array.tolist() for array in (numbers, shortest, members)] == [[0, 1], [1.0, 2.0], [4, 4]]


def test_a_report_about_one_communicator_names_it_for_all_ranks_that_were_in_it() -> None:
    node = (
        timing((5, 6, None, None), (0, 1, 2), "tp", "all_reduce"),
        timing((None, None, 7, 8), (2, 1, 2), "tp", "all_reduce"),
        timing((1, 1, None, None), (0, 1, 2), "tp", "broadcast"),
        timing((9, 9, 9, 9), (0, 1, 8)),
    )
    step = joined(node, (timing((3, 9, 9, 9), (0, 1, 8)),))
    assert by_name(step.collectives["tp"]) == {"0-1-2": [0, 1], "2-1-2": [2, 3]}
    assert step.collectives["tp"].duration_us[:4].tolist() == [6, 7, 7, 8]
    assert by_name(step.collectives["dp"]) == {"0-1-8": list(range(8))}
    assert transfers(step.collectives["dp"])[1].tolist() == [3.0]


def test_a_rank_in_two_communicators_of_one_kind_is_told_of_the_first() -> None:
    step = joined((timing((5, 5, 5, 5), ("a",)), timing((9, 9, None, None), ("b",))))
    dp = step.collectives["dp"]
    assert by_name(dp) == {"a": [0, 1, 2, 3]}
    assert dp.duration_us.tolist() == [5, 5, 5, 5]


def test_names_are_the_same_when_a_communicator_is_away() -> None:
    whole = joined((timing((5, 5, 5, 5), (0, 1, 2, 3)),)).collectives["dp"]
    part = joined((timing((None, 5, 5, 5), (1, 1, 2, 3)),)).collectives["dp"]
    assert whole.names == ("0", "1", "2", "3")
    assert part.names == ("1", "2", "3")
    assert part.name_of(int(part.instance[3])) == whole.name_of(int(whole.instance[3])) == "3"


def test_without_a_name_all_ranks_of_a_kind_meet() -> None:
    step = joined((timing((5, 6, 7, 8)),), (timing((1, 2, 3, None)),))
    assert by_name(step.collectives["dp"]) == {"0": [0, 1, 2, 3, 4, 5, 6]}


def test_nobody_who_reports_a_duration_is_no_transfer() -> None:
    collective = Collective("dp", np.array([0, 0]), np.array([np.nan, np.nan]))
    assert [array.size for array in transfers(collective)] == [0, 0, 0]
    assert collective.name_of(3) == "3"

"""Changed ranks: told by each rank's own past where peers cannot tell; not one straggler, not the job, not lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, step_timing

from schemas.findings import BLAMELESS_KINDS
from streams.core.roster import Roster
from streams.core.step_join import StepJoin
from streams.detectors.changed_ranks import ChangedRanks
from streams.detectors.job_pace import JobPace
from streams.detectors.straggler import Straggler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schemas.findings import Finding

WORLD = 32
CHANGED = frozenset(range(20))


def follow(
    steps: int,
    factor_of: Callable[[int], Any],
    *,
    sigma: float = 0.005,
    world: int = WORLD,
    tokens_of: Callable[[int], Any] | None = None,
    present: Callable[[int], Iterable[int]] | None = None,
    rule: ChangedRanks | None = None,
) -> list[Finding]:
    """Findings of steps whose own times are 200 ms with noise, times what `factor_of(step)` gives for each rank."""
    rule, rng, found = rule or ChangedRanks(SITE), np.random.default_rng(11), []
    roster = Roster()
    roster.take(job(world))
    known = roster.job("job-1", 0)
    straggler, pace = Straggler(SITE), JobPace(SITE)
    for step in range(steps):
        own = 200_000 * np.exp(rng.normal(0, sigma, world)) * factor_of(step)
        join = StepJoin()
        ranks = sorted(present(step)) if present else range(world)
        for rank in ranks:
            tokens = (int(tokens_of(step)[rank]),) if tokens_of else None
            join.add(
                step_timing(step, 10.0 * step, [round(own[rank])], node_id=f"n{rank}", first_rank=rank, tokens=tokens)
            )
        (closed,) = join.close(at(10.0 * step), world, frozenset(range(world)), final=True)
        list(straggler.on_step(closed, known, None))
        list(pace.on_step(closed, known, straggler.noise_scale))
        found += list(rule.on_step(closed, straggler.noise_scale, straggler.named, pace.is_job_slow, None))
    assert {finding.kind for finding in found} <= {"changed_ranks"} <= BLAMELESS_KINDS
    return found


def slower(
    ranks: Iterable[int], factor: float, begin: int = 40, end: int = 10**6, world: int = WORLD
) -> Callable[[int], Any]:
    mask = np.isin(np.arange(world), sorted(ranks))
    return lambda step: np.where(mask & (begin <= step < end), factor, 1.0)


@pytest.mark.parametrize("factor", [1.08, 1.1, 1.5])
def test_a_rack_of_more_than_half_of_the_peers_is_told_by_its_own_past(factor: float) -> None:
    (finding,) = follow(80, slower(CHANGED, factor))
    assert finding.step in range(49, 53)
    assert (finding.state, finding.severity, finding.subject.level) == ("open", "info", "job")
    assert finding.values["ranks"] == sorted(CHANGED)
    assert (finding.values["changed"], finding.values["of"]) == (20, 32)
    assert finding.values["ratio"] == pytest.approx(factor, rel=0.015)


def test_three_ranks_of_many_are_told_and_two_are_not() -> None:
    (finding,) = follow(80, slower({4, 17, 31}, 1.2))
    assert finding.values["ranks"] == [4, 17, 31]
    assert follow(80, slower({4, 17}, 1.2)) == []
    assert follow(80, slower({4}, 2.0)) == []


def test_when_they_keep_their_old_pace_again_it_is_cleared_after_twenty_steps() -> None:
    found = follow(140, slower(CHANGED, 1.2, end=80))
    assert [finding.state for finding in found] == ["open", "cleared"]
    assert found[0].finding_id == found[1].finding_id
    assert found[1].step in range(99, 104)


def test_it_stands_for_as_long_as_it_lasts() -> None:
    assert [finding.state for finding in follow(400, slower(CHANGED, 1.1))] == ["open"]


def test_seven_steps_are_not_enough() -> None:
    assert follow(100, slower(CHANGED, 1.2, end=47)) == []


def test_a_job_that_changes_as_a_whole_is_not_some_of_its_ranks() -> None:
    assert follow(100, slower(range(32), 1.2)) == []
    assert follow(100, slower(range(31), 1.2)) == []


def test_ranks_that_were_always_slower_have_not_changed() -> None:
    assert follow(100, slower(CHANGED, 1.3, begin=0)) == []


def test_changes_of_less_than_a_twentieth_are_left_alone() -> None:
    assert follow(150, slower(CHANGED, 1.03)) == []


def test_what_all_ranks_share_from_step_to_step_is_no_change() -> None:
    assert follow(300, lambda step: 1 + 0.04 * np.sin(step / 7)) == []


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2])
def test_lengths_that_vary_are_no_change(sigma: float) -> None:
    assert follow(400, lambda _: 1.0, sigma=sigma) == []


def test_ranks_that_fall_into_no_two_clear_parts_are_not_told() -> None:
    spread = 1 + 0.15 * np.arange(WORLD) / WORLD
    assert follow(100, lambda step: spread if step >= 40 else 1.0) == []


def test_ranks_that_are_given_more_tokens_do_more_work() -> None:
    def tokens_of(step: int) -> Any:
        return 1000 * slower(CHANGED, 1.2)(step)

    assert follow(100, slower(CHANGED, 1.2), tokens_of=tokens_of) == []
    assert len(follow(100, slower(CHANGED, 1.2), tokens_of=lambda _: np.full(WORLD, 1000))) == 1


def test_ranks_that_come_later_learn_their_own_past() -> None:
    def present(step: int) -> Iterable[int]:
        return range(32) if step >= 30 else range(24)

    (finding,) = follow(100, slower(CHANGED | {30}, 1.2, begin=60), present=present)
    assert finding.values["ranks"] == [*range(20), 30]
    assert follow(60, slower({24, 25, 26, 27}, 1.3, begin=0), present=present) == []


def test_state_is_at_most_twelve_bytes_a_rank_beside_its_number() -> None:
    rule = ChangedRanks(SITE)
    follow(25, lambda _: 1.0, world=64, rule=rule)
    columns = {name: value for name, value in rule.snapshot().items() if isinstance(value, np.ndarray)}
    assert {len(value) for value in columns.values()} == {64}
    assert sum(value.nbytes for value in columns.values()) <= 16 * 64

"""Stragglers: longer own time than peers, by recorded steps; never the longest waiter, never a heavy stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, job, placement, step_timing
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.core.roster import JobRoster, Roster
from streams.core.step_join import ClosedStep, StepJoin
from streams.detectors.straggler import Straggler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.findings import Finding

QUIET_US = 0.002


def closed(number: int, own: Sequence[float], node_ranks: int | None = None, **columns: Any) -> ClosedStep:
    """A step of ranks with the given own times, `node_ranks` of them a node."""
    join, count = StepJoin(), node_ranks or len(own)
    for first in range(0, len(own), count):
        times = [round(value) for value in own[first : first + count]]
        part: dict[str, Any] = {name: tuple(value[first : first + count]) for name, value in columns.items()}
        dp_us = part.pop("dp_us", None)
        join.add(
            step_timing(
                number, 10.0 * number, times, node_id=f"node-{first // count}", first_rank=first, dp_us=dp_us, **part
            )
        )
    (step,) = join.close(at(10.0 * number), len(own), frozenset(range(len(own))), final=True)
    return step


def roster_of(world: int, layout: dict[str, int] | None = None, **fields: Any) -> JobRoster:
    roster = Roster()
    roster.take(job(world, layout=layout))
    if fields:
        roster.take(placement(range(world), **fields))
    return roster.job("job-1", 0)


def follow(
    steps: int,
    own_of: Callable[[int, np.random.Generator], Any],
    roster: JobRoster | None = None,
    numbers: Callable[[int], int] = lambda index: index,
    rule: Straggler | None = None,
    **kwargs: Any,
) -> list[Finding]:
    """Findings over steps whose own times `own_of(index, rng)` gives; the noise has a fixed seed."""
    rule, rng = rule or Straggler(SITE), np.random.default_rng(5)
    found: list[Finding] = []
    for index in range(steps):
        own = own_of(index, rng)
        step = closed(numbers(index), own, **kwargs)
        found += list(rule.on_step(step, roster or roster_of(len(own)), None))
    return found


def healthy(count: int, rng: np.random.Generator, sigma: float = QUIET_US) -> Any:
    return 200_000 * np.exp(rng.normal(0, sigma, count))


def one_slow(rank: int, factor: float, count: int = 8, since: int = 0) -> Callable[[int, np.random.Generator], Any]:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(count, rng)
        if index >= since:
            own[rank] *= factor
        return own

    return own_of


def opened(findings: list[Finding]) -> list[tuple[int | None, int | None]]:
    return [(f.subject.rank, f.step) for f in findings if f.kind == "straggler" and f.state == "open"]


@pytest.mark.parametrize("factor", [1.05, 1.2, 2.0])
def test_a_steadily_slow_rank_of_quiet_work_is_named_within_five_steps(factor: float) -> None:
    ((rank, step),) = opened(follow(30, one_slow(3, factor)))
    assert rank == 3
    assert step is not None
    assert step <= 5


def test_a_rank_that_becomes_slow_is_named_within_five_steps_and_its_onset_is_the_first() -> None:
    (finding,) = [f for f in follow(40, one_slow(3, 1.2, since=20)) if f.kind == "straggler"]
    assert (finding.step, finding.onset_ns) == (23, at(200))
    assert finding.slowdown == pytest.approx(1.2, rel=0.01)
    assert finding.values["excess_us"] == pytest.approx(40_000, rel=0.05)


def test_a_slowdown_below_the_floor_is_not_worth_a_name() -> None:
    assert opened(follow(60, one_slow(3, 1.02))) == []


def test_persistence_counts_recorded_steps_whatever_their_numbers() -> None:
    jumping = follow(12, one_slow(3, 1.2), numbers=lambda index: index if index < 3 else 400 * index)
    assert [rank for rank, _ in opened(jumping)] == [3]


def test_fewer_than_five_recorded_steps_name_nobody_and_say_so_once() -> None:
    found = follow(4, one_slow(3, 1.8))
    assert [(f.kind, f.state) for f in found] == [("insufficient", "open")]
    assert found[0].subject.level == "job"
    more = follow(6, one_slow(3, 1.8))
    assert ("insufficient", "cleared") in [(f.kind, f.state) for f in more]


def test_with_varying_work_a_rank_a_quarter_slower_is_named_in_time_and_nobody_else() -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(16, rng, sigma=0.08)
        own[5] *= 1.4
        return own

    assert [rank for rank, _ in opened(follow(120, own_of))] == [5]


@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.12])
def test_of_healthy_ranks_nobody_is_named_in_many_steps(sigma: float) -> None:
    assert opened(follow(300, lambda _, rng: healthy(32, rng, sigma))) == []


def test_two_slow_ranks_are_two_findings() -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(8, rng)
        own[2] *= 1.3
        own[6] *= 1.1
        return own

    assert sorted(rank or -1 for rank, _ in opened(follow(20, own_of, node_ranks=4))) == [2, 6]


def test_a_heavy_stage_has_no_slow_member_and_a_slow_member_of_it_is_found() -> None:
    roster = roster_of(8, {"data": 4, "pipeline": 2})

    def own_of(index: int, rng: np.random.Generator, slow: float = 1.0) -> Any:
        own = healthy(8, rng)
        own[4:] *= 1.4
        own[6] *= slow
        return own

    assert opened(follow(40, own_of, roster)) == []
    assert [rank for rank, _ in opened(follow(40, lambda i, rng: own_of(i, rng, 1.15), roster))] == [6]


def test_ranks_on_a_slower_part_are_compared_with_their_like() -> None:
    roster = Roster()
    roster.take(job(8))
    roster.take(placement(range(4), node_id="node-0", sku="NVIDIA H100 80GB HBM3"))
    roster.take(placement(range(4, 8), node_id="node-1", sku="NVIDIA A100-SXM4-80GB"))

    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(8, rng)
        own[4:] *= 2.5
        return own

    assert opened(follow(30, own_of, roster.job("job-1", 0), node_ranks=4)) == []


def test_who_waits_longer_than_the_peers_is_not_called_slow() -> None:
    waits = (10_000,) * 3 + (90_000,) + (10_000,) * 4
    assert opened(follow(30, one_slow(3, 1.2), wait_us=waits)) == []
    assert [rank for rank, _ in opened(follow(30, one_slow(3, 1.2), wait_us=(10_000,) * 8))] == [3]


def test_who_waits_for_another_stage_and_is_waited_for_by_its_peers_is_slow() -> None:
    """Parts that were measured are its own, whatever it waits for upstream; a whole that was reported may hold waiting."""
    waits = (10_000,) * 3 + (90_000,) + (10_000,) * 4
    late = (40_000,) * 3 + (300,) + (40_000,) * 4
    assert [rank for rank, _ in opened(follow(30, one_slow(3, 1.2), wait_us=waits, dp_us=late))] == [3]
    whole = (200_000,) * 3 + (240_000,) + (200_000,) * 4
    reported = follow(30, lambda _, rng: healthy(8, rng), wait_us=waits, dp_us=late, own_us=whole)
    assert opened(reported) == []


def test_a_node_that_is_slow_as_a_whole_is_named_as_the_node() -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(16, rng)
        own[4:8] *= 1.2
        return own

    findings = [f for f in follow(20, own_of, node_ranks=4) if f.kind == "straggler"]
    assert [(f.subject.level, f.subject.node_id, f.subject.ranks) for f in findings] == [
        ("node", "node-1", (4, 5, 6, 7))
    ]


def test_a_node_whose_ranks_become_slow_a_step_or_two_apart_is_named_once() -> None:
    """Five per cent in common, and offsets of the devices: some ranks pass the limit in every step, some in most."""
    offsets = np.array([0.0, -0.006, 0.004, -0.008, 0.006, -0.004, 0.002, 0.008])

    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(24, rng, sigma=0.004)
        own[8:16] *= np.exp(offsets) * (1.04 if index >= 20 else 1.0)
        return own

    found = [f for f in follow(60, own_of, node_ranks=8) if f.kind == "straggler"]
    assert [(f.subject.level, f.subject.node_id) for f in found] == [("node", "node-1")]
    assert found[0].onset_ns in {at(200), at(210)}
    assert found[0].step in range(23, 28)


def test_one_slow_rank_of_a_node_that_keeps_pace_does_not_wait_for_the_others() -> None:
    (finding,) = [f for f in follow(40, one_slow(9, 1.1, count=24, since=20), node_ranks=8) if f.kind == "straggler"]
    assert (finding.subject.rank, finding.step) == (9, 23)


def with_lengths(factor: float, tell: bool) -> list[tuple[int | None, int | None]]:
    """Who is named when own time follows the squares of lengths, a fifth up or down, and rank 5 is slow."""
    rng, rule, findings = np.random.default_rng(1), Straggler(SITE), []
    for index in range(60):
        squares = 1e8 * np.exp(rng.normal(0, 0.3, 16))
        own = healthy(16, rng, sigma=0.01) * (0.4 + 0.6 * squares / 1e8)
        own[5] *= factor if index >= 20 else 1.0
        told: dict[str, Any] = {"sum_squared_lengths": tuple(int(s) for s in squares)} if tell else {}
        findings += list(rule.on_step(closed(index, own, **told), roster_of(16), None))
    return opened(findings)


def test_lengths_that_are_told_are_taken_out_so_that_a_rank_a_tenth_slower_is_named_soon() -> None:
    ((rank, step),) = with_lengths(1.1, tell=True)
    assert rank == 5
    assert step is not None
    assert step < 36
    assert with_lengths(1.1, tell=False) == []
    assert with_lengths(1.0, tell=True) == []


def test_a_finding_says_what_work_explains_and_the_rest_is_the_excess() -> None:
    def uneven(index: int) -> ClosedStep:
        own, tokens = [200_000.0 + 100 * ((3 * rank + index) % 5) for rank in range(8)], [8_000] * 8
        for rank in (2, 5):
            own[rank], tokens[rank] = own[rank] * 1.25, 10_000
        own[5] *= 1.2
        return closed(index, own, tokens=tuple(tokens))

    rule, found = Straggler(SITE), []
    for index in range(10):
        found += [f for f in rule.on_step(uneven(index), roster_of(8), None) if f.kind == "straggler"]
    (finding,) = found
    values: dict[str, Any] = finding.values
    assert finding.subject.rank == 5
    assert finding.slowdown == pytest.approx(1.2, rel=0.03)
    assert values["work_factor"] == pytest.approx(1.25, rel=0.03)
    assert values["excess_us"] == pytest.approx(50_000, rel=0.15)
    assert values["compute_excess_us"] == pytest.approx(50_000, rel=0.15)


def test_a_tensor_group_that_is_slow_alike_is_named_as_the_group() -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(16, rng)
        own[2:4] *= 1.2
        return own

    roster = roster_of(16, {"tensor": 2, "data": 8})
    findings = [f for f in follow(20, own_of, roster, node_ranks=8) if f.kind == "straggler"]
    assert [(f.subject.level, f.subject.ranks, f.subject.node_id) for f in findings] == [
        ("rank_group", (2, 3), "node-0")
    ]


def test_a_straggler_is_cleared_after_twenty_steps_at_pace_under_the_same_id() -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(8, rng)
        own[3] *= 1.3 if index < 30 else 1.0
        return own

    findings = [f for f in follow(80, own_of) if f.kind == "straggler"]
    assert [f.state for f in findings] == ["open", "cleared"]
    assert findings[0].finding_id == findings[1].finding_id
    assert [f.values["chart"] for f in findings] == ["fast", "fast"]
    assert findings[1].step is not None
    assert 49 <= findings[1].step <= 65


def slow_at(steps: Callable[[int], bool], factor: float = 1.2, rank: int = 3) -> Callable[..., Any]:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(8, rng)
        own[rank] *= factor if steps(index) else 1.0
        return own

    return own_of


def test_a_rank_that_was_slow_for_a_few_steps_may_be_slow_now_and_then_and_is_given_until_they_are_past() -> None:
    findings = [f for f in follow(90, slow_at(lambda index: index < 10)) if f.kind == "straggler"]
    assert [(f.state, f.step) for f in findings] == [("open", 4), ("cleared", 52)]


@pytest.mark.parametrize(("held", "period", "chart"), [(3, 10, "burst"), (2, 6, "burst"), (10, 37, "fast")])
@pytest.mark.parametrize("factor", [1.1, 1.5])
def test_a_rank_that_is_slow_now_and_then_is_named_once_within_a_hundred_steps(
    held: int, period: int, chart: str, factor: float
) -> None:
    def is_slow(index: int) -> bool:
        return 20 <= index < 200 and (index - 20) % period < held

    findings = [f for f in follow(320, slow_at(is_slow, factor)) if f.kind == "straggler"]
    assert [(f.state, f.subject.rank) for f in findings] == [("open", 3), ("cleared", 3)]
    assert {f.values["chart"] for f in findings} == {chart}
    last = max(index for index in range(320) if is_slow(index))
    assert findings[0].step is not None
    assert findings[0].step < 120
    assert findings[0].onset_ns == at(200)
    assert findings[0].slowdown == pytest.approx(factor, rel=0.03)
    # The slow chart leans on for some steps after a burst.
    assert findings[1].step in range(last + 60, last + 70)


def test_seven_slow_steps_of_fifty_are_not_enough() -> None:
    assert opened(follow(300, slow_at(lambda index: index % 50 in range(0, 49, 7)))) == []


@pytest.mark.parametrize("period", [40, 100, 500])
def test_ranks_that_each_pause_once_in_many_steps_are_not_named(period: int) -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        own = healthy(64, rng)
        own[(index + 7 * np.arange(64)) % period == 0] *= 1.15
        return own

    assert opened(follow(200, own_of)) == []


def test_a_long_step_of_a_rank_that_keeps_pace_again_does_not_bring_it_back() -> None:
    findings = follow(90, slow_at(lambda index: index < 30 or index in (60, 70)))
    assert [f.state for f in findings if f.kind == "straggler"] == ["open", "cleared"]


def test_who_paused_in_a_step_is_known() -> None:
    rule, rng, paused = Straggler(SITE), np.random.default_rng(5), {}
    for index in range(40):
        own = healthy(8, rng)
        own[2] *= 1.2 if index in (10, 11, 25) else 1.0
        own[5] *= 1.3 if index >= 20 else 1.0
        list(rule.on_step(closed(index, own), roster_of(8), None))
        paused[index] = rule.pauses.tolist()
    # Rank 5's first slow step looks like a pause; later ones follow a slow step, and then it stands as a straggler.
    assert {index: who for index, who in paused.items() if who} == {10: [2], 20: [5], 25: [2]}


def test_a_finding_says_which_part_of_the_time_is_in_excess() -> None:
    host = (4_000,) * 3 + (50_000,) + (4_000,) * 4
    (finding,) = [f for f in follow(20, lambda _, rng: healthy(8, rng), host_us=host) if f.kind == "straggler"]
    assert finding.values["host_excess_us"] == 46_000
    assert abs(int(str(finding.values["compute_excess_us"]))) < 3_000


def test_a_rank_alone_has_nobody_to_be_compared_with() -> None:
    assert follow(20, lambda _, rng: healthy(1, rng)) == []


def test_ranks_that_are_missing_for_a_while_keep_their_own_history() -> None:
    rule, rng, found = Straggler(SITE), np.random.default_rng(5), []
    roster = roster_of(8)
    for index in range(30):
        own = one_slow(6, 1.2)(index, rng)
        ranks = 4 if 10 <= index < 20 else 8
        found += list(rule.on_step(closed(index, own[:ranks]), roster, None))
    assert [rank for rank, _ in opened(found)] == [6]


@given(st.permutations(range(8)), st.integers(0, 7))
@settings(max_examples=10, deadline=None)
def test_who_is_named_does_not_depend_on_how_ranks_are_numbered(order: list[int], slow: int) -> None:
    def own_of(index: int, rng: np.random.Generator) -> Any:
        return one_slow(slow, 1.2)(index, rng)[np.argsort(order)]

    assert [rank for rank, _ in opened(follow(12, own_of))] == [order[slow]]


@given(st.floats(0.01, 100))
@settings(max_examples=10, deadline=None)
def test_only_ratios_count(scale: float) -> None:
    found = follow(12, lambda index, rng: one_slow(3, 1.2)(index, rng) * scale)
    assert [rank for rank, _ in opened(found)] == [3]


def test_state_is_at_most_64_bytes_a_rank() -> None:
    rule = Straggler(SITE)
    follow(40, lambda _, rng: healthy(512, rng), rule=rule)
    columns = rule.snapshot()["charts"]
    assert sum(getattr(rule._charts, name).nbytes for name in columns) <= 64 * 512
    assert {len(column) for column in columns.values()} == {512}


def test_absence_is_not_keeping_pace() -> None:
    rule, rng, found = Straggler(SITE), np.random.default_rng(5), []
    for index in range(60):
        own = one_slow(7, 1.3)(index, rng)
        found += list(rule.on_step(closed(index, own[: 8 if index < 10 else 7]), roster_of(8), None))
    assert [f.state for f in found if f.kind == "straggler"] == ["open"]


def test_what_was_opened_is_cleared_under_its_id_whatever_became_of_its_seat() -> None:
    rule, rng, found = Straggler(SITE), np.random.default_rng(5), []
    for index in range(90):
        own = healthy(8, rng)
        own[4:] *= 1.3 if index < 30 else 1.0
        # The slow node's last rank stays away afterwards, and the others' devices become known.
        roster = roster_of(8) if index < 30 else roster_of(8, node_id="node-9")
        found += list(rule.on_step(closed(index, own if index < 30 else own[:7], node_ranks=4), roster, None))
    findings = [f for f in found if f.kind == "straggler"]
    assert [f.state for f in findings] == ["open", "cleared"]
    assert findings[0].subject == findings[1].subject
    assert findings[0].finding_id == findings[1].finding_id


def test_a_rank_whose_device_becomes_known_meanwhile_is_cleared_under_its_id() -> None:
    rule, rng, found = Straggler(SITE), np.random.default_rng(5), []
    for index in range(90):
        own = one_slow(3, 1.3 if index < 30 else 1.0)(index, rng)
        roster = roster_of(8) if index < 30 else roster_of(8, node_id="node-0")
        found += list(rule.on_step(closed(index, own), roster, None))
    findings = [f for f in found if f.kind == "straggler"]
    assert [f.state for f in findings] == ["open", "cleared"]
    assert len({f.finding_id for f in findings}) == 1

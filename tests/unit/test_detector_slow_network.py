"""A slow network: told by each communicator's own transfer, while own time is flat; never by who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import SITE, at, policy

from schemas.findings import BLAMELESS_KINDS
from schemas.fleet import RulePolicy
from schemas.steps import CollectiveTiming, StepTiming
from streams.core.step_join import StepJoin
from streams.detectors.slow_network import SlowNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.findings import Finding

OWN_US = 200_000
TRANSFER_US = 20_000
RINGS, MEMBERS = 4, 4

Transfers = "Callable[[int, int], float]"
"""Transfer time by step and ring."""


def steady(step: int, ring: int) -> float:
    """2 % of noise, the same in every run."""
    return TRANSFER_US * (1 + 0.02 * ((7 * ring + 3 * step) % 5 - 2) / 2)


def slowed(rings: set[int], factor: float, begin: int = 30, end: int = 10**6) -> Callable[[int, int], float]:
    return lambda step, ring: steady(step, ring) * (factor if ring in rings and begin <= step < end else 1.0)


def follow(
    steps: int,
    transfer_of: Callable[[int, int], float],
    *,
    own_of: Callable[[int, int], float] = lambda step, rank: OWN_US,
    rings: int = RINGS,
    members: int = MEMBERS,
    group: str = "dp",
    op: str | None = "all_reduce",
    present: Callable[[int, int], bool] = lambda step, rank: True,
    rule: SlowNetwork | None = None,
    thresholds: dict[str, float] | None = None,
    step_us: int | None = None,
) -> list[Finding]:
    """Findings of steps in which rank r is in ring r % rings and waits there for the ring's last."""
    rule, found = rule or SlowNetwork(SITE), []
    told = policy({"slow_network": RulePolicy(thresholds=thresholds)}) if thresholds else None
    world = rings * members
    for step in range(steps):
        own = [own_of(step, rank) for rank in range(world)]
        latest = [max(own[ring::rings]) for ring in range(rings)]
        ranks = [rank for rank in range(world) if present(step, rank)]
        durations = [round(transfer_of(step, rank % rings) + latest[rank % rings] - own[rank]) for rank in ranks]
        join = StepJoin()
        join.add(
            StepTiming(
                job_id="job-1",
                node_id="node-1",
                agent_session="s1",
                seq=step,
                event_time_ns=at(step),
                step=step,
                rank=tuple(ranks),
                step_us=(step_us or round(max(own)) + TRANSFER_US,) * len(ranks),
                own_us=tuple(round(own[rank]) for rank in ranks),
                collectives=(
                    CollectiveTiming(
                        group=group,
                        op=op,
                        instance=tuple(rank % rings for rank in ranks),
                        duration_us=tuple(durations),
                    ),
                ),
            )
        )
        (closed,) = join.close(at(step), world, frozenset(range(world)), final=True)
        found += list(rule.on_step(closed, told))
    assert {finding.kind for finding in found} <= BLAMELESS_KINDS
    return found


def edges(findings: list[Finding]) -> list[tuple[str, int | None]]:
    assert {finding.kind for finding in findings} <= {"network_slowdown"}
    return [(finding.state, finding.step) for finding in findings]


def test_one_slow_ring_of_four_is_told_after_five_steps() -> None:
    (finding,) = follow(60, slowed({2}, 1.5))
    assert (finding.state, finding.step, finding.onset_ns) == ("open", 34, at(30))
    assert (finding.severity, finding.subject.level, finding.rule) == ("warning", "job", "slow_network")
    values = finding.values
    assert values["ratio"] == pytest.approx(1.5, rel=0.03)
    assert values["transfer_us"] == pytest.approx(30_000, rel=0.03)
    assert values["reference_us"] == pytest.approx(20_000, rel=0.03)
    assert {name: values[name] for name in ("group", "slow_instances", "instances", "slow", "step_time_us")} == {
        "group": "dp",
        "slow_instances": ["dp/2"],
        "instances": 4,
        "slow": 1,
        "step_time_us": 220_000,
    }
    assert (values["slow_ranks"], values["slow_ranks_left_out"]) == (["2,6,10,14"], 0)
    assert finding.explanation.startswith("transfers in 1 of 4 dp groups take 1.4")


def test_all_rings_are_one_finding() -> None:
    (finding,) = follow(60, slowed({0, 1, 2, 3}, 1.4))
    assert finding.values["slow_instances"] == ["dp/0", "dp/1", "dp/2", "dp/3"]


def test_a_ring_that_follows_within_three_steps_is_in_the_same_finding_and_a_later_one_is_not_told() -> None:
    def transfer_of(step: int, ring: int) -> float:
        begins = {0: 30, 1: 33, 3: 50}.get(ring, 10**6)
        return steady(step, ring) * (2.0 if step >= begins else 1.0)

    (finding,) = follow(80, transfer_of)
    assert (finding.step, finding.values["slow_instances"]) == (37, ["dp/0", "dp/1"])


@pytest.mark.parametrize(("second", "told_at"), [(31, 35), (33, 37), (34, 34)])
def test_it_waits_for_those_alone_that_may_still_be_slow_within_three_steps(second: int, told_at: int) -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (2.0 if step >= {0: 30, 1: second}.get(ring, 10**6) else 1.0)

    (finding,) = follow(80, transfer_of)
    told = ["dp/0"] if second > 33 else ["dp/0", "dp/1"]
    assert (finding.step, finding.values["slow_instances"]) == (told_at, told)


def test_it_does_not_wait_on_for_one_that_is_slow_no_more() -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (2.0 if (ring == 0 and step >= 30) or (ring == 1 and 33 <= step < 35) else 1.0)

    (finding,) = follow(80, transfer_of)
    assert (finding.step, finding.values["slow_instances"]) == (35, ["dp/0"])


def test_it_is_cleared_ten_steps_after_the_last_slow_one_under_the_same_id_and_may_come_again() -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (1.5 if ring == 1 and (30 <= step < 50 or 80 <= step < 120) else 1.0)

    found = follow(120, transfer_of)
    assert edges(found) == [("open", 34), ("cleared", 59), ("open", 84)]
    assert found[0].finding_id == found[1].finding_id != found[2].finding_id


def test_a_single_normal_step_does_not_clear_it() -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (1.5 if ring == 1 and step >= 30 and step % 6 else 1.0)

    assert [state for state, _ in edges(follow(120, transfer_of))] == ["open"]


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_up_to_a_quarter_longer_is_not_slow(factor: float) -> None:
    assert follow(120, slowed({1}, factor)) == []


def test_four_slow_steps_in_a_row_are_not_enough() -> None:
    assert follow(120, lambda step, ring: steady(step, ring) * (3.0 if ring == 1 and step % 6 > 1 else 1.0)) == []


def test_what_was_slow_for_five_steps_and_is_over_when_it_would_be_told_is_not_told() -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (2.0 if {0: 30, 1: 33}.get(ring, 10**6) <= step < 36 else 1.0)

    assert follow(60, transfer_of) == []


def test_waiting_for_a_straggler_is_no_slow_network() -> None:
    def own_of(step: int, rank: int) -> float:
        return OWN_US * (2.0 if rank == 5 and step >= 30 else 1.0)

    assert follow(80, steady, own_of=own_of) == []


def test_a_job_that_slows_down_as_a_whole_is_no_slow_network() -> None:
    def own_of(step: int, rank: int) -> float:
        return OWN_US * (1.3 if step >= 30 else 1.0)

    assert follow(50, slowed({1}, 1.5), own_of=own_of) == []


def test_send_and_receive_are_not_judged() -> None:
    assert follow(60, slowed({1}, 2.0), group="stages", op="send_recv") == []
    assert follow(60, slowed({1}, 2.0), group="pp", op=None) == []
    assert edges(follow(60, slowed({1}, 2.0), group="stages", op=None)) == [("open", 34)]


def test_transfers_of_under_a_millisecond_or_one_per_cent_of_the_step_are_noise() -> None:
    def brief(step: int, ring: int) -> float:
        return slowed({1}, 2.0)(step, ring) / 50

    assert follow(60, brief) == []
    assert follow(60, slowed({1}, 2.0), step_us=10_000_000) == []


def test_noisy_transfers_need_more_than_a_quarter() -> None:
    rng = np.random.default_rng(3)
    noise = np.exp(rng.normal(0, 0.08, (400, RINGS)))

    def noisy(factor: float) -> Callable[[int, int], float]:
        return lambda step, ring: TRANSFER_US * noise[step, ring] * (factor if ring == 1 and step >= 100 else 1.0)

    assert follow(400, noisy(1.3)) == []
    assert [state for state, _ in edges(follow(140, noisy(3.0)))] == ["open"]


def test_a_ring_without_one_of_its_members_is_not_judged_since_all_may_wait_for_that_one() -> None:
    def own_of(step: int, rank: int) -> float:
        return OWN_US * (1.5 if rank == 5 and step >= 30 else 1.0)

    def present(step: int, rank: int) -> bool:
        return rank != 5 or step < 28

    assert follow(80, steady, own_of=own_of, present=present) == []


def test_a_rank_alone_has_no_transfer() -> None:
    assert follow(60, slowed({1}, 2.0), members=1) == []


def test_rings_keep_their_past_when_others_are_missing_from_a_step() -> None:
    def transfer_of(step: int, ring: int) -> float:
        return steady(step, ring) * (1.0 + ring)

    def present(step: int, rank: int) -> bool:
        return rank % RINGS != 0 or step % 3 > 0

    assert follow(120, transfer_of, present=present) == []


def test_a_slow_drift_becomes_usual() -> None:
    assert follow(600, lambda step, ring: steady(step, ring) * (1 + 0.001 * max(0, step - 30))) == []


def test_long_lists_are_cut_and_what_is_left_out_is_counted() -> None:
    (finding,) = follow(60, slowed(set(range(80)), 1.5), rings=80, members=2)
    values: dict[str, Any] = finding.values
    assert (len(values["slow_instances"]), len(values["slow_ranks"])) == (64, 64)
    assert (values["instances"], values["slow"], values["slow_ranks_left_out"]) == (80, 80, 32)
    assert values["slow_instances"][9:11] == ["dp/9", "dp/10"]


def test_a_site_may_set_the_limit() -> None:
    assert edges(follow(60, slowed({1}, 1.2), thresholds={"ratio": 1.1})) == [("open", 34)]
    assert follow(60, slowed({1}, 1.5), thresholds={"ratio": 1.6}) == []


def test_state_is_small_and_names_that_never_come_again_are_let_go() -> None:
    rule = SlowNetwork(SITE)
    follow(40, steady, rings=128, members=4, rule=rule)
    charts = rule.snapshot()["charts"]["dp"]
    assert charts["first"] is None
    assert sum(value.nbytes for value in charts.values() if isinstance(value, np.ndarray)) <= 17 * 128
    for step in range(60):
        follow(1, steady, rings=2, group=f"dp{step % 3}", rule=rule)
    changing = SlowNetwork(SITE)
    join_names = [tuple(f"{step}-{ring}" for ring in range(4)) for step in range(50)]
    for step, names in enumerate(join_names):
        join = StepJoin()
        join.add(
            StepTiming(
                job_id="job-1",
                node_id="node-1",
                agent_session="s1",
                seq=step,
                event_time_ns=at(step),
                step=step,
                rank=tuple(range(8)),
                step_us=(220_000,) * 8,
                own_us=(OWN_US,) * 8,
                collectives=(CollectiveTiming(group="dp", instance=(*names, *names), duration_us=(TRANSFER_US,) * 8),),
            )
        )
        (closed,) = join.close(at(step), 8, frozenset(range(8)), final=True)
        assert list(changing.on_step(closed, None)) == []
    assert len(changing.snapshot()["charts"]["dp"]["name"]) <= 8

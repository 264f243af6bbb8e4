"""Acts held against their cost: what a fault loses, what an act costs, and whom plain rules cost a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.evaluation.acts.deciders import AlwaysRestarting, CountingCodes, DoingNothing, Engine, EngineWithoutGuards
from paceline.evaluation.acts.faults import Fault, Plan, Sign, faults_of, model, shape_of
from paceline.evaluation.acts.report import Run, acts_gates, acts_lines, acts_records
from paceline.evaluation.acts.simulation import Act, Ledger, Seen, simulate

COSTS = {
    **dict.fromkeys(("checkpoint_every", "again", "person", "person_slow"), 1e6),
    "restart": 0.25,
    "watchdog": 0.5,
    "repair": 24.0,
    "reset": 0.25,
}
"""Nobody comes, and a job saves once: what was not saved is what ran since the start or the restart."""

SEAT = 255
"""In the last job, of 64 GPUs."""

SECOND_H = 1 / 3600


class Scripted(DoingNothing):
    """Answers each opening with the same acts."""

    def __init__(self, *acts: Act) -> None:
        self._acts = list(acts)

    def see(self, seen: Seen) -> list[Act]:
        return self._acts if seen.state == "open" else []


def fault(name: str = "f", at_h: float = 2.0, **fields: Any) -> Fault:
    given = {"row": "faulty_gpu", "seat": SEAT, "gpu": 0, "signs": (), **fields}
    return Fault(name, at_h=at_h, **given)


def seen_as(*names: str) -> tuple[Sign, ...]:
    return tuple(Sign(name, 10 * SECOND_H * (index + 1)) for index, name in enumerate(names))


def run(decider: Any, *faults: Fault, **costs: float) -> Ledger:
    # A job's phase is shifted by its number: checkpoints of the last one fall on 1/11 before the full.
    return simulate(faults, decider, 1, {**COSTS, **costs})


def test_an_interruption_loses_what_was_not_saved_and_a_restart() -> None:
    ledger = run(DoingNothing(), fault(interrupts=True))
    assert ledger.by_way == {"interrupted": pytest.approx(64 * (2.0 + 0.25))}


def test_a_bad_part_ends_the_restarted_job_too_until_its_node_is_out() -> None:
    bad = fault(interrupts=True, stays=True, is_hardware=True, signs=seen_as("xid_79"))
    left = run(DoingNothing(), bad, again=0.5)
    taken_out = run(Scripted(Act("cordon_node", node_id="n0255")), bad, again=0.5)
    assert taken_out.by_way == {"interrupted": pytest.approx(64 * 2.25), "missing": 8 * 24}
    assert taken_out.wrong == []
    assert left.by_way["interrupted"] > 10 * taken_out.by_way["interrupted"]


def test_a_reset_cures_what_resets_cure() -> None:
    reset = Scripted(Act("reset_gpu", node_id="n0255"))
    bad = fault(interrupts=True, stays=True, is_hardware=True, signs=seen_as("xid_119"))
    cured = run(reset, replace(bad, is_reset_cured=True), again=0.5)
    assert (cured.acts, cured.by_way["missing"]) == ({"reset_gpu": 1}, 8 * 0.25)
    assert run(reset, bad, again=0.5).acts["reset_gpu"] > 10


def test_a_slow_node_loses_its_jobs_excess_until_it_heals_or_is_left() -> None:
    slow = fault(excess=0.25, lasts_h=4.0, is_hardware=True, signs=seen_as("straggler"))
    assert run(DoingNothing(), slow).by_way == {"slow": pytest.approx(64 * 4.0 * 0.2)}
    drain = Scripted(Act("drain_node", node_id="n0255", after_checkpoint=True))
    left = run(drain, slow, checkpoint_every=1.0)
    until_h = 1 - 10 / 11  # the next checkpoint after 2.003 h
    assert left.by_way == {
        "slow": pytest.approx(64 * until_h * 0.2),
        "moved": pytest.approx(64 * 0.25),
        "missing": 8 * 24,
    }


def test_leaving_for_a_moment_of_slowness_loses_more_than_waiting() -> None:
    slow = fault(excess=0.1, lasts_h=0.05, is_hardware=True, signs=seen_as("straggler"))
    drain = Scripted(Act("drain_node", node_id="n0255", after_checkpoint=True))
    assert run(drain, slow, checkpoint_every=1.0).total > run(DoingNothing(), slow).total


def test_a_hang_lasts_until_the_watchdog_or_a_restart() -> None:
    hang = fault(interrupts=True, hangs=True, signs=seen_as("hang"))
    waited, restarted = run(DoingNothing(), hang), run(AlwaysRestarting(), hang)
    assert waited.total == pytest.approx(64 * (0.5 + 2.5 + 0.25))
    assert restarted.total == pytest.approx(64 * (10 * SECOND_H * 2 + 2.0 + 0.25))


def test_a_sound_node_that_is_taken_out_is_counted_and_one_that_has_just_healed_is_in_vain() -> None:
    cordon = Scripted(Act("cordon_node", node_id="n0255"))
    ledger = run(cordon, fault(row="look-alike", signs=seen_as("xid_31")))
    assert (len(ledger.wrong), ledger.vain, ledger.by_fault) == (1, 0, {"nobody": 8 * 24})
    ledger = run(cordon, fault(interrupts=True, is_hardware=True, signs=seen_as("xid_48")))
    assert (ledger.wrong, ledger.vain) == ([], 1)
    ledger = run(Scripted(Act("reset_gpu", node_id="n0255")), fault(row="look-alike", signs=seen_as("xid_119")))
    assert (ledger.wrong, len(ledger.wrong_resets)) == ([], 1)


def test_an_act_on_a_node_that_has_left_its_seat_does_nothing() -> None:
    cordon = Scripted(Act("cordon_node", node_id="n0255"))
    ledger = run(
        cordon, *(fault(name, at, row="look-alike", signs=seen_as("xid_31")) for name, at in (("a", 1), ("b", 2)))
    )
    assert ledger.acts == {"cordon_node": 1}


def test_a_count_of_codes_takes_out_whoever_runs_faulty_programs_three_times() -> None:
    codes = [fault(str(hour), hour, row="look-alike", signs=seen_as("xid_31")) for hour in (1.0, 9.0, 17.0)]
    assert len(run(CountingCodes(), *codes).wrong) == 1
    assert run(CountingCodes(), *codes[:2]).wrong == []
    assert run(CountingCodes(within_h=10.0), *codes).wrong == []


def test_always_restarting_pays_for_each_slow_rank_and_never_for_codes_of_programs() -> None:
    slow = fault(excess=0.25, lasts_h=4.0, signs=seen_as("straggler"))
    assert run(AlwaysRestarting(), slow).acts == {"restart_job": 1}
    assert run(AlwaysRestarting(), fault(row="look-alike", signs=seen_as("xid_31"))).acts == {}


def test_the_engine_takes_a_lost_gpus_node_out_and_nobody_for_codes_of_programs() -> None:
    lost = fault(interrupts=True, stays=True, is_hardware=True, signs=seen_as("xid_79"))
    codes = [
        fault(f"look-{hour}", 10.0 + hour, row="look-alike", seat=3, signs=seen_as("xid_31"))
        for hour in range(0, 20, 2)
    ]
    ledger = run(Engine(), lost, *codes, again=0.5)
    assert {kind for kind in ledger.acts if kind != "restart_job"} == {"cordon_node"}
    assert (ledger.acts["cordon_node"], ledger.wrong, ledger.wrong_resets) == (1, [], [])


def test_without_guards_a_rollout_costs_every_node_of_it() -> None:
    rollout = [
        fault(f"r{seat}", 2.0 + seat * SECOND_H / 10, row="look-alike", seat=seat, signs=seen_as("xid_119"))
        for seat in range(20)
    ]
    held, given = run(Engine(), *rollout), run(EngineWithoutGuards(), *rollout)
    assert len(held.wrong_resets) == 0
    assert len(given.wrong_resets) == 20


def test_faults_come_at_the_published_rates_and_from_the_seed_alone() -> None:
    many = [fault for seed in range(20) for fault in faults_of(Plan(seed))]
    for row, known in model()["interruptions"].items():
        expected = known["rate"] * 20 * shape_of().gpu_days / 1000
        found = sum(fault.row == row for fault in many)
        assert abs(found - expected) < 4 * expected**0.5 + 1, (row, found, expected)
    assert faults_of(Plan(7)) == faults_of(Plan(7))


def test_another_arrival_rate_leaves_look_alikes_as_they_are() -> None:
    once, twice = faults_of(Plan(3)), faults_of(Plan(3, arrival=2.0))
    assert [f for f in once if f.row == "look-alike"] == [f for f in twice if f.row == "look-alike"]
    assert sum(f.interrupts for f in twice) > sum(f.interrupts for f in once)
    severe = faults_of(Plan(3, severity=2.0))
    assert [f.excess for f in severe] == [pytest.approx(2 * f.excess) for f in once]


def test_one_node_out_wrongly_fails_the_gate_and_the_table_says_who_is_worse_off() -> None:
    names = ("doing nothing", "always restarting", "three codes a day", "paceline, no guards", "paceline")
    right = Run(
        "as published",
        1,
        dict.fromkeys(names, 100.0),
        {name: {} for name in names},
        {name: {} for name in names},
        {name: [] for name in names},
        *(dict.fromkeys(names, 0) for _ in range(3)),
        saved={"fail_slow, device, < 0.5 h": [-10.0, 0.0, 4.0]},
    )
    [gate] = acts_gates([right])
    assert gate.holds is True
    assert "| fail_slow, device, < 0.5 h | 3 | 1 | 1 | 1 | -2 | -10 | +4 |" in list(acts_lines([right]))
    wrong = replace(right, wrong={**right.wrong, "paceline": ["cordon_node n0001 at 1.000 h"]})
    assert acts_gates([right, wrong])[0].holds is False
    assert [record["record"] for record in acts_records([wrong])] == ["acts", "gates"]
    assert acts_gates([])[0].holds is None

"""Every scenario file holds; every rule is what makes at least one of them hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factories import policy
from scenario_runner import Scenario, failures, load, outputs_of

from schemas.fleet import Job, Layout, RulePolicy
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from schemas.base import Record

FILES = sorted(Path(__file__).parent.glob("*.toml"))
RULES = (
    "mfu",
    "low_mfu",
    "impossible_mfu",
    "barrier_wait",
    "straggler",
    "slow_network",
    "changed_ranks",
    "scattered_pauses",
    "slow_storage",
    "uneven_work",
    "sm_clock",
    "thermal_violation",
    "uncorrectable_ecc",
    "pfc_pause",
    "xid",
    "power",
    "nvlink_errors",
    "pcie_link",
    "row_remap",
    "port_errors",
    "congestion",
    "congestion_own",
    "port_speed",
    "port_loss",
    "nic_pcie_link",
    "clock_skew",
    "node_silence",
)


@cache
def scenario(path: Path) -> Scenario:
    return load(path)


def named(stem: str) -> Path:
    return next(path for path in FILES if path.stem == stem)


def changed(stem: str, family: type[Record], fields: dict[str, Any]) -> Scenario:
    """A scenario with fields of all records of one family replaced."""
    told = scenario(named(stem))
    records = tuple(
        (record.model_copy(update=fields) if isinstance(record, family) else record, place)
        for record, place in told.records
    )
    return replace(told, records=records)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_scenario_expects_comes_out(path: Path) -> None:
    assert failures(scenario(path), outputs_of(scenario(path))) == []


@pytest.mark.parametrize("rule", RULES)
def test_switching_off_any_one_rule_makes_a_scenario_fail(rule: str) -> None:
    # Those named for the rule first: one that fails is enough.
    ordered = sorted(FILES, key=lambda path: (not path.stem.startswith(rule), path.stem))
    failing = (path.stem for path in ordered if failures(scenario(path), outputs_of(scenario(path), rule_off=rule)))
    assert next(failing, None) is not None, f"no scenario notices that {rule} is off"


@pytest.mark.parametrize(
    ("stem", "rule", "looser"),
    [
        ("barrier_wait_look_alike_at_the_limit", "barrier_wait", {"share": 0.39}),
        ("low_mfu_look_alike_three_steps", "low_mfu", {"steps": 2}),
        ("pfc_pause_look_alikes", "pfc_pause", {"frames_per_s": 99}),
        ("pfc_pause_look_alikes", "pfc_pause", {"hits": 2}),
        ("sm_clock_look_alikes", "sm_clock", {"ceiling_mhz": 1450}),
        ("sm_clock_look_alikes", "sm_clock", {"hits": 2}),
        ("thermal_violation_look_alikes", "thermal_violation", {"violation_ns": 80_000_000}),
        ("power_look_alikes", "power", {"hits": 2}),
        ("power_look_alike_cap_at_full_load", "power", {"cap_share_above": -0.01}),
        ("nvlink_errors_look_alikes", "nvlink_errors", {"crc_errors_per_s": 9}),
        ("nvlink_errors_look_alikes", "nvlink_errors", {"hits": 2}),
        ("pcie_link_look_alikes", "pcie_link", {"width_hits": 1}),
        ("pcie_link_look_alikes", "pcie_link", {"generation_hits": 2}),
        ("pcie_link_look_alikes", "pcie_link", {"replay_factor": 0.9}),
        ("row_remap_look_alikes", "row_remap", {"uncorrectable_rows": 511}),
        ("port_errors_look_alikes", "port_errors", {"symbol_errors_per_s": 9}),
        ("port_errors_look_alikes", "port_errors", {"hits": 2}),
        ("congestion_look_alikes", "congestion", {"factor": 9}),
        ("congestion_own_look_alikes", "congestion_own", {"factor_own": 7}),
        ("congestion_own_look_alikes", "congestion_own", {"pieces": 2}),
        ("congestion_own_look_alikes", "congestion_own", {"packets_per_s": 900}),
        ("port_speed_look_alikes", "port_speed", {"hits": 2}),
        ("port_loss_look_alikes", "port_loss", {"crc_errors_per_s": 9}),
        ("port_loss_look_alikes", "port_loss", {"retransmits_per_s": 9}),
        ("port_loss_look_alikes", "port_loss", {"discards_per_s": 9}),
        ("port_loss_look_alikes", "port_loss", {"hits": 2}),
        ("nic_pcie_link_look_alikes", "nic_pcie_link", {"width_hits": 1}),
        ("clock_skew_look_alikes", "clock_skew", {"skew_ns": 1_500_000_000}),
        ("node_silence_look_alikes", "node_silence", {"silent_ns": 25_000_000_000}),
        ("node_silence_mass", "node_silence", {"mass_share": 0.5}),
        ("straggler_look_alike_single_pauses", "straggler", {"fast_hits": 1}),
        ("straggler_look_alike_rare_pauses", "straggler", {"burst_hits": 3}),
        ("slow_network_look_alikes", "slow_network", {"ratio": 1.15, "scales": 3}),
        ("slow_network_look_alikes", "slow_network", {"steps": 4, "gather_steps": 0}),
        ("slow_network_look_alikes", "slow_network", {"least_share": 0.002}),
        ("slow_storage_look_alikes", "slow_storage", {"share": 0.005}),
        ("slow_storage_look_alikes", "slow_storage", {"covered": 0.3}),
        ("uneven_work_look_alikes", "uneven_work", {"factor": 1.03}),
        ("changed_ranks_look_alike_two_ranks", "changed_ranks", {"least_ranks": 2}),
        ("changed_ranks_look_alike_all", "changed_ranks", {"most_share": 1.01}),
        ("scattered_pauses_look_alike_one_rank", "scattered_pauses", {"most_of_one": 1.0, "least_ranks": 1}),
        ("scattered_pauses_look_alike_rare", "scattered_pauses", {"share": 0.2}),
        ("straggler_look_alike_uneven_lengths", "straggler", {"scales": 0.5, "fast_hits": 1}),
    ],
)
def test_a_look_alike_is_near_enough_to_fire_under_a_looser_limit(
    stem: str, rule: str, looser: dict[str, float]
) -> None:
    told = replace(scenario(named(stem)), policy=policy({rule: RulePolicy(thresholds=looser)}))
    assert failures(told, outputs_of(told))


def test_without_its_stages_a_heavy_stage_would_be_called_slow() -> None:
    told = changed("straggler_look_alike_heavy_stage", Job, {"layout": Layout(data=8)})
    assert any("straggler" in line for line in failures(told, outputs_of(told)))


def test_without_its_waiting_a_held_up_rank_would_be_called_slow() -> None:
    told = changed("straggler_look_alike_longest_waiter", StepTiming, {"wait_us": None})
    assert any("straggler" in line for line in failures(told, outputs_of(told)))


def test_without_its_own_target_a_sparse_model_would_be_called_low() -> None:
    told = changed("low_mfu_look_alike_own_target", Job, {"mfu_target": None})
    assert any("low_mfu" in line for line in failures(told, outputs_of(told)))


def test_of_512_ranks_the_highest_wait_would_name_another() -> None:
    records = scenario(named("straggler_one_of_512")).records
    timings = [record for record, _ in records if isinstance(record, StepTiming)]
    waits: dict[int, int] = {}
    for timing in timings:
        assert timing.wait_us is not None
        for rank, wait_us in zip(timing.rank, timing.wait_us, strict=True):
            waits[rank] = waits.get(rank, 0) + (wait_us or 0)
    assert len(waits) == 512
    assert min(waits, key=lambda rank: waits[rank]) == 319
    assert max(waits, key=lambda rank: waits[rank]) != 319

"""The benchmark's catalogue: which cases there are, and how a part of them is taken."""

from __future__ import annotations

from collections import Counter

import pytest

from agents.simulation.benchmark import HELD_OUT_SEEDS, SUITES, TUNING_SEEDS, cases
from agents.simulation.errors import ScenarioError

PLAIN = {"A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11", "A18", "A19", "A20", "A21", "A22"}
ADVERSARIAL = {f"B{number}" for number in (*range(1, 17), *range(22, 27), 31, 32)}


def test_the_ci_suite_has_every_row() -> None:
    rows = {case.scenario for case, _ in cases("ci", (0,))}
    assert rows == PLAIN | (ADVERSARIAL) | {"A0"}


def test_slow_gpus_come_at_every_severity_and_both_sizes() -> None:
    chosen = [case for case, _ in cases("ci", (0,)) if case.scenario == "A1"]
    assert {0.03, 0.05, 0.1, 0.2, 0.5, 1.0} <= {case.tags["severity"] for case in chosen}
    assert {64, 512} <= {case.ranks for case in chosen}


@pytest.mark.parametrize("suite", SUITES)
def test_a_case_and_its_seed_are_there_once(suite: str) -> None:
    pairs = cases(suite, TUNING_SEEDS[:3])
    assert pairs
    assert max(Counter((case.case_id, seed) for case, seed in pairs).values()) == 1
    assert all(case.suite == suite for case, _ in pairs)


def test_held_out_seeds_are_no_tuning_seeds() -> None:
    assert not set(TUNING_SEEDS) & set(HELD_OUT_SEEDS)
    assert {seed for _, seed in cases("ci", HELD_OUT_SEEDS)} == set(HELD_OUT_SEEDS)


def test_a_part_is_spread_over_rows_and_seeds() -> None:
    part = cases("ci", TUNING_SEEDS, limit=400)
    assert len(part) == 400
    assert len({case.scenario for case, _ in part}) == len({case.scenario for case, _ in cases("ci", (0,))})
    assert set(Counter(seed for _, seed in part)) == set(TUNING_SEEDS)
    assert cases("ci", TUNING_SEEDS, limit=0) == ()


def test_large_cases_can_be_left_out() -> None:
    assert max(case.ranks for case, _ in cases("ci", (0,), largest_ranks=100)) <= 100


def test_the_minder_set_has_its_published_shares() -> None:
    pairs = cases("minder", (0,))
    kinds = Counter(case.faults[0].kind for case, _ in pairs)
    assert len(pairs) == 150
    assert kinds["gpu_memory_error"] == pytest.approx(0.257 * 150, abs=1)
    assert kinds["cuda_error"] == pytest.approx(0.15 * 150, abs=1)
    assert kinds["pcie_downgrade"] == pytest.approx(0.086 * 150, abs=1)
    machines = [case.fleet.nodes for case, _ in pairs]
    assert min(machines) >= 4
    assert max(machines) <= 1500
    assert not any(job.timings_reported for case, _ in pairs for job in case.jobs)


def test_the_detection_set_has_its_published_counts() -> None:
    pairs = cases("greyhound_detection", TUNING_SEEDS)
    single = [case for case, _ in pairs if case.fleet.nodes == 1]
    four = [case for case, _ in pairs if case.fleet.nodes == 4]
    assert (len(single), sum(case.has_truth for case in single)) == (392, 6)
    assert (len(four), sum(case.has_truth for case in four)) == (107, 42)


def test_the_greyhound_run_has_twelve_episodes_apart() -> None:
    runs = [*cases("greyhound", TUNING_SEEDS[:4]), *cases("greyhound_slow", TUNING_SEEDS[:2])]
    for case, _ in runs:
        assert len(case.faults) == 12
        assert sum(fault.kind == "link_loss" for fault in case.faults) == 2
        for before, after in zip(case.faults, case.faults[1:], strict=False):
            assert before.end_step < after.onset_step
        assert case.ranks == 256


def test_the_what_if_set_has_its_published_shares() -> None:
    pairs = cases("what_if", TUNING_SEEDS)
    causes = Counter(case.tags["cause"] for case, _ in pairs)
    assert len(pairs) == 3079
    straggling = len(pairs) - causes["healthy"]
    assert straggling / len(pairs) == pytest.approx(0.425, abs=0.03)
    assert causes["last_stage"] / straggling == pytest.approx(0.393, abs=0.04)
    assert causes["lengths"] / straggling == pytest.approx(0.214, abs=0.04)
    assert causes["worker"] / straggling == pytest.approx(0.017, abs=0.012)


def test_an_unknown_suite_and_no_seed_are_refused() -> None:
    with pytest.raises(ScenarioError, match="no suite 'all'"):
        cases("all")
    with pytest.raises(ScenarioError, match="a seed"):
        cases("ci", ())


def test_in_turn_every_case_comes_once_and_every_seed_has_its_share() -> None:
    pairs = cases("ci", TUNING_SEEDS, in_turn=True)
    assert [case.case_id for case, _ in pairs] == [case.case_id for case, _ in cases("ci", (0,))]
    shares = Counter(seed for _, seed in pairs)
    assert set(shares) == set(TUNING_SEEDS)
    assert min(shares.values()) >= 5


def test_in_turn_copies_of_one_stream_have_one_seed() -> None:
    seeds = {seed for case, seed in cases("ci", HELD_OUT_SEEDS, in_turn=True) if case.scenario == "B12"}
    assert len(seeds) == 1
    assert seeds <= set(HELD_OUT_SEEDS)


def test_in_turn_large_cases_can_be_shared_between_two_kinds_of_seeds() -> None:
    every = cases("ci", TUNING_SEEDS, in_turn=True)
    parts = [cases("ci", TUNING_SEEDS, in_turn=True, large=(part, 2)) for part in (0, 1)]
    large = [[case.case_id for case, _ in part if case.ranks >= 256] for part in parts]
    assert sorted(large[0] + large[1]) == sorted(case.case_id for case, _ in every if case.ranks >= 256)
    assert abs(len(large[0]) - len(large[1])) <= 1
    assert all(
        len(part) - len(ids) == len(every) - len(large[0] + large[1]) for part, ids in zip(parts, large, strict=True)
    )

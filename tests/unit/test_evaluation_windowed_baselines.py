"""Rules over windows of steps: what each names, how long it takes, and that the oracle is never wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from agents.simulation.benchmark.shapes import SHAPES, one_fault, slow_gpu
from paceline.evaluation.baselines import ORACLE
from paceline.evaluation.case_run import run_case
from paceline.evaluation.windowed_baselines import ChangePoint, LongTermZ, Mahalanobis, SummedDistance
from streams.core.step_join import ClosedStep

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_S = 10
NODES = tuple(f"node-{node}" for node in range(8) for _ in range(2))


def step(number: int, slow: str | None, draws: np.random.Generator) -> ClosedStep:
    own = 500.0 * np.exp(0.005 * draws.normal(size=16)) * np.where(np.array(NODES) == slow, 1.3, 1.0)
    columns = dict.fromkeys(("host_us", "data_us", "wait_us"), np.full(16, np.nan))
    columns |= {"own_us": own, "compute_us": own - 20.0, "step_us": np.full(16, own.max())}
    return ClosedStep("j", 0, number, "train", number * STEP_S * 10**9, np.arange(16), NODES, columns, {}, (), 16)


def first_named(rule: SummedDistance | Mahalanobis | LongTermZ, slow: str | None) -> tuple[int, set[str]] | None:
    draws = np.random.default_rng(7)
    for number in range(100):
        named = rule.on_step(step(number, slow if number >= 20 else None, draws))
        if named:
            return number, named
    return None


@pytest.mark.parametrize("make", [SummedDistance, Mahalanobis])
def test_a_slow_node_is_named_after_four_minutes_and_not_before(
    make: Callable[[], SummedDistance | Mahalanobis],
) -> None:
    found = first_named(make(), "node-3")
    assert found is not None
    assert found[1] == {"node-3"}
    assert 20 + 240 // STEP_S <= found[0] <= 20 + 240 // STEP_S + 8
    assert first_named(make(), None) is None


def test_the_mean_of_ten_minutes_names_nobody_before_they_are_over() -> None:
    found = first_named(LongTermZ(), "node-3")
    assert found is not None
    assert found[1] == {"node-3"}
    assert found[0] >= 600 // STEP_S


def series(*parts: tuple[int, float]) -> list[bool]:
    draws, change = np.random.default_rng(3), ChangePoint()
    return [change.take(float(level * np.exp(0.01 * draws.normal()))) for count, level in parts for _ in range(count)]


def test_a_change_of_pace_is_verified_ten_steps_later_and_over_when_it_is_undone() -> None:
    said = series((60, 100.0), (40, 125.0), (60, 100.0))
    assert not any(said[:69])
    assert any(said[69:73])
    assert all(said[73:100])
    assert not any(said[112:])


def test_a_change_of_five_per_cent_is_none_and_neither_is_noise() -> None:
    assert not any(series((60, 100.0), (60, 105.0)))
    assert not any(series((300, 100.0)))


def test_the_oracle_finds_every_truth_at_once_and_nothing_else() -> None:
    case = one_fault("X", "oracle", SHAPES["tp8-dp8"], slow_gpu(0.5, onset=8, end=20), "", steps=25)
    told = {outcome.detector: outcome for outcome in run_case(case, 2, baselines=True)}[ORACLE]
    assert told.is_right
    assert [truth.matched and truth.exact for truth in told.truths] == [True]
    assert told.truths[0].steps <= 1

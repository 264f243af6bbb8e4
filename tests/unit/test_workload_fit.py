"""What work explains of own time: in proportion where it does, nothing where it does not, and a slow rank teaches it nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import at, step_timing

from streams.core.peers import PeerGroups
from streams.core.step_join import StepJoin
from streams.detectors.workload_fit import WorkloadFit

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.core.step_join import ClosedStep

WORLD = 16
EVEN = np.full(WORLD, 8_192)


def closed(number: int, own: Any, tokens: Any = None, squares: Any = None) -> ClosedStep:
    join = StepJoin()
    columns: dict[str, Any] = {}
    if tokens is not None:
        columns["tokens"] = tuple(None if value is None else int(value) for value in tokens)
    if squares is not None:
        columns["sum_squared_lengths"] = tuple(int(value) for value in squares)
    join.add(step_timing(number, 10.0 * number, [round(value) for value in own], **columns))
    (step,) = join.close(at(10.0 * number), len(own), frozenset(range(len(own))), final=True)
    return step


def follow(steps: int, columns_of: Callable[[int, np.random.Generator], Any], groups: Any = None) -> tuple[Any, Any]:
    """The fit after so many steps, and what it explained of the last one."""
    fit, rng, explained = WorkloadFit(), np.random.default_rng(3), None
    for number in range(steps):
        step = closed(number, *columns_of(number, rng))
        explained = fit.on_step(step, groups or PeerGroups([np.arange(len(step.rank))]))
    return fit, explained


def noise(rng: np.random.Generator, sigma: float = 0.005) -> Any:
    return np.exp(rng.normal(0, sigma, WORLD))


def hot(ranks: int = 4, more: float = 1.2) -> Any:
    tokens = EVEN.astype(float)
    tokens[:ranks] *= more
    return tokens


def test_own_time_in_proportion_to_tokens_is_explained_from_the_first_uneven_step() -> None:
    _, explained = follow(1, lambda _, rng: (200_000 * noise(rng) * hot() / EVEN, hot()))
    assert explained.factor[:4] == pytest.approx(1.2, abs=0.02)
    assert explained.factor[4:] == pytest.approx(1.0)
    assert explained.slopes[0] == pytest.approx(1.0, abs=0.1)


def test_only_the_part_that_follows_work_is_explained() -> None:
    _, explained = follow(5, lambda _, rng: (noise(rng) * (100_000 + 100_000 * hot() / EVEN), hot()))
    assert explained.factor[:4] == pytest.approx(1.1, abs=0.01)


def test_work_that_costs_no_time_explains_nothing() -> None:
    def padded(_: int, rng: np.random.Generator) -> Any:
        return 200_000 * noise(rng), EVEN * np.exp(rng.normal(0, 0.2, WORLD))

    _, explained = follow(40, padded)
    assert explained.factor == pytest.approx(1.0, abs=0.01)


def test_equal_and_unknown_work_explain_nothing() -> None:
    assert follow(3, lambda _, rng: (200_000 * noise(rng), EVEN))[1] is None
    assert follow(3, lambda _, rng: (200_000 * noise(rng),))[1] is None
    assert follow(3, lambda _, rng: (200_000 * noise(rng), [None] * WORLD))[1] is None


def test_a_rank_that_is_slow_is_not_excused_by_a_little_more_work() -> None:
    def slow(_: int, rng: np.random.Generator) -> Any:
        own = 200_000 * noise(rng)
        own[3] *= 2
        tokens = EVEN.astype(float)
        tokens[3] *= 1.05
        return own, tokens

    _, explained = follow(30, slow)
    assert 1.0 <= explained.factor[3] <= 1.06


def test_a_slow_rank_does_not_teach_the_fit_that_work_is_slow() -> None:
    def uneven(_: int, rng: np.random.Generator) -> Any:
        tokens = EVEN * np.exp(rng.normal(0, 0.2, WORLD))
        own = 200_000 * noise(rng) * tokens / EVEN
        own[3] *= 2
        return own, tokens

    fit, explained = follow(40, uneven)
    assert explained.slopes[0] == pytest.approx(1.0, abs=0.08)
    assert fit.spread == pytest.approx(0.2, abs=0.06)


def test_squares_of_lengths_are_told_apart_from_tokens() -> None:
    def packed(_: int, rng: np.random.Generator) -> Any:
        squares = 1e8 * np.exp(rng.normal(0, 0.3, WORLD))
        return 200_000 * noise(rng) * (0.4 + 0.6 * squares / 1e8), EVEN, squares

    _, explained = follow(30, packed)
    assert explained.slopes == pytest.approx((0.0, 0.6), abs=0.08)
    assert explained.tokens_factor == pytest.approx(1.0)


def test_each_group_is_held_against_its_own_peers() -> None:
    """A last stage that takes twice as long with as many tokens is no sign that tokens cost nothing."""
    heavy = np.where(np.arange(WORLD) < WORLD // 2, 1.0, 2.0)
    groups = PeerGroups([np.arange(WORLD // 2), np.arange(WORLD // 2, WORLD)])
    tokens = EVEN.astype(float)
    tokens[[0, 8]] *= 1.3
    _, explained = follow(3, lambda _, rng: (200_000 * heavy * noise(rng) * tokens / EVEN, tokens), groups)
    assert explained.factor[[0, 8]] == pytest.approx(1.3, abs=0.02)
    assert explained.factor[[1, 9]] == pytest.approx(1.0)


def test_it_survives_a_restart() -> None:
    fit, rng = WorkloadFit(), np.random.default_rng(8)
    again = WorkloadFit()
    groups = PeerGroups([np.arange(WORLD)])
    for number in range(12):
        tokens = EVEN * np.exp(rng.normal(0, 0.1, WORLD))
        step = closed(number, 200_000 * noise(rng) * tokens / EVEN, tokens)
        if number == 6:
            again.restore(fit.snapshot())
        first = fit.on_step(step, groups)
        if number >= 6:
            second = again.on_step(step, groups)
            assert first is not None
            assert second is not None
            assert first.factor.tolist() == second.factor.tolist()
            assert fit.spread == again.spread

"""Counter-based noise: a draw depends on its own name and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.simulation.noise import Noise, entity_keys

NAMES = [f"node-{index:04d}" for index in range(2000)]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.lists(st.text(max_size=8), min_size=1, unique=True))
def test_another_entity_changes_nobody_elses_draws(seed: int, step: int, names: list[str]) -> None:
    noise = Noise(seed)
    alone = noise.normal("own", entity_keys(names), step)
    together = noise.normal("own", entity_keys(["new", *names]), step)
    assert (together[1:] == alone).all()


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.text(max_size=12))
def test_a_single_draw_is_the_same_as_that_of_an_array(seed: int, step: int, name: str) -> None:
    noise = Noise(seed)
    assert noise.draw("own", name, step) == noise.uniform("own", entity_keys([name]), step)[0]


@given(st.integers(0, 2**63 - 1), st.integers(1, 1000), st.integers(0, 10_000))
def test_a_pick_is_an_index(seed: int, count: int, step: int) -> None:
    assert 0 <= Noise(seed).pick("which", count, step=step) < count


def test_seed_purpose_and_step_each_make_another_draw() -> None:
    keys = entity_keys(NAMES)
    first = Noise(1).uniform("a", keys, 5)
    for other in (Noise(2).uniform("a", keys, 5), Noise(1).uniform("b", keys, 5), Noise(1).uniform("a", keys, 6)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
        assert not (first == other).any()


def test_normal_draws_have_mean_zero_and_variance_one() -> None:
    drawn = np.concatenate([Noise(7).normal("n", entity_keys(NAMES), step) for step in range(50)])
    assert drawn.mean() == pytest.approx(0.0, abs=0.02)
    assert drawn.std() == pytest.approx(1.0, abs=0.02)
    # Neighbours in time are independent.
    assert abs(np.corrcoef(drawn[:-2000], drawn[2000:])[0, 1]) < 0.02


def test_identifiers_repeat_and_differ_by_entity() -> None:
    assert Noise(3).identifier("uuid", "a") == Noise(3).identifier("uuid", "a")
    assert len({Noise(3).identifier("uuid", name) for name in NAMES}) == len(NAMES)

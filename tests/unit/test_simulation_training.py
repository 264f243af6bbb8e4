"""The max-plus step: waits follow from own times, and nothing is lost between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.simulation.training import (
    OwnTimes,
    StepOutcome,
    Transfers,
    nominal_compute_us,
    one_forward_one_backward,
    run_step,
)

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))


def own_times(shape: tuple[int, int, int], seed: int = 0, spread: float = 0.2) -> OwnTimes:
    drawn = np.random.default_rng(seed)

    def around(level: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return level * np.exp(spread * drawn.standard_normal(shape))

    return OwnTimes(around(100e3), around(200e3), around(12e3), around(15e3), around(5e3), np.zeros(shape))


def transfers(shape: tuple[int, int, int], data_us: float = 30e3) -> Transfers:
    return Transfers(
        20e3 if shape[2] > 1 else 0.0, 200.0 if shape[0] > 1 else 0.0, np.full((shape[0], shape[2]), data_us)
    )


def run(own: OwnTimes, moved: Transfers | None = None, microbatches: int = 8) -> StepOutcome:
    shape = own.forward.shape
    assert len(shape) == 3
    return run_step(np.zeros(shape), own, moved or transfers(shape), microbatches)


@given(st.integers(1, 6), st.integers(1, 12))
def test_the_schedule_has_each_operation_once_and_its_inputs_first(stages: int, microbatches: int) -> None:
    order = one_forward_one_backward(stages, microbatches)
    assert len(order) == len(set(order)) == 2 * stages * microbatches
    done: set[tuple[int, bool, int]] = set()
    for stage, forward, index in order:
        needs = (stage - 1, True, index) if forward else (stage + 1, False, index)
        assert not 0 <= needs[0] < stages or needs in done
        assert forward or (stage, True, index) in done
        done.add((stage, forward, index))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(1, 10), st.integers(0, 1000))
def test_a_step_is_own_time_and_the_time_in_communicators_and_no_wait_is_negative(
    shape: tuple[int, int, int], microbatches: int, seed: int
) -> None:
    own = own_times(shape, seed)
    outcome = run(own, microbatches=microbatches)
    parts = own.total() + outcome.tensor + outcome.pipeline + outcome.data
    assert np.allclose(parts, outcome.step)
    assert min(outcome.tensor.min(), outcome.pipeline.min(), outcome.data.min()) > -1e-6


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(0, 1000), st.floats(1.3, 3.0))
def test_the_slow_rank_waits_least_and_the_others_wait_more_than_before(
    shape: tuple[int, int, int], seed: int, factor: float
) -> None:
    healthy = own_times(shape, seed, spread=0.003)
    rank = seed % healthy.forward.size
    slowed = OwnTimes(**{name: value.copy() for name, value in vars(healthy).items()})
    slowed.forward.reshape(-1)[rank] *= factor
    slowed.backward.reshape(-1)[rank] *= factor
    before, after = run(healthy), run(slowed)
    wait_before = (before.step - healthy.total()).reshape(-1)
    wait_after = (after.step - slowed.total()).reshape(-1)
    others = np.arange(wait_after.size) != rank
    assert wait_after[rank] <= wait_before[rank] + 1e-6
    if others.any():
        assert (wait_after[others] > wait_before[others]).all()
        assert wait_after[rank] == wait_after.min()


def test_a_slow_member_holds_its_tensor_group_and_others_meet_it_in_the_all_reduce() -> None:
    shape = (1, 3, 2)
    own = own_times(shape, spread=0.0)
    own.forward[0, 1, 0] *= 2
    outcome = run(own)
    assert outcome.tensor[0, 1, 1] - outcome.tensor[0, 1, 0] == pytest.approx(100e3)
    assert outcome.data[0, 1] == pytest.approx([30e3, 30e3])
    assert outcome.data[0, 0] == pytest.approx([130e3, 130e3])


def test_a_slow_network_makes_nobody_late() -> None:
    shape = (2, 4, 2)
    own = own_times(shape, spread=0.0)
    fast, slow = run(own, transfers(shape, 30e3)), run(own, transfers(shape, 200e3))
    assert slow.step - fast.step == pytest.approx(170e3)
    assert slow.data - fast.data == pytest.approx(170e3)


def test_two_stages_of_equal_work_idle_for_one_microbatch() -> None:
    own = own_times((2, 1, 1), spread=0.0)
    outcome = run(own, Transfers(0.0, 0.0, np.zeros((2, 1))), microbatches=8)
    # 1F1B: the fill and drain of one more stage cost one forward and one backward.
    assert outcome.step.max() == pytest.approx(own.total().max() + (100e3 + 200e3 + 15e3) / 8)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 16), st.floats(0.9, 1.5))
def test_compute_is_found_for_a_given_step_time(stages: int, microbatches: int, last: float) -> None:
    moved = Transfers(20e3, 250.0, np.full((stages, 1), 40e3))
    compute = nominal_compute_us(500e3, stages, microbatches, last, 15e3, 5e3, moved)
    factor = np.ones((stages, 1, 1))
    if stages > 1:
        factor[-1] = last
    work, one = compute * factor, np.ones((stages, 1, 1))
    own = OwnTimes(work * 0.32, work * 0.64, work * 0.04, one * 15e3, one * 5e3, one * 0.0)
    assert run_step(one * 0, own, moved, microbatches).step.max() == pytest.approx(500e3, rel=1e-6)

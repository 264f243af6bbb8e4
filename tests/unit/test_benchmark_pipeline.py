"""The benchmark's pipeline recursion, its closed form, and its check on recorded traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agents.simulation.benchmark import generate
from agents.simulation.benchmark.pipeline import run_exact, run_fast
from agents.simulation.benchmark.replay import COLUMNS, replay_steps
from agents.simulation.benchmark.schedule import pipeline_order
from agents.simulation.benchmark.shapes import SHAPES, healthy_case, one_fault, slow_gpu
from agents.simulation.errors import ScenarioError

TRACES = Path(__file__).parents[3] / "shared" / "data" / "step_traces"

Array = NDArray[np.float64]


def durations(stages: int, replicas: int, microbatches: int, forward: float = 1.0) -> tuple[Array, Array, Array, Array]:
    passes = np.full((1, stages, replicas, microbatches), forward)
    return np.zeros((1, stages, replicas)), passes, 2 * passes, np.zeros((1, max(0, stages - 1), replicas))


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 4), (4, 8), (8, 24)])
def test_equal_stages_take_as_long_as_the_formula_says(stages: int, microbatches: int) -> None:
    ready, forward, backward, hop = durations(stages, 2, microbatches)
    done = run_exact(ready, forward, backward, hop).done
    assert done.max() == pytest.approx((microbatches + stages - 1) * 3.0)


def test_chunks_make_the_bubble_smaller() -> None:
    ready, forward, backward, hop = durations(4, 1, 16)
    plain = run_exact(ready, forward, backward, hop).done.max()
    interleaved = run_exact(ready, forward, backward, hop, chunks=2).done.max()
    work = 16 * 3.0
    assert work < interleaved < plain
    assert interleaved - work == pytest.approx((plain - work) / 2)


def test_microbatches_that_do_not_fill_an_interleaved_schedule_are_refused() -> None:
    with pytest.raises(ScenarioError, match="no multiple"):
        pipeline_order(4, 6, 2)


def test_every_operation_comes_after_its_input_and_once() -> None:
    for stages, microbatches, chunks in ((1, 3, 1), (4, 2, 1), (4, 8, 2), (2, 8, 3), (4, 4, 2)):
        seen = set()
        for operation in pipeline_order(stages, microbatches, chunks):
            source = operation.source(stages, chunks)
            assert source is None or source in seen
            assert operation not in seen
            seen.add(operation)
        assert len(seen) == 2 * stages * microbatches * chunks


def by_definition(ready: Array, forward: Array, backward: Array, hop: Array) -> Array:
    """The same recursion, operation by operation and scalar: a stage does its own list, each waits for its input."""
    _, stages, replicas, microbatches = forward.shape
    done = np.zeros((stages, replicas))
    for replica in range(replicas):
        ends: dict[tuple[int, bool, int], float] = {}
        clock = [float(ready[0, stage, replica]) for stage in range(stages)]
        lists = []
        for stage in range(stages):
            warm = min(stages - 1 - stage, microbatches)
            order = [(True, index) for index in range(warm)]
            for index in range(microbatches - warm):
                order += [(True, warm + index), (False, index)]
            lists.append(order + [(False, index) for index in range(microbatches - warm, microbatches)])
        while any(lists):
            for stage in range(stages):
                while lists[stage]:
                    is_forward, index = lists[stage][0]
                    source = stage - 1 if is_forward else stage + 1
                    begin = clock[stage]
                    if 0 <= source < stages:
                        if (source, is_forward, index) not in ends:
                            break
                        travel = float(hop[0, min(source, stage), replica])
                        begin = max(begin, ends[source, is_forward, index] + travel)
                    passes = forward if is_forward else backward
                    clock[stage] = begin + float(passes[0, stage, replica, index])
                    ends[stage, is_forward, index] = clock[stage]
                    lists[stage].pop(0)
        done[:, replica] = clock
    return done


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 3), st.integers(1, 7))
def test_the_recursion_is_that_of_the_definition(seed: int, stages: int, replicas: int, microbatches: int) -> None:
    draws = np.random.default_rng(seed)
    shape = (1, stages, replicas, microbatches)
    ready, forward, backward = draws.random(shape[:3]), draws.random(shape), draws.random(shape)
    hop = 0.1 * draws.random((1, max(0, stages - 1), replicas))
    times = run_exact(ready, forward, backward, hop)
    assert times.done[0] == pytest.approx(by_definition(ready, forward, backward, hop))
    assert (times.waited >= 0).all()
    own = forward.sum(axis=3) + backward.sum(axis=3)
    assert times.done == pytest.approx(ready + own + times.waited)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(0, 5), st.floats(0.01, 5.0))
def test_more_work_never_ends_sooner(seed: int, stage: int, microbatch: int, more: float) -> None:
    draws = np.random.default_rng(seed)
    forward, backward = draws.random((1, 4, 1, 6)), draws.random((1, 4, 1, 6))
    ready, hop = np.zeros((1, 4, 1)), np.zeros((1, 3, 1))
    before = run_exact(ready, forward, backward, hop).done
    forward[0, stage, 0, microbatch] += more
    assert (run_exact(ready, forward, backward, hop).done >= before - 1e-12).all()


@pytest.mark.parametrize("name", ["tp8-dp8", "tp4-pp4-dp4", "tp8-pp2-dp4", "tp8-pp8-dp8", "tp4-pp4-ep4-dp32"])
@pytest.mark.parametrize("severity", [0.0, 0.2, 1.0])
def test_the_closed_form_agrees_within_one_per_cent_in_every_step(name: str, severity: float) -> None:
    case = healthy_case("X", "levels", SHAPES[name], "", steps=70)
    if severity:
        case = one_fault("X", "levels", SHAPES[name], slow_gpu(severity, end=60), "", steps=70)
    exact = np.array(generate(case, 5).step_seconds())
    fast = np.array(generate(replace(case, level="L2"), 5).step_seconds())
    assert np.abs(fast / exact - 1.0).max() < 0.01


def test_the_closed_form_is_exact_without_scatter() -> None:
    for stages, microbatches, slow in ((4, 8, 0), (4, 8, 3), (8, 24, 4)):
        ready, forward, backward, hop = durations(stages, 1, microbatches)
        forward[:, slow] *= 1.3
        backward[:, slow] *= 1.3
        exact, fast = run_exact(ready, forward, backward, hop), run_fast(ready, forward, backward, hop)
        assert fast.done.max() == pytest.approx(exact.done.max(), rel=1e-6)


def trace_columns(name: str) -> dict[str, NDArray[np.generic]]:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"reference data absent: no {path}")
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading the recorded traces needs pyarrow")
    table = parquet.read_table(path, columns=list(COLUMNS))
    return {column: np.array(table[column].to_pylist()) for column in COLUMNS}


@pytest.mark.parametrize("name", ["trace-AR.parquet", "trace-SE.parquet"])
def test_recorded_steps_are_replayed_from_their_own_durations(name: str) -> None:
    errors = np.abs([step.error for step in replay_steps(trace_columns(name))])
    assert len(errors) > 40
    assert np.median(errors) < 0.005
    assert np.quantile(errors, 0.9) < 0.01
    assert errors.max() < 0.02


def recorded(step_s: float = 1.0) -> dict[str, NDArray[np.generic]]:
    """Two stages, one replica, two microbatches, everything on time: 0.1 s of gather, then (2 + 1) x (0.1 + 0.2) s."""
    rows = []
    for stage, begins in ((0, ((0.1, 0.2), (0.5, 0.8))), (1, ((0.2, 0.5), (0.3, 0.6)))):
        rows.append((0, stage, 7, "params-all-gather", 0.0, 0.1, 0))
        forward, backward = begins
        for index in range(2):
            rows.append((0, stage, 7, "forward-compute", forward[index], 0.1, index))
            rows.append((0, stage, 7, "backward-compute", backward[index], 0.2, index))
        rows.append((0, stage, 7, "optimizer", 1.0, 0.05, 0))
    return {name: np.array([row[place] for row in rows]) for place, name in enumerate(COLUMNS)}


def test_a_trace_without_a_column_or_an_operation_is_refused() -> None:
    columns = recorded()
    with pytest.raises(ScenarioError, match="no column duration"):
        list(replay_steps({name: column for name, column in columns.items() if name != "duration"}))
    kept = ~((columns["optype"] == "forward-compute") & (columns["stage"] == 1) & (columns["seq_id"] == 1))
    with pytest.raises(ScenarioError, match="lacks forward-compute"):
        list(replay_steps({name: column[kept] for name, column in columns.items()}))


def test_a_small_trace_is_replayed_by_hand() -> None:
    [step] = replay_steps(recorded())
    # Gather, three forward-backward pairs, optimizer; the last pass of stage 0 waits for nothing else.
    assert step.replayed_s == pytest.approx(0.1 + 3 * 0.3 + 0.05)
    assert step.observed_s == pytest.approx(1.05)

"""MFU and HFU of a step: laws, impossible figures, unknown peaks."""

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streams.core
from schemas.gpu_parts import find
from streams.core.flops import ModelShape, Recompute
from streams.core.utilisation import (
    Utilisation,
    dense_peak,
    run_time_s,
    scaled_to_hardware,
    tokens_per_s_per_gpu,
    utilisation,
    utilisation_of_rate,
)

LLAMA3_8B = ModelShape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, gated_mlp=True, vocab=128256)


def step(**changes: Any) -> Utilisation:
    figures: dict[str, Any] = {
        "workload": "training",
        "shape": LLAMA3_8B,
        "convention": "megatron-causal",
        "recompute": "none",
        "seq_len": 8192,
        "tokens": 8 * 8192,
        "step_time_us": 1_400_000,
        "gpus": 8,
        "peak_tflops": 989.5,
        "precision": "bf16",
    }
    return utilisation(**(figures | changes))


def known(value: float | None) -> float:
    assert value is not None
    return value


TOKENS = st.integers(1, 10**9)
TIMES = st.integers(1, 10**12)
GPUS = st.integers(1, 100_000)
RECOMPUTES: st.SearchStrategy[Recompute] = st.sampled_from(["none", "selective", "full"])
CONVENTIONS = st.sampled_from(["6N", "palm", "torchtitan", "megatron", "megatron-causal"])


@given(TOKENS, st.integers(1, 1000), TIMES, CONVENTIONS)
def test_mfu_grows_with_tokens(tokens: int, factor: int, step_time_us: int, convention: str) -> None:
    once = step(tokens=tokens, step_time_us=step_time_us, convention=convention)
    more = step(tokens=factor * tokens, step_time_us=step_time_us, convention=convention)
    assert known(more.mfu) == pytest.approx(factor * known(once.mfu))


@given(TOKENS, st.integers(1, 1000), TIMES, GPUS)
def test_mfu_falls_with_time_and_with_gpus(tokens: int, factor: int, step_time_us: int, gpus: int) -> None:
    once = known(step(tokens=tokens, step_time_us=step_time_us, gpus=gpus).mfu)
    slower = step(tokens=tokens, step_time_us=factor * step_time_us, gpus=gpus)
    wider = step(tokens=tokens, step_time_us=step_time_us, gpus=factor * gpus)
    assert known(slower.mfu) == pytest.approx(once / factor)
    assert known(wider.mfu) == pytest.approx(once / factor)


@given(TOKENS, TIMES, GPUS, RECOMPUTES, CONVENTIONS)
def test_the_hardware_never_does_less_than_the_model_needs(
    tokens: int, step_time_us: int, gpus: int, recompute: Recompute, convention: str
) -> None:
    seen = step(tokens=tokens, step_time_us=step_time_us, gpus=gpus, recompute=recompute, convention=convention)
    assert known(seen.hfu) >= known(seen.mfu)
    assert known(seen.waste) == known(seen.hfu) - known(seen.mfu)
    assert known(seen.recompute_tflops_per_gpu) >= 0
    if recompute == "none":
        assert seen.waste == 0
        assert seen.recompute_tflops_per_gpu == 0
    else:
        assert known(seen.waste) > 0


@given(TOKENS, TIMES, GPUS)
def test_mfu_is_the_achieved_rate_over_the_peak(tokens: int, step_time_us: int, gpus: int) -> None:
    seen = step(tokens=tokens, step_time_us=step_time_us, gpus=gpus)
    assert known(seen.mfu) == pytest.approx(known(seen.model_tflops_per_gpu) / 989.5)
    assert known(seen.hardware_tflops) == pytest.approx(known(seen.hardware_tflops_per_gpu) * gpus)


@given(TOKENS, TIMES, RECOMPUTES)
def test_a_figure_is_impossible_exactly_above_the_peak(tokens: int, step_time_us: int, recompute: Recompute) -> None:
    seen = step(tokens=tokens, step_time_us=step_time_us, recompute=recompute)
    assert seen.impossible == (known(seen.hfu) > 1)
    assert (seen.impossible_reason is None) == (not seen.impossible)


def test_seventy_billion_parameters_in_150_ms_on_eight_gpus_is_impossible() -> None:
    seen = step(
        shape=ModelShape(parameters=70e9),
        convention="6N",
        tokens=32_768,
        step_time_us=150_000,
        peak_tflops=989.0,
    )
    assert known(seen.mfu) == pytest.approx(11.596, abs=1e-3)
    assert seen.impossible
    assert "1,160 %" in (seen.impossible_reason or "")
    assert "job's description" in (seen.impossible_reason or "")


def test_recompute_alone_can_make_a_figure_impossible() -> None:
    seen = step(step_time_us=510_000, recompute="full")
    assert known(seen.mfu) < 1 < known(seen.hfu)
    assert seen.impossible
    assert (seen.impossible_reason or "").startswith("HFU")


def test_an_unknown_part_has_a_rate_and_no_utilisation() -> None:
    peak = dense_peak(find("NVIDIA Z900 1TB"), "bf16")
    seen = step(peak_tflops=peak.tflops, precision=peak.precision, peak_source=peak.source)
    assert (seen.mfu, seen.hfu, seen.waste, seen.peak_tflops) == (None, None, None, None)
    assert known(seen.model_tflops_per_gpu) > 0
    assert seen.peak_source == "unknown part"
    assert not seen.impossible
    assert any("no peak" in note for note in seen.notes)


def test_the_peak_is_of_the_precision_that_the_job_runs_in() -> None:
    h100, v100 = find("NVIDIA H100 80GB HBM3"), find("Tesla V100-SXM2-32GB")
    assert dense_peak(h100, "bfloat16").tflops == 989.5
    assert dense_peak(h100, "fp8").tflops == 1979
    assert dense_peak(h100, "fp8").source == "table: H100 SXM5 80GB"
    lacking = dense_peak(v100, "bf16")
    assert lacking.tflops is None
    assert "V100" in lacking.source


def test_an_fp8_job_against_the_bf16_peak_may_pass_it_up_to_twice() -> None:
    faster = step(step_time_us=400_000, compute_precision="fp8")
    assert 1 < known(faster.mfu) < 2
    assert not faster.impossible
    assert any("may pass 100 %" in note for note in faster.notes)
    assert step(step_time_us=400_000).impossible
    assert step(step_time_us=150_000, compute_precision="fp8").impossible
    assert step(step_time_us=250_000, precision="fp8", peak_tflops=1979.0).impossible == (
        known(step(step_time_us=250_000).mfu) > 2
    )


def test_selective_recompute_of_an_unknown_core_leaves_hfu_unknown() -> None:
    seen = step(shape=ModelShape(parameters=8e9), convention="6N", recompute="selective")
    assert seen.mfu is not None
    assert (seen.hfu, seen.waste, seen.recompute_tflops_per_gpu) == (None, None, None)
    assert any("HFU is unknown" in note for note in seen.notes)


def test_a_forward_pass_is_a_third_of_a_training_step() -> None:
    training, forward = step(), step(workload="forward_only")
    assert known(forward.mfu) == pytest.approx(known(training.mfu) / 3)
    assert forward.hfu == forward.mfu


def test_inference_names_what_it_counts() -> None:
    bare = step(workload="inference", shape=ModelShape(parameters=70e9))
    assert bare.convention == "2N"
    assert known(bare.model_tflops_per_gpu) == pytest.approx(2 * 70e9 * 8 * 8192 / 1.4 / 8 / 1e12)
    attending = step(workload="inference")
    assert attending.convention == "2N+4LHQT"
    assert attending.hfu == attending.mfu


def test_packed_documents_lower_the_count() -> None:
    tokens = 8 * 8192
    whole = step(sum_squared_lengths=8 * 8192**2)
    halves = step(sum_squared_lengths=16 * 4096**2)
    assert whole.mfu == step().mfu
    assert known(halves.mfu) == pytest.approx(known(step(seq_len=4096).mfu))
    with pytest.raises(ValueError, match="sum_squared_lengths"):
        step(sum_squared_lengths=tokens * 8192 + 1)


@pytest.mark.parametrize("field", ["tokens", "step_time_us", "gpus", "peak_tflops"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_figure_that_is_not_above_zero_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{field} is {value}; it must be a finite number above zero"):
        step(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": "dreaming"}, "workload is 'dreaming'"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"convention": "7N"}, "no FLOP convention is named '7N'"),
        ({"workload": "inference", "recompute": "full"}, "no backward pass"),
        ({"workload": "forward_only", "recompute": "selective"}, "no backward pass"),
        ({"workload": "inference", "sum_squared_lengths": 8192.0}, "not for inference"),
        ({"seq_len": 0}, "seq_len is 0"),
    ],
)
def test_a_word_or_figure_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(**changes)


def rated(includes_recompute: bool | None, tflops_per_gpu: float = 400.0) -> Utilisation:
    return utilisation_of_rate(
        tflops_per_gpu=tflops_per_gpu,
        includes_recompute=includes_recompute,
        convention="as Megatron-LM prints it",
        gpus=16,
        peak_tflops=989.5,
        precision="bf16",
    )


def test_a_printed_rate_tells_only_what_it_counts() -> None:
    assert rated(None).mfu == rated(None).hfu == pytest.approx(0.404, abs=1e-3)
    model_only, with_recompute = rated(False), rated(True)
    assert (model_only.hfu, with_recompute.mfu) == (None, None)
    assert model_only.mfu == with_recompute.hfu == rated(None).mfu
    assert rated(True).hardware_tflops == 6400
    assert rated(False).hardware_tflops is None


def test_a_printed_rate_above_the_peak_is_impossible() -> None:
    assert rated(False, 1200.0).impossible
    assert not rated(False, 800.0).impossible


def test_hfu_of_a_job_that_counts_less_hardware_than_model_flop_is_refused() -> None:
    with pytest.raises(ValueError, match="hardware_flops"):
        scaled_to_hardware(0.4, 4.1, 3.28)


def test_run_time_follows_from_rate_and_gpus() -> None:
    assert run_time_s(1_000_000, 10, tokens_per_s_per_gpu(6 * 7e9, 420.0)) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="gpus is 0"):
        run_time_s(1, 0, 1.0)


@pytest.mark.parametrize("module", ["flops", "model_shape", "utilisation"])
def test_the_modules_are_pure(module: str) -> None:
    tree = ast.parse((Path(next(iter(streams.core.__path__))) / f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= {"__future__", "dataclasses", "enum", "math", "schemas", "streams", "typing"}

"""A verdict names what bounds a step and the figures that say so; the straggler is who came last to the collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.profiles.figures import StepFigures, Work, sum_of
from streams.profiles.kernel_family import MEMORY_FAMILIES, TENSOR_FAMILIES, family_of
from streams.profiles.ranks import MARGIN_SHARE, compare_ranks
from streams.profiles.verdict import Limits, shares_of, verdict


def step(number: int | None = 1, **changed: Any) -> StepFigures:
    """A step of a millisecond that matrix products fill."""
    healthy = StepFigures(
        window_us=1000,
        kernel_us=900,
        compute_us=900,
        comm_us=150,
        exposed_comm_us=50,
        exposed_to_device_us=0,
        exposed_to_host_us=0,
        idle_us=50,
        idle_input_us=0,
        idle_unlaunched_us=30,
        kernel_count=10,
        step=number,
        device=0,
        families={"matmul_tensor": Work(8, 800), "elementwise": Work(2, 100)},
        collectives={"allreduce": Work(2, 150)},
    )
    return replace(healthy, **changed)


def test_a_step_filled_with_matrix_products_is_bound_by_computation() -> None:
    found = verdict([step()])
    assert found.bound == "compute"
    assert "89% of the kernels' time is on tensor cores" in found.reason


def test_a_step_filled_with_elementwise_kernels_is_bound_by_memory() -> None:
    found = verdict(
        [step(families={"matmul_tensor": Work(8, 200), "elementwise": Work(2, 300), "reduction": Work(2, 400)})]
    )
    assert found.bound == "memory"
    assert "78%" in found.reason


def test_kernels_of_no_known_family_leave_it_undecided() -> None:
    assert verdict([step(families={"other": Work(8, 900)})]).bound == "undecided"
    assert (
        verdict([step(families={"matmul": Work(4, 450), "matmul_tensor": Work(1, 300), "copy": Work(1, 150)})]).bound
        == "undecided"
    )


def test_uncovered_communication_bounds_a_step_and_hidden_communication_does_not() -> None:
    hidden = step(comm_us=700, exposed_comm_us=50)
    assert verdict([hidden]).bound == "compute"
    exposed = verdict([step(kernel_us=600, compute_us=600, comm_us=400, exposed_comm_us=350)])
    assert exposed.bound == "communication"
    assert "35%" in exposed.reason
    assert "50 of 400 us are hidden" in exposed.reason


def test_waiting_for_the_loader_and_uncovered_copies_are_waiting_for_input() -> None:
    found = verdict([step(kernel_us=650, compute_us=750, exposed_to_device_us=100, idle_us=200, idle_input_us=180)])
    assert found.bound == "input"
    assert "28%" in found.reason


def test_other_idle_time_waits_for_launches() -> None:
    found = verdict([step(kernel_us=600, compute_us=600, idle_us=350, idle_unlaunched_us=280)])
    assert found.bound == "launch"
    assert "in 80% of it the next kernel was not yet launched" in found.reason
    unknown = verdict([step(kernel_us=600, compute_us=600, idle_us=350, idle_unlaunched_us=None)])
    assert unknown.bound == "launch"
    assert "launched" not in unknown.reason


def test_the_limit_itself_is_reached_and_just_below_it_is_not() -> None:
    assert verdict([step(kernel_us=800, compute_us=800, exposed_comm_us=200, idle_us=0)]).bound == "communication"
    assert verdict([step(kernel_us=801, compute_us=801, exposed_comm_us=199, idle_us=0)]).bound == "compute"
    assert verdict([step()], Limits(lost_share=0.05)).bound == "communication"


def test_nothing_is_said_of_a_trace_without_gpu_work() -> None:
    for steps in ([], [step(window_us=0)]):
        found = verdict(steps)
        assert (found.bound, found.shares) == ("undecided", None)


def test_steps_and_devices_are_added_up() -> None:
    total = sum_of([step(1), step(2, idle_unlaunched_us=None)])
    assert total is not None
    assert (total.window_us, total.families["matmul_tensor"], total.idle_unlaunched_us) == (2000, Work(16, 1600), None)
    assert sum_of([]) is None


lengths = st.floats(0, 1e6)


@given(lengths, lengths, lengths, lengths, st.floats(0, 1), st.floats(0, 1))
def test_the_shares_of_the_time_add_up_to_one(
    kernels: float, copies: float, communication: float, idle: float, in_loader: float, to_device: float
) -> None:
    window = kernels + copies + communication + idle
    if window <= 1:
        return
    shares = shares_of(
        step(
            window_us=window,
            kernel_us=kernels,
            compute_us=kernels + copies,
            exposed_comm_us=communication,
            exposed_to_device_us=copies * to_device,
            idle_us=idle,
            idle_input_us=idle * in_loader,
        )
    )
    added = shares.kernels + shares.communication + shares.input + shares.launch + shares.transfer
    assert added == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "matmul_tensor"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "matmul_tensor"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize160x128x32_stage4", "matmul_tensor"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>",
            "matmul_tensor",
        ),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::arch::Sm90>>", "matmul_tensor"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTT", "matmul_tensor"),
        ("volta_h884gemm_128x64_ldg8_nn", "matmul_tensor"),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI32x32x8x1_SN", "matmul_tensor"),
        ("Cijk_Ailk_Bljk_SB_MT128x64x16_SE_APM1", "matmul"),
        ("ampere_sgemm_128x64_tn", "matmul_simt"),
        ("cutlass_80_simt_sgemm_128x256_8x4_nn_align1", "matmul_simt"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("_ZN5aiter24fmha_fwd_hd128_bf16E", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_bf16bf16_nhwckrsc", "convolution_tensor"),
        ("cudnn::winograd_nonfused::winogradForwardData4x4", "convolution"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "matrix_vector"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copy"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "normalisation"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4>", "softmax"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        ("triton_red_fused__to_copy_mean_3", "reduction"),
        ("triton_poi_fused_add_mul_2", "elementwise"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "other_communication"),
        ("fast_hadamard_transform_kernel", "other"),
        ("my_kernel", "other"),
        ("", "other"),
    ],
)
def test_a_kernel_s_family_follows_from_its_name(name: str, family: str) -> None:
    assert family_of(name) == family


def test_no_family_is_of_two_kinds() -> None:
    assert not TENSOR_FAMILIES & MEMORY_FAMILIES


def rank_steps(collective_us: float, own_us: float, count: int = 2, name: str = "allreduce") -> list[StepFigures]:
    return [
        step(
            number, exposed_comm_us=1000 - own_us, comm_us=collective_us, collectives={name: Work(count, collective_us)}
        )
        for number in (4, 5)
    ]


def test_the_rank_with_the_shortest_collectives_came_last() -> None:
    found = compare_ranks(
        {0: rank_steps(300, 700), 1: rank_steps(40, 960), 2: rank_steps(310, 690), 3: rank_steps(290, 710)}
    )
    assert found.straggler_rank == 1
    assert "rank 1 has the shortest collectives" in found.reason
    assert [entry.collective_us for entry in found.ranks] == [300, 40, 310, 290]
    assert found.steps == (4, 5)


def test_nobody_is_named_within_the_jitter() -> None:
    short = 300 - 1000 * MARGIN_SHARE
    within = compare_ranks({0: rank_steps(300, 700), 1: rank_steps(short + 1, 751), 2: rank_steps(300, 700)})
    assert within.straggler_rank is None
    assert within.reason.startswith("no rank stands out")
    assert (
        compare_ranks({0: rank_steps(300, 700), 1: rank_steps(short, 750), 2: rank_steps(300, 700)}).straggler_rank == 1
    )


def test_short_collectives_without_a_longer_own_time_name_nobody() -> None:
    found = compare_ranks({0: rank_steps(300, 700), 1: rank_steps(40, 650), 2: rank_steps(300, 700)})
    assert found.straggler_rank is None
    assert "its own time is not longer" in found.reason


def test_ranks_with_other_collectives_are_not_compared() -> None:
    stages = {
        0: rank_steps(300, 700),
        1: rank_steps(310, 690),
        2: rank_steps(40, 960, count=1),
        3: rank_steps(45, 955, count=1),
    }
    found = compare_ranks(stages)
    assert found.straggler_rank is None
    alone = compare_ranks({0: rank_steps(300, 700), 1: rank_steps(40, 960, name="broadcast")})
    assert alone.straggler_rank is None
    assert not any(entry.is_compared for entry in alone.ranks)
    assert "no two ranks" in alone.reason


def test_only_common_steps_count() -> None:
    found = compare_ranks({0: [*rank_steps(300, 700), step(6, comm_us=9000)], 1: rank_steps(40, 960)})
    assert (found.steps, found.straggler_rank) == ((4, 5), 1)
    assert compare_ranks({0: [step(1)], 1: [step(2)]}).ranks == ()
    assert compare_ranks({}).straggler_rank is None


def test_point_to_point_counts_only_where_there_is_nothing_else() -> None:
    def mixed(collective_us: float, send_us: float, own_us: float) -> list[StepFigures]:
        work = {"allreduce": Work(2, collective_us), "SendRecv": Work(3, send_us)}
        return [step(1, collectives=work, exposed_comm_us=1000 - own_us)]

    found = compare_ranks({0: mixed(300, 0, 700), 1: mixed(300, 900, 700), 2: mixed(40, 900, 960)})
    assert found.straggler_rank == 2
    alone = compare_ranks({0: rank_steps(300, 700, name="SendRecv"), 1: rank_steps(40, 960, name="SendRecv")})
    assert alone.straggler_rank == 1

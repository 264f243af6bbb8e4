"""The profile of a trace says where each step's time went, by device."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from agents.decode.kineto_products import product_work
from agents.decode.kineto_profile import profile
from agents.decode.record import Damaged, Record, Tally, UnknownFormat
from streams.profiles.kernel_family import family_of
from tests.bench.kineto_trace import Shape, events

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN"


def event(category: str, name: str, start: float, duration: float, device: int = 0, **args: Any) -> dict[str, Any]:
    place = {"pid": device, "tid": 7, "ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, **place, "args": {"device": device, "stream": 7, **args}}


def kernel(name: str, start: float, duration: float, device: int = 0, **args: Any) -> dict[str, Any]:
    return event("kernel", name, start, duration, device, **args)


def launch(correlation: int, start: float) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", start, 3, correlation=correlation)


def records(*listed: dict[str, Any], **members: Any) -> list[Record]:
    data = json.dumps({"traceEvents": listed, **members}).encode()
    return list(profile(io.BytesIO(data), Tally(), family_of))


def steps(*listed: dict[str, Any]) -> list[Record]:
    return [record for record in records(*listed) if record["kind"] == "trace_step"]


def test_a_step_is_split_into_kernels_communication_copies_and_idle_time() -> None:
    (step,) = steps(
        event("gpu_user_annotation", "ProfilerStep#3", 0, 100),
        kernel(GEMM, 0, 30),
        kernel(ALL_REDUCE, 20, 30),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 45, 15),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 80, 5),
        event("gpu_memset", "Memset (Device)", 90, 4),
    )
    assert step | {"families": 0, "collectives": 0} == {
        "kind": "trace_step",
        "step": 3,
        "device": 0,
        "window": "gpu",
        "window_us": 100,
        "kernel_us": 30,
        "compute_us": 54,
        "comm_us": 30,
        "exposed_comm_us": 15,
        "hidden_comm_us": 15,
        "to_device_us": 15,
        "exposed_to_device_us": 10,
        "to_host_us": 5,
        "exposed_to_host_us": 5,
        "idle_us": 31,
        "idle_input_us": 0,
        "idle_unlaunched_us": None,
        "longest_gap_us": 20,
        "kernel_count": 5,
        "launch_latency_median_us": None,
        "launch_latency_p95_us": None,
        "families": 0,
        "collectives": 0,
    }
    assert step["families"]["matmul_tensor"] == {"count": 1, "total_us": 30}
    assert step["collectives"] == {"AllReduce": {"count": 1, "total_us": 30}}


def test_launches_are_joined_by_correlation_wherever_they_stand() -> None:
    (step,) = steps(
        event("gpu_user_annotation", "ProfilerStep#3", 0, 100),
        kernel("a", 10, 10, correlation=1),
        launch(2, 30),
        kernel("b", 40, 10, correlation=2),
        kernel("c", 60, 10, correlation=3),
        launch(3, 5),
        launch(1, 4),
        launch(99, 0),
    )
    assert step["launch_latency_median_us"] == 10
    assert step["launch_latency_p95_us"] == pytest.approx(10 + 0.9 * 45)
    # Idle until a's launch at 4, from a's end at 20 to b's launch at 30; c had long been launched.
    assert step["idle_unlaunched_us"] == 4 + 10
    assert step["idle_us"] == 70


def test_little_is_said_of_launches_when_most_are_missing() -> None:
    (step,) = steps(
        kernel("a", 10, 10, correlation=1), launch(2, 30), kernel("b", 40, 10, correlation=2), kernel("c", 60, 10)
    )
    assert step["idle_unlaunched_us"] is None
    assert step["launch_latency_median_us"] == 10


def test_idle_time_in_the_data_loader_is_waiting_for_input() -> None:
    (step,) = steps(
        event("user_annotation", "ProfilerStep#3", 0, 100),
        event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 40),
        kernel("a", 10, 5),
        kernel("b", 90, 10),
    )
    assert (step["window"], step["idle_us"], step["idle_input_us"]) == ("host", 85, 35)


def test_windows_reach_up_to_the_next_step_and_gpu_annotations_come_first() -> None:
    found = steps(
        event("user_annotation", "ProfilerStep#3", 0, 50),
        event("user_annotation", "ProfilerStep#4", 50, 50),
        event("gpu_user_annotation", "ProfilerStep#4", 60, 40),
        event("gpu_user_annotation", "ProfilerStep#3", 10, 40),
        event("gpu_user_annotation", "ProfilerStep#3", 12, 30),
        kernel("a", 10, 60),
        kernel("b", 80, 10),
    )
    assert [(step["step"], step["window_us"], step["kernel_us"], step["kernel_count"]) for step in found] == [
        (3, 50, 50, 1),
        (4, 40, 20, 1),
    ]


def test_a_trace_without_steps_is_one_window_and_one_without_gpu_work_has_none() -> None:
    (step,) = steps(kernel("a", 10, 10), kernel("b", 40, 10))
    assert (step["step"], step["window"], step["window_us"], step["idle_us"]) == (None, "trace", 40, 20)
    assert steps(event("cpu_op", "aten::mm", 0, 10)) == []


def test_devices_have_steps_of_their_own() -> None:
    found = steps(
        event("user_annotation", "ProfilerStep#3", 0, 100), kernel("a", 0, 10, device=1), kernel("b", 0, 20, device=0)
    )
    assert [(step["device"], step["kernel_us"]) for step in found] == [(0, 20), (1, 10)]


def test_the_profile_names_rank_gpu_and_the_kernels_that_took_most() -> None:
    found = records(
        kernel("a", 0, 10),
        kernel("b", 20, 5),
        kernel("b", 30, 8),
        distributedInfo={"rank": 3, "world_size": 8},
        deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}, {"id": 1, "name": "NVIDIA L4"}],
    )[-1]
    assert (found["rank"], found["world_size"], found["gpu_names"]) == (3, 8, ["NVIDIA H100 80GB HBM3"])
    assert found["top_kernels"] == [
        {"name": "b", "family": "other", "count": 2, "total_us": 13, "max_us": 8},
        {"name": "a", "family": "other", "count": 1, "total_us": 10, "max_us": 10},
    ]


def test_products_with_shapes_are_joined_to_their_kernels() -> None:
    def product(external_id: int) -> dict[str, Any]:
        args: dict[str, Any] = {
            "External id": external_id,
            "Input Dims": [[64, 32], [32, 16]],
            "Input type": ["c10::BFloat16"] * 2,
        }
        return event("cpu_op", "aten::mm", 0, 5, **args)

    found = records(
        product(7),
        product(8),
        kernel(GEMM, 10, 4, **{"External id": 7}),
        kernel("splitKreduce", 20, 2, **{"External id": 7}),
    )[-1]
    moved = 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert found["matrix_products"] == [
        {"dtype": "c10::BFloat16", "count": 1, "flops": 2 * 64 * 32 * 16, "bytes": moved, "kernel_us": 6}
    ]


@pytest.mark.parametrize(
    ("first", "second", "dtype", "expected"),
    [
        ([2, 4, 8], [2, 8, 16], "float", (2 * 2 * 4 * 8 * 16, 2 * 4 * (4 * 8 + 8 * 16 + 4 * 16))),
        ([4, 8], [8, 16], "c10::Float8_e4m3fn", (2 * 4 * 8 * 16, 4 * 8 + 8 * 16 + 2 * 4 * 16)),
        ([4, 8], [9, 16], "float", None),
        ([4, 8], [8], "float", None),
        ([2, 4, 8], [3, 8, 16], "float", None),
        ([4, 8], [8, 16], "long int", None),
        ([4, "8"], [8, 16], "float", None),
        ([], None, None, None),
    ],
)
def test_the_work_of_a_product_follows_from_its_shapes(
    first: object, second: object, dtype: object, expected: tuple[float, float] | None
) -> None:
    assert product_work(first, second, dtype) == expected


def test_a_generated_trace_accounts_for_all_of_each_step() -> None:
    found = steps(*events(Shape(kernels=600, steps=3)))
    assert len(found) == 3
    for step in found:
        busy = step["compute_us"] + step["exposed_comm_us"]
        assert busy + step["idle_us"] == pytest.approx(step["window_us"])
        assert step["hidden_comm_us"] + step["exposed_comm_us"] == pytest.approx(step["comm_us"])
        assert 0 < step["hidden_comm_us"] < step["comm_us"]
        assert step["launch_latency_median_us"] == pytest.approx(8.0, abs=0.01)
        assert sum(work["count"] for work in step["families"].values()) == 196
        assert sum(work["count"] for work in step["collectives"].values()) == 4


def printed_ns(value: float) -> int:
    return int(Decimal(repr(value)) * 1000)


def counted(listed: list[dict[str, Any]], window: tuple[int, int]) -> dict[str, int]:
    """Nanoseconds of a window in each state, counted between all points at which anything begins or ends."""

    kinds: dict[str, list[tuple[int, int]]] = {"comm": [], "kernel": [], "copy in": [], "copy out": []}
    for one in listed:
        start_ns = printed_ns(one["ts"])
        span = (max(start_ns, window[0]), min(start_ns + printed_ns(one["dur"]), window[1]))
        if span[0] < span[1] and one["cat"] == "kernel":
            kinds["comm" if one["name"].startswith("nccl") else "kernel"].append(span)
        elif span[0] < span[1] and one["cat"] == "gpu_memcpy":
            kinds["copy in" if "HtoD" in one["name"] else "copy out"].append(span)
    points = sorted({point for spans in kinds.values() for start, end in spans for point in (start, end)} | {*window})
    found: Counter[str] = Counter()
    for first, last in pairwise(points):
        on = {kind: any(start <= first and last <= end for start, end in spans) for kind, spans in kinds.items()}
        is_compute = on["kernel"] or on["copy in"] or on["copy out"]
        is_covered = on["kernel"] or on["comm"]
        for name, counts in (
            ("kernel_us", on["kernel"]),
            ("compute_us", is_compute),
            ("comm_us", on["comm"]),
            ("exposed_comm_us", on["comm"] and not is_compute),
            ("hidden_comm_us", on["comm"] and is_compute),
            ("idle_us", not is_compute and not on["comm"]),
            ("exposed_to_device_us", on["copy in"] and not is_covered),
            ("exposed_to_host_us", on["copy out"] and not is_covered),
        ):
            found[name] += (last - first) * counts
    return dict(found)


def test_the_figures_of_a_generated_trace_equal_a_count_by_hand() -> None:
    listed = [one for one in events(Shape(kernels=240, steps=3, seed=3)) if one["cat"] != "user_annotation"]
    windows = {one["name"]: one for one in listed if one["cat"] == "gpu_user_annotation"}
    drawn = random.Random(5)
    begin, end = (pick(one["ts"] for one in windows.values()) for pick in (min, max))
    for place in range(60):
        name = "Memcpy HtoD (Pinned -> Device)" if place % 2 else "Memcpy DtoH (Device -> Pinned)"
        listed.append(event("gpu_memcpy", name, round(drawn.uniform(begin, end), 3), round(drawn.uniform(1, 90), 3)))
    drawn.shuffle(listed)
    found = {step["step"]: step for step in steps(*listed)}
    last = max(windows.values(), key=lambda one: one["ts"])
    edges = [
        *sorted(printed_ns(one["ts"]) for one in windows.values()),
        printed_ns(last["ts"]) + printed_ns(last["dur"]),
    ]
    assert sorted(found) == [5, 6, 7]
    for number, window in zip(sorted(found), pairwise(edges), strict=True):
        expected = counted(listed, window)
        assert {name: round(found[number][name] * 1000) for name in expected} == expected
        assert round(found[number]["window_us"] * 1000) == window[1] - window[0]


def test_what_is_no_trace_or_cut_is_refused_and_one_bad_kernel_is_not() -> None:
    for data, error in ((b"", UnknownFormat), (b"{}", UnknownFormat), (b'{"traceEvents": [', Damaged)):
        with pytest.raises(error):
            list(profile(io.BytesIO(data), Tally(), family_of))
    found = records(kernel("a", 0, 10), kernel("b", 20, -5))
    assert [record["kind"] for record in found] == ["malformed", "trace_step", "trace_profile"]

"""A synthetic profiler trace of any size, and what reading it costs.

`python -m tests.bench.kineto_trace --megabytes 500` writes one to a temporary folder and reads it with `paceline decode
kineto` and `paceline diagnose profile`, each in a process of its own: processor seconds and the largest resident set of
that process. The trace has the order of a real one: host events first, then the GPU's, so launches and kernels stand far
apart. All is drawn from a seed; nothing is taken from a recorded trace.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_US = 4_458_676_416_000.0
STEP_US = 200_000.0
KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false>>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int, {lambda()#1})",
    "void at::native::(anonymous namespace)::elementwise_kernel<128, 4, {lambda(int)#1}>(int, {lambda(int)#1})",
)
COLLECTIVES = (
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_allgather_base"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_reduce_scatter_base"),
)


@dataclass(frozen=True)
class Shape:
    """What the trace holds.

    Attributes:
        kernels: Kernels in all, over all steps.
        steps: Profiled steps.
        rank: Of the trace.
        slow: Factor on the kernels' durations; peers of a slow rank wait for it.
        wait_us: Added to each collective.
        gap_us: Mean time between kernels of a stream.
        seed: Draws durations and gaps.
    """

    kernels: int = 1000
    steps: int = 3
    rank: int = 0
    slow: float = 1.0
    wait_us: float = 0.0
    gap_us: float = 2.0
    seed: int = 0


def events(shape: Shape) -> Iterator[dict[str, Any]]:
    """The events of a trace: host first, then GPU."""
    yield from _side(shape, is_gpu=False)
    yield from _side(shape, is_gpu=True)


def _side(shape: Shape, *, is_gpu: bool) -> Iterator[dict[str, Any]]:
    drawn = random.Random(shape.seed)
    clock = FIRST_US
    correlation = 1
    for step in range(shape.steps):
        begin = clock
        for index in range(shape.kernels // shape.steps):
            gap = drawn.expovariate(1 / shape.gap_us) if shape.gap_us else 0.0
            is_comm = index % 50 == 49
            duration = round((400.0 + shape.wait_us) if is_comm else drawn.uniform(2, 60) * shape.slow, 3)
            start = round(clock + gap, 3)
            # A collective starts with the kernel before it on a stream of its own, so part of it is hidden.
            if is_comm:
                start = round(start - 25.0, 3)
            name, collective = COLLECTIVES[index % 2] if is_comm else (KERNELS[drawn.randrange(len(KERNELS))], "")
            clock = max(clock, start + duration)
            correlation += 1
            if is_gpu:
                yield _kernel(name, collective, start, duration, 20 if is_comm else 7, correlation, shape.rank)
            else:
                yield _launch(round(start - 8.0, 3), correlation)
        if not is_gpu:
            yield _annotation("user_annotation", f"ProfilerStep#{step + 5}", begin, clock - begin, 4242)
        else:
            yield _annotation("gpu_user_annotation", f"ProfilerStep#{step + 5}", begin, clock - begin, 0)


def _kernel(
    name: str, collective: str, start: float, duration: float, stream: int, correlation: int, rank: int
) -> dict[str, Any]:
    args: dict[str, Any] = {
        "External id": correlation,
        "queued": 0,
        "device": rank % 8,
        "context": 1,
        "stream": stream,
        "correlation": correlation,
        "registers per thread": 96,
        "shared memory": 49152,
        "blocks per SM": 1.5,
        "warps per SM": 12.25,
        "grid": [128, 4, 1],
        "block": [256, 1, 1],
        "est. achieved occupancy %": 25,
    }
    if collective:
        args |= {
            "Collective name": collective,
            "In msg nelems": 1048576,
            "Out msg nelems": 8388608,
            "Group size": 8,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        }
    place = {"pid": rank % 8, "tid": stream}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "ts": start, "dur": duration, "args": args}


def _launch(start: float, correlation: int) -> dict[str, Any]:
    args = {"External id": correlation, "cbid": 211, "correlation": correlation}
    place = {"pid": 4242, "tid": 4242}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **place, "ts": start, "dur": 4.5, "args": args
    }  # fmt: skip


def _annotation(category: str, name: str, start: float, duration: float, process: int) -> dict[str, Any]:
    place = {"pid": process, "tid": process}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        **place,
        "ts": round(start, 3),
        "dur": round(duration, 3),
        "args": {},
    }


def write(path: Path, shape: Shape, *, indent: int | None = None, megabytes: float | None = None) -> int:
    """Writes a trace, gzip when the name ends in `.gz`; returns its kernels.

    With `megabytes` the events are written until the text has that size, as copies of the shape, later in time.
    """
    kernels = written = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as stream:
        stream.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],\n')
        stream.write('"traceEvents": [\n')
        copies = 0
        while True:
            for event in events(shape):
                text = _text(_later(event, copies), indent)
                stream.write((",\n" if written else "") + text)
                written += len(text) + 2
            kernels += shape.kernels // shape.steps * shape.steps
            copies += 1
            if megabytes is None or written >= megabytes * 1e6:
                break
        stream.write('\n], "traceName": "t", "distributedInfo": ')
        stream.write(json.dumps({"backend": "nccl", "rank": shape.rank, "world_size": 8}) + "}\n")
    return kernels


def _text(event: dict[str, Any], indent: int | None) -> str:
    return orjson.dumps(event).decode() if indent is None else json.dumps(event, indent=indent)


def _later(event: dict[str, Any], copies: int) -> dict[str, Any]:
    """An event of a further copy: a hundred seconds later for each, with correlations and steps of its own."""
    if copies:
        event["ts"] = round(event["ts"] + copies * 1e8, 3)
        if "correlation" in event["args"]:
            event["args"]["correlation"] += copies * 10_000_000
        else:
            event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + copies * 1000}"
    return event


_CHILD = """
import resource, sys
from paceline.cli import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("used", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
"""


def measure(arguments: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and the largest resident set in MiB of one `paceline` command."""
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - started
    used = next(line.split() for line in process.stderr.splitlines() if line.startswith("used "))
    return seconds, float(used[1]), float(used[2])


def main() -> None:
    """Writes a trace and prints what each command costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if options.gzip else "trace.json")
        kernels = write(path, Shape(kernels=30_000), megabytes=options.megabytes)
        print(f"{options.megabytes:.0f} MB of text, {path.stat().st_size / 1e6:.0f} MB on disk, {kernels} kernels")
        for arguments in (["decode", "kineto", str(path)], ["diagnose", "profile", str(path), "--json"]):
            wall_s, cpu_s, peak_mib = measure(arguments)
            print(
                f"{' '.join(arguments[:2])}: {cpu_s:.1f} s of processor time ({wall_s:.1f} s), "
                f"{options.megabytes / cpu_s:.0f} MB a processor second, largest resident set {peak_mib:.0f} MiB"
            )


if __name__ == "__main__":
    main()

"""A node with two GPUs behind a stand-in NVML, its frames by the second, and waiting for what other threads do."""

from __future__ import annotations

import time
from typing import Any

from agents.collectors.nvml import NvmlCollector
from agents.frame_assembly import GpuAssembly
from agents.testing import FakeGpu, FakeNvml
from schemas.frames import GpuFrame

A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
C = "GPU-cccccccc-0000-4000-8000-000000000003"
SECOND = 10**9
START = 1_700_000_000 * SECOND
SHORT_S = 0.15


def gpu(uuid: str, bus: str, **readings: Any) -> FakeGpu:
    return FakeGpu(uuid=uuid, address=f"00000000:{bus}:00.0", **readings)


def pair() -> FakeNvml:
    return FakeNvml([gpu(A, "1A", PowerUsage=100_000), gpu(B, "1B", PowerUsage=200_000)])


class Node:
    """A collector, its assembly, and seconds."""

    def __init__(self, library: FakeNvml, deadline_s: float = SHORT_S) -> None:
        self.source = NvmlCollector(library, deadline_s)
        self.assembly = GpuAssembly()

    def frame(self, second: float = 0) -> GpuFrame:
        readings = self.source.collect(START + round(second * SECOND))
        columns = self.assembly.columns([readings.gpus])
        assert columns is not None
        return GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


def wait_until(condition: Any, timeout_s: float = 5.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.005)

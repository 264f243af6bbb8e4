"""What `paceline preflight` measures on this node alone: its sources read twice, its GPUs put to work in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.clock import SystemClock
from agents.collectors.base import CollectorError
from agents.collectors.nvml import NvmlCollector
from agents.collectors.pcie import PcieCollector
from agents.frame_assembly import GpuAssembly
from agents.preflight.check import PreflightCheck, confirmed
from agents.preflight.devices import device_checks, in_use, port_checks
from agents.preflight.gemm import GemmRun, judged_gemm
from agents.preflight.nccl_tests import local_all_reduce
from paceline.collect_command import read_within

if TYPE_CHECKING:
    from collections.abc import Collection

    from agents.clock import Clock
    from agents.collectors.base import Collector, Row
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings
    from paceline.preflight_options import NodeOptions

__all__ = ["NodeReader", "NodeReading", "count_of_gpus", "node_checks"]

_READ_EVERYTHING_NS = 61 * 10**9
"""Some columns are read once a minute; a clock that is so much further on makes them due."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One reading of the node's sources.

    Attributes:
        gpus: a row for each GPU that a source knows, with the columns of a frame.
        ports: a row for each port of a network card.
        nvml_error: why NVML could not be read; None if it was.
        pcie_error: likewise of the bus.
    """

    gpus: tuple[Row, ...]
    ports: tuple[Row, ...]
    nvml_error: str | None
    pcie_error: str | None


class NodeReader:
    """Reads NVML and the PCIe bus as the agent does.

    Args:
        nvml: the source of GPUs.
        pcie: the source of links.
        timeout_s: how long each may take.
        clock: the wall clock.
    """

    def __init__(self, nvml: Collector, pcie: Collector, timeout_s: float, clock: Clock | None = None) -> None:
        self._nvml, self._pcie, self._timeout_s = nvml, pcie, timeout_s
        self._clock = clock or SystemClock()
        self._assembly = GpuAssembly()
        self._reads = 0

    @classmethod
    def of_this_node(cls, settings: AgentSettings, identity: AgentIdentity, timeout_s: float) -> NodeReader:
        """A reader with the agent's settings."""
        nvml, pcie = (source.from_settings(settings, identity) for source in (NvmlCollector, PcieCollector))
        return cls(nvml, pcie, timeout_s)

    def read(self) -> NodeReading:
        """Every source once; one that cannot be read costs its own columns."""
        now_ns = self._clock.time_ns() + self._reads * _READ_EVERYTHING_NS
        self._reads += 1
        rows: list[tuple[Row, ...] | None] = []
        ports: tuple[Row, ...] = ()
        errors: list[str | None] = []
        for source in (self._nvml, self._pcie):
            try:
                readings = read_within(source, now_ns, self._timeout_s)
            except CollectorError as error:
                errors.append(str(error))
                rows.append(None)
            else:
                errors.append(None)
                rows.append(readings.gpus)
                ports += readings.ports or ()
        columns = self._assembly.columns(rows) or {"gpu_uuid": ()}
        count = len(columns["gpu_uuid"])
        gpus = tuple({name: values[place] for name, values in columns.items()} for place in range(count))
        return NodeReading(gpus, ports, errors[0], errors[1])


def node_checks(reader: NodeReader, node: str, selected: Collection[str], options: NodeOptions) -> list[PreflightCheck]:
    """The checks that were asked for, in their order.

    A failure needs two readings that agree. Where GPUs are in use by somebody they are not put to work.
    """
    first = reader.read()
    busy = in_use(first.gpus)
    known = [gpu for gpu in first.gpus if gpu.get("gpu_uuid") is not None and not gpu.get("read_error")]
    idle_error = first.nvml_error or (f"in use: {', '.join(busy)}" if busy else None if known else "there is no GPU")
    worked: list[PreflightCheck] = []
    second, is_working = None, False
    if "gemm" in selected and idle_error is not None:
        worked.append(PreflightCheck("gemm", node, "not_measured", idle_error))
    elif "gemm" in selected:
        with GemmRun(options.torch_python, options.gemm_seconds) as run:
            is_working = run.is_working()
            if is_working:
                first, second = reader.read(), reader.read()
            rows, why = run.figures()
        worked += judged_gemm(rows, node, why, options.gemm)
        named = {row.get("gpu_uuid") for row in rows}
        unseen = [gpu["gpu_uuid"] for gpu in known if gpu["gpu_uuid"] not in named] if any(named) else []
        worked += [PreflightCheck("gemm", uuid, "not_measured", "PyTorch did not see it") for uuid in unseen]
    second = second or reader.read()
    if "nccl" in selected and idle_error is not None:
        worked.append(PreflightCheck("nccl", node, "not_measured", idle_error))
    elif "nccl" in selected:
        worked.append(local_all_reduce(options.nccl_program, len(known), node, options.nccl_floor_gb_s))
    checks = confirmed(*(_of_reading(reading, node, options, is_working) for reading in (first, second)))
    return [check for check in (*checks, *worked) if check.name in selected]


def _of_reading(reading: NodeReading, node: str, options: NodeOptions, is_working: bool) -> list[PreflightCheck]:
    devices = device_checks(
        reading.gpus, node, nvml_error=reading.nvml_error, expected=options.gpus, is_working=is_working
    )
    return [*devices, *port_checks(reading.ports, node, reading.pcie_error)]


def count_of_gpus(reader: NodeReader) -> int:
    """How many GPUs NVML tells of, by one reading."""
    return sum(gpu.get("gpu_uuid") is not None for gpu in reader.read().gpus)

"""What of a node is compared with its peers: one figure a frame and metric, of its worst device.

Counters are read as increases per second of the node's sum. A figure that the node does not publish is absent, never zero.
PCIe links and clocks count of GPUs at work only: an idle GPU lowers both to save power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from streams.detectors.gpu_frames import are_busy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.events import HostLoad
    from schemas.frames import FabricFrame, GpuFrame
    from streams.core.untimed import UntimedSeats

__all__ = ["METRICS", "SILENCE", "Metric", "Reading", "of_gpus", "of_host", "of_ports"]

T = TypeVar("T")

_DAMAGED = (
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "symbol_error",
    "port_rcv_errors",
    "out_of_sequence",
    "packet_seq_err",
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: of the figure, with its unit.
        cause_class: what is wrong with a node that is out.
        worst: which end is the bad one.
        threshold: name of the threshold that says how far a node must be from its peers' median.
        is_relative: whether that is a share of the median.
        words: for explanations.
    """

    name: str
    cause_class: str
    worst: Literal["high", "low"]
    threshold: str
    is_relative: bool
    words: str


SILENCE = Metric("silent_s", "node_lost", "high", "silent_ns", False, "s without a word of the node on any topic")
"""Not a figure that a node tells; above all others, because a node that is gone tells none."""

METRICS = (
    Metric(
        "pause_frames_per_s", "pause_storm", "high", "pause_frames_per_s", False, "pause frames transmitted a second"
    ),
    Metric("cpu_busy_ratio", "host", "high", "cpu_busy_off", False, "of its processors busy"),
    Metric("io_pressure_pct", "data", "high", "io_pressure_off_pct", False, "% of time waiting for disks"),
    Metric("gpu_util_pct", "gpu_stalled", "low", "gpu_util_off_pct", False, "% utilisation of its least busy GPU"),
    Metric("nvlink_errors_per_s", "nvlink", "high", "nvlink_errors_per_s", False, "NVLink errors a second"),
    Metric("pcie_link_share", "pcie", "low", "pcie_off", True, "of the PCIe speed that its slowest GPU could have"),
    Metric("port_speed_gbps", "nic", "low", "port_speed_off", True, "Gb/s of its slowest port"),
    Metric("port_errors_per_s", "link", "high", "port_errors_per_s", False, "damaged or lost packets a second"),
    Metric("thermal_share", "thermal", "high", "thermal_share", False, "of the time in thermal violation"),
    Metric("sm_clock_mhz", "clock", "low", "sm_clock_off", True, "MHz of its slowest GPU at work"),
)
"""In order of priority: the first that holds long enough names the class. Minder's order, pause and processors before the
GPUs' duty cycle, with the counters that name a part of the node after it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one record says of its node: figures by metric, and sums of cumulative counters."""

    figures: dict[str, float]
    counters: dict[str, int]


def of_gpus(frame: GpuFrame, seats: UntimedSeats) -> Reading:
    """Figures of the GPUs that a job's ranks run on."""
    addresses = frame.pci_bus_id or (None,) * len(frame.gpu_uuid)
    held = [index for index, uuid in enumerate(frame.gpu_uuid) if seats.holds(uuid, addresses[index])]
    busy = are_busy(frame)
    at_work = [index for index in held if busy[index]]
    figures: dict[str, float | None] = {
        "gpu_util_pct": _least(frame.gpu_util_pct, held),
        "sm_clock_mhz": _least(frame.sm_clock_mhz, at_work),
        "pcie_link_share": min(
            (share for gpu in at_work if (share := _pcie_share(frame, gpu)) is not None), default=None
        ),
    }
    counters = {
        "thermal_share": _sum(frame.thermal_violation_ns, held),
        "nvlink_errors_per_s": _sum_of(
            (frame.nvlink_crc_errors, frame.nvlink_replay_errors, frame.nvlink_recovery_errors), held
        ),
    }
    return Reading(_known(figures), _known(counters))


def of_ports(frame: FabricFrame) -> Reading:
    """Figures of a host's ports; one that is down has no speed."""
    ports = range(len(frame.device))
    speeds = []
    for index in ports:
        state = frame.link_state[index] if frame.link_state is not None else None
        speed = frame.rate_gbps[index] if frame.rate_gbps is not None else None
        if state is not None and state.lower() == "down":
            speeds.append(0.0)
        elif speed is not None:
            speeds.append(speed)
    paused = [count for count in (*frame.tx_pause_frames, *(frame.tx_global_pause_frames or ())) if count is not None]
    counters = {
        "port_errors_per_s": _sum_of((frame.counters.get(name) for name in _DAMAGED), ports),
        "pause_frames_per_s": sum(paused) if paused else None,
    }
    return Reading({"port_speed_gbps": min(speeds)} if speeds else {}, _known(counters))


def of_host(load: HostLoad) -> Reading:
    """Figures of a host's processors and disks."""
    return Reading(_known({"cpu_busy_ratio": load.cpu_busy_ratio, "io_pressure_pct": load.io_pressure_some_pct}), {})


def _pcie_share(frame: GpuFrame, index: int) -> float | None:
    """Speed of a GPU's link over the most that it could have; each generation is twice the one before."""
    columns = (frame.pcie_link_gen, frame.pcie_link_width, frame.pcie_max_link_gen, frame.pcie_max_link_width)
    gen, width, most_gen, most_width = (column[index] if column is not None else None for column in columns)
    if gen is None or width is None or most_gen is None or not most_width:
        return None
    return width / most_width * 2.0 ** (gen - most_gen)


def _least(column: tuple[int | None, ...] | None, rows: Iterable[int]) -> float | None:
    if column is None:
        return None
    return min((float(value) for row in rows if (value := column[row]) is not None), default=None)


def _sum(column: tuple[int | None, ...] | None, rows: Iterable[int]) -> int | None:
    """Sum of a column; None where a row is unknown: a sum that loses a part would look like a reset."""
    if column is None:
        return None
    values = [column[row] for row in rows]
    return sum(value for value in values if value is not None) if values and None not in values else None


def _sum_of(columns: Iterable[tuple[int | None, ...] | None], rows: Iterable[int]) -> int | None:
    rows = list(rows)
    sums = [total for column in columns if (total := _sum(column, rows)) is not None]
    return sum(sums) if sums else None


def _known(figures: dict[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in figures.items() if value is not None}

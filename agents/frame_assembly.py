"""Rows of several collectors to the columns of one frame.

Guarantees: rows of different sources meet by UUID, else PCI address, else management index, and the first source in
order that knows a value states it; a GPU or port that was seen once keeps its place, with nulls where its sources are
late or gone; absence stays null and never becomes zero. It numbers nothing and reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from agents.collectors.base import Row
from schemas.frames import GpuFrame

__all__ = ["FabricAssembly", "GpuAssembly"]

_HEAD = ("record", "node_id", "agent_session", "seq", "event_time_ns", "boot_id", "driver_version")
_IDENTITY = ("gpu_uuid", "pci_bus_id", "gpu_index")
_TEXTS = ("sku", "read_error")
_GPU_COLUMNS = tuple(name for name in GpuFrame.model_fields if name not in (*_HEAD, *_IDENTITY))
_REALS = ("power_w", "power_limit_w", *(name for name in _GPU_COLUMNS if name.endswith("_ratio")))

# Readings that decoded rows keep under DCGM's own names; old and new spelling. Several names add up.
_UNDER_OTHER_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "power_limit_w": (("DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),),
    "ecc_dbe_aggregate_count": (("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_AGGREGATE_TOTAL"),),
    "row_remap_pending": (("DCGM_FI_DEV_ROW_REMAP_PENDING",),),
    "row_remap_failure": (("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),),
    "uncorrectable_remapped_rows": (("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",),),
    "nvlink_crc_errors": (
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",),
        ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",),
    ),
    "nvlink_replay_errors": (("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),),
    "pcie_max_link_gen": (("DCGM_FI_DEV_PCIE_MAX_LINK_GEN",),),
    "pcie_max_link_width": (("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",),),
}

_PORT_COLUMNS = (
    "link_state",
    "rate_gbps",
    "rx_data_bytes",
    "tx_data_bytes",
    "link_down_events",
    "rx_global_pause_frames",
    "tx_global_pause_frames",
)
_PFC_FRAMES = ("rx_pause_frames", "tx_pause_frames")
_PFC_DURATIONS = ("rx_pause_us", "tx_pause_us")

_MOST_GPUS = 256
_MOST_PORTS = 1024
"""Far above what a node has; a source that makes up new names cannot grow the frames without end."""


class GpuAssembly:
    """The GPUs of one node, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._gpus: list[dict[str, Any]] = []

    def columns(self, sources: Iterable[Sequence[Row] | None]) -> dict[str, Any] | None:
        """Columns of a GPU frame.

        Args:
            sources: rows by source, in order of precedence; None for a source that gave nothing this time.

        Returns:
            The identity columns and every other one that any source carried; None as long as no GPU is known.
        """
        values: list[dict[str, Any]] = [{} for _ in self._gpus]
        for rows in sources:
            for row in rows or ():
                position = self._place(row)
                if position is None:
                    continue
                values += [{} for _ in range(len(self._gpus) - len(values))]
                for name in _GPU_COLUMNS:
                    if values[position].get(name) is None:
                        values[position][name] = _reading(row, name)
        if not self._gpus:
            return None
        columns: dict[str, Any] = {name: tuple(gpu[name] for gpu in self._gpus) for name in _IDENTITY}
        for name in _GPU_COLUMNS:
            column = tuple(of_gpu.get(name) for of_gpu in values)
            if any(value is not None for value in column):
                columns[name] = column
        return columns

    def _place(self, row: Row) -> int | None:
        """Where a row's GPU stands; it gets a place if it is new, and None if it has no name."""
        named = {name: row.get(name) for name in _IDENTITY}
        for name in _IDENTITY:
            if named[name] is None:
                continue
            for position, gpu in enumerate(self._gpus):
                if gpu[name] == named[name] and not _is_other(gpu, named):
                    self._rename(gpu, named)
                    return position
        if all(value is None for value in named.values()) or len(self._gpus) >= _MOST_GPUS:
            return None
        self._gpus.append(dict.fromkeys(_IDENTITY))
        self._rename(self._gpus[-1], named)
        return len(self._gpus) - 1

    def _rename(self, gpu: dict[str, Any], named: dict[str, Any]) -> None:
        for other in self._gpus:  # an index is one GPU's at a time
            if named["gpu_index"] is not None and other["gpu_index"] == named["gpu_index"]:
                other["gpu_index"] = None
        gpu.update({name: value for name, value in named.items() if value is not None})


class FabricAssembly:
    """The ports of one node, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str | None, str | None], int] = {}
        self._priorities: dict[tuple[int, int], None] = {}

    def columns(self, sources: Iterable[Sequence[Row] | None]) -> dict[str, Any] | None:
        """Columns of a fabric frame, as seen from the host; None as long as no port is known.

        Args:
            sources: `port` and `pfc` rows by source; None for a source that gave nothing this time.
        """
        ports: dict[int, dict[str, Any]] = {}
        counters: dict[int, dict[str, int | None]] = {}
        pauses: dict[tuple[int, int], Row] = {}
        for row in (row for rows in sources for row in rows or ()):
            position = self._place(row)
            if position is None:
                continue
            if row["kind"] == "pfc":
                self._priorities.setdefault((position, row["priority"]))
                pauses[position, row["priority"]] = row
            else:
                ports.setdefault(position, {}).update(row)
                counters.setdefault(position, {}).update(row["counters"])
        if not self._ports:
            return None
        order = range(len(self._ports))
        columns: dict[str, Any] = {
            "device": tuple(device for device, _ in self._ports),
            "port": tuple(port for _, port in self._ports),
            "counters": {
                name: tuple(counters.get(position, {}).get(name) for position in order)
                for name in sorted({name for of_port in counters.values() for name in of_port})
            },
            "pfc_port": tuple(position for position, _ in self._priorities),
            "pfc_priority": tuple(priority for _, priority in self._priorities),
        }
        for name in _PORT_COLUMNS:
            column = tuple(ports.get(position, {}).get(name) for position in order)
            if any(value is not None for value in column):
                columns[name] = column
        for name in (*_PFC_FRAMES, *_PFC_DURATIONS):
            column = tuple(pauses.get(place, {}).get(name) for place in self._priorities)
            if name in _PFC_FRAMES or any(value is not None for value in column):
                columns[name] = column
        return columns

    def _place(self, row: Row) -> int | None:
        key = (row.get("device"), row.get("port"))
        if key not in self._ports and (key == (None, None) or len(self._ports) >= _MOST_PORTS):
            return None
        return self._ports.setdefault(key, len(self._ports))


def _is_other(gpu: dict[str, Any], named: dict[str, Any]) -> bool:
    """Whether names that are stronger than the one that agrees say that these are two GPUs.

    Indices are given anew when the driver is loaded again, and a GPU that was replaced has its predecessor's address.
    """
    return any(
        gpu[name] is not None and named[name] is not None and gpu[name] != named[name]
        for name in ("gpu_uuid", "pci_bus_id")
    )


def _reading(row: Row, name: str) -> Any:
    value = row.get(name)
    if value is None and name == "sku":
        value = row.get("model")
    if value is None and name in _UNDER_OTHER_NAMES:
        value = _under_other_name(row.get("other") or {}, _UNDER_OTHER_NAMES[name])
    if value is None or name in _TEXTS:
        return None if value is None else str(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if name in _REALS else round(value)


def _under_other_name(other: Row, names: tuple[tuple[str, ...], ...]) -> int | float | None:
    upper = {key.upper(): value for key, value in other.items()}
    parts = [next((upper[name] for name in spellings if upper.get(name) is not None), None) for spellings in names]
    numbers = [part for part in parts if isinstance(part, int | float)]
    return sum(numbers) if numbers else None

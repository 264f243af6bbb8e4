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
_LISTS = ("mig_uuids",)
_COLUMN_NAMES = frozenset(_GPU_COLUMNS)
_REALS = frozenset(name for name in _GPU_COLUMNS if name.endswith(("_w", "_ratio", "_bytes_per_s")))

# Readings that decoded rows keep under DCGM's own names; old and new spelling. Several names add up.
_UNDER_OTHER_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "power_limit_w": (("DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),),
    "clock_event_reasons_mask": (("DVCCTR",),),
    "power_default_limit_w": (("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",),),
    "max_sm_clock_mhz": (("DCGM_FI_DEV_MAX_SM_CLOCK",),),
    "max_mem_clock_mhz": (("DCGM_FI_DEV_MAX_MEM_CLOCK",),),
    "slowdown_temp_c": (("DCGM_FI_DEV_SLOWDOWN_TEMP",),),
    "shutdown_temp_c": (("DCGM_FI_DEV_SHUTDOWN_TEMP",),),
    "gpu_max_temp_c": (("DCGM_FI_DEV_GPU_MAX_OP_TEMP",),),
    "mem_max_temp_c": (("DCGM_FI_DEV_MEM_MAX_OP_TEMP",),),
    "gpu_temp_margin_c": (("DCGM_FI_DEV_GPU_TEMP_LIMIT",),),
    "ecc_sbe_volatile_count": (("ESVTL",),),
    "ecc_dbe_volatile_count": (("EDVTL",),),
    "ecc_sbe_aggregate_count": (("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_SBE_AGGREGATE_TOTAL", "ESATL"),),
    "ecc_dbe_aggregate_count": (("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_AGGREGATE_TOTAL", "EDATL"),),
    "retired_pages_sbe_count": (("DCGM_FI_DEV_RETIRED_SBE",),),
    "retired_pages_dbe_count": (("DCGM_FI_DEV_RETIRED_DBE",),),
    "retired_pages_pending": (("DCGM_FI_DEV_RETIRED_PENDING",),),
    "row_remap_max_banks": (("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX",),),
    "row_remap_high_banks": (("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH",),),
    "row_remap_partial_banks": (("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL",),),
    "row_remap_low_banks": (("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW",),),
    "row_remap_none_banks": (("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE",),),
    "correctable_remapped_rows": (("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",),),
    "row_remap_pending": (("DCGM_FI_DEV_ROW_REMAP_PENDING",),),
    "row_remap_failure": (("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),),
    "uncorrectable_remapped_rows": (("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",),),
    "nvlink_crc_errors": (
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",),
        ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",),
    ),
    "nvlink_replay_errors": (("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),),
    "nvlink_recovery_errors": (("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),),
    "nvlink_tx_bytes_per_s": (("DCGM_FI_PROF_NVLINK_TX_BYTES", "NVLTX"),),
    "nvlink_rx_bytes_per_s": (("DCGM_FI_PROF_NVLINK_RX_BYTES", "NVLRX"),),
    "pcie_tx_bytes_per_s": (("DCGM_FI_PROF_PCIE_TX_BYTES", "PCITX"),),
    "pcie_rx_bytes_per_s": (("DCGM_FI_PROF_PCIE_RX_BYTES", "PCIRX"),),
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
    "pci_bus_id",
    "pcie_link_gen",
    "pcie_link_width",
    "pcie_max_link_gen",
    "pcie_max_link_width",
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
            The identity columns and every other one that any source carried; None as long as no GPU is known. Of a GPU
            that a source says `is_silent` only the name and the fault are carried: what others still tell of it is of
            an earlier moment.
        """
        values: list[dict[str, Any]] = [{} for _ in self._gpus]
        silent: dict[int, dict[str, Any]] = {}
        for rows in sources:
            for row in rows or ():
                position = self._place(row)
                if position is None:
                    continue
                values += [{} for _ in range(len(self._gpus) - len(values))]
                readings = _readings(row)
                if row.get("is_silent"):
                    silent[position] = {name: readings[name] for name in _TEXTS if name in readings}
                of_gpu = values[position]
                for name, value in readings.items():
                    of_gpu.setdefault(name, value)
        if not self._gpus:
            return None
        for position, fault in silent.items():
            values[position] = fault
        columns: dict[str, Any] = {name: tuple(gpu[name] for gpu in self._gpus) for name in _IDENTITY}
        carried = set().union(*values)
        for name in _GPU_COLUMNS:
            if name in carried:
                columns[name] = tuple(of_gpu.get(name) for of_gpu in values)
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
        known_by_address_alone = named["gpu_uuid"] is None and named["gpu_index"] is None
        if known_by_address_alone and any(gpu["pci_bus_id"] is None for gpu in self._gpus):
            return None  # it may be one of those, and must not become a GPU that is not there
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


def _readings(row: Row) -> dict[str, Any]:
    """What a row states of the columns, as a frame carries it; what it does not know is not in it."""
    stated = {name: value for name in row if name in _COLUMN_NAMES and (value := _carried(name, row[name])) is not None}
    if "sku" not in stated and row.get("model") is not None:
        stated["sku"] = str(row["model"])
    if other := row.get("other"):
        upper = {key.upper(): value for key, value in other.items()}
        for name, parts in _UNDER_OTHER_NAMES.items():
            if name not in stated and (value := _carried(name, _under_other_name(upper, parts))) is not None:
                stated[name] = value
    return stated


def _carried(name: str, value: Any) -> Any:
    if value is None or name in _TEXTS:
        return None if value is None else str(value)
    if name in _LISTS:
        return value if isinstance(value, tuple) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if name in _REALS else round(value)


def _under_other_name(upper: Row, names: tuple[tuple[str, ...], ...]) -> int | float | None:
    parts = [next((upper[name] for name in spellings if upper.get(name) is not None), None) for spellings in names]
    numbers = [part for part in parts if isinstance(part, int | float)]
    return sum(numbers) if numbers else None

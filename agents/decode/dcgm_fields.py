"""The readings of a GPU sample: their names, the names each source has for them, and which values mean nothing.

Guarantees: a DCGM blank of any width is recognised before it can lose digits in a float, and a value that no
GPU can have is told apart from one that is merely missing. The ranges are physical limits with room to spare, no
thresholds of health: what a sick GPU can report passes. What a field is not listed for is left to the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from agents.decode.quantity import Number

BLANK_INT32: Final = 0x7FFFFFF0
"""First of DCGM's 32-bit blanks (blank, not found, not supported, not permitted); they end with the type."""
BLANK_INT64: Final = 0x7FFFFFFFFFFFFFF0
BLANK_DOUBLE: Final = 140737488355328.0
"""First of DCGM's double blanks, 2 to the power of 47."""

_LAST_INT32: Final = 0x7FFFFFFF
_BLANK_DOUBLES: Final = range(int(BLANK_DOUBLE), int(BLANK_DOUBLE) + 4)
_BLANK_INT64_AS_DOUBLE: Final = 9.2233720368547e18
"""In a double all 64-bit blanks are 2 to the power of 63; printers drop its last digits."""


class Scale(Enum):
    """What kind of number a reading is, which decides the blanks that it can hold."""

    REAL = "real"
    """A double: power, ratios."""
    WHOLE = "whole"
    """An integer, gauge or cumulative, up to 64 bits."""
    OPEN = "open"
    """Not known: a field without an entry here."""


@dataclass(frozen=True, slots=True)
class Field:
    """One reading.

    Attributes:
        name: As in the records, with its unit.
        scale: Kind of number.
        low: Least possible value.
        high: Greatest possible value.
    """

    name: str
    scale: Scale
    low: float
    high: float

    def can_be(self, value: Number) -> bool:
        """Whether a GPU can have `value`."""
        return self.low <= value <= self.high


_COUNT_HIGH = float(1 << 63)


def _gauge(name: str, low: float, high: float) -> Field:
    return Field(name, Scale.WHOLE, low, high)


def _count(name: str) -> Field:
    return Field(name, Scale.WHOLE, 0, _COUNT_HIGH)


def _ratio(name: str) -> Field:
    return Field(name, Scale.REAL, 0, 1)


_FIELDS = (
    _gauge("sm_clock_mhz", 0, 10_000),
    _gauge("mem_clock_mhz", 0, 50_000),
    _gauge("gpu_temp_c", -60, 200),
    _gauge("mem_temp_c", -60, 200),
    Field("power_w", Scale.REAL, 0, 20_000),
    _count("energy_millijoules"),
    _gauge("pstate", 0, 15),
    _gauge("fan_speed_pct", 0, 100),
    _gauge("gpu_util_pct", 0, 100),
    _gauge("mem_copy_util_pct", 0, 100),
    _gauge("fb_total_mib", 0, 1 << 26),
    _gauge("fb_used_mib", 0, 1 << 26),
    _gauge("fb_free_mib", 0, 1 << 26),
    _count("clock_event_reasons_mask"),
    _count("power_violation_ns"),
    _count("thermal_violation_ns"),
    _count("sync_boost_violation_ns"),
    _count("board_limit_violation_ns"),
    _count("low_util_violation_ns"),
    _count("reliability_violation_ns"),
    _gauge("last_xid", 0, 1 << 31),
    _gauge("pcie_link_gen", 1, 15),
    _gauge("pcie_link_width", 1, 32),
    _count("pcie_replay_count"),
    _count("ecc_sbe_volatile_count"),
    _count("ecc_dbe_volatile_count"),
    _count("nvlink_tx_packets"),
    _count("nvlink_tx_bytes"),
    _count("nvlink_rx_packets"),
    _count("nvlink_rx_bytes"),
    _ratio("gr_engine_active_ratio"),
    _ratio("sm_active_ratio"),
    _ratio("sm_occupancy_ratio"),
    _ratio("tensor_active_ratio"),
    _ratio("dram_active_ratio"),
    _ratio("fp64_active_ratio"),
    _ratio("fp32_active_ratio"),
    _ratio("fp16_active_ratio"),
    _count("xid_window_count"),
    _count("clock_event_window_count"),
)

FIELDS: Final[dict[str, Field]] = {field.name: field for field in _FIELDS}

_DMON = {
    "SMCLK": "sm_clock_mhz",
    "MMCLK": "mem_clock_mhz",
    "TMPTR": "gpu_temp_c",
    "MMTMP": "mem_temp_c",
    "POWER": "power_w",
    "TOTEC": "energy_millijoules",
    "PSTAT": "pstate",
    "FANSP": "fan_speed_pct",
    "GPUTL": "gpu_util_pct",
    "MCUTL": "mem_copy_util_pct",
    "FBTTL": "fb_total_mib",
    "FBUSD": "fb_used_mib",
    "FBFRE": "fb_free_mib",
    "PVIOL": "power_violation_ns",
    "TVIOL": "thermal_violation_ns",
    "SBVIO": "sync_boost_violation_ns",
    "BLVIO": "board_limit_violation_ns",
    "LUVIO": "low_util_violation_ns",
    "RVIOL": "reliability_violation_ns",
    "XIDER": "last_xid",
    "PCILG": "pcie_link_gen",
    "PCILW": "pcie_link_width",
    "NLXMITP": "nvlink_tx_packets",
    "NLXMITB": "nvlink_tx_bytes",
    "NLRCVP": "nvlink_rx_packets",
    "NLRCVB": "nvlink_rx_bytes",
    "GRACT": "gr_engine_active_ratio",
    "SMACT": "sm_active_ratio",
    "SMOCC": "sm_occupancy_ratio",
    "TENSO": "tensor_active_ratio",
    "DRAMA": "dram_active_ratio",
    "FP64A": "fp64_active_ratio",
    "FP32A": "fp32_active_ratio",
    "FP16A": "fp16_active_ratio",
}

# Without the prefix DCGM_FI_DEV_, DCGM_FI_PROF_ or dcgm_. Several names of one field are its old and new ones in
# dcgm_fields.h and those of the first exporters.
_DCGM = {
    "SM_CLOCK": "sm_clock_mhz",
    "MEM_CLOCK": "mem_clock_mhz",
    "MEMORY_CLOCK": "mem_clock_mhz",
    "GPU_TEMP": "gpu_temp_c",
    "GPU_TEMP_CELSIUS": "gpu_temp_c",
    "MEMORY_TEMP": "mem_temp_c",
    "MEM_TEMP": "mem_temp_c",
    "POWER_USAGE": "power_w",
    "BOARD_POWER_WATTS": "power_w",
    "TOTAL_ENERGY_CONSUMPTION": "energy_millijoules",
    "PSTATE": "pstate",
    "GPU_PSTATE": "pstate",
    "FAN_SPEED": "fan_speed_pct",
    "GPU_UTIL": "gpu_util_pct",
    "GPU_UTILIZATION": "gpu_util_pct",
    "GPU_UTIL_RATIO": "gpu_util_pct",
    "MEM_COPY_UTIL": "mem_copy_util_pct",
    "MEM_COPY_UTILIZATION": "mem_copy_util_pct",
    "FB_TOTAL": "fb_total_mib",
    "FB_USED": "fb_used_mib",
    "FB_FREE": "fb_free_mib",
    "CLOCK_THROTTLE_REASONS": "clock_event_reasons_mask",
    "CLOCKS_EVENT_REASONS": "clock_event_reasons_mask",
    "POWER_VIOLATION": "power_violation_ns",
    "THERMAL_VIOLATION": "thermal_violation_ns",
    "SYNC_BOOST_VIOLATION": "sync_boost_violation_ns",
    "BOARD_LIMIT_VIOLATION": "board_limit_violation_ns",
    "LOW_UTIL_VIOLATION": "low_util_violation_ns",
    "RELIABILITY_VIOLATION": "reliability_violation_ns",
    "XID_ERRORS": "last_xid",
    "XID_ERROR": "last_xid",
    "PCIE_LINK_GEN": "pcie_link_gen",
    "PCIE_LINK_WIDTH": "pcie_link_width",
    "PCIE_REPLAY_COUNTER": "pcie_replay_count",
    "PCIE_REPLAY_TOTAL": "pcie_replay_count",
    "ECC_SBE_VOL_TOTAL": "ecc_sbe_volatile_count",
    "ECC_SBE_VOLATILE_TOTAL": "ecc_sbe_volatile_count",
    "ECC_DBE_VOL_TOTAL": "ecc_dbe_volatile_count",
    "ECC_DBE_VOLATILE_TOTAL": "ecc_dbe_volatile_count",
    "GR_ENGINE_ACTIVE": "gr_engine_active_ratio",
    "GR_ENGINE_UTIL_RATIO": "gr_engine_active_ratio",
    "SM_ACTIVE": "sm_active_ratio",
    "SM_UTIL_RATIO": "sm_active_ratio",
    "SM_OCCUPANCY": "sm_occupancy_ratio",
    "SM_OCCUPANCY_RATIO": "sm_occupancy_ratio",
    "PIPE_TENSOR_ACTIVE": "tensor_active_ratio",
    "TENSOR_ACTIVE": "tensor_active_ratio",
    "TENSOR_UTIL_RATIO": "tensor_active_ratio",
    "DRAM_ACTIVE": "dram_active_ratio",
    "DRAM_UTIL_RATIO": "dram_active_ratio",
    "PIPE_FP64_ACTIVE": "fp64_active_ratio",
    "FP64_ACTIVE": "fp64_active_ratio",
    "PIPE_FP32_ACTIVE": "fp32_active_ratio",
    "FP32_ACTIVE": "fp32_active_ratio",
    "PIPE_FP16_ACTIVE": "fp16_active_ratio",
    "FP16_ACTIVE": "fp16_active_ratio",
}

_NVIDIA_SMI = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.mem": "mem_clock_mhz",
    "clocks.current.memory": "mem_clock_mhz",
    "temperature.gpu": "gpu_temp_c",
    "temperature.memory": "mem_temp_c",
    "power.draw": "power_w",
    "pstate": "pstate",
    "fan.speed": "fan_speed_pct",
    "utilization.gpu": "gpu_util_pct",
    "utilization.memory": "mem_copy_util_pct",
    "memory.total": "fb_total_mib",
    "memory.used": "fb_used_mib",
    "memory.free": "fb_free_mib",
    "clocks_event_reasons.active": "clock_event_reasons_mask",
    "clocks_throttle_reasons.active": "clock_event_reasons_mask",
    "pcie.link.gen.current": "pcie_link_gen",
    "pcie.link.width.current": "pcie_link_width",
    "ecc.errors.corrected.volatile.total": "ecc_sbe_volatile_count",
    "ecc.errors.uncorrected.volatile.total": "ecc_dbe_volatile_count",
}

_NAMES: Final = 4096
"""Names whose field is remembered: all that one source has, with room, and bounded for those that make them up."""

_PREFIXES = ("DCGM_FI_DEV_", "DCGM_FI_PROF_", "DCGM_FI_", "DCGM_")


@lru_cache(maxsize=_NAMES)
def by_dmon_name(name: str) -> Field | None:
    """The field of a `dcgmi dmon` column, or None if we have none for it."""
    return _field(_DMON.get(name.upper()))


@lru_cache(maxsize=_NAMES)
def by_dcgm_name(name: str) -> Field | None:
    """The field of a DCGM or exporter name with its prefix, in either case, or None if we have none for it."""
    upper = name.upper()
    for prefix in _PREFIXES:
        if upper.startswith(prefix):
            base = upper.removeprefix(prefix)
            # The OpenMetrics form of an exposition puts `_total` behind every counter.
            return _field(_DCGM.get(base) or _DCGM.get(base.removesuffix("_TOTAL")))
    return None


@lru_cache(maxsize=_NAMES)
def by_nvidia_smi_name(name: str) -> Field | None:
    """The field of a `--query-gpu` name without its unit, or None if we have none for it."""
    return _field(_NVIDIA_SMI.get(name.lower()))


def is_blank(value: Number, scale: Scale) -> bool:
    """Whether `value` is a DCGM blank, of whatever width it came through, or no finite number.

    An integer must be handed over as an integer: in a float the 64-bit blanks are no longer themselves. 64-bit
    counters pass through the range of double blanks within days, so for them only those few values count.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if BLANK_INT32 <= value <= _LAST_INT32:
        return True
    if value >= (BLANK_INT64 if isinstance(value, int) else _BLANK_INT64_AS_DOUBLE):
        return True
    if scale is Scale.REAL or (scale is Scale.OPEN and isinstance(value, float)):
        return value >= BLANK_DOUBLE
    return int(value) in _BLANK_DOUBLES


def _field(name: str | None) -> Field | None:
    return FIELDS[name] if name is not None else None

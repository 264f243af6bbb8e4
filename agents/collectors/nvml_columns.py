"""Which NVML calls fill which columns of a GPU frame, and how often they are asked.

Guarantees: where a field value and a call of its own give the same, the field value is asked first, because all of
them come with one call; units are converted here and nowhere else. It holds no state and calls nothing by itself.

Sources: NVML's header for units (violation times in nanoseconds, power in milliwatts, energy in millijoules).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agents.collectors.nvml_links import errors_of_links, link_states

__all__ = ["MINUTE_NS", "READINGS", "SLOW_NS", "Call", "Reading", "field_number"]

Call = Callable[[Any, Any], Any]
"""A call, from the library and a handle; what it gives are the reading's columns in their order."""

SLOW_NS = 10 * 10**9
MINUTE_NS = 60 * 10**9

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """Columns that are read together.

    Attributes:
        columns: their names.
        fields: constants of field values, one for each column; with `adds_up` all for the one column.
        calls: asked in order where the fields are refused; the first that is not refused counts.
        every_ns: how often it is asked; 0 is each tick.
        is_repeated: whether a frame carries the last value while it is not asked anew. The others are null until then.
        divisor: what a value is divided by.
        adds_up: whether the column is the sum of those fields that answer.
    """

    columns: tuple[str, ...]
    fields: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    every_ns: int = 0
    is_repeated: bool = False
    divisor: int = 1
    adds_up: bool = False


def field_number(library: Any, name: str) -> int | None:
    """The number of a field in this binding, None where it is older than the field."""
    number = getattr(library, name, None)
    return number if isinstance(number, int) else None


def _violation(column: str, policy: str) -> Reading:
    return Reading(
        (column,),
        (f"NVML_FI_DEV_PERF_POLICY_{policy}",),
        (lambda n, gpu: n.nvmlDeviceGetViolationStatus(gpu, getattr(n, f"NVML_PERF_POLICY_{policy}")).violationTime,),
    )


def _ecc(column: str, field: str, kind: str, counter: str) -> Reading:
    return Reading(
        (column,),
        (f"NVML_FI_DEV_ECC_{field}_TOTAL",),
        (
            lambda n, gpu: n.nvmlDeviceGetTotalEccErrors(
                gpu, getattr(n, f"NVML_MEMORY_ERROR_TYPE_{kind}"), getattr(n, f"NVML_{counter}_ECC")
            ),
        ),
    )


def _threshold(column: str, name: str) -> Reading:
    return Reading(
        (column,),
        calls=(
            lambda n, gpu: n.nvmlDeviceGetTemperatureThreshold(gpu, getattr(n, f"NVML_TEMPERATURE_THRESHOLD_{name}")),
        ),
        every_ns=MINUTE_NS,
    )


def _tlimit(column: str, name: str) -> Reading:
    return Reading((column,), (f"NVML_FI_DEV_TEMPERATURE_{name}_TLIMIT",), every_ns=MINUTE_NS)


def _link_errors(column: str, totals: tuple[str, ...], by_link: str) -> Reading:
    return Reading(
        (column,),
        tuple(f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL" for name in totals),
        (lambda n, gpu: errors_of_links(n, gpu, f"NVML_FI_DEV_NVLINK_ERROR_DL_{by_link}"),),
        adds_up=True,
    )


def _retired(n: Any, gpu: Any) -> tuple[int, int, int]:
    single, double = (
        len(list(n.nvmlDeviceGetRetiredPages(gpu, cause)))
        for cause in (
            n.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            n.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
    )
    return single, double, n.nvmlDeviceGetRetiredPagesPendingStatus(gpu)


def _utilisation(n: Any, gpu: Any) -> tuple[int, int]:
    rates = n.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu, rates.memory


def _histogram(n: Any, gpu: Any) -> tuple[int, ...]:
    banks = n.nvmlDeviceGetRowRemapperHistogram(gpu)
    return banks.max, banks.high, banks.partial, banks.low, banks.none


READINGS: tuple[Reading, ...] = (
    Reading(("sm_clock_mhz",), calls=(lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),)),
    Reading(("mem_clock_mhz",), calls=(lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_MEM),)),
    Reading(
        ("gpu_temp_c",),
        calls=(
            # The second is deprecated with CUDA 13, the first is not in drivers before it.
            lambda n, gpu: n.nvmlDeviceGetTemperatureV(gpu, n.NVML_TEMPERATURE_GPU),
            lambda n, gpu: n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU),
        ),
    ),
    Reading(("mem_temp_c",), ("NVML_FI_DEV_MEMORY_TEMP",)),
    Reading(("gpu_temp_margin_c",), calls=(lambda n, gpu: n.nvmlDeviceGetMarginTemperature(gpu),)),
    Reading(("power_w",), calls=(lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu),), divisor=1000),
    Reading(
        ("power_limit_w",),
        calls=(lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu),),
        every_ns=SLOW_NS,
        is_repeated=True,
        divisor=1000,
    ),
    Reading(
        ("energy_millijoules",),
        ("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION",),
        (lambda n, gpu: n.nvmlDeviceGetTotalEnergyConsumption(gpu),),
    ),
    Reading(("gpu_util_pct", "mem_copy_util_pct"), calls=(_utilisation,)),
    Reading(("fb_used_mib",), calls=(lambda n, gpu: n.nvmlDeviceGetMemoryInfo(gpu).used // _MIB,)),
    Reading(
        ("clock_event_reasons_mask",),
        calls=(
            lambda n, gpu: n.nvmlDeviceGetCurrentClocksEventReasons(gpu),
            lambda n, gpu: n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
        ),
    ),
    _violation("power_violation_ns", "POWER"),
    _violation("thermal_violation_ns", "THERMAL"),
    _violation("sync_boost_violation_ns", "SYNC_BOOST"),
    _violation("board_limit_violation_ns", "BOARD_LIMIT"),
    _violation("low_util_violation_ns", "LOW_UTILIZATION"),
    _violation("reliability_violation_ns", "RELIABILITY"),
    _ecc("ecc_sbe_volatile_count", "SBE_VOL", "CORRECTED", "VOLATILE"),
    _ecc("ecc_dbe_volatile_count", "DBE_VOL", "UNCORRECTED", "VOLATILE"),
    _ecc("ecc_sbe_aggregate_count", "SBE_AGG", "CORRECTED", "AGGREGATE"),
    _ecc("ecc_dbe_aggregate_count", "DBE_AGG", "UNCORRECTED", "AGGREGATE"),
    Reading(
        ("correctable_remapped_rows", "uncorrectable_remapped_rows", "row_remap_pending", "row_remap_failure"),
        (
            "NVML_FI_DEV_REMAPPED_COR",
            "NVML_FI_DEV_REMAPPED_UNC",
            "NVML_FI_DEV_REMAPPED_PENDING",
            "NVML_FI_DEV_REMAPPED_FAILURE",
        ),
        (lambda n, gpu: n.nvmlDeviceGetRemappedRows(gpu),),
    ),
    _link_errors("nvlink_crc_errors", ("CRC_FLIT", "CRC_DATA"), "CRC"),
    _link_errors("nvlink_replay_errors", ("REPLAY",), "REPLAY"),
    _link_errors("nvlink_recovery_errors", ("RECOVERY",), "RECOVERY"),
    Reading(("nvlink_link_count", "nvlink_active_link_count"), calls=(link_states,), every_ns=SLOW_NS),
    Reading(("pcie_link_gen",), calls=(lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu),)),
    Reading(("pcie_link_width",), calls=(lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu),)),
    Reading(
        ("pcie_max_link_gen",),
        calls=(lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),),
        every_ns=MINUTE_NS,
        is_repeated=True,
    ),
    Reading(
        ("pcie_max_link_width",),
        calls=(lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkWidth(gpu),),
        every_ns=MINUTE_NS,
        is_repeated=True,
    ),
    Reading(
        ("pcie_replay_count",),
        ("NVML_FI_DEV_PCIE_REPLAY_COUNTER",),
        (lambda n, gpu: n.nvmlDeviceGetPcieReplayCounter(gpu),),
    ),
    Reading(("gpu_recovery_action",), ("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",)),
    Reading(
        ("power_default_limit_w",),
        calls=(lambda n, gpu: n.nvmlDeviceGetPowerManagementDefaultLimit(gpu),),
        every_ns=MINUTE_NS,
        divisor=1000,
    ),
    Reading(
        ("max_sm_clock_mhz",),
        calls=(lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM),),
        every_ns=MINUTE_NS,
    ),
    Reading(
        ("max_mem_clock_mhz",),
        calls=(lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_MEM),),
        every_ns=MINUTE_NS,
    ),
    _threshold("slowdown_temp_c", "SLOWDOWN"),
    _threshold("shutdown_temp_c", "SHUTDOWN"),
    _threshold("gpu_max_temp_c", "GPU_MAX"),
    _threshold("mem_max_temp_c", "MEM_MAX"),
    _tlimit("slowdown_tlimit_c", "SLOWDOWN"),
    _tlimit("shutdown_tlimit_c", "SHUTDOWN"),
    _tlimit("gpu_max_tlimit_c", "GPU_MAX"),
    _tlimit("mem_max_tlimit_c", "MEM_MAX"),
    Reading(
        (
            "row_remap_max_banks",
            "row_remap_high_banks",
            "row_remap_partial_banks",
            "row_remap_low_banks",
            "row_remap_none_banks",
        ),
        calls=(_histogram,),
        every_ns=MINUTE_NS,
    ),
    Reading(
        ("retired_pages_sbe_count", "retired_pages_dbe_count", "retired_pages_pending"),
        ("NVML_FI_DEV_RETIRED_SBE", "NVML_FI_DEV_RETIRED_DBE", "NVML_FI_DEV_RETIRED_PENDING"),
        (_retired,),
        every_ns=MINUTE_NS,
    ),
)
"""Everything that is read of a GPU apart from its identity and its MIG instances."""

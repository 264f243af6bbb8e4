"""GPU readings from NVML, and the device on which a process computes.

Guarantees: what a GPU does not support is null; a GPU that is lost keeps its row, with the fault in `read_error`;
nothing here changes a device. Without the library or the driver the collector is unsupported and says why. A hung
driver hangs the call: the agent gives each collector a thread for that reason. MIG instances are not read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from agents.collectors.base import CollectorError, Readings, Row
from agents.decode.pci_address import normalise

__all__ = ["NvmlCollector"]

_LOST = "GPU is lost"

_FAULTS = {
    "NVML_ERROR_GPU_IS_LOST": _LOST,
    "NVML_ERROR_RESET_REQUIRED": "GPU requires reset",
    "NVML_ERROR_UNKNOWN": "Unknown Error",
}
"""Errors that say something about the GPU, in the words of nvidia-smi; all others mean that it does not tell."""

_MIB = 1 << 20

_Reader = Callable[[Any, Any], Any]

# Columns that one call gives, from the library and a handle. The library's own names tell what is read.
_COLUMNS: dict[str, _Reader] = {
    "sm_clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
    "mem_clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_MEM),
    "power_w": lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power_limit_w": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "energy_millijoules": lambda n, gpu: n.nvmlDeviceGetTotalEnergyConsumption(gpu),
    "fb_used_mib": lambda n, gpu: n.nvmlDeviceGetMemoryInfo(gpu).used // _MIB,
    "ecc_sbe_volatile_count": lambda n, gpu: n.nvmlDeviceGetTotalEccErrors(
        gpu, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC
    ),
    "ecc_dbe_volatile_count": lambda n, gpu: n.nvmlDeviceGetTotalEccErrors(
        gpu, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
    ),
    "ecc_dbe_aggregate_count": lambda n, gpu: n.nvmlDeviceGetTotalEccErrors(
        gpu, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_AGGREGATE_ECC
    ),
    "pcie_link_gen": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_link_width": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_max_link_gen": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie_max_link_width": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "pcie_replay_count": lambda n, gpu: n.nvmlDeviceGetPcieReplayCounter(gpu),
}

# Columns where drivers before and after a renaming answer to different calls; the first that answers counts.
_ALTERNATIVES: dict[str, tuple[_Reader, ...]] = {
    "gpu_temp_c": (
        lambda n, gpu: n.nvmlDeviceGetTemperatureV(gpu, n.NVML_TEMPERATURE_GPU),
        lambda n, gpu: n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU),
    ),
    "clock_event_reasons_mask": (
        lambda n, gpu: n.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        lambda n, gpu: n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    ),
    "power_violation_ns": (
        lambda n, gpu: n.nvmlDeviceGetViolationStatus(gpu, n.NVML_PERF_POLICY_POWER).violationTime,
        lambda n, gpu: _field(n, gpu, n.NVML_FI_DEV_PERF_POLICY_POWER),
    ),
    "thermal_violation_ns": (
        lambda n, gpu: n.nvmlDeviceGetViolationStatus(gpu, n.NVML_PERF_POLICY_THERMAL).violationTime,
        lambda n, gpu: _field(n, gpu, n.NVML_FI_DEV_PERF_POLICY_THERMAL),
    ),
    "mem_temp_c": (lambda n, gpu: _field(n, gpu, n.NVML_FI_DEV_MEMORY_TEMP),),
    "nvlink_crc_errors": (
        lambda n, gpu: (
            _field(n, gpu, n.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL)
            + _field(n, gpu, n.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL)
        ),
        lambda n, gpu: _field(n, gpu, n.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
    ),
    "nvlink_replay_errors": (lambda n, gpu: _field(n, gpu, n.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),),
}

_VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member of a field value's union by NVML_VALUE_TYPE_*."""


class NvmlCollector:
    """Reads all GPUs of the node.

    Args:
        library: the `pynvml` module, or what answers like it; None imports it.
    """

    name = "nvml"

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._ready = False
        self._driver_version: str | None = None
        self._known: dict[str, dict[str, Any]] = {}
        self._uuid_at: dict[int, str] = {}
        self._handles: dict[int, Any] = {}
        # The trainer socket asks for processes while a reading is under way. NVML is safe to call from threads, our
        # table of handles is not.
        self._lock = threading.Lock()

    def is_supported(self) -> str | None:
        """None if the library and the driver are here and tell of a GPU, else why not."""
        try:
            count = self._start().nvmlDeviceGetCount()
        except CollectorError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the library's error type is known only once it is loaded
            return f"NVML: {error}"
        return None if count else "NVML finds no GPU"

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - readings are of the moment at which they are taken
        """Read every GPU.

        Raises:
            CollectorError: the library or the driver is not there, or does not say how many GPUs there are.
        """
        library = self._start()
        try:
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            self._ready = False  # the driver may have been reloaded: begin anew with the next reading
            raise CollectorError(f"NVML does not count its GPUs: {error}") from None
        rows = [self._row(library, index) for index in range(count)]
        # A GPU that fell off the bus may leave the count, and then others take its index: what it was called stays.
        here = {row.get("gpu_uuid") for row in rows}
        gone = [known for uuid, known in self._known.items() if uuid not in here]
        rows += [{**known, "gpu_index": None, "read_error": _LOST} for known in gone]
        return Readings(gpus=tuple(rows), driver_version=self._driver_version)

    def device_of_pid(self, pid: int) -> dict[str, str] | None:
        """The GPU on which a process has a compute context, as `uuid` and `pci_bus_id`; None if none or several.

        Several are no answer: a rank that touched a second GPU by accident has contexts on both.

        Raises:
            CollectorError: the library or the driver is not there.
        """
        library = self._start()
        found: list[dict[str, str]] = []
        for index in range(library.nvmlDeviceGetCount()):
            row: dict[str, Any] = {}
            handle = self._handle(library, index, row)
            if handle is None:
                continue
            try:
                processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
            except library.NVMLError:
                continue
            if any(process.pid == pid for process in processes):
                known = self._known[self._uuid_at[index]]
                named = {"uuid": known["gpu_uuid"], "pci_bus_id": known["pci_bus_id"]}
                found.append({name: value for name, value in named.items() if value is not None})
        return found[0] if len(found) == 1 and found[0] else None

    def _start(self) -> Any:
        if self._library is None:
            try:
                import pynvml
            except ImportError:
                raise CollectorError("the NVML binding is not installed: install nvidia-ml-py") from None
            self._library = pynvml
        library = self._library
        with self._lock:
            if not self._ready:
                try:
                    library.nvmlInit()
                    self._driver_version = str(library.nvmlSystemGetDriverVersion())
                except library.NVMLError as error:
                    raise CollectorError(f"NVML does not start: {error}") from None
                self._handles.clear()
                self._uuid_at.clear()
                self._ready = True
        return library

    def _handle(self, library: Any, index: int, row: dict[str, Any]) -> Any:
        with self._lock:
            if index in self._handles:
                return self._handles[index]
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(library.nvmlDeviceGetUUID(handle))
                self._uuid_at[index] = uuid
                self._known[uuid] = {
                    "gpu_uuid": uuid,
                    "gpu_index": index,
                    "pci_bus_id": normalise(_text(library.nvmlDeviceGetPciInfo(handle).busId)),
                    "sku": _text(library.nvmlDeviceGetName(handle)),
                }
            except library.NVMLError as error:
                row["read_error"] = _fault(library, error) or str(error)
                return None
            self._handles[index] = handle
            return handle

    def _row(self, library: Any, index: int) -> Row:
        row: dict[str, Any] = {}
        handle = self._handle(library, index, row)
        row = {"gpu_index": index, **self._known.get(self._uuid_at.get(index, ""), {}), **row}
        if handle is None:
            return row
        calls = {**{name: (reader,) for name, reader in _COLUMNS.items()}, **_ALTERNATIVES}
        for name, readers in calls.items():
            row[name] = _first_answer(library, handle, readers, row)
        utilisation = _first_answer(library, handle, (lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu),), row)
        if utilisation is not None:
            row["gpu_util_pct"], row["mem_copy_util_pct"] = utilisation.gpu, utilisation.memory
        remapped = _first_answer(library, handle, (lambda n, gpu: n.nvmlDeviceGetRemappedRows(gpu),), row)
        if remapped is not None:
            _, row["uncorrectable_remapped_rows"], row["row_remap_pending"], row["row_remap_failure"] = remapped
        if row.get("read_error"):
            with (
                self._lock
            ):  # a handle of a lost GPU never comes back; one of a GPU that was reset must be fetched anew
                self._handles.pop(index, None)
        return row


def _first_answer(library: Any, handle: Any, readers: tuple[_Reader, ...], row: dict[str, Any]) -> Any:
    for reader in readers:
        try:
            return reader(library, handle)
        except library.NVMLError as error:
            fault = _fault(library, error)
            if fault is not None:
                row.setdefault("read_error", fault)
                return None
        except (AttributeError, TypeError, KeyError):  # a binding that is older or newer than this call
            continue
    return None


def _fault(library: Any, error: Any) -> str | None:
    value = getattr(error, "value", None)
    return next((text for name, text in _FAULTS.items() if value == getattr(library, name, None)), None)


def _field(library: Any, handle: Any, field_id: int) -> Any:
    """One field value.

    Raises:
        NVMLError: of the library, for a field that this GPU does not have.
    """
    reading = library.nvmlDeviceGetFieldValues(handle, [field_id])[0]
    if reading.nvmlReturn != library.NVML_SUCCESS:
        raise library.NVMLError(reading.nvmlReturn)
    return getattr(reading.value, _VALUE_MEMBERS[reading.valueType])


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

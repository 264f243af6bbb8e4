"""A stand-in for the `pynvml` module: GPUs that answer, refuse, hang, fall off the bus, or are cut into MIG instances.

Guarantees: names, arguments and errors are the library's; what a GPU was not given it does not support; every call is
counted in `calls`. Not imitated: how long a driver takes, and counters that move by themselves.

    gpu = FakeGpu(uuid="GPU-1", address="00000000:1A:00.0", PowerUsage=650_000, fields={"NVML_FI_DEV_MEMORY_TEMP": 71})
    nvml = FakeNvml([gpu])
    gpu.hold()                        # every further call of this GPU hangs until gpu.release()
    gpu.lost = True                   # "GPU is lost", whatever is asked
    gpu.mig = [FakeGpu(uuid="MIG-1")] # MIG is enabled, with one instance
    nvml.unload(); nvml.load()        # the driver is exchanged: the library must be started anew
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

__all__ = ["FakeGpu", "FakeNvml", "NvmlFault"]

_TEXTS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    6: "Not Found",
    9: "Driver Not Loaded",
    15: "GPU is lost",
    16: "GPU requires restart",
    18: "Driver/library version mismatch",
    999: "Unknown Error",
}


class _Constants:
    """Numbers of the library, as far as an agent asks for them."""

    NVML_SUCCESS = 0
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_UNKNOWN = 999
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_PERF_POLICY_POWER = 0
    NVML_PERF_POLICY_THERMAL = 1
    NVML_PERF_POLICY_SYNC_BOOST = 2
    NVML_PERF_POLICY_BOARD_LIMIT = 3
    NVML_PERF_POLICY_LOW_UTILIZATION = 4
    NVML_PERF_POLICY_RELIABILITY = 5
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0
    NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_STATE_ACTIVE = 1
    NVML_NVLINK_STATE_SLEEP = 2

    NVML_FI_DEV_ECC_SBE_VOL_TOTAL = 3
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL = 4
    NVML_FI_DEV_ECC_SBE_AGG_TOTAL = 5
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL = 6
    NVML_FI_DEV_RETIRED_SBE = 29
    NVML_FI_DEV_RETIRED_DBE = 30
    NVML_FI_DEV_RETIRED_PENDING = 31
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
    NVML_FI_DEV_PERF_POLICY_POWER = 74
    NVML_FI_DEV_PERF_POLICY_THERMAL = 75
    NVML_FI_DEV_PERF_POLICY_SYNC_BOOST = 76
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT = 77
    NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION = 78
    NVML_FI_DEV_PERF_POLICY_RELIABILITY = 79
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91
    NVML_FI_DEV_PCIE_REPLAY_COUNTER = 94
    NVML_FI_DEV_REMAPPED_COR = 142
    NVML_FI_DEV_REMAPPED_UNC = 143
    NVML_FI_DEV_REMAPPED_PENDING = 144
    NVML_FI_DEV_REMAPPED_FAILURE = 145
    NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY = 161
    NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY = 162
    NVML_FI_DEV_NVLINK_ERROR_DL_CRC = 163
    NVML_FI_DEV_NVLINK_GET_STATE = 165
    NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT = 193
    NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT = 194
    NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT = 195
    NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230


_NOT_WITH_MIG = frozenset({"nvmlDeviceGetUtilizationRates"})
_MOST_MIG_INSTANCES = 7
_LONGEST_HANG_S = 60.0
"""A test that forgets to release a GPU must not keep threads for ever."""


class NvmlFault(Exception):  # noqa: N818 - stands for a type that is named otherwise
    """What the fake library raises; `value` is NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, f"NVML error {value}"))
        self.value = value


class FakeGpu(SimpleNamespace):
    """One GPU of `FakeNvml`.

    Attributes:
        uuid: its UUID.
        address: its PCI address with eight digits of domain.
        pids: processes with a compute context.
        name: its product name.
        fields: field values by constant, or by (constant, scope) where they have one.
        lost: whether every call says that it is lost.
        mig: its MIG instances; None where MIG is not enabled.

    Any other attribute is a reading by the name of its call without `nvmlDeviceGet`; a mapping holds one for each tuple
    of arguments. A reading or field that is an `NvmlFault` is raised or returned as such; what is not there is not
    supported.
    """

    uuid: str
    address: str

    def __init__(self, **readings: Any) -> None:
        self._free = threading.Event()
        self._free.set()
        super().__init__(**readings)

    def hold(self) -> None:
        """Let every further call hang."""
        self._free.clear()

    def release(self) -> None:
        """Let the calls that hang come back, and the further ones answer."""
        self._free.set()

    def wait(self) -> None:
        """Hang as long as it is held."""
        self._free.wait(_LONGEST_HANG_S)


class FakeNvml(_Constants):
    """Answers like the `pynvml` module for a list of GPUs.

    Args:
        gpus: in the order of their indices.
        driver_version: the driver's.
    """

    NVMLError = NvmlFault

    def __init__(self, gpus: Sequence[FakeGpu], driver_version: str = "570.86.15") -> None:
        self.gpus = list(gpus)
        self.driver_version = driver_version
        self.calls: Counter[str] = Counter()
        """How often each call was made."""
        self.start_fault: NvmlFault | None = None
        """What a start raises."""
        self._counted: list[FakeGpu] | None = None

    def unload(self) -> None:
        """Take the driver away: calls find the library not started, and it does not start."""
        self._counted = None
        self.start_fault = NvmlFault(_Constants.NVML_ERROR_DRIVER_NOT_LOADED)

    def load(self) -> None:
        """Put the driver back; the library is to be started anew, and then finds the GPUs that there are."""
        self.start_fault = None

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        """Start; the GPUs of this moment are counted from now on."""
        self.calls["nvmlInit"] += 1
        if self.start_fault is not None:
            raise self.start_fault
        if self._counted is None:
            self._counted = list(self.gpus)

    def nvmlShutdown(self) -> None:  # noqa: N802 - the library's name
        """Stop."""
        self.calls["nvmlShutdown"] += 1
        self._gpus()
        self._counted = None

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - the library's name
        """The driver's version."""
        self._gpus()
        return self.driver_version

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        """How many GPUs the driver counts."""
        return len(self._gpus())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802 - the library's name
        """The GPU at an index."""
        gpus = self._gpus()
        if index >= len(gpus):
            raise NvmlFault(_Constants.NVML_ERROR_INVALID_ARGUMENT)
        self._enter("nvmlDeviceGetHandleByIndex", gpus[index])
        return gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802 - the library's name
        """Its UUID."""
        self._enter("nvmlDeviceGetUUID", gpu)
        return gpu.uuid

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802 - the library's name
        """Its address, as bytes and with eight digits of domain, as the library gives it."""
        self._enter("nvmlDeviceGetPciInfo", gpu)
        return SimpleNamespace(busId=gpu.address.encode())

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802 - the library's name
        """Its product name."""
        self._enter("nvmlDeviceGetName", gpu)
        return str(getattr(gpu, "name", "NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802 - as above
        """Processes with a compute context on it."""
        self._enter("nvmlDeviceGetComputeRunningProcesses", gpu)
        pids = getattr(gpu, "pids", ())
        if isinstance(pids, NvmlFault):
            raise pids
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802 - the library's name
        """Current and pending mode; a GPU without `mig` does not know MIG."""
        self._enter("nvmlDeviceGetMigMode", gpu)
        if not hasattr(gpu, "mig"):
            raise NvmlFault(_Constants.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu.mig is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802 - the library's name
        """How many places for instances there are."""
        self._enter("nvmlDeviceGetMaxMigDeviceCount", gpu)
        return _MOST_MIG_INSTANCES

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, position: int) -> FakeGpu:  # noqa: N802 - as above
        """The instance in a place."""
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", gpu)
        instances: list[FakeGpu] = gpu.mig or []
        if position >= len(instances):
            raise NvmlFault(_Constants.NVML_ERROR_NOT_FOUND)
        return instances[position]

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: Sequence[Any]) -> Any:  # noqa: N802 - the library's name
        """A field value for each number or (number, scope): the GPU's `fields`."""
        self._enter("nvmlDeviceGetFieldValues", gpu)
        if hasattr(gpu, "FieldValues"):
            return gpu.FieldValues.get((fields,))
        given = {_numbered(key): value for key, value in getattr(gpu, "fields", {}).items()}
        missing = NvmlFault(_Constants.NVML_ERROR_NOT_SUPPORTED)
        return [_field_value(given.get(field if isinstance(field, tuple) else (field, 0), missing)) for field in fields]

    def __getattr__(self, name: str) -> Any:
        """Any other reading call: the GPU's attribute of that name without `nvmlDeviceGet`."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return self._call(name)

    def _call(self, name: str) -> Callable[..., Any]:
        def call(gpu: FakeGpu, *selectors: Any) -> Any:
            self._enter(name, gpu)
            refusal = NvmlFault(_Constants.NVML_ERROR_NOT_SUPPORTED)
            value = getattr(gpu, name.removeprefix("nvmlDeviceGet"), refusal)
            if isinstance(value, dict):
                value = value.get(selectors, refusal)
            if isinstance(value, Exception):
                raise value
            if name in _NOT_WITH_MIG and getattr(gpu, "mig", None) is not None:
                raise refusal
            return value

        return call

    def _gpus(self) -> list[FakeGpu]:
        if self._counted is None:
            raise NvmlFault(_Constants.NVML_ERROR_UNINITIALIZED)
        return self._counted

    def _enter(self, name: str, gpu: FakeGpu) -> None:
        self.calls[name] += 1
        self._gpus()
        gpu.wait()
        if getattr(gpu, "lost", False):
            raise NvmlFault(_Constants.NVML_ERROR_GPU_IS_LOST)


def _numbered(key: Any) -> tuple[int, int]:
    name, scope = key if isinstance(key, tuple) else (key, 0)
    return getattr(_Constants, name) if isinstance(name, str) else name, scope


def _field_value(value: Any) -> SimpleNamespace:
    if isinstance(value, NvmlFault):
        return SimpleNamespace(nvmlReturn=value.value, valueType=3, value=SimpleNamespace(ullVal=0))
    return SimpleNamespace(nvmlReturn=0, valueType=4, value=SimpleNamespace(sllVal=value))

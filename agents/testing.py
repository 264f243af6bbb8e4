"""Stand-ins for an agent's surroundings: publisher, clock, collectors and NVML, for tests of ours and of users.

Each keeps the contract of what it stands for and records what was done to it. None of them is used outside tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from agents.collectors.base import Readings
from schemas.base import Record
from schemas.codec import message

__all__ = ["FakeClock", "FakeGpu", "FakeNvml", "NvmlFault", "RecordingPublisher", "ScriptedCollector"]

_Family = TypeVar("_Family", bound=Record)


class RecordingPublisher:
    """Keeps what is published; every record is encoded, so what could not go on the wire fails here too.

    Args:
        refuse: says of a record whether it is dropped.
    """

    def __init__(self, refuse: Callable[[Record], bool] = lambda _: False) -> None:
        self.records: list[Record] = []
        self.closed = False
        self._refuse = refuse
        self._dropped = 0
        self._changed = threading.Condition()

    @property
    def dropped(self) -> int:
        """Records that were refused."""
        return self._dropped

    def publish(self, record: Record) -> bool:
        """Keep a record."""
        message(record)
        with self._changed:
            if self._refuse(record):
                self._dropped += 1
                return False
            self.records.append(record)
            self._changed.notify_all()
            return True

    def poll(self) -> None:
        """Nothing is ever under way."""

    def flush(self, timeout_s: float) -> int:  # noqa: ARG002 - nothing to wait for
        """Nothing is ever under way."""
        return 0

    def close(self) -> None:
        """Note that the agent let go."""
        self.closed = True

    def of(self, family: type[_Family]) -> list[_Family]:
        """The records of one family so far."""
        with self._changed:
            return [record for record in self.records if isinstance(record, family)]

    def wait_for(self, condition: Callable[[RecordingPublisher], bool], timeout_s: float = 5.0) -> bool:
        """Wait until a condition over what was published holds; whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout_s)


class FakeClock:
    """A clock that stands still until it is waited on, and then jumps.

    Args:
        start_ns: the first time.
    """

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = start_ns
        self._lock = threading.Lock()

    def time_ns(self) -> int:
        """The time to which it was moved."""
        with self._lock:
            return self.now_ns

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        with self._lock:
            self.now_ns += round(seconds * 1e9)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Be at the end of the time at once."""
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()


class ScriptedCollector:
    """A source that gives what it was told to, one entry a reading and the last for ever.

    Args:
        name: the source's name.
        script: readings to give, exceptions to raise, or functions to call for either.
        unsupported: why the source is not here; None if it is.
    """

    def __init__(
        self,
        name: str,
        script: Sequence[Readings | Exception | Callable[[], Readings]],
        unsupported: str | None = None,
    ) -> None:
        self.calls = 0
        self._name = name
        self._script = list(script)
        self._unsupported = unsupported

    @property
    def name(self) -> str:
        """The source's name."""
        return self._name

    def is_supported(self) -> str | None:
        """As told."""
        return self._unsupported

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - a script knows no time
        """The next entry of the script."""
        entry = self._script[min(self.calls, len(self._script) - 1)]
        self.calls += 1
        if isinstance(entry, Exception):
            raise entry
        return entry if isinstance(entry, Readings) else entry()


class NvmlFault(Exception):  # noqa: N818 - stands for a type that is named otherwise
    """What the fake library raises; `value` is NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeGpu(SimpleNamespace):
    """One GPU of `FakeNvml`: `uuid`, `address`, `pids`, and readings by the name of the NVML call without its prefix.

    A reading that is an `NvmlFault` is raised; a call without a reading is not supported.
    """

    uuid: str
    address: str


class FakeNvml:
    """Answers like the `pynvml` module for a list of GPUs.

    Args:
        gpus: in the order of their indices.
        driver_version: the driver's.
    """

    NVMLError = NvmlFault
    NVML_SUCCESS = 0
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_UNKNOWN = 999
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_PERF_POLICY_POWER = 0
    NVML_PERF_POLICY_THERMAL = 1
    NVML_FI_DEV_PERF_POLICY_POWER = 74
    NVML_FI_DEV_PERF_POLICY_THERMAL = 75
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52

    def __init__(self, gpus: Sequence[FakeGpu], driver_version: str = "570.86.15") -> None:
        self.gpus = list(gpus)
        self.driver_version = driver_version

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        """Start."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - the library's name
        """The driver's version."""
        return self.driver_version

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        """How many GPUs the driver counts."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802 - the library's name
        """The GPU at an index."""
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802 - the library's name
        """Its UUID."""
        return gpu.uuid

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802 - the library's name
        """Its address, as bytes and with eight digits of domain, as the library gives it."""
        return SimpleNamespace(busId=gpu.address.encode())

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802 - the library's name
        """Its product name."""
        return str(getattr(gpu, "name", "NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802 - as above
        """Processes with a compute context on it."""
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in getattr(gpu, "pids", ())]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Any other reading call: the GPU's attribute of that name without `nvmlDeviceGet`."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        reading = name.removeprefix("nvmlDeviceGet")

        def call(gpu: FakeGpu, *selectors: Any) -> Any:
            value = getattr(gpu, reading, NvmlFault(self.NVML_ERROR_NOT_SUPPORTED))
            if isinstance(value, dict):
                value = value.get(selectors, NvmlFault(self.NVML_ERROR_NOT_SUPPORTED))
            if isinstance(value, Exception):
                raise value
            return value

        return call

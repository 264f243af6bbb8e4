"""GPU readings from NVML, and the device on which a process computes.

Guarantees: what a GPU does not support is null; a GPU that is lost, or whose call hangs, keeps its row with nothing but
its names and the reason in `read_error`, costs the others nothing, and is asked again ever more rarely; there is one
thread for each GPU, however many calls hang. After the driver was unloaded or exchanged the library is started anew.

Not done: nothing here changes a device; MIG instances are named and not read; a call that holds a lock of the whole
driver makes the other GPUs hang with it, and then all rows say so. A GPU that was taken off the bus and came back is
seen when the driver is loaded again or the agent starts.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from agents.collectors.base import CollectorError, Readings, Row
from agents.collectors.nvml_device import DeviceReading, text
from agents.collectors.nvml_errors import LOST, UNKNOWN, DriverGoneError
from agents.collectors.nvml_slot import Retry, Slot
from agents.collectors.nvml_thread import QuestionThread

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["NvmlCollector"]

_PART_OF_DEADLINE = 0.6
"""Of the agent's deadline for its sources: what is left is for rows and frames."""

_START_S = 60.0
"""A driver without persistence mode takes seconds for each GPU when it is started."""

_FIRST_S = 2.0
"""How long a GPU's first reading may take: it tries every call there is."""

_PROCESSES_S = 2.0
_NAMES = ("gpu_uuid", "gpu_index", "pci_bus_id", "sku")


class NvmlCollector:
    """Reads all GPUs of the node.

    Args:
        library: the `pynvml` module, or what answers like it; None imports it.
        deadline_s: how long a reading waits for its GPUs, in real time; a first reading may take 2 s.
    """

    name = "nvml"
    precedence = 20

    def __init__(self, library: Any = None, deadline_s: float = 0.3) -> None:
        self._library = library
        self._deadline_s = deadline_s
        self._starter = QuestionThread("nvml-start")
        self._starting: Future[tuple[int, str]] | None = None
        self._start_retry = Retry()
        self._start_error = ""
        self._is_started = False
        self._was_started = False
        self._driver_version: str | None = None
        self.failed: dict[str, str] = {}
        """GPUs that could not be read the last time, by UUID or index, and why."""
        self._slots: tuple[Slot, ...] = ()
        self._known: dict[str, Row] = {}
        self._mig_parents: dict[str, Row] = {}
        # The trainer socket asks for processes while a reading is under way.
        self._lock = threading.Lock()

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> NvmlCollector:  # noqa: ARG003 - the same for every node
        """The collector of this node, within the time that the agent has for its sources."""
        return cls(deadline_s=settings.collect_deadline_s * _PART_OF_DEADLINE)

    def is_supported(self) -> str | None:
        """None if the library and the driver are here and tell of a GPU, else why not. It may take a minute."""
        try:
            reason = self._start(None, _START_S)
        except CollectorError as error:
            return str(error)
        if reason is None and not self._slots:
            with self._lock:
                self._is_started = False  # count again when asked again
            return "NVML finds no GPU"
        return reason

    def collect(self, now_ns: int) -> Readings:
        """Read every GPU.

        Args:
            now_ns: wall time of the tick, which decides what is due and who is asked again.

        Raises:
            CollectorError: the library or the driver is not there, and no GPU was ever seen.
        """
        reason = self._start(now_ns, self._deadline_s if self._was_started else _FIRST_S)
        if reason is None:
            rows = self._rows(now_ns)
        elif self._known:
            rows = tuple({**known, "read_error": reason} for known in self._known.values())
        else:
            raise CollectorError(reason)
        self.failed = {
            str(row.get("gpu_uuid") or row["gpu_index"]): row["read_error"] for row in rows if row.get("read_error")
        }
        return Readings(gpus=rows, driver_version=None if reason else self._driver_version)

    def device_of_pid(self, pid: int) -> dict[str, str] | None:
        """The GPU on which a process has a compute context, as `uuid` and `pci_bus_id`; None if none or several.

        Several are no answer: a rank that touched a second GPU by accident has contexts on both. A GPU that does not
        answer is left out. A process on a MIG instance is on its GPU.

        Raises:
            CollectorError: the library or the driver is not there.
        """
        if self._start_retry.misses or self._starting is not None:  # who collects tries again, in good time
            raise CollectorError(self._start_error or "NVML is being started")
        reason = self._start(None, _PROCESSES_S)
        if reason is not None:
            raise CollectorError(reason)
        with self._lock:
            asked = [slot.ask_processes(self._library) for slot in self._slots]
        listings = [listing for listing in asked if listing is not None]
        wait(listings, _PROCESSES_S)
        answered = [listing.result() for listing in listings if listing.done() and listing.exception() is None]
        found = [_device(identity) for identity, pids in answered if pid in pids]
        return found[0] if len(found) == 1 and found[0] else None

    def device_of_uuid(self, uuid: str) -> dict[str, str] | None:
        """The GPU with this UUID, or the one that has the MIG instance with it, as `uuid` and `pci_bus_id`.

        None for one that was not seen. Instances are listed once a minute; the driver is not asked here.
        """
        identity = self._known.get(uuid) or self._mig_parents.get(uuid)
        return None if identity is None else _device(identity)

    def close(self) -> None:
        """Let the threads end; one that hangs is left behind and does not keep the process."""
        for thread in (self._starter, *(slot.thread for slot in self._slots)):
            thread.close()

    # --- The library --------------------------------------------------------------------------------------------------

    def _start(self, now_ns: int | None, timeout_s: float) -> str | None:
        """Start the library if it is not up; None, or why it is not.

        Args:
            now_ns: the tick's time, which puts off a start after one that failed; None tries in any case.
            timeout_s: how long to wait.

        Raises:
            CollectorError: the binding is not installed.
        """
        with self._lock:
            if self._is_started:
                return None
            if self._library is None:
                try:
                    import pynvml
                except ImportError:
                    raise CollectorError("the NVML binding is not installed: install nvidia-ml-py") from None
                self._library = pynvml
            if self._starting is None:
                if now_ns is not None and not self._start_retry.is_due(now_ns):
                    return self._start_error
                # To shut down a library in which a call hangs is to wait for that call.
                anew = self._was_started and not any(slot.is_overdue for slot in self._slots)
                self._starting = self._starter.ask(lambda: _init(self._library, anew))
            wait([self._starting], timeout_s)
            if not self._starting.done():
                return "NVML does not start: no answer from the driver"
            starting, self._starting = self._starting, None
            if (error := starting.exception()) is not None:
                self._start_error = f"NVML does not start: {error}"
                if now_ns is not None:
                    self._start_retry.miss(now_ns)
                return self._start_error
            count, self._driver_version = starting.result()
            self._is_started = self._was_started = True
            self._start_retry = Retry()
            self._place(count)
            return None

    def _place(self, count: int) -> None:
        """Make places for the GPUs that the library counts, with the threads that there are."""
        before = self._slots
        new = (Slot(index, QuestionThread(f"nvml-gpu-{index}")) for index in range(len(before), count))
        self._slots = (*(slot.after_start() for slot in before[:count]), *new)
        for slot in before[count:]:
            slot.thread.close()

    # --- The GPUs -----------------------------------------------------------------------------------------------------

    def _rows(self, now_ns: int) -> tuple[Row, ...]:
        slots = self._slots
        asked = []
        for slot in slots:
            is_asked, late = slot.ask(self._library, now_ns)
            if late is not None:
                self._learn(slot, late)
            if is_asked:
                asked.append(slot)
        deadline_s = self._deadline_s if all(slot.was_asked for slot in asked) else max(_FIRST_S, self._deadline_s)
        wait([slot.reading for slot in asked if slot.reading is not None], deadline_s)
        rows = [self._row(slot, now_ns, is_asked=slot in asked) for slot in slots]
        # A GPU that fell off the bus may leave the count, and then others take its index: what it was called stays.
        here = {row.get("gpu_uuid") for row in rows}
        gone = [known for uuid, known in self._known.items() if uuid not in here]
        if not gone:
            return tuple(rows)
        # Who is in a place that does not answer after a new start is one of those.
        reason = next((row["read_error"] for row in rows if "gpu_uuid" not in row), LOST)
        named = (row for row in rows if "gpu_uuid" in row)
        silent = {"gpu_index": None, "read_error": reason, "is_silent": True}
        return (*named, *({**known, **silent} for known in gone))

    def _row(self, slot: Slot, now_ns: int, *, is_asked: bool) -> Row:
        answer = slot.take() if is_asked else None
        if is_asked:
            slot.was_asked = True
            if answer is None:
                slot.give_up(now_ns)
        reading = None if answer is None else self._learn(slot, answer)
        row: Row = self._known.get(slot.uuid or "", {"gpu_index": slot.index})
        if reading is None:
            return {**row, "read_error": slot.reason or UNKNOWN, "is_silent": True}
        row = {**row, **reading.row, "is_silent": not reading.is_usable}
        if reading.is_usable:
            slot.retry, slot.reason = Retry(), None
        else:
            slot.reason = row.get("read_error") or UNKNOWN
            slot.retry.miss(now_ns)
        return row

    def _learn(self, slot: Slot, answer: Future[DeviceReading]) -> DeviceReading | None:
        """Keep the names in an answer; None where it is a failure."""
        if (error := answer.exception()) is not None:
            slot.reason = str(error) or type(error).__name__
            if isinstance(error, DriverGoneError):
                with self._lock:
                    self._is_started = False
            return None
        reading = answer.result()
        uuid = reading.row.get("gpu_uuid")
        if uuid is not None:
            slot.uuid = uuid
            known = self._known[uuid] = {name: reading.row[name] for name in _NAMES}
            if "mig_enabled" in reading.row:
                others = {mig: parent for mig, parent in self._mig_parents.items() if parent["gpu_uuid"] != uuid}
                self._mig_parents = others | dict.fromkeys(reading.row.get("mig_uuids") or (), known)
        return reading


def _init(library: Any, anew: bool) -> tuple[int, str]:
    if anew:
        with contextlib.suppress(library.NVMLError):  # it is down
            library.nvmlShutdown()
    library.nvmlInit()
    return library.nvmlDeviceGetCount(), text(library.nvmlSystemGetDriverVersion())


def _device(identity: Row) -> dict[str, str]:
    named = {"uuid": identity["gpu_uuid"], "pci_bus_id": identity["pci_bus_id"]}
    return {name: value for name, value in named.items() if value is not None}

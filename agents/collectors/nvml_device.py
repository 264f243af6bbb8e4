"""One GPU as NVML gives it: its names, its readings of one moment, its MIG instances and processes.

Guarantees: what the GPU refused once is not asked again as long as it is open and its MIG mode stays; a fault is told
in `read_error`, and of a GPU that is lost nothing else; a value that no GPU can have is null; with MIG enabled the
readings are those of the whole GPU. Every call may hang: it belongs in a thread of its own, and only there. It changes
nothing on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agents.collectors.base import Row
from agents.collectors.nvml_columns import MINUTE_NS, READINGS, Call, Reading, field_number
from agents.collectors.nvml_errors import LOST, RESET_REQUIRED, UNKNOWN, DriverGoneError, Verdict, verdict
from agents.collectors.nvml_links import value_of
from agents.decode.dcgm_fields import FIELDS
from agents.decode.pci_address import normalise
from agents.step_join import is_due

__all__ = ["DeviceReading", "OpenDevice"]

_UNKNOWN_IN_A_ROW = 3
"""Calls to which a GPU that has answered nothing says `Unknown Error` before the rest is spared."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one reading of a GPU gave.

    Attributes:
        row: identity and columns.
        is_usable: whether the GPU may be read again as it is; False: it must be opened anew.
    """

    row: Row
    is_usable: bool = True


class OpenDevice:
    """A GPU of which there is a handle.

    Args:
        library: the `pynvml` module, or what answers like it.
        index: NVML's.

    Raises:
        NVMLError: of the library, where the GPU cannot be opened.
    """

    def __init__(self, library: Any, index: int) -> None:
        self._library = library
        self._handle = library.nvmlDeviceGetHandleByIndex(index)
        self.identity: Row = {
            "gpu_uuid": text(library.nvmlDeviceGetUUID(self._handle)),
            "gpu_index": index,
            "pci_bus_id": normalise(text(library.nvmlDeviceGetPciInfo(self._handle).busId)),
            "sku": text(library.nvmlDeviceGetName(self._handle)),
        }
        self._refused: set[object] = set()
        self._read_ns: dict[int, int] = {}
        self._last: dict[str, Any] = {}
        self._mig_ns: int | None = None
        self._has_mig = False
        self._mig: dict[str, Any] = {}

    def read(self, now_ns: int) -> DeviceReading:
        """Every column that is due.

        Args:
            now_ns: wall time of the tick, which decides what is due.

        Raises:
            DriverGoneError: the library must be started anew.
        """
        session = _Session(self._library, self._handle, self._refused)
        row: dict[str, Any] = dict(self.identity)
        try:
            row.update(self._mig_columns(now_ns, session))
            due = [reading for reading in READINGS if self._is_due(reading, now_ns)]
            fields = session.fields([name for reading in due for name in reading.fields])
            for reading in due:
                row.update(_columns(reading, session.values(reading, fields)))
            session.conclude()
        except _LostError:
            return DeviceReading({**self.identity, "read_error": LOST}, is_usable=False)
        if session.fault is not None:
            row["read_error"] = session.fault
        if session.is_stale:
            # Nothing answered: what was refused says nothing about the GPU.
            return DeviceReading({**row, "read_error": session.fault or UNKNOWN}, is_usable=False)
        self._refused |= session.refused
        for reading in due:
            self._read_ns[reading.every_ns] = now_ns
            if reading.is_repeated:
                self._last.update({column: row[column] for column in reading.columns})
        return DeviceReading({**self._last, **row})

    def pids(self) -> set[int]:
        """Processes with a compute context on the GPU or on one of its MIG instances.

        Raises:
            NVMLError: of the library, where the GPU does not tell.
        """
        library = self._library
        try:
            return {process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        except library.NVMLError:
            # With MIG the whole GPU tells only whom it trusts; the instances tell everyone.
            instances = self._instances() if self._has_mig else []
            if not instances:
                raise
        return {
            process.pid for instance in instances for process in library.nvmlDeviceGetComputeRunningProcesses(instance)
        }

    def _is_due(self, reading: Reading, now_ns: int) -> bool:
        return not reading.every_ns or is_due(self._read_ns.get(reading.every_ns), now_ns, reading.every_ns)

    def _mig_columns(self, now_ns: int, session: _Session) -> Row:
        if not is_due(self._mig_ns, now_ns, MINUTE_NS):
            return {}
        self._mig_ns = now_ns
        mode = session.call("mig", lambda n, gpu: n.nvmlDeviceGetMigMode(gpu))
        if mode is None:
            return {}
        has_mig = mode[0] == getattr(self._library, "NVML_DEVICE_MIG_ENABLE", 1)
        if has_mig != self._has_mig:
            self._has_mig = has_mig
            self._refused.clear()  # other calls are refused with MIG than without it
        if not has_mig:
            return {"mig_enabled": 0}
        return {"mig_enabled": 1, "mig_uuids": tuple(self._names(self._instances()))}

    def _names(self, instances: list[Any]) -> Iterator[str]:
        for instance in instances:
            try:
                yield text(self._library.nvmlDeviceGetUUID(instance))
            except self._library.NVMLError:  # it was taken away in between
                continue

    def _instances(self) -> list[Any]:
        library = self._library
        found = []
        try:
            for position in range(library.nvmlDeviceGetMaxMigDeviceCount(self._handle)):
                try:
                    found.append(library.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, position))
                except library.NVMLError:  # this place has no instance
                    continue
        except library.NVMLError:
            return []
        return found


class _LostError(Exception):
    """The GPU is gone: what was read of it before does not count."""


class _Session:
    """The calls of one reading, and what they taught."""

    def __init__(self, library: Any, handle: Any, refused: set[object]) -> None:
        self.refused: set[object] = set()
        self.fault: str | None = None
        self._library = library
        self._handle = handle
        self._known_refused = refused
        self._answers = 0
        self._unknown = 0
        self._stale = 0

    def conclude(self) -> None:
        """Hold it against the GPU where it answered nothing and the driver does not know why."""
        if not self._answers and self._unknown:
            raise _LostError

    @property
    def is_stale(self) -> bool:
        """Whether the handle seems to be from before."""
        return not self._answers and self._stale > 0

    def fields(self, names: list[str]) -> dict[str, int | float | None]:
        """Field values by constant; one that is refused for good is left out, one that fails this time is None."""
        numbers: dict[str, int] = {}
        for name in names:
            number = field_number(self._library, name)
            if number is not None and name not in self._known_refused:
                numbers[name] = number
        if not numbers:
            return {}
        answers = self._ask("fields", lambda n, gpu: list(n.nvmlDeviceGetFieldValues(gpu, list(numbers.values()))))
        if answers is None:
            return {}
        found: dict[str, int | float | None] = {}
        for name, answer in zip(numbers, answers, strict=True):
            if answer.nvmlReturn == self._library.NVML_SUCCESS:
                found[name] = value_of(self._library, answer)
                self._answers += 1
                continue
            meaning = verdict(self._library, answer.nvmlReturn)
            if meaning in {Verdict.REFUSED, Verdict.STALE}:  # of a single field the argument is its number
                self.refused.add(name)
            else:
                found[name] = None
                self._note(meaning)
        return found

    def values(self, reading: Reading, fields: dict[str, int | float | None]) -> Any:
        """The values of one reading in the order of its columns, one alone as itself; None where there is none."""
        given = [fields[name] for name in reading.fields if name in fields]
        if given and reading.adds_up:
            known = [value for value in given if value is not None]
            return sum(known) if len(known) == len(given) else None
        if given:
            values = tuple(fields.get(name) for name in reading.fields)
            return values if len(values) > 1 else values[0]
        for position, call in enumerate(reading.calls):
            key = (reading.columns, position)
            if key not in self._known_refused:
                value = self.call(key, call)
                if value is not None or key not in self.refused:
                    return value
        return None

    def call(self, key: object, call: Call) -> Any:
        """What a call gives; None where it gives nothing, and the key is in `refused` where it never will."""
        value = self._ask(key, call)
        self._answers += value is not None
        return value

    def _ask(self, key: object, call: Call) -> Any:
        if key in self._known_refused:
            return None
        try:
            value = call(self._library, self._handle)
        except self._library.NVMLError as error:
            meaning = verdict(self._library, getattr(error, "value", None))
            if meaning is Verdict.STALE:
                self._stale += 1
            if meaning in {Verdict.REFUSED, Verdict.STALE}:
                self.refused.add(key)
            elif meaning is Verdict.DRIVER:
                raise DriverGoneError(str(error)) from None
            else:
                self._note(meaning)
            return None
        except (AttributeError, TypeError, KeyError):  # a binding that is older or newer than this call
            self.refused.add(key)
            return None
        return value

    def _note(self, meaning: Verdict) -> None:
        if meaning is Verdict.LOST:
            raise _LostError
        if meaning is Verdict.RESET:
            self.fault = RESET_REQUIRED
        elif meaning is Verdict.UNKNOWN:
            self._unknown += 1
            self.fault = self.fault or UNKNOWN
            if not self._answers and self._unknown >= _UNKNOWN_IN_A_ROW:
                raise _LostError


def _columns(reading: Reading, values: Any) -> dict[str, Any]:
    if values is None:
        return dict.fromkeys(reading.columns)
    several = values if len(reading.columns) > 1 else (values,)
    columns = {}
    for column, value in zip(reading.columns, several, strict=True):
        scaled = value if value is None or reading.divisor == 1 else value / reading.divisor
        limits = FIELDS.get(column)
        # A dying GPU answers with all bits set: a link of 63 lanes, a utilisation of 2^32 - 1.
        columns[column] = scaled if limits is None or scaled is None or limits.can_be(scaled) else None
    return columns


def text(value: str | bytes) -> str:
    """A name as the binding gives it, which is bytes in some of its releases."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

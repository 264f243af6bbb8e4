"""What is kept of a trace until its end, for the profile: columns of GPU work and launches.

Guarantees: plain arrays, filled in the order of the trace, 56 bytes for a kernel and 16 for its launch; names are kept
once. Launches are joined to kernels only when
all is read, because a trace lists the host's events and the GPU's far apart. Deliberately not: any figure.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any, Final

from agents.decode.kineto_event import (
    COPY,
    KERNEL,
    SET,
    arguments,
    device,
    is_communication,
    nanoseconds,
    step_number,
    whole,
)
from agents.decode.kineto_intervals import Intervals
from agents.decode.kineto_products import Products

COMMUNICATION: Final = "communication:"
"""What the label of a communication kernel begins with; its operation follows."""
TO_DEVICE, TO_HOST, OTHER_COPY, SET_LABEL = "copy_to_device", "copy_to_host", "copy", "set"

_MOST_NAMES: Final = 1 << 16
_OTHER_NAMES: Final = "(further names)"
_NO_ID: Final = -1
_HOST_CATEGORIES: Final = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver"})
_LAUNCHES: Final = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_INPUT: Final = re.compile(r"dataloader.*next", re.IGNORECASE)
_COMM_NAME: Final = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)", re.ASCII)


class Device:
    """The work of one GPU: unions by what it is, and one row per kernel, copy and set."""

    def __init__(self) -> None:
        self.kernels = Intervals()
        self.communication = Intervals()
        self.to_device = Intervals()
        self.to_host = Intervals()
        self.other = Intervals()
        self.starts_ns = array("q")
        self.ends_ns = array("q")
        self.correlations = array("q")
        self.external_ids = array("q")
        self.names = array("I")
        self.labels = array("I")
        self.steps: dict[int, tuple[int, int]] = {}
        """Windows of `ProfilerStep#N` on the GPU, over all its streams."""


class Names:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; beyond 65,536 texts, that of all further ones."""
        known = self._numbers.get(text)
        if known is None:
            if len(self.texts) >= _MOST_NAMES and text != _OTHER_NAMES:
                return self.number(_OTHER_NAMES)
            known = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return known


class Columns:
    """A trace's GPU work by device, and what the host did that explains it."""

    def __init__(self, family_of: Callable[[str], str]) -> None:
        """Takes the function that names the family of a kernel by its name."""
        self.devices: dict[int | None, Device] = {}
        self.names = Names()
        self.labels = Names()
        self.launch_correlations = array("q")
        self.launch_times_ns = array("q")
        self.host_steps: dict[int, tuple[int, int]] = {}
        self.input_waits = Intervals()
        self.products = Products()
        self._family_of = family_of
        self._family_by_name: dict[int, int] = {}
        self._is_input: dict[str, bool] = {}

    def take_work(self, event: dict[str, Any], name: str, work: int) -> bool:
        """Takes a kernel, copy or set; False where its times cannot be read."""
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or duration is None or duration < 0:
            return False
        args = arguments(event)
        held = self._device(device(event, args))
        end = start + duration
        if work == KERNEL:
            label = self._kernel_label(name, args, held, start, end)
        else:
            label = self._transfer_label(name, args, work, held, start, end)
        held.starts_ns.append(start)
        held.ends_ns.append(end)
        held.correlations.append(_identifier(args.get("correlation")))
        held.external_ids.append(_identifier(args.get("External id")))
        held.names.append(self.names.number(name))
        held.labels.append(label)
        return True

    def take_host(self, event: dict[str, Any], name: str, category: object) -> None:
        """Takes any other event: a launch, a step, a wait for input, a matrix product; the rest is passed over."""
        if category in _HOST_CATEGORIES:
            if _LAUNCHES.search(name):
                correlation, start = _identifier(arguments(event).get("correlation")), nanoseconds(event.get("ts"))
                if correlation != _NO_ID and start is not None:
                    self.launch_correlations.append(correlation)
                    self.launch_times_ns.append(start)
            return
        if (number := step_number(name)) is not None:
            steps = self.host_steps
            if category == "gpu_user_annotation":
                steps = self._device(device(event, arguments(event))).steps
            _widen(steps, number, event)
        elif self._waits_for_input(name):
            start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
            if start is not None and duration is not None:
                self.input_waits.add(start, start + duration)
        elif category == "cpu_op":
            self.products.take(name, arguments(event))

    def _device(self, number: int | None) -> Device:
        held = self.devices.get(number)
        if held is None:
            held = self.devices[number] = Device()
        return held

    def _kernel_label(self, name: str, args: dict[str, Any], held: Device, start: int, end: int) -> int:
        if is_communication(name):
            held.communication.add(start, end)
            return self.labels.number(COMMUNICATION + operation(name, args))
        held.kernels.add(start, end)
        number = self.names.number(name)
        label = self._family_by_name.get(number)
        if label is None:
            label = self._family_by_name[number] = self.labels.number(self._family_of(name))
        return label

    def _transfer_label(self, name: str, args: dict[str, Any], work: int, held: Device, start: int, end: int) -> int:
        label = SET_LABEL if work == SET else OTHER_COPY
        intervals = held.other
        if work == COPY:
            # `Memcpy HtoD (Pinned -> Device)`; ROCm states the kind as an argument too.
            told = f"{name} {args.get('kind', '')}"
            if "HtoD" in told or "HostToDevice" in told:
                label, intervals = TO_DEVICE, held.to_device
            elif "DtoH" in told or "DeviceToHost" in told:
                label, intervals = TO_HOST, held.to_host
        intervals.add(start, end)
        return self.labels.number(label)

    def _waits_for_input(self, name: str) -> bool:
        known = self._is_input.get(name)
        if known is None:
            known = _INPUT.search(name) is not None
            if len(self._is_input) < _MOST_NAMES:
                self._is_input[name] = known
        return known


def operation(name: str, args: dict[str, Any]) -> str:
    """The operation of a communication kernel: as the trace states it, else as the kernel's name has it."""
    stated = args.get("Collective name")
    if isinstance(stated, str) and stated:
        return stated
    found = _COMM_NAME.match(name)
    return found[1] if found else name[:40]


def _identifier(value: object) -> int:
    number = value if type(value) is int else whole(value)
    return number if number is not None and 0 <= number < 1 << 63 else _NO_ID


def _widen(steps: dict[int, tuple[int, int]], number: int, event: dict[str, Any]) -> None:
    start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
    if start is None or duration is None or duration < 0:
        return
    first, last = steps.get(number, (start, start + duration))
    steps[number] = (min(first, start), max(last, start + duration))

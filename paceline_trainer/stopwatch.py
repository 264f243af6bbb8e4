"""What is measured of the step in hand: its wall time, its parts, its collectives, its waiting.

Guarantees: a part inside another is taken out of the outer one, so parts add up to no more than the step; a part timed
between two steps (loading data) belongs to the step that follows. What was not measured is absent, never zero. It knows
no clock but the one it is given and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    _Communicator = tuple[str, tuple[int | str, ...] | None, str | None]
    """Group, instance and operation."""

__all__ = ["PARTS", "StepWatch", "Stopwatch"]

_COMPUTE = ("forward", "backward", "optimizer", "compute")
_REPORTED = ("forward", "backward", "optimizer", "host", "data", "wait")

PARTS = (*_COMPUTE, "host", "data", "wait")
"""Parts of a step."""

_COLLECTIVES = 64
"""Entries that one message may hold; of more the longest are told."""


class StepWatch(Protocol):
    """What a reporter needs of a stopwatch; `end` gives what was measured in a form of the stopwatch's own, or None."""

    def begin(self) -> None:
        """Start a step."""

    def forget(self) -> None:
        """Drop the step in hand."""

    def end(self) -> Any:
        """End the step; None if none was begun."""

    def enter(self, part: str) -> None:
        """Start timing a part."""

    def leave(self) -> None:
        """End the part that was entered last."""

    def add(self, part: str, duration_s: float) -> None:
        """Add seconds to a part."""

    def add_collective(
        self,
        group: str,
        duration_s: float,
        instance: tuple[int | str, ...] | None,
        op: str | None,
        overlapped: bool,
        size_bytes: int | None = None,
    ) -> None:
        """Add seconds in a communicator."""


class _Measured:
    """Nanoseconds of one step by part and communicator."""

    __slots__ = ("before_ns", "collectives_bytes", "collectives_ns", "open_parts", "parts_ns")

    def __init__(self) -> None:
        self.before_ns = 0
        self.parts_ns: dict[str, int] = {}
        self.collectives_ns: dict[_Communicator, int] = {}
        self.collectives_bytes: dict[_Communicator, int | None] = {}
        self.open_parts: list[list[Any]] = []  # name, start, nanoseconds that belong to inner parts


class Stopwatch:
    """Times one step after the other.

    Args:
        now_ns: a clock that only goes forward.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._start_ns: int | None = None
        self._measured = _Measured()

    def begin(self) -> None:
        """Start a step; one that was not ended is forgotten."""
        if self._start_ns is not None:
            self.forget()
        self._start_ns = self._now_ns()

    def forget(self) -> None:
        """Drop the step in hand and all that was measured for it."""
        self._start_ns = None
        self._measured = _Measured()

    def end(self) -> dict[str, Any] | None:
        """The measured fields of the step in microseconds, or None if none was begun.

        `own_us` is what was given as own time, else the step's time without its waiting if waiting was measured, else
        absent: then the reader takes the sum of compute, host and data.
        """
        if self._start_ns is None:
            return None
        measured = self._measured
        elapsed_ns = self._now_ns() - self._start_ns + measured.before_ns
        self.forget()
        parts_ns = measured.parts_ns
        fields = {"step_us": elapsed_ns // 1000}
        if "own" in parts_ns:
            fields["own_us"] = parts_ns["own"] // 1000
        elif "wait" in parts_ns:
            fields["own_us"] = max(0, elapsed_ns - parts_ns["wait"]) // 1000
        compute_ns = [parts_ns[name] for name in _COMPUTE if name in parts_ns]
        if compute_ns:
            fields["compute_us"] = sum(compute_ns) // 1000
        fields.update({f"{name}_us": parts_ns[name] // 1000 for name in _REPORTED if name in parts_ns})
        collectives = [
            _collective(communicator, duration_ns, measured.collectives_bytes[communicator])
            for communicator, duration_ns in _longest(measured.collectives_ns)
        ]
        return {**fields, "collectives": collectives} if collectives else fields

    def enter(self, part: str) -> None:
        """Start timing a part, inside the one that is open."""
        self._measured.open_parts.append([part, self._now_ns(), 0])

    def leave(self) -> None:
        """End the part that was entered last.

        Raises:
            ValueError: its name is no part's; its time stays out of the step's parts.
        """
        measured = self._measured
        if not measured.open_parts:  # the step ended inside the block
            return
        part, start_ns, inner_ns = measured.open_parts.pop()
        elapsed_ns = self._now_ns() - start_ns
        if measured.open_parts:
            measured.open_parts[-1][2] += elapsed_ns
        elif self._start_ns is None:
            measured.before_ns += elapsed_ns
        if part not in PARTS:
            raise ValueError(f"part {part!r} is none of {', '.join(PARTS)}")
        self._add(part, max(0, elapsed_ns - inner_ns))

    def add(self, part: str, duration_s: float) -> None:
        """Add seconds that were measured elsewhere to a part, or to `own`.

        Raises:
            ValueError: no such part, or a negative or infinite duration.
        """
        if part != "own" and part not in PARTS:
            raise ValueError(f"part {part!r} is none of own, {', '.join(PARTS)}")
        self._add(part, _nanoseconds(duration_s))

    def add_collective(
        self,
        group: str,
        duration_s: float,
        instance: tuple[int | str, ...] | None,
        op: str | None,
        overlapped: bool,
        size_bytes: int | None = None,
    ) -> None:
        """Add seconds in a communicator; not overlapped they are waiting and leave the part that is open.

        Bytes are those of the larger buffer of the operation; where one's are not known, those of the sum are not.

        Raises:
            ValueError: a negative or infinite duration.
        """
        duration_ns = _nanoseconds(duration_s)
        measured = self._measured
        key = (str(group), None if instance is None else tuple(instance), op)
        measured.collectives_ns[key] = measured.collectives_ns.get(key, 0) + duration_ns
        before = measured.collectives_bytes.get(key, 0)
        measured.collectives_bytes[key] = None if before is None or size_bytes is None else before + int(size_bytes)
        if not overlapped:
            self._add("wait", duration_ns)
            if measured.open_parts:
                measured.open_parts[-1][2] += duration_ns

    def _add(self, part: str, duration_ns: int) -> None:
        parts_ns = self._measured.parts_ns
        parts_ns[part] = parts_ns.get(part, 0) + duration_ns


def _collective(communicator: _Communicator, duration_ns: int, size_bytes: int | None) -> dict[str, Any]:
    group, instance, op = communicator
    told = {"group": group, "instance": instance, "op": op, "duration_us": duration_ns // 1000}
    return told if size_bytes is None else {**told, "size_bytes": size_bytes}


def _longest(durations_ns: dict[_Communicator, int]) -> list[tuple[_Communicator, int]]:
    """The entries in the order in which they came, the longest if there are too many."""
    entries = list(durations_ns.items())
    if len(entries) <= _COLLECTIVES:
        return entries
    least_ns = sorted(durations_ns.values(), reverse=True)[_COLLECTIVES - 1]
    return [entry for entry in entries if entry[1] >= least_ns][:_COLLECTIVES]


def _nanoseconds(duration_s: float) -> int:
    try:
        duration_ns = round(float(duration_s) * 1e9)
    except OverflowError:
        duration_ns = -1
    if duration_ns < 0:
        raise ValueError(f"a duration of {duration_s} s")
    return duration_ns

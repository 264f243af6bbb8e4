"""A stopwatch that writes down what happened and reads the times off later, when the GPU has come to them.

A mark is a moment on the host and, where there is a GPU, an event in its queue. Guarantees: nothing is waited for; a
step is read once all its events have passed, which is a step later or so; the times of a step are all the GPU's or all
the host's, never mixed; what is read is what `Stopwatch` makes of the same calls. The tape is bounded: a step of more
than 8,192 entries is given up. It knows no PyTorch: marks come from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from paceline_trainer.stopwatch import PARTS, Stopwatch

__all__ = ["DeviceEvent", "Mark", "Recording", "Span", "Tape"]

_MOST_ENTRIES = 8192


class DeviceEvent(Protocol):
    """An event in a GPU's queue, as `torch.cuda.Event` with timing."""

    def query(self) -> bool:
        """Whether the GPU has passed it; does not wait."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to a later one, both passed."""


class Mark:
    """A moment: nanoseconds of the host's clock, and the event recorded then, if there is a GPU to record it on."""

    __slots__ = ("event", "host_ns")

    def __init__(self, host_ns: int, event: DeviceEvent | None = None) -> None:
        self.host_ns = host_ns
        self.event = event


class Span:
    """An operation in a communicator from its issue to its completion; `end` may be set later, by any thread."""

    __slots__ = ("end", "group", "instance", "op", "overlapped", "size_bytes", "start")

    def __init__(
        self,
        start: Mark,
        group: str,
        instance: tuple[int | str, ...] | None,
        op: str | None,
        overlapped: bool,
        size_bytes: int | None = None,
    ) -> None:
        self.start = start
        self.end: Mark | None = None
        self.group = group
        self.instance = instance
        self.op = op
        self.overlapped = overlapped
        self.size_bytes = size_bytes


class Recording:
    """One step as it was written down.

    Args:
        entries: a mark or None, a method of `Stopwatch` and its arguments, each; or a span.
    """

    def __init__(self, entries: list[tuple[Mark | None, str, tuple[Any, ...]] | Span]) -> None:
        self.errors: list[str] = []
        """What was wrong with the calls; known once it was read."""
        self._entries = entries
        self._checked = 0

    def is_ready(self, patient: bool = True) -> bool:
        """Whether all its moments have passed; asks the GPU and does not wait.

        Args:
            patient: whether operations that have not come to an end are still waited for.
        """
        while self._checked < len(self._entries):
            entry = self._entries[self._checked]
            if isinstance(entry, Span):
                if entry.end is None and patient:
                    return False
                marks = [entry.start, entry.end]
            else:
                marks = [entry[0]]
            if any(mark is not None and mark.event is not None and not mark.event.query() for mark in marks):
                return False
            self._checked += 1
        return True

    def measured(self) -> dict[str, Any]:
        """What `Stopwatch.end` gives for it; only when it is ready."""
        time_ns = self._time_of()
        clock = _Hand()
        watch = Stopwatch(clock)
        fields: dict[str, Any] = {}
        last_ns: dict[Any, int] = {}
        for entry in self._entries:
            if isinstance(entry, Span):
                if entry.end is None:
                    continue
                start_ns, end_ns = time_ns(entry.start), time_ns(entry.end)
                if entry.overlapped:
                    # A communicator works in order: what it was issued behind is not its own time.
                    key = (entry.group, entry.instance)
                    start_ns, last_ns[key] = max(start_ns, last_ns.get(key, start_ns)), end_ns
                duration_s = max(0, end_ns - start_ns) / 1e9
                watch.add_collective(
                    entry.group, duration_s, entry.instance, entry.op, entry.overlapped, entry.size_bytes
                )
                continue
            mark, action, arguments = entry
            if mark is not None:
                clock.now_ns = max(clock.now_ns, time_ns(mark))
            try:
                fields = getattr(watch, action)(*arguments) or fields
            except ValueError as error:
                self.errors.append(str(error))
        return fields

    def _time_of(self) -> Callable[[Mark], int]:
        marks = []
        for entry in self._entries:
            marks += [entry.start, entry.end] if isinstance(entry, Span) else [entry[0]]
        known = [mark for mark in marks if mark is not None]
        first = known[0].event
        if first is None or any(mark.event is None for mark in known):
            base_ns = known[0].host_ns
            return lambda mark: mark.host_ns - base_ns
        return lambda mark: round(first.elapsed_time(mark.event) * 1e6)


class _Hand:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Tape:
    """Writes down one step after the other, with the methods of `Stopwatch`; `end` gives a `Recording`.

    Args:
        mark: makes a mark of this moment.
        stream: names the queue of the GPU that work goes to now; the same for ever where there is none.
    """

    def __init__(self, mark: Callable[[], Mark], stream: Callable[[], int | None] = lambda: None) -> None:
        self.steps = 0
        """Steps that were begun."""
        self.given_up = 0
        """Steps that had too many entries."""
        self._stream = stream
        self._main_stream: int | None = None
        self.mark = mark
        """Makes a mark of this moment."""
        self._entries: list[tuple[Mark | None, str, tuple[Any, ...]] | Span] = []
        self._is_open = False
        self._is_full = False

    def is_on_main_stream(self) -> bool:
        """Whether work goes to the queue in which the step began, so that the step waits for it."""
        return self._stream() == self._main_stream

    def begin(self) -> None:
        """Start a step; one that was not ended is forgotten."""
        if self._is_open or self._is_full:
            self.forget()
        self._is_open = True
        self.steps += 1
        self._main_stream = self._stream()
        self._write(self.mark(), "begin")

    def forget(self) -> None:
        """Drop the step in hand and all that was written down for it."""
        self._entries = []
        self._is_open = self._is_full = False

    def end(self) -> Recording | None:
        """End the step; None if none was begun, or if it was given up."""
        if not self._is_open:
            return None
        self._write(self.mark(), "end")
        entries, is_full = self._entries, self._is_full
        self.forget()
        if is_full:
            self.given_up += 1
            return None
        return Recording(entries)

    def enter(self, part: str) -> None:
        """Start timing a part, inside the one that is open."""
        self._write(self.mark(), "enter", part)

    def leave(self) -> None:
        """End the part that was entered last."""
        self._write(self.mark(), "leave")

    def add(self, part: str, duration_s: float) -> None:
        """Add seconds that were measured elsewhere to a part, or to `own`.

        Raises:
            ValueError: no such part.
        """
        if part != "own" and part not in PARTS:
            raise ValueError(f"part {part!r} is none of own, {', '.join(PARTS)}")
        self._write(None, "add", part, float(duration_s))

    def add_collective(
        self,
        group: str,
        duration_s: float,
        instance: tuple[int | str, ...] | None,
        op: str | None,
        overlapped: bool,
        size_bytes: int | None = None,
    ) -> None:
        """Add seconds in a communicator; not overlapped they are waiting and leave the part that is open."""
        self._write(None, "add_collective", group, float(duration_s), instance, op, overlapped, size_bytes)

    def span(
        self,
        group: str,
        instance: tuple[int | str, ...] | None,
        op: str | None,
        overlapped: bool,
        size_bytes: int | None = None,
    ) -> Span | None:
        """Begin an operation in a communicator; None outside a step. Its `end` is for the caller to set."""
        if not self._is_open or self._is_full:
            return None
        span = Span(self.mark(), group, instance, op, overlapped, size_bytes)
        self._append(span)
        return span

    def _write(self, mark: Mark | None, action: str, *arguments: Any) -> None:
        self._append((mark, action, arguments))

    def _append(self, entry: tuple[Mark | None, str, tuple[Any, ...]] | Span) -> None:
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries = []
            self._is_full = True
        if not self._is_full:
            self._entries.append(entry)

"""A place in NVML's count: who is there, whether it answers, and when it is asked again.

Guarantees: a place has one thread and at most one reading under way; who did not answer in time, or is lost, is asked
again after 1 s and then twice as long each time, up to a minute; an answer that comes late is not passed off as one of
a later moment. It waits for nobody: the deadline is the collector's.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agents.collectors.base import Row
from agents.collectors.nvml_device import DeviceReading, OpenDevice
from agents.collectors.nvml_errors import LOST, DriverGoneError, Verdict, verdict
from agents.collectors.nvml_thread import QuestionThread

__all__ = ["Retry", "Slot"]

_LONGEST_WAIT_NS = 60 * 10**9
_MOST_DOUBLINGS = 6


@dataclass(slots=True)
class Retry:
    """When to ask again."""

    misses: int = 0
    due_ns: int = 0

    def miss(self, now_ns: int) -> None:
        """Note that there was no answer, and put the next question off."""
        self.due_ns = now_ns + min(10**9 << self.misses, _LONGEST_WAIT_NS)
        self.misses = min(self.misses + 1, _MOST_DOUBLINGS)

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time; also where the clock was put back since."""
        return not self.misses or not 0 < self.due_ns - now_ns <= _LONGEST_WAIT_NS


@dataclass(slots=True, eq=False)
class Slot:
    """One place. `device` belongs to the thread, all else to those who ask.

    Attributes:
        index: NVML's.
        thread: in which everything is asked.
        device: the GPU as it was opened.
        uuid: of the GPU that answered here last.
        reading: the reading under way.
        is_overdue: whether that did not answer in time.
        is_from_before: whether it was begun before the library was started anew.
        was_asked: whether there was a reading before.
        reason: why there is no reading; None while there is.
        retry: when to ask again.
        processes: the listing of processes under way.
    """

    index: int
    thread: QuestionThread
    device: OpenDevice | None = None
    uuid: str | None = None
    reading: Future[DeviceReading] | None = None
    is_overdue: bool = False
    is_from_before: bool = False
    was_asked: bool = False
    reason: str | None = None
    retry: Retry = field(default_factory=Retry)
    processes: Future[tuple[Row, set[int]]] | None = None

    def after_start(self) -> Slot:
        """The same place after the library was started anew, where another GPU may be now; a call that hangs stays."""
        if not self.is_overdue:
            return Slot(self.index, self.thread)
        return replace(self, device=None, uuid=None, is_from_before=True)

    def ask(self, library: Any, now_ns: int) -> tuple[bool, Future[DeviceReading] | None]:
        """Put the question of a tick, unless the last one is open or it is too early.

        Returns:
            Whether it was put; and a late answer, of which only the names count.
        """
        late = None
        if self.reading is not None:
            if not self.reading.done():
                return False, None
            late = None if self.is_from_before else self.reading
            self.reading, self.is_overdue, self.is_from_before = None, False, False
            self.retry.miss(now_ns)
        if not self.retry.is_due(now_ns):
            return False, late
        self.reading = self.thread.ask(lambda: self._read(library, now_ns))
        return True, late

    def take(self) -> Future[DeviceReading] | None:
        """The answer to this tick's question, None as long as there is none."""
        if self.reading is None or not self.reading.done():
            return None
        answer, self.reading = self.reading, None
        return answer

    def give_up(self, now_ns: int) -> None:
        """Note that this tick's question was not answered in time."""
        self.is_overdue = True
        if self.reason is None:
            self.reason = f"no answer since {datetime.fromtimestamp(now_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def ask_processes(self, library: Any) -> Future[tuple[Row, set[int]]] | None:
        """Ask who computes on the GPU; None where the GPU is silent or has not answered that before."""
        if self.is_overdue or (self.processes is not None and not self.processes.done()):
            return None
        self.processes = self.thread.ask(lambda: self._processes(library))
        return self.processes

    def _read(self, library: Any, now_ns: int) -> DeviceReading:
        if self.device is None:
            try:
                self.device = OpenDevice(library, self.index)
            except library.NVMLError as error:
                return DeviceReading({"gpu_index": self.index, "read_error": _fault(library, error)}, is_usable=False)
        reading = self.device.read(now_ns)
        if not reading.is_usable:
            self.device = None  # the handle of a GPU that was lost or reset does not serve any more
        return reading

    def _processes(self, library: Any) -> tuple[Row, set[int]]:
        if self.device is None:
            self.device = OpenDevice(library, self.index)
        return self.device.identity, self.device.pids()


def _fault(library: Any, error: Any) -> str:
    meaning = verdict(library, getattr(error, "value", None))
    if meaning is Verdict.DRIVER:
        raise DriverGoneError(str(error))
    return LOST if meaning in {Verdict.LOST, Verdict.UNKNOWN} else str(error)

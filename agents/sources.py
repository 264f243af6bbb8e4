"""Collectors, each in a thread of its own, read together once a tick.

Guarantees: a source that hangs delays nobody beyond the deadline; a reading that comes late is counted and its values
are not passed off as this tick's, but the events and records in it are given out with the next; a source that is not
here is asked again once a minute and costs nothing in between; a source keeps its place once what it gave was handed on,
and a disk that hangs then costs that source alone. A thread is woken only for a reading or a place of its own. It joins
nothing and publishes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agents.collectors.base import Collector, CollectorError, Readings
from agents.step_join import is_due

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.events import KernelEvent

__all__ = ["SourceState", "Sources", "Tick"]

_LOG = logging.getLogger(__name__)

_ASK_AGAIN_NS = 60 * 10**9
_JOIN_S = 0.2
_KEEP_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Tick:
    """What the sources gave in one tick.

    Attributes:
        readings: by source in the order of the collectors; None where there is nothing of this tick.
        events: new kernel events, of late readings too.
        records: finished records, of late readings too.
        driver_version: the GPU driver's, where a source tells.
        cursors: by source, how far it is read with this tick; `Sources.acknowledge` takes them.
        event_sources: those that gave `events`.
    """

    readings: dict[str, Readings | None] = field(default_factory=dict)
    events: tuple[KernelEvent, ...] = ()
    records: tuple[Record, ...] = ()
    driver_version: str | None = None
    cursors: dict[str, object] = field(default_factory=dict)
    event_sources: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source is doing.

    Attributes:
        name: the source's.
        state: `asked` until it has answered for the first time whether it is here, then `here` or `missing`.
        reason: why it is missing.
        readings: readings that gave something, in time or late.
        seconds: how long all readings took, also those that failed, in real time.
        late: readings that did not come within the deadline.
        failed: readings that gave an error.
    """

    name: str
    state: Literal["asked", "here", "missing"]
    reason: str | None = None
    readings: int = 0
    seconds: float = 0.0
    late: int = 0
    failed: int = 0


class Sources:
    """Reads collectors.

    Args:
        collectors: in order of precedence; their names differ.
        deadline_s: how long a tick waits for its readings, in real time.
    """

    def __init__(self, collectors: Sequence[Collector], deadline_s: float) -> None:
        self.counters: Counter[str] = Counter()
        """`<source>.late`, `<source>.failed`: readings that came late, or not at all."""
        self.missing: dict[str, str] = {}
        """Sources that are not here, and why."""
        self._deadline_s = deadline_s
        self._tick = 0
        self._lock = threading.Lock()
        self._all_answered = threading.Condition(self._lock)
        self._awaited = 0
        self._sources = [_Source(collector, self) for collector in collectors]

    def start(self) -> None:
        """Start a thread for each source."""
        for source in self._sources:
            source.start()

    def stop(self) -> None:
        """End the threads; one that hangs is left behind and does not keep the process."""
        with self._lock:
            for source in self._sources:
                source.is_stopped = True
                source.asked.notify()
        deadline = time.monotonic() + _JOIN_S
        for source in self._sources:
            source.join(max(0.0, deadline - time.monotonic()))

    def read(self, now_ns: int, resting: Collection[str] = ()) -> Tick:
        """Ask every source that is free, and wait until all have answered or the deadline is over.

        Args:
            now_ns: wall time.
            resting: sources that are not asked, because nobody has room for what they gave.
        """
        event_sources: set[str] = set()
        given: list[Readings] = []
        events: list[KernelEvent] = []
        records: list[Record] = []
        readings: dict[str, Readings | None] = {}
        cursors: dict[str, object] = {}
        with self._lock:
            self._tick += 1
            self._awaited = 0
            for source in self._sources:
                late = source.take_late()
                if late is not None:
                    events += late.events
                    event_sources.update([source.name] if late.events else [])
                    records += late.records
                    if late.cursor is not None:
                        cursors[source.name] = late.cursor
                if source.name not in resting and source.ask(self._tick, now_ns):
                    self._awaited += 1
            self._all_answered.wait_for(lambda: self._awaited == 0, self._deadline_s)
            for source in self._sources:
                readings[source.name] = answer = self._answer(source)
                if answer is not None:
                    given.append(answer)
                    event_sources.update([source.name] if answer.events else [])
                    if answer.cursor is not None:
                        cursors[source.name] = answer.cursor
        for answer in given:
            events += answer.events
            records += answer.records
        driver = next((answer.driver_version for answer in given if answer.driver_version), None)
        return Tick(readings, tuple(events), tuple(records), driver, cursors, frozenset(event_sources))

    def acknowledge(self, tick: Tick) -> None:
        """The events and records of a tick were handed on: the sources may keep how far they are read.

        Returns at once; each source does so in its own thread: now where there were events or records, else every five
        seconds and at the stop, because a place that is kept costs a write to the disk.
        """
        has_news = bool(tick.events or tick.records)
        now_s = time.monotonic()
        with self._lock:
            for source in self._sources:
                if source.name in tick.cursors:
                    source.take_cursor(tick.cursors[source.name], has_news, now_s)

    def states(self) -> list[SourceState]:
        """How each source is doing, in order."""
        with self._lock:
            return [
                SourceState(
                    source.name,
                    "here" if source.is_here else "missing" if source.missing is not None else "asked",
                    None if source.is_here else source.missing,
                    source.readings,
                    source.seconds,
                    self.counters[f"{source.name}.late"],
                    self.counters[f"{source.name}.failed"],
                )
                for source in self._sources
            ]

    def answered(self, tick: int) -> None:
        """A source has answered what it was asked in a tick; called by its thread, under the lock."""
        if tick == self._tick:
            self._awaited -= 1
            if self._awaited == 0:
                self._all_answered.notify()

    @property
    def lock(self) -> threading.Lock:
        """Held by whoever reads or writes the state of a source."""
        return self._lock

    def _answer(self, source: _Source) -> Readings | None:
        if source.is_busy or source.is_late:  # of this tick or of an earlier one
            self.counters[f"{source.name}.late"] += 1
            source.is_late = True
            return None
        answer, source.answer = source.answer, None
        self.missing.pop(source.name, None)
        if source.missing is not None:
            self.missing[source.name] = source.missing
        elif answer is None and source.asked_tick == self._tick:
            self.counters[f"{source.name}.failed"] += 1
        return answer


class _Source:
    """One collector and its thread; all fields are read and written under the lock."""

    def __init__(self, collector: Collector, sources: Sources) -> None:
        self.name = collector.name
        self.asked = threading.Condition(sources.lock)
        self.is_busy = False
        self.is_late = False
        self.is_stopped = False
        self.is_here = False
        self.asked_tick = 0
        self.answer: Readings | None = None
        self.missing: str | None = None
        self.readings = 0
        self.seconds = 0.0
        self._collector = collector
        self._sources = sources
        self._asked_ns = 0
        self._looked_ns: int | None = None
        self._said = ""
        self._cursor: object | None = None
        self._is_keep_due = False
        self._kept_s = 0.0
        self._thread = threading.Thread(target=self._serve, name=f"source-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def ask(self, tick: int, now_ns: int) -> bool:
        """Wake the thread for a reading; False if it is busy, or if its source is missing and not due to be looked for."""
        if self.is_busy or not (self.is_here or is_due(self._looked_ns, now_ns, _ASK_AGAIN_NS)):
            return False
        self.asked_tick, self._asked_ns = tick, now_ns
        self.is_busy = True
        self.asked.notify()
        return True

    def take_late(self) -> Readings | None:
        """A reading that came after its tick; its values are of no use any more."""
        if self.is_busy or not self.is_late:
            return None
        late, self.answer, self.is_late = self.answer, None, False
        return late

    def take_cursor(self, cursor: object, has_news: bool, now_s: float) -> None:
        """Keep a cursor, at once or with a later one."""
        self._cursor = cursor
        if has_news or now_s - self._kept_s >= _KEEP_EVERY_S:
            self._is_keep_due = True
            self._kept_s = now_s
            self.asked.notify()

    def _serve(self) -> None:
        while True:
            with self._sources.lock:
                self.asked.wait_for(lambda: self.is_busy or self.is_stopped or self._is_keep_due)
                cursor = None
                if self._is_keep_due or self.is_stopped:
                    cursor, self._cursor, self._is_keep_due = self._cursor, None, False
                is_asked = self.is_busy and not self.is_stopped
                asked_ns, is_here = self._asked_ns, self.is_here
            if cursor is not None:
                self._keep(cursor)
            if not is_asked:
                if self.is_stopped:
                    return
                continue
            begun = time.monotonic()
            answer, missing, is_here = self._read(asked_ns, is_here)
            with self._sources.lock:
                self.answer, self.missing, self.is_here = answer, missing, is_here
                self._looked_ns = asked_ns
                self.seconds += time.monotonic() - begun
                self.readings += answer is not None
                self.is_busy = False
                self._sources.answered(self.asked_tick)

    def _keep(self, cursor: object) -> None:
        try:
            acknowledge = getattr(self._collector, "acknowledge", None)
            if acknowledge is not None:
                acknowledge(cursor)
        except Exception as error:  # noqa: BLE001 - whatever a source does, the others go on
            self._say(logging.WARNING, f"its place cannot be kept: {type(error).__name__}: {error}")

    def _read(self, now_ns: int, is_here: bool) -> tuple[Readings | None, str | None, bool]:
        """What a reading gave, why the source is missing, and whether it is here."""
        if not is_here:
            try:
                reason = self._collector.is_supported()
            except Exception as error:  # noqa: BLE001 - whatever a source does, the others go on
                reason = f"{type(error).__name__}: {error}"
            if reason is not None:
                self._say(logging.INFO, f"not here: {reason}")
                return None, reason, False
            _LOG.info("source %s: here", self.name)
        try:
            reading = self._collector.collect(now_ns)
        except CollectorError as error:
            self._say(logging.WARNING, str(error))
            return None, None, True
        except Exception as error:  # noqa: BLE001 - as above
            self._say(logging.WARNING, f"{type(error).__name__}: {error}")
            return None, None, True
        self._said = ""
        return reading, None, True

    def _say(self, level: int, text: str) -> None:
        if text != self._said:  # once, not once a tick
            self._said = text
            _LOG.log(level, "source %s: %s", self.name, text)

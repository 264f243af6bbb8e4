"""Collectors, each in a thread of its own, read together once a tick.

Guarantees: a source that hangs delays nobody beyond the deadline; a reading that comes late is counted and its values
are not passed off as this tick's, but the events in it are given out with the next; a source that is not here is asked
again now and then. It joins nothing and publishes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.collectors.base import Collector, CollectorError, Readings
from agents.step_join import is_due
from schemas.events import KernelEvent

__all__ = ["Sources", "Tick"]

_LOG = logging.getLogger(__name__)

_ASK_AGAIN_NS = 60 * 10**9
_JOIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Tick:
    """What the sources gave in one tick.

    Attributes:
        readings: by source in the order of the collectors; None where there is nothing of this tick.
        events: new kernel events, of late readings too.
        driver_version: the GPU driver's, where a source tells.
    """

    readings: dict[str, Readings | None] = field(default_factory=dict)
    events: tuple[KernelEvent, ...] = ()
    driver_version: str | None = None


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
        self._changed = threading.Condition()
        self._sources = [_Source(collector, self._changed) for collector in collectors]

    def start(self) -> None:
        """Start a thread for each source."""
        for source in self._sources:
            source.start()

    def stop(self) -> None:
        """End the threads; one that hangs is left behind and does not keep the process."""
        with self._changed:
            for source in self._sources:
                source.is_stopped = True
            self._changed.notify_all()
        for source in self._sources:
            source.join()

    def read(self, now_ns: int) -> Tick:
        """Ask every source that is free, and wait until all have answered or the deadline is over."""
        readings: dict[str, Readings | None] = {}
        events: list[KernelEvent] = []
        with self._changed:
            self._tick += 1
            for source in self._sources:
                events += source.take_late_events()
                if not source.is_busy:
                    source.asked_tick, source.asked_ns = self._tick, now_ns
                    source.is_busy = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any(source.is_busy and source.asked_tick == self._tick for source in self._sources),
                self._deadline_s,
            )
            for source in self._sources:
                readings[source.name] = self._answer(source)
        given = [reading for reading in readings.values() if reading is not None]
        events += [event for reading in given for event in reading.events]
        driver = next((reading.driver_version for reading in given if reading.driver_version), None)
        return Tick(readings, tuple(events), driver)

    def _answer(self, source: _Source) -> Readings | None:
        if source.is_busy or source.asked_tick != self._tick:
            self.counters[f"{source.name}.late"] += 1
            source.is_late = True
            return None
        answer, source.answer = source.answer, None
        self.missing.pop(source.name, None)
        if source.missing is not None:
            self.missing[source.name] = source.missing
        elif answer is None:
            self.counters[f"{source.name}.failed"] += 1
        return answer


class _Source:
    """One collector and its thread; all fields are read and written under the condition."""

    def __init__(self, collector: Collector, changed: threading.Condition) -> None:
        self.name = collector.name
        self.is_busy = False
        self.is_late = False
        self.is_stopped = False
        self.asked_ns = 0
        self.asked_tick = 0
        self.answer: Readings | None = None
        self.missing: str | None = None
        self._collector = collector
        self._changed = changed
        self._is_here = False
        self._looked_ns: int | None = None
        self._said = ""
        self._thread = threading.Thread(target=self._serve, name=f"source-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(_JOIN_S)

    def take_late_events(self) -> tuple[KernelEvent, ...]:
        """Events of a reading that came after its tick; its values are dropped."""
        if self.is_busy or not self.is_late:
            return ()
        late, self.answer, self.is_late = self.answer, None, False
        return late.events if late is not None else ()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_busy or self.is_stopped)
                if self.is_stopped:
                    return
                asked_ns = self.asked_ns
            answer, missing = self._read(asked_ns)
            with self._changed:
                self.answer, self.missing = answer, missing
                self.is_busy = False
                self._changed.notify_all()

    def _read(self, now_ns: int) -> tuple[Readings | None, str | None]:
        try:
            if not self._is_here:
                if not is_due(self._looked_ns, now_ns, _ASK_AGAIN_NS):
                    return None, self.missing
                self._looked_ns = now_ns
                reason = self._collector.is_supported()
                if reason is not None:
                    self._say(logging.INFO, reason)
                    return None, reason
                self._is_here = True
            reading = self._collector.collect(now_ns)
        except CollectorError as error:
            self._say(logging.WARNING, str(error))
            return None, None
        except Exception as error:  # noqa: BLE001 - whatever a source does, the others go on
            self._say(logging.WARNING, f"{type(error).__name__}: {error}")
            return None, None
        self._said = ""
        return reading, None

    def _say(self, level: int, text: str) -> None:
        if text != self._said:  # once, not once a tick
            self._said = text
            _LOG.log(level, "%s: %s", self.name, text)

"""Stand-ins for an agent's surroundings: publisher, clock, collectors, NVML, kernel ring and exporter, for any tests.

Each keeps the contract of what it stands for and records what was done to it. None of them is used outside tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from agents.collectors.base import Readings
from agents.fakes.exporter import ExporterRequest, FakeExporter
from agents.fakes.kmsg import FakeKmsg
from agents.fakes.nvml import FakeGpu, FakeNvml, NvmlFault
from agents.fakes.sysfs import FakeEthtool, FakeSysfs
from schemas.base import Record
from schemas.codec import message
from schemas.events import KernelEvent

__all__ = [
    "ExporterRequest",
    "FakeClock",
    "FakeEthtool",
    "FakeExporter",
    "FakeGpu",
    "FakeKmsg",
    "FakeNvml",
    "FakeSysfs",
    "NvmlFault",
    "RecordingPublisher",
    "ScriptedCollector",
]

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

    def publish_all(self, records: Sequence[Record]) -> int:
        """Keep records."""
        return sum(self.publish(record) for record in records)

    def offer(self, events: Sequence[KernelEvent]) -> int:
        """Keep events up to the first that is refused, for which there is then no room; how many were kept."""
        with self._changed:
            for dealt, event in enumerate(events):
                message(event)
                if self._refuse(event):
                    return dealt
                self.records.append(event)
                self._changed.notify_all()
        return len(events)

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

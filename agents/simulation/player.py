"""Plays a simulated stream in real time through a publisher, as real nodes would publish it.

The clock is passed in. The player does not batch, retry or spool: that is the publisher's business. A stream that falls
behind is played as fast as the publisher takes it, and nothing is left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schemas.base import Record

__all__ = ["PlayReport", "RecordPublisher", "StopEvent", "play"]

_LONGEST_SLEEP_S = 0.5


class RecordPublisher(Protocol):
    """What the player needs of a publisher."""

    def publish(self, record: Record) -> bool:
        """Hand a record over; false when it was not taken."""
        ...


class StopEvent(Protocol):
    """What the player needs of a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep at most this long, less when it is set."""
        ...


@dataclass(frozen=True)
class PlayReport:
    """How a play went. `behind_s` is the largest delay against the stream's own time."""

    published: int
    refused: int
    behind_s: float
    stopped: bool


def play(
    events: Iterable[tuple[int, Record]],
    publisher: RecordPublisher,
    stop_event: StopEvent,
    *,
    rate: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> PlayReport:
    """Publish every record at its time, counted from the first one's.

    Args:
        events: (due at in nanoseconds, record), by time.
        publisher: takes the records.
        stop_event: ends the play when set; also what the player sleeps on.
        rate: how many of the stream's seconds pass in one of the clock's.
        clock: seconds, monotonic.
        sleep: replaces sleeping on `stop_event`.

    Raises:
        ValueError: the rate is not positive.
    """
    if not rate > 0:
        raise ValueError(f"rate {rate} is not positive")
    pause = stop_event.wait if sleep is None else sleep
    published = refused = 0
    behind_s = 0.0
    begun: tuple[float, int] | None = None
    for due_ns, record in events:
        if begun is None:
            begun = clock(), due_ns
        due = begun[0] + (due_ns - begun[1]) * 1e-9 / rate
        while not stop_event.is_set() and (left := due - clock()) > 0:
            pause(min(left, _LONGEST_SLEEP_S))
        if stop_event.is_set():
            return PlayReport(published, refused, behind_s, stopped=True)
        behind_s = max(behind_s, clock() - due)
        if publisher.publish(record):
            published += 1
        else:
            refused += 1
    return PlayReport(published, refused, behind_s, stopped=False)

"""The agent's only way to the time of day: agents stamp, and this is where they read the clock.

A clock is handed to whoever needs one, so that a test can drive it. It does not correct anything: a wrong wall clock
shows as a node's skew downstream.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "boot_time_ns"]


class Clock(Protocol):
    """Wall time to stamp with, and a way to wait."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, UTC."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time is over; whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, UTC."""
        return time.time_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time is over; whether it is set."""
        return event.wait(timeout_s)


def boot_time_ns() -> int:
    """Wall time at which this machine's kernel counted zero, as the clock now sees it.

    Kernel lines are stamped by a clock that stands still in suspend, and so does CLOCK_MONOTONIC. It is slewed and the
    kernel's is not: over weeks they part by a second or two.
    """
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)

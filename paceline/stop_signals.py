"""SIGINT and SIGTERM as an event: a command that runs until it is told to stop looks at it between two pieces of work.

Only the main thread may ask for it, since Python lets no other one set handlers.
"""

from __future__ import annotations

import signal
import threading

__all__ = ["stop_on_signals"]


def stop_on_signals() -> threading.Event:
    """An event that is set from the first SIGINT or SIGTERM on; it replaces what they did before."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped

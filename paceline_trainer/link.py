"""The way to the agent: a bounded queue in front of a Unix stream socket that is never waited for.

Guarantees: a call costs at most a few dozen system calls that return at once; there is no thread; a failed connection
is tried again with growing pauses; when the queue is full the oldest message goes and is counted; a message that was
sent in part is sent whole on the next connection. A forked child lets go of the socket and stays silent, because the
connection speaks for its parent. Delivery is not confirmed: what lay in a dead agent's socket is gone.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["AgentLink"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_BURST = 64
"""Messages sent in one call at most, about half a millisecond; the rest goes with the next calls."""

_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0) | getattr(socket, "MSG_DONTWAIT", 0)


class AgentLink:
    """A one-way line to the agent.

    Args:
        path: the agent's socket.
        queue_limit: messages kept while the agent is away or slow.
        on_trouble: called with a text at every failed connection or loss of it.
        monotonic: seconds, for the pauses between attempts.
    """

    def __init__(
        self,
        path: str,
        queue_limit: int,
        on_trouble: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self.connections = 0
        self._path = path
        self._limit = max(1, queue_limit)
        self._on_trouble = on_trouble
        self._monotonic = monotonic
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[bytes] = deque()
        self._registration: bytes | None = None
        self._registered = False
        self._socket: socket.socket | None = None
        self._current: bytes | None = None
        self._current_is_registration = False
        self._current_sent = 0
        self._retry_at = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def register(self, line: bytes) -> None:
        """Set what every connection begins with, and send it on the one that stands."""
        self._registration = line
        self._registered = False
        self.pump()

    def send(self, line: bytes) -> None:
        """Queue a message and send what can be sent now."""
        if os.getpid() == self._pid:
            if len(self._queue) >= self._limit:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(line)
        self.pump()

    def pump(self) -> None:
        """Connect if it is time to, and send what the socket takes without waiting."""
        if os.getpid() != self._pid:  # before the lock: a fork may have copied it taken
            self._let_go()
            return
        # Never waited for: who holds it may be another thread, or this one below a signal handler. What was queued
        # meanwhile goes with the next call.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._socket is not None or self._connect():
                self._send_queued()
        finally:
            self._lock.release()

    def drain(self, grace_s: float) -> None:
        """Send what is queued, waiting at most `grace_s` for a slow reader; returns at once where there is none."""
        deadline = self._monotonic() + grace_s
        self.pump()
        while (self._queue or self._current is not None) and self._socket is not None and os.getpid() == self._pid:
            remaining_s = deadline - self._monotonic()
            writable = select.poll()  # not select(): a training process may hold more than 1,024 files
            writable.register(self._socket, select.POLLOUT)
            if remaining_s <= 0 or not writable.poll(remaining_s * 1000):
                return
            self.pump()

    def close(self) -> None:
        """Let go of the socket; what is queued is dropped and counted."""
        if self._lock.acquire(blocking=False):
            try:
                self.dropped += len(self._queue) + (self._current is not None)
                self._queue.clear()
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._current = None
        self._current_sent = 0

    def _connect(self) -> bool:
        if self._monotonic() < self._retry_at:
            return False
        connection: socket.socket | None = None
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            connection.connect(self._path)
        except (OSError, AttributeError, ValueError) as error:  # AttributeError: a system without Unix sockets
            if connection is not None:
                connection.close()
            self._trouble(f"no paceline agent at {self._path}: {error}")
            return False
        self._socket = connection
        self._registered = False
        self._pause_s = _FIRST_PAUSE_S
        self.connections += 1
        return True

    def _trouble(self, text: str) -> None:
        self._retry_at = self._monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._on_trouble(text)

    def _send_queued(self) -> None:
        for _ in range(_BURST):
            # A message that was begun goes first, or its line would be broken in two.
            if self._current is None and not self._take_next():
                return
            if not self._send_current():
                return

    def _take_next(self) -> bool:
        if not self._registered and self._registration is not None:
            self._registered = True  # before it is read: a newer one that comes meanwhile takes the mark away again
            self._current, self._current_is_registration = self._registration, True
        elif self._queue:
            self._current, self._current_is_registration = self._queue.popleft(), False
        else:
            return False
        return True

    def _send_current(self) -> bool:
        assert self._socket is not None
        assert self._current is not None
        try:
            while self._current_sent < len(self._current):
                self._current_sent += self._socket.send(self._current[self._current_sent :], _FLAGS)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            unsent = None if self._current_is_registration else self._current
            self._let_go()
            if unsent is not None:
                self._queue.appendleft(unsent)
            self._trouble(f"the paceline agent at {self._path} went away: {error}")
            return False
        if not self._current_is_registration:
            self.sent += 1
        self._current = None
        self._current_sent = 0
        return True

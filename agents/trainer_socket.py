"""The Unix socket on which trainers of this node report: connections, credentials and bounds.

Guarantees: who is at the other end is what the kernel says (SO_PEERCRED), not what the message says; a user outside the
allow-list is turned away; lines, connections and messages a second have limits; what is bad is counted and dropped and
costs nobody else; it never writes to a trainer. By default every local user may report: a tenant's timings alone never
cost anyone a node. Datagram sockets are not served.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import stat
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agents.clock import Clock
from agents.local_ranks import LocalRanks, Peer, RefusedError
from agents.trainer_messages import MAX_LINE_BYTES, InvalidMessageError, parse_message
from schemas.base import Record

__all__ = ["TrainerSocket", "TrainerSocketError"]

_LOG = logging.getLogger(__name__)

_TICK_S = 0.1
_READ_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class TrainerSocketError(Exception):
    """The socket cannot be opened; the text says why and what would help."""


@dataclass(slots=True)
class _Connection:
    peer: Peer
    buffer: bytearray = field(default_factory=bytearray)
    second: int = 0
    messages_in_second: int = 0


class TrainerSocket:
    """Serves trainers in a thread of its own.

    Args:
        path: where the socket is made; its directory too, if it is missing. A socket that is left there is replaced.
        ranks: what the messages are folded into; only this thread touches it while it runs.
        publish: takes the records that follow; called from this thread.
        clock: stamps arrival.
        allowed_uids: users who may report; None for all local users.
        most_connections: connections at a time; further ones are turned away.
        messages_per_s: messages that one connection may send in a second; more are dropped.
        mode: permissions of the socket file.
    """

    def __init__(
        self,
        path: str | Path,
        ranks: LocalRanks,
        publish: Callable[[Record], bool],
        clock: Clock,
        *,
        allowed_uids: Iterable[int] | None = None,
        most_connections: int = 512,
        messages_per_s: int = 1000,
        mode: int = 0o666,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._path = Path(path)
        self._ranks = ranks
        self._publish = publish
        self._clock = clock
        self._allowed_uids = None if allowed_uids is None else frozenset(allowed_uids)
        self._most_connections = most_connections
        self._messages_per_s = messages_per_s
        self._mode = mode
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._made = 0

    def start(self) -> None:
        """Open the socket and serve it.

        Raises:
            TrainerSocketError: it cannot be opened.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_old()
            listener.bind(str(self._path))
            self._path.chmod(self._mode)
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise TrainerSocketError(
                f"no socket for trainers at {self._path}: {error.strerror or error}; set `socket` to a path that can "
                "be made, or to an empty text to do without"
            ) from None
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="trainer-socket", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections, publish the steps in the making, and remove the socket."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def _remove_old(self) -> None:
        try:
            kind = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(kind):
            raise OSError("the path is taken by something that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self._path))
            except OSError:
                self._path.unlink(missing_ok=True)
                return
        raise OSError("another agent serves it")

    def _serve(self) -> None:
        try:
            while not self._stop.is_set():
                self._guarded(self._turn)
            self._guarded(lambda: self._emit(self._ranks.flush(self._clock.time_ns())))
        finally:
            self._close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            if key.data is None:
                self._accept()
            else:
                self._read(key.fileobj, key.data)  # type: ignore[arg-type]  # only sockets are registered
        self._emit(self._ranks.tick(self._clock.time_ns()))

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception:  # noqa: BLE001 - what one trainer brought about must not end the timings of all others
            self.counters["internal_error"] += 1
            _LOG.exception("a turn of the trainers' socket failed")

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        pid, uid, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if self._allowed_uids is not None and uid not in self._allowed_uids:
            self.counters["refused_uid"] += 1
            accepted.close()
        elif len(self._selector.get_map()) > self._most_connections:
            self.counters["too_many_connections"] += 1
            accepted.close()
        else:
            self._made += 1
            self.counters["connections"] += 1
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ, _Connection(Peer(self._made, pid, uid)))

    def _read(self, trainer: socket.socket, connection: _Connection) -> None:
        try:
            chunk = trainer.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        connection.buffer += chunk
        *lines, rest = connection.buffer.split(b"\n")
        connection.buffer = rest
        for line in lines:
            self._take(bytes(line), connection)
        overlong = len(rest) > MAX_LINE_BYTES
        if overlong:
            self.counters["overlong_line"] += 1
        if overlong or not chunk:
            self._selector.unregister(trainer)
            trainer.close()
            self._emit(self._ranks.on_disconnect(connection.peer, self._clock.time_ns()))

    def _take(self, line: bytes, connection: _Connection) -> None:
        now_ns = self._clock.time_ns()
        if connection.second != now_ns // 10**9:
            connection.second, connection.messages_in_second = now_ns // 10**9, 0
        connection.messages_in_second += 1
        if connection.messages_in_second > self._messages_per_s:
            self.counters["too_many_messages"] += 1
            return
        if len(line) > MAX_LINE_BYTES:
            self.counters["overlong_line"] += 1
            return
        try:
            records = self._ranks.on_message(connection.peer, parse_message(line), now_ns)
        except InvalidMessageError as error:
            self.counters["bad_message"] += 1
            _LOG.debug("pid %d uid %d: %s", connection.peer.pid, connection.peer.uid, error)
            return
        except RefusedError as error:
            self.counters[str(error)] += 1
            return
        self.counters["messages"] += 1
        self._emit(records)

    def _emit(self, records: Iterable[Record]) -> None:
        for record in records:
            self._publish(record)

"""The Unix socket on which trainers of this node report: connections, credentials and bounds.

Guarantees: who is at the other end is what the kernel says (SO_PEERCRED), not what the message says; a user outside the
allow-list is turned away, and so is a rank that calls itself by a process id that is not its own; lines, connections,
messages and bytes a second have limits, and no user can take all connections; what is bad is counted and dropped and
costs nobody else; it never writes to a trainer. Who asks for the status is told of the ranks of the same user, root and
the agent's own user of all. By default every local user may report: a tenant's timings alone never cost anyone a node.
Datagram sockets are not served.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agents.clock import Clock
from agents.local_ranks import LocalRanks, Peer, RefusedError
from agents.peer_credentials import claims_its_own_pid, peer_of
from agents.trainer_messages import (
    MAX_LINE_BYTES,
    InvalidMessageError,
    Register,
    StatusRequest,
    TrainerMessage,
    parse_message,
)
from schemas.base import Record

__all__ = ["TrainerSocket", "TrainerSocketError"]

_LOG = logging.getLogger(__name__)

_TICK_S = 0.1
_IDLE_S = 0.5
_READ_BYTES = 1 << 16
_REGISTER_WITHIN_S = 30.0
"""A trainer registers at once; who is silent for so long holds a connection for nothing."""

_LOOK_EVERY_S = 1.0
_MOST_ANSWER_BYTES = 4 << 20


class TrainerSocketError(Exception):
    """The socket cannot be opened; the text says why and what would help."""


@dataclass(slots=True)
class _Connection:
    peer: Peer
    buffer: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None
    opened_s: float = field(default_factory=time.monotonic)
    is_registered: bool = False
    second: int = 0
    messages_in_second: int = 0
    bytes_in_second: int = 0


class TrainerSocket:
    """Serves trainers in a thread of its own.

    Args:
        path: where the socket is made; its directory too, if it is missing. A socket that is left there is replaced.
        ranks: what the messages are folded into; only this thread touches it while it runs.
        publish: takes the records that follow; called from this thread.
        clock: stamps arrival.
        allowed_uids: users who may report; None for all local users.
        most_connections: connections at a time; further ones are turned away.
        most_of_user: as many of them one user may hold, root as any other.
        messages_per_s: messages that one connection may send in a second; more are dropped.
        bytes_per_s: bytes of such messages; more are dropped unread.
        register_within_s: how long a connection may stand without having registered.
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
        most_of_user: int = 384,
        messages_per_s: int = 1000,
        bytes_per_s: int = 4 << 20,
        register_within_s: float = _REGISTER_WITHIN_S,
        mode: int = 0o666,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._path = Path(path)
        self._ranks = ranks
        self._publish = publish
        self._clock = clock
        self._allowed_uids = None if allowed_uids is None else frozenset(allowed_uids)
        self._most_connections = most_connections
        self._most_of_user = most_of_user
        self._messages_per_s = messages_per_s
        self._bytes_per_s = bytes_per_s
        self._register_within_s = register_within_s
        self._looked_s = 0.0
        self._mode = mode
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._made = 0

    @property
    def connected(self) -> int:
        """Trainers that are connected now; safe to ask from another thread."""
        return max(0, len(self._selector.get_map() or ()) - 1)

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
        # Without a trainer or a job there is nothing that time alone brings.
        wait_s = _TICK_S if self.connected or self._ranks.has_jobs else _IDLE_S
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                self._accept()
            elif key.data.answer is not None:
                self._write(key.fileobj, key.data)  # type: ignore[arg-type]  # only sockets are registered
            else:
                self._read(key.fileobj, key.data)  # type: ignore[arg-type]  # as above
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._close_silent()
        self._emit(self._ranks.tick(self._clock.time_ns()))

    def _close_silent(self) -> None:
        for key in list(self._selector.get_map().values()):
            connection = key.data
            if connection is None or connection.is_registered:
                continue
            if self._looked_s - connection.opened_s >= self._register_within_s:
                self.counters["silent"] += 1
                self._hang_up(key.fileobj, connection)  # type: ignore[arg-type]  # only sockets are registered

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
        pid, uid = peer_of(accepted)
        peers = [key.data.peer for key in self._selector.get_map().values() if key.data is not None]
        of_user = sum(peer.uid == uid for peer in peers)
        if self._allowed_uids is not None and uid not in self._allowed_uids:
            self._turn_away(accepted, "refused_uid")
        elif len(peers) >= self._most_connections:
            self._turn_away(accepted, "too_many_connections")
        elif of_user >= self._most_of_user:
            self._turn_away(accepted, "too_many_connections_of_user")
        else:
            self._made += 1
            self.counters["connections"] += 1
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ, _Connection(Peer(self._made, pid, uid)))

    def _turn_away(self, accepted: socket.socket, why: str) -> None:
        self.counters[why] += 1
        accepted.close()

    def _hang_up(self, trainer: socket.socket, connection: _Connection) -> None:
        self._selector.unregister(trainer)
        trainer.close()
        self._emit(self._ranks.on_disconnect(connection.peer, self._clock.time_ns()))

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
            if connection.answer is None:
                self._take(bytes(line), connection)
        if connection.answer is not None:
            self._selector.modify(trainer, selectors.EVENT_WRITE, connection)
            return
        overlong = len(rest) > MAX_LINE_BYTES
        if overlong:
            self.counters["overlong_line"] += 1
        if overlong or not chunk:
            self._hang_up(trainer, connection)

    def _write(self, asker: socket.socket, connection: _Connection) -> None:
        """Send what goes of an answer, and end the connection behind it; a slow reader is cut off as a silent one."""
        assert connection.answer is not None
        try:
            sent = asker.send(connection.answer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            sent = len(connection.answer)
        connection.answer = connection.answer[sent:]
        if not connection.answer:
            self._hang_up(asker, connection)

    def _take(self, line: bytes, connection: _Connection) -> None:
        now_ns = self._clock.time_ns()
        if connection.second != now_ns // 10**9:
            connection.second = now_ns // 10**9
            connection.messages_in_second = connection.bytes_in_second = 0
        connection.messages_in_second += 1
        connection.bytes_in_second += len(line)
        if connection.messages_in_second > self._messages_per_s or connection.bytes_in_second > self._bytes_per_s:
            self.counters["too_many_messages"] += 1
            return
        if len(line) > MAX_LINE_BYTES:
            self.counters["overlong_line"] += 1
            return
        try:
            said = parse_message(line)
            if isinstance(said, StatusRequest):
                self._answer(connection)
                return
            records = self._fold(said, connection, now_ns)
        except InvalidMessageError as error:
            self.counters["bad_message"] += 1
            _LOG.debug("pid %d uid %d: %s", connection.peer.pid, connection.peer.uid, error)
            return
        except RefusedError as error:
            self.counters[str(error)] += 1
            return
        self.counters["messages"] += 1
        self._emit(records)

    def _fold(self, said: TrainerMessage, connection: _Connection, now_ns: int) -> Iterable[Record]:
        peer = connection.peer
        if isinstance(said, Register):
            if said.pid is not None and claims_its_own_pid(peer.pid, said.pid) is False:
                raise RefusedError("pid_of_another")
            records = self._ranks.on_message(peer, said, now_ns)
            connection.is_registered = True
            return records
        return self._ranks.on_message(peer, said, now_ns)

    def _answer(self, connection: _Connection) -> None:
        uid = connection.peer.uid
        ranks = self._ranks.status(None if uid in (0, os.geteuid()) else uid)
        left_out, size = 0, 0
        for index, rank in enumerate(ranks):
            size += len(json.dumps(rank))
            if size > _MOST_ANSWER_BYTES:
                left_out = len(ranks) - index
                ranks = ranks[:index]
                break
        told = {"v": 1, "type": "status", "ranks": ranks, "left_out": left_out, "counters": dict(self.counters)}
        connection.answer = memoryview(json.dumps(told).encode() + b"\n")
        self.counters["status_requests"] += 1

    def _emit(self, records: Iterable[Record]) -> None:
        for record in records:
            self._publish(record)

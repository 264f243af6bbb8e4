"""JSON frames over a TCP connection, each sealed with a key that only those who hold the token can derive.

Guarantees: both ends prove that they hold the token before anything they say is read, without sending it; a frame that was
changed, repeated or left out is refused; every wait is bounded, a frame is at most 4 MiB, and nothing is unpickled. A
listener is not held up by strangers: each caller is heard in a thread of its own, for a few seconds, and so many at once.

Not done: what is said is not secret. Bytes that are measured are sent beside the frames, unsealed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any, Self

__all__ = ["Doorkeeper", "NotSealedError", "SealedConnection", "SealedError", "connect_sealed", "read_exactly"]

_GREETING = b"paceline preflight 1"
_NONCE_BYTES = 16
_SEAL_BYTES = 32
_MOST_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")
_HANDSHAKE_S = 10.0
_MOST_AT_THE_DOOR = 64
_TRY_AGAIN_S = 0.1


class SealedError(Exception):
    """The other end is gone, silent, or not heard in time; one line."""


class NotSealedError(SealedError):
    """The other end does not hold the token, or somebody changed what it said."""


class SealedConnection:
    """One connection after its first greeting.

    Args:
        connection: a connected socket; it is closed with this.
        token: the shared secret.
        is_caller: whether this end made the connection.
        timeout_s: for the greeting.

    Raises:
        SealedError: the other end is gone or silent.
        NotSealedError: it does not speak this.
    """

    def __init__(self, connection: socket.socket, token: bytes, *, is_caller: bool, timeout_s: float) -> None:
        self.socket = connection
        deadline_s = time.monotonic() + timeout_s
        own = os.urandom(_NONCE_BYTES)
        self._send_all(_GREETING + own, deadline_s)
        greeting = read_exactly(connection, len(_GREETING) + _NONCE_BYTES, deadline_s)
        if not greeting.startswith(_GREETING):
            raise NotSealedError("what answers is no pre-flight of this version")
        other = greeting[len(_GREETING) :]
        nonces = own + other if is_caller else other + own
        self._key = hmac.digest(token, _GREETING + nonces, hashlib.sha256)
        self._ways = (b"c", b"l") if is_caller else (b"l", b"c")
        self._counts = [0, 0]

    def send(self, message: dict[str, Any], timeout_s: float = _HANDSHAKE_S) -> None:
        """Send one frame.

        Raises:
            SealedError: the other end is gone or takes nothing.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        self._send_all(_LENGTH.pack(len(body)) + self._seal(0, body) + body, time.monotonic() + timeout_s)

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next frame.

        Raises:
            SealedError: the other end is gone, or silent for so long.
            NotSealedError: the frame is not sealed as it should be.
        """
        deadline_s = time.monotonic() + timeout_s
        head = read_exactly(self.socket, _LENGTH.size + _SEAL_BYTES, deadline_s)
        (size,) = _LENGTH.unpack_from(head)
        if size > _MOST_BYTES:
            raise NotSealedError(f"a frame of {size} bytes; {_MOST_BYTES} are the most")
        body = read_exactly(self.socket, size, deadline_s)
        if not hmac.compare_digest(head[_LENGTH.size :], self._seal(1, body)):
            raise NotSealedError("the other end does not hold the same token")
        try:
            message = json.loads(body)
        except ValueError:
            raise NotSealedError("a frame that is no JSON") from None
        if not isinstance(message, dict):
            raise NotSealedError("a frame that is no object")
        return message

    def has_hung_up(self) -> bool:
        """Whether the other end is gone, as far as this one was told; reads nothing."""
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket; whoever reads from it in another thread is told."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seal(self, way: int, body: bytes) -> bytes:
        number = self._counts[way]
        self._counts[way] += 1
        return hmac.digest(self._key, self._ways[way] + number.to_bytes(8, "big") + body, hashlib.sha256)

    def _send_all(self, data: bytes, deadline_s: float) -> None:
        self.socket.settimeout(max(0.01, deadline_s - time.monotonic()))
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise SealedError(f"the other end is gone: {error.strerror or error}") from None


class Doorkeeper:
    """Takes callers who hold the token; the rest are sent away without a word and counted.

    Args:
        listener: a listening socket; it is closed with this.
        token: the shared secret.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self.port: int = listener.getsockname()[1]
        self.refused = 0
        """Callers that were sent away."""
        self._listener = listener
        self._token = token
        self._free = threading.BoundedSemaphore(_MOST_AT_THE_DOOR)
        self._callers: queue.Queue[tuple[SealedConnection, dict[str, Any]]] = queue.Queue()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def next_caller(self, timeout_s: float) -> tuple[SealedConnection, dict[str, Any]] | None:
        """A caller and the first thing that it said; None if nobody came within the time."""
        try:
            return self._callers.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Close the door, and hang up on whoever was not taken yet."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()
        while (caller := self.next_caller(0)) is not None:
            caller[0].close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed.is_set():
                    return
                self._closed.wait(_TRY_AGAIN_S)  # out of descriptors, or a caller that is gone already
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                self.refused += 1
                continue
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        try:
            _tune(connection)
            sealed = SealedConnection(connection, self._token, is_caller=False, timeout_s=_HANDSHAKE_S)
            self._callers.put((sealed, sealed.receive(_HANDSHAKE_S)))
        except (SealedError, OSError):
            self.refused += 1
            connection.close()
        finally:
            self._free.release()


def connect_sealed(
    host: str, port: int, token: bytes, first: dict[str, Any], deadline_s: float, *, is_patient: bool = True
) -> SealedConnection:
    """Connect and say the first thing.

    Args:
        host: name or address of the listener.
        port: its port.
        token: the shared secret.
        first: what is said first.
        deadline_s: when to give up, by the monotonic clock.
        is_patient: try again while nobody listens; else who does not listen is gone.

    Raises:
        SealedError: nobody listened in time.
        NotSealedError: what listens is no pre-flight.
    """
    why = "nobody listens"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=left_s)
        except OSError as error:
            why = error.strerror or str(error)
            if not is_patient:
                break
            time.sleep(min(_TRY_AGAIN_S, left_s))
            continue
        try:
            _tune(connection)
            sealed = SealedConnection(connection, token, is_caller=True, timeout_s=min(left_s, _HANDSHAKE_S))
            sealed.send(first)
        except NotSealedError:
            connection.close()
            raise
        except SealedError as error:
            connection.close()
            why = str(error)
            time.sleep(min(_TRY_AGAIN_S, left_s))
            continue
        return sealed
    raise SealedError(f"{host}:{port}: {why}")


def read_exactly(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    """So many bytes.

    Args:
        connection: where from.
        size: how many.
        deadline_s: when to give up, by the monotonic clock.

    Raises:
        SealedError: the other end is gone, or they did not come in time.
    """
    data = bytearray()
    while len(data) < size:
        left_s = deadline_s - time.monotonic()
        try:
            connection.settimeout(max(0.001, left_s))
            chunk = connection.recv(min(size - len(data), 1 << 16)) if left_s > 0 else None
        except TimeoutError:
            chunk = None
        except OSError as error:
            raise SealedError(f"the other end is gone: {error.strerror or error}") from None
        if chunk is None:
            raise SealedError("the other end is silent")
        if not chunk:
            raise SealedError("the other end has hung up")
        data += chunk
    return bytes(data)


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that is gone without a word is noticed also where nothing is being sent.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

"""A ring all-reduce over TCP, timed: reduce-scatter and all-gather of bytes between the members of a group.

Its time is that of the slowest member or way, whoever measures. Guarantees: the sums are checked, so that a way that
changes bytes is told from a fast one; every wait is bounded. Standard sockets and one stream each way: it finds a node
that is far off the others, and says nothing of what RDMA between GPUs would reach.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Ring", "RingError", "Throttle", "all_reduce", "expected_sums", "measure", "own_words", "size_of"]

_PIECE_BYTES = 256 << 10
_THROTTLED_PIECE_BYTES = 16 << 10

Words = npt.NDArray[np.uint32]


class RingError(Exception):
    """A measurement that came to nothing; one line."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A member's place in a ring.

    Attributes:
        index: its place, from 0.
        size: how many members there are.
        to_next: a socket to the next one.
        from_previous: a socket from the one before.
    """

    index: int
    size: int
    to_next: socket.socket
    from_previous: socket.socket


class Throttle:
    """Holds sending to a rate, so that a drill has a slow node.

    Args:
        bytes_per_s: the rate.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def wait_s(self) -> float:
        """How long until the next byte may go."""
        return self._free_at_s - time.monotonic()

    def sent(self, count: int) -> None:
        """So many bytes have gone."""
        self._free_at_s = max(self._free_at_s, time.monotonic()) + count / self._bytes_per_s


def size_of(total_bytes: int, members: int) -> int:
    """How many 32-bit words a buffer has that divides among the members: about so many bytes."""
    return max(1, total_bytes // (4 * members)) * members


def own_words(index: int, words: int) -> Words:
    """What a member puts in: odd multiples of a ramp, so that a lost or doubled part changes the sum."""
    return np.arange(words, dtype=np.uint32) * np.uint32(2 * index + 1)


def expected_sums(members: int, words: int) -> Words:
    """What everybody has to come to: the sum of all odd multiples, modulo 2^32."""
    return np.arange(words, dtype=np.uint32) * np.uint32(members * members % (1 << 32))


def all_reduce(buffer: Words, ring: Ring, deadline_s: float, throttle: Throttle | None = None) -> None:
    """Replace the buffer by the sum of all members' buffers.

    Args:
        buffer: its length divides by the number of members.
        ring: this member's place.
        deadline_s: when to give up, by the monotonic clock.
        throttle: holds this member's sending.

    Raises:
        RingError: a neighbour is gone or the time is over.
    """
    chunks = buffer.reshape(ring.size, -1)
    scratch = np.empty_like(chunks[0])
    for step in range(ring.size - 1):
        taken = chunks[(ring.index - step - 1) % ring.size]
        _exchange(chunks[(ring.index - step) % ring.size], scratch, ring, deadline_s, throttle)
        taken += scratch
    for step in range(ring.size - 1):
        given = chunks[(ring.index + 1 - step) % ring.size]
        _exchange(given, chunks[(ring.index - step) % ring.size], ring, deadline_s, throttle)


def measure(
    ring: Ring,
    total_bytes: int,
    repeats: int,
    deadline_s: float,
    throttle: Throttle | None = None,
    clock_s: Callable[[], float] = time.perf_counter,
) -> float:
    """This member's bus bandwidth in GB/s: the median of some all-reduces, by the convention of nccl-tests.

    When half of the time is over those that were done count: a very slow member is slow, and not unknown.

    Args:
        ring: this member's place.
        total_bytes: about how large the buffer is.
        repeats: how many all-reduces are timed, at most.
        deadline_s: when to give up, by the monotonic clock.
        throttle: holds this member's sending.
        clock_s: measures.

    Raises:
        RingError: a neighbour is gone, the time is over, or the sums are wrong.
    """
    words = size_of(total_bytes, ring.size)
    expected = expected_sums(ring.size, words)
    share = 2 * (ring.size - 1) / ring.size * words * 4
    figures: list[float] = []
    half_s = (time.monotonic() + deadline_s) / 2
    for _ in range(repeats):
        buffer = own_words(ring.index, words)
        if _meet(ring, deadline_s, wants_end=bool(figures) and time.monotonic() > half_s):
            break
        begun_s = clock_s()
        all_reduce(buffer, ring, deadline_s, throttle)
        figures.append(share / max(clock_s() - begun_s, 1e-9) / 1e9)
        if not np.array_equal(buffer, expected):
            raise RingError("the sums are wrong: bytes were changed on the way or in memory")
    return median(figures)


def _meet(ring: Ring, deadline_s: float, *, wants_end: bool) -> bool:
    """Wait until all members are here, and tell whether any of them wants to end."""
    given = np.array([wants_end], dtype=np.uint8)
    is_end = wants_end
    for _ in range(ring.size - 1):
        came = np.zeros_like(given)
        _exchange(given, came, ring, deadline_s, None)
        is_end = is_end or bool(came[0])
        given = came  # what one member says goes round the ring
    return is_end


def _exchange(
    given: npt.NDArray[Any],
    taken: npt.NDArray[Any],
    ring: Ring,
    deadline_s: float,
    throttle: Throttle | None,
) -> None:
    """Send to the next and receive from the previous member, both at once."""
    out, into = given.data.cast("B"), taken.data.cast("B")
    ring.to_next.setblocking(False)
    ring.from_previous.setblocking(False)
    piece = _PIECE_BYTES if throttle is None else _THROTTLED_PIECE_BYTES
    while out or into:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise RingError("not done in time")
        held_s = throttle.wait_s() if throttle is not None and out else 0.0
        wait_s = min(left_s, held_s) if held_s > 0 else left_s
        can_read, can_write = _ready(ring, bool(into), bool(out) and held_s <= 0, wait_s)
        try:
            if can_read:
                count = ring.from_previous.recv_into(into)
                if not count:
                    raise RingError("a neighbour has hung up")
                into = into[count:]
            if can_write:
                count = ring.to_next.send(out[:piece])
                out = out[count:]
                if throttle is not None:
                    throttle.sent(count)
        except BlockingIOError:
            continue
        except OSError as error:
            raise RingError(f"a neighbour is gone: {error.strerror or error}") from None


def _ready(ring: Ring, wants_read: bool, wants_write: bool, timeout_s: float) -> tuple[bool, bool]:
    """Whether there is something to read, and room to write; by poll, which knows no highest descriptor."""
    poll = select.poll()
    if wants_read:
        poll.register(ring.from_previous, select.POLLIN)
    if wants_write:
        poll.register(ring.to_next, select.POLLOUT)
    ready = {descriptor for descriptor, _ in poll.poll(max(1, int(timeout_s * 1000)))}
    return ring.from_previous.fileno() in ready, ring.to_next.fileno() in ready

"""A lane without a disk: records wait in the client's queue, and what it cannot hold is lost and counted.

Bulk never waits and leaves a reserve of the queue to critical records. A critical record waits for room for a bounded
time, and is tried again from memory when its delivery fails. What is queued when the process dies is gone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from agents.dead_letters import DeadLetters
from agents.producer_link import LinkBusyError, MessageRefusedError, ProducerLink, Ticket
from agents.publisher_counters import LaneCounters, Tally
from agents.refusals import is_of_the_batch, is_of_the_topic
from schemas.codec import Message

__all__ = ["MemoryLane"]

_KEPT_FOR_RETRY = 1000
"""Critical messages kept when their delivery failed; a node has a few dozen an hour, a bad day a few hundred."""

_WAIT_STEP_S = 0.05


class MemoryLane:
    """Sends from memory; safe to use from several threads.

    Args:
        name: of the lane.
        link: to the brokers.
        queue_limit: messages in the client's queue at which the lane takes no more; None for as many as it holds.
        wait_s: how long a record waits for room.
        retries: whether a failed message is tried again.
        dead_letters: where refused records go; None only counts them.
        now_ns: wall time.
    """

    def __init__(
        self,
        name: str,
        link: ProducerLink,
        queue_limit: int | None,
        wait_s: float,
        retries: bool,
        dead_letters: DeadLetters | None,
        now_ns: Callable[[], int],
    ) -> None:
        self.tally = Tally()
        self.lock = threading.RLock()
        self._name = name
        self._link = link
        self._queue_limit = queue_limit
        self._wait_s = wait_s
        self._retries = retries
        self._dead_letters = dead_letters
        self._now_ns = now_ns
        self._in_flight: dict[Ticket, None] = {}
        self._again: deque[Ticket] = deque()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Messages that are neither delivered nor given up."""
        return len(self._in_flight) + len(self._again)

    def take(self, wires: Sequence[Message]) -> int:
        """Queue messages; how many were taken."""
        taken = 0
        for wire in wires:
            try:
                taken += self._take(Ticket(self, wire, self._now_ns()))
            except LinkBusyError:
                with self.lock:
                    self.tally.refuse(wire.topic, "queue_full")
        return taken

    def offer(self, wires: Sequence[Message]) -> int:
        """As `take`, up to the first that finds no room in time, which is not counted; how many are dealt with."""
        for dealt, wire in enumerate(wires):
            try:
                self._take(Ticket(self, wire, self._now_ns()))
            except LinkBusyError:
                return dealt
        return len(wires)

    def poll(self) -> None:
        """Try again what failed."""
        for _ in range(len(self._again)):
            try:
                ticket = self._again.popleft()
            except IndexError:
                return
            try:
                self._send(ticket)
            except LinkBusyError:
                self._again.appendleft(ticket)
                return
            except MessageRefusedError as refused:
                self._bury(ticket, refused.reason, str(refused))

    def keep_disk(self) -> None:
        """There is none."""

    def abandon(self, generation: int) -> None:
        """Nothing more will be reported of messages up to this generation of the client."""
        for ticket in [ticket for ticket in list(self._in_flight) if ticket.generation <= generation]:
            self.on_report(ticket, _NO_NEWS)

    def on_report(self, ticket: Ticket, error: Any) -> None:
        """Count a delivery; keep, bury or give up what was not delivered."""
        with self.lock:
            if ticket not in self._in_flight:
                return
            del self._in_flight[ticket]
            if error is None:
                self.tally.delivered[ticket.wire.topic] += 1
            elif is_of_the_topic(error) or is_of_the_batch(error):
                self._bury(ticket, error.name(), error.str())
            elif self._is_closed:
                self.tally.fail(ticket.wire.topic, "not_delivered")
            elif self._retries and len(self._again) < _KEPT_FOR_RETRY:
                self._again.append(ticket)
            else:
                self.tally.fail(ticket.wire.topic, "delivery_failed")

    def prepare_close(self) -> None:
        """What is not delivered from now on is lost."""
        with self.lock:
            self._is_closed = True
            for ticket in self._again:
                self.tally.fail(ticket.wire.topic, "not_delivered")
            self._again.clear()

    def counters(self) -> LaneCounters:
        """The counts now."""
        with self.lock:
            tally = self.tally
            return LaneCounters(
                tally.received,
                tally.delivered.total(),
                dict(tally.dropped),
                tally.dead_letters,
                self.waiting,
            )

    def _take(self, ticket: Ticket) -> bool:
        """Queue a message; False if it is a dead letter.

        Raises:
            LinkBusyError: there is no room, and there was none for as long as this lane waits.
        """
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._send_if_below_limit(ticket)
            except LinkBusyError:
                if time.monotonic() >= deadline:
                    raise
                self._link.poll(_WAIT_STEP_S)
            except MessageRefusedError as refused:
                with self.lock:
                    self._bury(ticket, refused.reason, str(refused), was_taken=False)
                return False
            else:
                return True

    def _send_if_below_limit(self, ticket: Ticket) -> None:
        if self._queue_limit is not None and len(self._link) >= self._queue_limit:
            raise LinkBusyError
        self._send(ticket)

    def _send(self, ticket: Ticket) -> None:
        with self.lock:
            self._link.send(ticket)
            self._in_flight[ticket] = None

    def _bury(self, ticket: Ticket, reason: str, text: str, was_taken: bool = True) -> None:
        count = self.tally.fail if was_taken else self.tally.refuse
        count(ticket.wire.topic, "refused")
        if self._dead_letters is not None and self._dead_letters.write(
            ticket.wire, self._name, ticket.arrival_ns, self._now_ns(), reason, text, sync=self._retries
        ):
            self.tally.dead_letters += 1


class _NoNews:
    """Stands for the error of a message that a client never reported."""

    def code(self) -> int:
        """None of Kafka's."""
        return 0


_NO_NEWS = _NoNews()

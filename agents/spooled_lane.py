"""A lane with a disk behind it: records are on the disk before they are sent, or go there when the brokers are away.

A lane that logs first (critical) writes and syncs every record before it counts as taken, and sends from the disk. Any
other sends from memory as long as the brokers answer; once its oldest message has been on its way for `patience_s`, or
memory is full, all that it holds goes to the disk in order, and what comes goes behind it until the disk is read out.
So a lane sends in the order of taking. A message leaves the disk when the brokers have confirmed it or refused it for
good; any other failure sends it and all that was not delivered again, in order, once nothing is on its way. Where the
disk does not take a record, memory holds it if there is room, until the disk takes it. It knows nothing of what a record means.

One message without an answer holds the lane back once `_LONGEST_SPAN` records behind it were sent: a lane's topics
share its fate when the leader of one partition is away for long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents.dead_letters import DeadLetters
from agents.producer_link import LinkBusyError, MessageRefusedError, ProducerLink, Ticket
from agents.publisher_counters import LaneCounters, Tally
from agents.refusals import is_of_the_batch, is_of_the_topic
from agents.spool_lane import SpoolFullError, SpoolLane
from schemas.codec import Message

__all__ = ["LaneLimits", "SpooledLane"]

_LONGEST_SPAN = 20_000
_KEPT_IN_MEMORY = 1000
"""Critical records that the disk did not take."""

_SAVE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What a lane may have on its way, and when it turns to the disk.

    Attributes:
        memory_messages: messages on their way at most, sent from memory.
        memory_bytes: size of that.
        replay_messages: messages on their way at most, sent from the disk.
        replay_bytes: size of that; one message may pass it.
        patience_s: how long the oldest may be on its way before the lane turns to the disk.
        sync_every_s: how often the disk is synced; 0 syncs before a record counts as taken, and sends from the disk.
    """

    memory_messages: int
    memory_bytes: int
    replay_messages: int
    replay_bytes: int
    patience_s: float
    sync_every_s: float


class _NoRoomError(Exception):
    """A record finds no room now; the text is a reason of `DROP_REASONS`."""


class SpooledLane:
    """Sends through the spool; safe to use from several threads.

    Args:
        name: of the lane.
        link: to the brokers.
        disk: the lane's part of the spool; this lane closes it.
        limits: bounds.
        dead_letters: where refused records go.
        now_ns: wall time.
    """

    def __init__(
        self,
        name: str,
        link: ProducerLink,
        disk: SpoolLane,
        limits: LaneLimits,
        dead_letters: DeadLetters,
        now_ns: Callable[[], int],
    ) -> None:
        self.tally = Tally()
        self.lock = threading.RLock()
        self._name = name
        self._link = link
        self._disk = disk
        self._limits = limits
        self._logs_first = limits.sync_every_s == 0
        self._dead_letters = dead_letters
        self._now_ns = now_ns
        self._in_flight: dict[Ticket, None] = {}
        """In the order of sending."""
        self._in_flight_bytes = 0
        self._in_flight_unlogged = 0
        """How many of them are not on the disk."""
        self._memory: deque[Ticket] = deque()
        self._alone: set[int] = set()
        """Numbers that are sent with nothing beside them, to learn which record of a batch was refused."""
        self._must_rewind = False
        self._is_closed = False
        self._saved_at_s = self._synced_at_s = time.monotonic()

    @property
    def waiting(self) -> int:
        """Records that are neither delivered nor given up."""
        with self.lock:
            return self._disk.pending + self._in_flight_unlogged + len(self._memory)

    # --- Taking ---------------------------------------------------------------------------------------------------

    def take(self, wires: Sequence[Message]) -> int:
        """Take messages in order; how many were taken. Returns once they are as safe as the lane makes them."""
        if self._logs_first:
            with self.lock:
                taken = sum(self._to_disk(Ticket(self, wire, self._now_ns())) for wire in wires)
            self._sync()
            self.poll()
            return taken
        with self.lock:
            return sum(self._send_or_keep(Ticket(self, wire, self._now_ns())) for wire in wires)

    def offer(self, wires: Sequence[Message]) -> int:
        """As `take`, up to the first that finds no room now, which is not counted; how many are dealt with.

        Only of a lane that logs first.
        """
        dealt = 0
        with self.lock:
            for wire in wires:
                try:
                    self._put(Ticket(self, wire, self._now_ns()))
                except _NoRoomError:
                    break
                dealt += 1
        self._sync()
        self.poll()
        return dealt

    def _send_or_keep(self, ticket: Ticket) -> bool:
        if self._is_direct() and not self._is_closed:
            try:
                self._send(ticket)
            except LinkBusyError:
                pass
            except MessageRefusedError as refused:
                self._bury(ticket, refused.reason, str(refused), was_taken=False)
                return False
            else:
                return True
        self._spill()
        return self._to_disk(ticket)

    def _is_direct(self) -> bool:
        if self._must_rewind or self._alone or self._disk.unread:
            return False
        limits = self._limits
        return (
            len(self._in_flight) < limits.memory_messages
            and self._in_flight_bytes < limits.memory_bytes
            and not self._is_stuck()
        )

    def _is_stuck(self) -> bool:
        oldest = next(iter(self._in_flight), None)
        return oldest is not None and time.monotonic() - oldest.sent_at_s >= self._limits.patience_s

    def _to_disk(self, ticket: Ticket) -> bool:
        try:
            return self._put(ticket)
        except _NoRoomError as reason:
            self.tally.refuse(ticket.wire.topic, str(reason))
            return False

    def _put(self, ticket: Ticket) -> bool:
        """Put a message on the disk, or into memory where the disk does not take it; False if it is a dead letter.

        Raises:
            _NoRoomError: neither takes it.
        """
        if self._is_closed:
            raise _NoRoomError("closed")
        try:
            self._disk.append(ticket.wire, ticket.arrival_ns)
        except SpoolFullError as error:
            self._link.say(f"spool {self._name}", f"spool: {error}")
            raise _NoRoomError("spool_full") from None
        except OSError as error:
            self._say_disk(error)
            if not self._logs_first or len(self._memory) >= _KEPT_IN_MEMORY:
                raise _NoRoomError("spool_error") from None
            self._memory.append(ticket)
        except ValueError as error:
            self._bury(ticket, "too_large", str(error), was_taken=False)
            return False
        return True

    def _spill(self) -> None:
        """Put on the disk what is on its way from memory, in order; its reports then count for the disk."""
        for ticket in self._in_flight if self._in_flight_unlogged else ():
            if ticket.number is None:
                try:
                    ticket.number = self._disk.append(ticket.wire, ticket.arrival_ns, is_out=True)
                except (OSError, SpoolFullError) as error:
                    self._say_disk(error)
                    return
                self._in_flight_unlogged -= 1

    # --- Sending --------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Turn to the disk if it is time, and send what can be sent."""
        with self.lock:
            if self._is_closed:
                return
            if not self._logs_first and self._is_stuck():
                self._spill()
            self._send_from_memory()
            self._send_from_disk()

    def keep_disk(self) -> None:
        """Sync, and write down what is settled, where it is time; waits for the disk."""
        now_s = time.monotonic()
        if now_s - self._saved_at_s >= _SAVE_EVERY_S:
            self._saved_at_s = now_s
            if self._logs_first:
                with self.lock:
                    self._spill()  # what the disk did not take may find room by now
            try:
                self._disk.save_position()
            except OSError as error:
                self._say_disk(error)
        if now_s - self._synced_at_s >= self._limits.sync_every_s:
            self._synced_at_s = now_s
            self._sync()

    def _send_from_memory(self) -> None:
        while self._memory:
            try:
                self._send(self._memory[0])
            except LinkBusyError:
                return
            except MessageRefusedError as refused:
                self._bury(self._memory[0], refused.reason, str(refused))
            self._memory.popleft()

    def _send_from_disk(self) -> None:
        if self._must_rewind:
            if self._in_flight:
                return
            self._disk.rewind()
            self._must_rewind = False
        while self._has_room():
            entry = self._disk.peek()
            if entry is None or entry.number - self._disk.floor > _LONGEST_SPAN:
                return
            is_alone = entry.number in self._alone
            if is_alone and self._in_flight:
                return
            ticket = Ticket(self, entry.message, entry.arrival_ns, entry.number, is_alone)
            try:
                self._send(ticket)
            except LinkBusyError:
                return
            except MessageRefusedError as refused:
                self._disk.next()
                self._bury(ticket, refused.reason, str(refused))
            else:
                self._disk.next()

    def _has_room(self) -> bool:
        return (
            len(self._in_flight) < self._limits.replay_messages
            and self._in_flight_bytes < self._limits.replay_bytes
            and not (self._in_flight and next(iter(self._in_flight)).is_alone)
        )

    def _send(self, ticket: Ticket) -> None:
        self._link.send(ticket)
        self._in_flight[ticket] = None
        self._in_flight_bytes += ticket.size
        self._in_flight_unlogged += ticket.number is None

    # --- What became of it ----------------------------------------------------------------------------------------

    def on_report(self, ticket: Ticket, error: Any) -> None:
        """Forget what was delivered or refused for good; send again what was not."""
        with self.lock:
            if ticket not in self._in_flight:
                return
            if error is None:
                self._let_go(ticket)
                self.tally.delivered[ticket.wire.topic] += 1
                if ticket.number is not None:
                    self._settle(ticket.number)
            elif is_of_the_topic(error) or (is_of_the_batch(error) and ticket.is_alone):
                self._let_go(ticket)
                self._bury(ticket, error.name(), error.str())
            else:
                self._fail(ticket, is_of_the_batch(error))

    def abandon(self, generation: int) -> None:
        """Nothing more will be reported of messages up to this generation of the client."""
        with self.lock:
            for ticket in [ticket for ticket in self._in_flight if ticket.generation <= generation]:
                if ticket in self._in_flight:
                    self._fail(ticket, is_suspect=False)

    def _fail(self, ticket: Ticket, is_suspect: bool) -> None:
        if ticket.number is None and not self._is_closed:
            self._spill()
        self._let_go(ticket)
        if ticket.number is None:
            if self._is_closed or not self._logs_first or len(self._memory) >= _KEPT_IN_MEMORY:
                self.tally.fail(ticket.wire.topic, "not_delivered" if self._is_closed else "spool_error")
            else:
                self._memory.append(ticket)
            return
        if is_suspect:
            self._alone.add(ticket.number)
        if self._disk.holds(ticket.number):
            self._must_rewind = True
        else:  # its segment had to make room while it was on its way
            self.tally.fail(ticket.wire.topic, "spool_full")

    def _let_go(self, ticket: Ticket) -> None:
        del self._in_flight[ticket]
        self._in_flight_bytes -= ticket.size
        self._in_flight_unlogged -= ticket.number is None

    def _bury(self, ticket: Ticket, reason: str, text: str, was_taken: bool = True) -> None:
        count = self.tally.fail if was_taken else self.tally.refuse
        count(ticket.wire.topic, "refused")
        now_ns = self._now_ns()
        if self._dead_letters.write(
            ticket.wire, self._name, ticket.arrival_ns, now_ns, reason, text, sync=self._logs_first
        ):
            self.tally.dead_letters += 1
        if ticket.number is not None:
            self._settle(ticket.number)

    def _settle(self, number: int) -> None:
        self._alone.discard(number)
        self._disk.settle(number)

    # --- The disk -------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        try:
            self._disk.sync()
        except OSError as error:
            self._say_disk(error)

    def _say_disk(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        self._link.say(f"spool {self._name} {reason}", f"the {self._name} spool: {reason}")

    # --- The end --------------------------------------------------------------------------------------------------

    def prepare_close(self) -> None:
        """Put what is not delivered on the disk; from now on nothing is sent."""
        with self.lock:
            if self._is_closed:
                return
            self._spill()
            while self._memory:
                try:
                    self._disk.append(self._memory[0].wire, self._memory[0].arrival_ns)
                except (OSError, SpoolFullError) as error:
                    self._say_disk(error)
                    break
                self._memory.popleft()
            for ticket in self._memory:
                self.tally.fail(ticket.wire.topic, "not_delivered")
            self._memory.clear()
            self._is_closed = True

    def counters(self) -> LaneCounters:
        """The counts now."""
        with self.lock:
            disk, tally = self._disk, self.tally
            dropped = dict(tally.dropped)
            for reason, count in (("spool_full", disk.dropped_records), ("corrupt", disk.corrupt_records)):
                if count:
                    dropped[reason] = dropped.get(reason, 0) + count
            oldest_ns = disk.oldest_arrival_ns() if disk.pending else None
            return LaneCounters(
                tally.received,
                tally.delivered.total(),
                dropped,
                tally.dead_letters,
                len(self._in_flight) + len(self._memory),
                disk.pending,
                disk.size_bytes,
                0.0 if oldest_ns is None else max(0.0, (self._now_ns() - oldest_ns) / 1e9),
                disk.corrupt_segments,
            )

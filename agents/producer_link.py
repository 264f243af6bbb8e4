"""The idempotent producer behind the lanes: takes single messages, reports each one's fate, and is replaced when it fails.

Guarantees: every message that was taken is reported once, to the lane it came from, from within `poll`, `flush`,
`replace` or `close`; the same trouble is logged once until something is delivered. It keeps nothing and tries nothing
again: what a report means is the lane's business. Safe to use from several threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from agents.publisher_settings import PublisherSettings, PublisherSettingsError
from agents.refusals import is_of_the_batch, is_of_the_topic
from schemas.codec import Message

__all__ = ["Lane", "LinkBusyError", "MessageRefusedError", "ProducerLink", "Ticket", "refused_settings"]

_LOG = logging.getLogger(__name__)

_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What this link does to a client that it lets go of."""

_REPLACE_EVERY_S = 5.0
"""A client that is refused by the cluster fails again at once; a new one costs threads and connections."""


class LinkBusyError(Exception):
    """No room, or no client that works: try again later."""


class MessageRefusedError(Exception):
    """The client will never take this message.

    Attributes:
        reason: Kafka's name of the error.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Lane(Protocol):
    """Whom a message's fate is told."""

    def on_report(self, ticket: Ticket, error: Any) -> None:
        """The message was delivered (`error` is None) or not; tickets that the lane does not know are no news."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """A message on its way.

    Attributes:
        lane: whom to tell.
        wire: the message.
        arrival_ns: wall time at which the agent took it.
        number: its number in the spool; None if it is in memory alone.
        is_alone: whether nothing else of its lane was on its way, so that a refusal is about this message.
        sent_at_s: monotonic time at which the client took it.
        generation: of the client.
    """

    lane: Lane
    wire: Message
    arrival_ns: int
    number: int | None = None
    is_alone: bool = False
    sent_at_s: float = 0.0
    generation: int = 0

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.wire.value) + len(self.wire.key) + 64


class ProducerLink:
    """Hands messages to a Kafka client.

    Args:
        settings: brokers and bounds.
        is_spooled: whether the lanes keep messages until they are delivered.
        stamp: milliseconds for each message at each sending; None leaves them to client and broker.
        producer_class: makes the client.

    Raises:
        PublisherSettingsError: the client refuses the settings.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        is_spooled: bool,
        stamp: Callable[[], int] | None,
        producer_class: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.generation = 0
        self._config = settings.producer_config(is_spooled)
        self._stamp = stamp
        self._producer_class = producer_class
        self._lock = threading.Lock()
        self._is_dead = False
        self._replaced_at_s = float("-inf")
        self._said: set[str] = set()
        """Kinds of trouble since the last delivery."""
        self._producer = self._new_producer(self.generation)

    def __len__(self) -> int:
        """Messages that the client holds."""
        return len(self._producer)

    def send(self, ticket: Ticket) -> None:
        """Hand a message to the client.

        Raises:
            LinkBusyError: not now.
            MessageRefusedError: never.
        """
        if self._is_dead:
            raise LinkBusyError
        ticket.generation, ticket.sent_at_s = self.generation, time.monotonic()
        wire = ticket.wire
        named: dict[str, Any] = {} if self._stamp is None else {"timestamp": self._stamp()}
        try:
            self._producer.produce(
                wire.topic,
                key=wire.key,
                value=wire.value,
                headers=list(wire.headers),
                on_delivery=lambda error, _: self._report(ticket, error),
                **named,
            )
        except BufferError:
            raise LinkBusyError from None
        except KafkaException as error:
            reason = error.args[0]
            self.say(
                f"produce {wire.topic}", f"kafka: {wire.topic}: {reason.str() if hasattr(reason, 'str') else error}"
            )
            if hasattr(reason, "code") and (is_of_the_topic(reason) or is_of_the_batch(reason)):
                raise MessageRefusedError(reason.name(), reason.str()) from None
            raise LinkBusyError from None

    def poll(self, wait_s: float = 0.0) -> None:
        """Let reports in."""
        self._producer.poll(wait_s)

    def flush(self, timeout_s: float) -> None:
        """Send without waiting for batches to fill, and let reports in."""
        self._producer.flush(timeout_s)

    @property
    def must_be_replaced(self) -> bool:
        """Whether the client has failed for good and it is time for another."""
        return self._is_dead and time.monotonic() - self._replaced_at_s >= _REPLACE_EVERY_S

    def replace(self) -> int:
        """Let another client take over; messages of the old one are reported as failed.

        Returns:
            The generation up to which nothing more will be reported.
        """
        # An idempotent producer that lost count of its sequence numbers never sends again.
        with self._lock:
            old_generation = self.generation
            if not self._is_dead:
                return old_generation - 1
            self._replaced_at_s = time.monotonic()
            old, self._producer = self._producer, self._new_producer(old_generation + 1)
            self.generation = old_generation + 1
            self._is_dead = False
        old.purge()
        old.poll(0)
        return old_generation

    def close(self) -> None:
        """End the client; what it holds is reported as failed."""
        self._producer.purge()  # or the client would wait for the brokers once more
        self._producer.poll(0)
        close = getattr(self._producer, "close", None)  # older clients end when they are forgotten
        if close is not None:
            close()

    def say(self, kind: str, text: str) -> None:
        """Log trouble, unless its kind was logged since the last delivery."""
        with self._lock:  # brokers that are away say the same few things for hours
            is_new = kind not in self._said
            self._said.add(kind)
        if is_new:
            _LOG.warning("%s", text)

    def _report(self, ticket: Ticket, error: Any) -> None:
        if error is None:
            if self._said:
                with self._lock:
                    self._said.clear()
        elif error.code() not in _PURGED:
            self.say(f"{error.name()} {ticket.wire.topic}", f"kafka: {ticket.wire.topic}: {error.str()}")
        ticket.lane.on_report(ticket, error)

    def _on_error(self, error: Any, generation: int) -> None:
        if error.fatal() and generation == self.generation:
            self._is_dead = True
        self.say(str(error.name()), f"kafka: {error.str()}")

    def _new_producer(self, generation: int) -> Any:
        try:
            return self._producer_class({**self._config, "error_cb": lambda error: self._on_error(error, generation)})
        except (KafkaException, TypeError) as error:
            raise PublisherSettingsError(refused_settings(error)) from None


def refused_settings(error: Exception) -> str:
    """What a client said of its settings, in one line."""
    reason = error.args[0] if error.args else error
    text = reason.str() if hasattr(reason, "str") else str(reason)
    return f"the Kafka client refuses its settings: {' '.join(text.split())}"

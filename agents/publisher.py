"""The agent's way to Kafka: a bounded queue in front of an idempotent producer, with two classes of records.

Guarantees: keys meet the same partitions as those of every other client (murmur2); `publish` of bulk records never
waits; critical records (kernel events, node status) find a reserve in the queue that bulk cannot take, wait for room
for a bounded time when even that is full, and are tried again from memory when their delivery fails. Every record that
is given up is counted. There is no disk behind it: what is queued when the process dies is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import KafkaException, Producer

from schemas.base import Record
from schemas.codec import Message, message
from schemas.errors import SchemaError
from schemas.events import KernelEvent, NodeStatus

__all__ = ["CRITICAL", "KafkaPublisher", "Publisher", "PublisherSettings", "PublisherSettingsError"]

_LOG = logging.getLogger(__name__)

CRITICAL: tuple[type[Record], ...] = (KernelEvent, NodeStatus)
"""Record families that are never dropped for others."""

_KEPT_FOR_RETRY = 1000
"""Critical messages kept when their delivery failed; a node has a few dozen an hour, a bad day a few hundred."""

_WAIT_STEP_S = 0.05

_FIXED = {
    "enable.idempotence": True,
    "acks": "all",
    # librdkafka's own default hashes keys in another way than the Java client and aiokafka.
    "partitioner": "murmur2_random",
    "allow.auto.create.topics": False,
}
"""What correctness rests on; not open to configuration."""


_ALIASES = {"request.required.acks": "acks"}


class PublisherSettingsError(ValueError):
    """A producer property that may not be set, or a value that the client refuses; the text says which."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """How to reach the brokers and how much to hold in memory.

    Attributes:
        bootstrap_servers: `host:port`, comma separated.
        client_id: who this is, for the brokers' logs and quotas.
        queue_messages: messages in the queue at most.
        queue_kbytes: size of the queue at most.
        reserve_messages: how much of the queue is for critical records alone.
        linger_ms: how long a batch waits to fill.
        delivery_timeout_ms: how long a message is tried; bulk is given up then.
        critical_wait_s: how long a critical record waits for room in a full queue.
        properties: further producer properties, as for TLS and SASL.
    """

    bootstrap_servers: str
    client_id: str = "paceline-agent"
    queue_messages: int = 20_000
    queue_kbytes: int = 65_536
    reserve_messages: int = 2_000
    linger_ms: int = 50
    delivery_timeout_ms: int = 30_000
    critical_wait_s: float = 5.0
    properties: Mapping[str, str] = field(default_factory=dict)

    def producer_config(self) -> dict[str, Any]:
        """The properties of the producer.

        Raises:
            PublisherSettingsError: `properties` holds one that is not open to configuration.
        """
        taken = sorted(name for name in self.properties if _ALIASES.get(name, name) in _FIXED)
        if taken:
            fixed = _FIXED[_ALIASES.get(taken[0], taken[0])]
            raise PublisherSettingsError(f"{taken[0]} cannot be set: delivery rests on its being {fixed!r}")
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "linger.ms": self.linger_ms,
            "batch.size": 262_144,
            "compression.type": "zstd",
            "queue.buffering.max.messages": self.queue_messages,
            "queue.buffering.max.kbytes": self.queue_kbytes,
            "delivery.timeout.ms": self.delivery_timeout_ms,
            "reconnect.backoff.max.ms": 10_000,
            "socket.keepalive.enable": True,
            # What the client has to say comes through its error callback, once; its own log repeats it ten times a
            # second on standard error.
            "log_level": 2,
            **self.properties,
            **_FIXED,
        }


class Publisher(Protocol):
    """Where an agent's records go."""

    def publish(self, record: Record) -> bool:
        """Take a record for delivery; False if it was dropped."""
        ...

    def poll(self) -> None:
        """Let delivery reports in; costs nothing where there are none."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait until all is delivered or the time is over; how many messages are not."""
        ...

    def close(self) -> None:
        """Let go of what is not delivered."""
        ...

    @property
    def dropped(self) -> int:
        """Records that were given up so far."""
        ...


class KafkaPublisher:
    """Publishes records; safe to use from several threads.

    Args:
        settings: brokers and bounds.
        stamp: arrival time in milliseconds for each message, for brokers that keep the producer's time; None leaves
            it to the client, which stamps the moment of the call, and to brokers with `LogAppendTime`.
        producer_class: makes the client; for tests.

    Raises:
        PublisherSettingsError: the client refuses the settings.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        stamp: Callable[[], int] | None = None,
        producer_class: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._settings = settings
        self._stamp = stamp
        self._producer_class = producer_class
        self._bulk_limit = max(1, settings.queue_messages - settings.reserve_messages)
        self._lock = threading.Lock()
        self._delivered: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._again: deque[Message] = deque()
        self._is_dead = False
        self._is_closed = False
        self._said: set[str] = set()
        """Kinds of trouble since the last delivery."""
        self._producer = self._new_producer()

    @property
    def dropped(self) -> int:
        """Records that were given up so far: refused at a full queue, invalid, or not delivered."""
        with self._lock:
            return self._refused.total() + self._failed.total()

    @property
    def delivered(self) -> dict[str, int]:
        """Messages confirmed by the brokers, by topic."""
        with self._lock:
            return dict(self._delivered)

    @property
    def failed(self) -> dict[str, int]:
        """Messages whose delivery failed and that were given up, by topic."""
        with self._lock:
            return dict(self._failed)

    @property
    def refused(self) -> dict[str, int]:
        """Records that were never queued, by topic."""
        with self._lock:
            return dict(self._refused)

    def publish(self, record: Record) -> bool:
        """Queue a record; False if it was dropped, which is counted.

        Bulk never waits. A critical record waits up to `critical_wait_s` for room.
        """
        try:
            wire = message(record)
        except SchemaError as error:
            self._trouble(type(record).__name__, f"{type(record).__name__} cannot be sent: {error}")
            self._count(self._refused, type(record).__name__)
            return False
        critical = isinstance(record, CRITICAL)
        if self._is_closed:
            self._count(self._refused, wire.topic)
            return False
        self.poll()
        accepted = self._queue(wire, critical, self._settings.critical_wait_s if critical else 0.0)
        if not accepted:
            self._count(self._refused, wire.topic)
        return accepted

    def poll(self) -> None:
        """Let delivery reports in, replace a client that has failed for good, and try critical messages again."""
        self._producer.poll(0)
        if self._is_dead:
            self._replace_producer()
        for _ in range(len(self._again)):
            try:
                wire = self._again.popleft()
            except IndexError:
                return
            if not self._queue(wire, critical=True, wait_s=0.0):
                self._again.appendleft(wire)
                return

    def flush(self, timeout_s: float) -> int:
        """Wait until all is delivered or the time is over; how many messages are not."""
        self.poll()
        return int(self._producer.flush(timeout_s)) + len(self._again)

    def close(self) -> None:
        """Drop what is queued and end the client; call `flush` before."""
        self._is_closed = True
        self._producer.purge()  # or the client would wait for the brokers once more
        self._producer.poll(0)
        close = getattr(self._producer, "close", None)  # older clients end when they are forgotten
        if close is not None:
            close()

    def _queue(self, wire: Message, critical: bool, wait_s: float) -> bool:
        if not critical and len(self._producer) >= self._bulk_limit:
            return False
        deadline = time.monotonic() + wait_s
        while True:
            try:
                self._produce(wire, critical)
            except BufferError:
                if time.monotonic() >= deadline:
                    return False
                self._producer.poll(_WAIT_STEP_S)
            except KafkaException as error:
                self._trouble(f"produce {wire.topic}", f"{wire.topic}: {error}")
                return False
            else:
                return True

    def _produce(self, wire: Message, critical: bool) -> None:
        named: dict[str, Any] = {} if self._stamp is None else {"timestamp": self._stamp()}
        self._producer.produce(
            wire.topic,
            key=wire.key,
            value=wire.value,
            headers=list(wire.headers),
            on_delivery=lambda error, _: self._on_delivery(wire, critical, error),
            **named,
        )

    def _on_delivery(self, wire: Message, critical: bool, error: Any) -> None:
        if error is None:
            with self._lock:
                self._delivered[wire.topic] += 1
                self._said.clear()
            return
        self._trouble(f"{error.name()} {wire.topic}", f"{wire.topic}: {error.str()}")
        if critical and len(self._again) < _KEPT_FOR_RETRY:
            self._again.append(wire)
        else:
            self._count(self._failed, wire.topic)

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._is_dead = True
        self._trouble(str(error.name()), error.str())

    def _new_producer(self) -> Any:
        try:
            return self._producer_class({**self._settings.producer_config(), "error_cb": self._on_error})
        except (KafkaException, TypeError) as error:
            reason = error.args[0] if error.args else error
            text = reason.str() if hasattr(reason, "str") else str(reason)
            raise PublisherSettingsError(f"the Kafka client refuses its settings: {text}") from None

    def _replace_producer(self) -> None:
        # An idempotent producer that lost count of its sequence numbers never sends again.
        with self._lock:
            if not self._is_dead:
                return
            self._is_dead = False
            old, self._producer = self._producer, self._new_producer()
        old.purge()
        old.poll(0)

    def _count(self, counter: Counter[str], topic: str) -> None:
        with self._lock:
            counter[topic] += 1

    def _trouble(self, kind: str, text: str) -> None:
        with self._lock:  # brokers that are away say the same few things for hours
            is_new = kind not in self._said
            self._said.add(kind)
        if is_new:
            _LOG.warning("kafka: %s", text)

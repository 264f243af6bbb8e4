"""How a publisher reaches the brokers and how much it holds: its settings, and the producer properties they make.

What delivery rests on is fixed and cannot be configured away. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.spool_policy import SpoolSettings

__all__ = ["PublisherSettings", "PublisherSettingsError"]

_FIXED = {
    "enable.idempotence": True,
    "acks": "all",
    # librdkafka's own default hashes keys in another way than the Java client and aiokafka.
    "partitioner": "murmur2_random",
    "allow.auto.create.topics": False,
}
"""What correctness rests on; not open to configuration."""

_ALIASES = {"request.required.acks": "acks"}

_WITHOUT_END = 0
"""Of `delivery.timeout.ms`. A message that the client gives up by itself is sent behind those that followed it."""


class PublisherSettingsError(ValueError):
    """A producer property that may not be set, or a value that the client refuses; the text says which."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """How to reach the brokers, and how much to hold in memory and on the disk.

    Attributes:
        bootstrap_servers: `host:port`, comma separated.
        client_id: who this is, for the brokers' logs and quotas.
        queue_messages: messages in the queue at most.
        queue_kbytes: size of the queue at most.
        reserve_messages: how much of the queue is for critical records alone.
        linger_ms: how long a batch waits to fill.
        delivery_timeout_ms: how long a message is tried without a spool; bulk is given up then.
        critical_wait_s: how long a critical record waits for room in a full queue without a spool.
        properties: further producer properties, as for TLS and SASL.
        spool: the disk spool; None works from memory alone.
        spool_after_s: how long the oldest bulk message may be on its way before bulk goes to the disk.
        replay_messages: messages of a lane that are on their way at once when they come from the disk.
        replay_kbytes: size of that at most; one message may pass it.
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
    spool: SpoolSettings | None = None
    spool_after_s: float = 5.0
    replay_messages: int = 1_000
    replay_kbytes: int = 8_192

    def producer_config(self, is_spooled: bool = False) -> dict[str, Any]:
        """The properties of the producer.

        Args:
            is_spooled: whether messages lie in a spool until they are delivered, so that none is given up.

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
            # The client counts key, headers and framing too, and its default is the codec's limit for the value alone.
            "message.max.bytes": 1_048_588,
            "queue.buffering.max.messages": self.queue_messages,
            "queue.buffering.max.kbytes": self.queue_kbytes,
            "delivery.timeout.ms": _WITHOUT_END if is_spooled else self.delivery_timeout_ms,
            "reconnect.backoff.max.ms": 10_000,
            "socket.keepalive.enable": True,
            # What the client has to say comes through its error callback, once; its own log repeats it ten times a
            # second on standard error.
            "log_level": 2,
            **self.properties,
            **_FIXED,
        }

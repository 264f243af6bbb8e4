"""Runs an actuator on Kafka: commands in, acts, results out.

A message is committed once it is in the actuator's memory or came to nothing, and results leave the memory when brokers have
confirmed them: an end at any moment, of this process or of the brokers, loses none of either. One actuator of a name
runs at a time; a second one with its own memory would not know what this one did.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer

from schemas.codec import message
from schemas.findings import Evidence
from schemas.remediation import Command
from schemas.topics import topic_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError, Message

    from agents.actuators.actuator import Actuator
    from agents.actuators.memory import ActuatorMemory
    from agents.actuators.policy_feed import PolicyFeed

__all__ = ["KafkaOutlet", "Outlet", "SpokenOutlet", "run_actuator"]

_LOG = logging.getLogger(__name__)
_ACTIONS = topic_of(Command).name
_POLL_S = 0.5
_CONFIRM_S = 10.0


class Outlet(Protocol):
    """Where results go."""

    def send_all(self) -> None:
        """Send what is in the memory's outbox, and take out what arrived."""
        ...


class KafkaOutlet:
    """Publishes results.

    Args:
        producer_config: of the client, as `PublisherSettings.producer_config` makes it.
        memory: whose outbox is sent.
    """

    def __init__(self, producer_config: Mapping[str, Any], memory: ActuatorMemory) -> None:
        self._producer = Producer(dict(producer_config))
        self._memory = memory

    def send_all(self) -> None:
        """Send what is in the outbox; what brokers do not confirm in ten seconds stays in it."""
        arrived: list[int] = []

        def told(number: int) -> Callable[[KafkaError | None, Message], None]:
            return lambda error, _: arrived.append(number) if error is None else None

        for number, result in self._memory.outbox():
            wire = message(result)
            self._producer.produce(
                wire.topic, key=wire.key, value=wire.value, headers=list(wire.headers), on_delivery=told(number)
            )
        if self._producer.flush(_CONFIRM_S):
            _LOG.warning("results wait for the brokers")
            self._producer.purge()
            self._producer.flush(_CONFIRM_S)
        for number in arrived:
            self._memory.sent(number)


class SpokenOutlet:
    """Says results, a line of JSON each, and publishes nothing.

    Args:
        say: takes a line.
        memory: whose outbox it is.
    """

    def __init__(self, say: Callable[[str], object], memory: ActuatorMemory) -> None:
        self._say, self._memory = say, memory

    def send_all(self) -> None:
        """Say what is in the outbox, but for what would be done: that was said."""
        for number, result in self._memory.outbox():
            if result.outcome != "applied":
                self._say(result.model_dump_json(exclude_none=True))
            self._memory.sent(number)


def run_actuator(
    client: Mapping[str, Any],
    actuator_id: str,
    actuator: Actuator,
    outlet: Outlet,
    feed: PolicyFeed,
    stopped: threading.Event,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Feed an actuator until told to stop.

    Args:
        client: properties of the Kafka client.
        actuator_id: name of its consumer group, and of this one member of it.
        actuator: what is fed.
        outlet: where results go.
        feed: the policy, already read.
        stopped: ends the loop between two messages.
        on_ready: called once partitions are assigned.

    Raises:
        KafkaException: the brokers will not have this client any more, as when another of its name came.
        ActuatorMemoryError: the memory cannot be written.
    """
    actuator.resume()
    outlet.send_all()
    consumer = Consumer(
        {
            **client,
            "group.id": f"paceline-act-{actuator_id}",
            "group.instance.id": actuator_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Looking and acting may each wait for a controller that is away.
            "max.poll.interval.ms": 900_000,
            "session.timeout.ms": 30_000,
        }
    )

    def assigned(*_: object) -> None:
        on_ready()

    try:
        consumer.subscribe([_ACTIONS], on_assign=assigned)
        while not stopped.is_set():
            got = consumer.poll(_POLL_S)
            feed.read()
            if got is None:
                outlet.send_all()
                continue
            error = got.error()
            if error is not None:
                if error.fatal():
                    raise KafkaException(error)
                _LOG.warning("%s: %s", _ACTIONS, error.str())
                continue
            place = Evidence(topic=_ACTIONS, partition=got.partition() or 0, offset=got.offset() or 0)
            actuator.on_message(got.value(), _headers(got), place)
            outlet.send_all()
            try:
                consumer.commit(message=got, asynchronous=False)
            except KafkaException as trouble:
                # It is delivered again, and known then.
                _LOG.warning("commit of %s: %s", place.offset, trouble.args[0].str())
    finally:
        consumer.close()


def _headers(got: Message) -> list[tuple[str, bytes | None]]:
    """A message's headers in their order, values as bytes."""
    found = got.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]

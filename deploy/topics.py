"""Makes the topics of the topic table, or says how they differ. The workers make none.

All topics of roles that are read together get one partition count, because the Faust assignor keeps topics together only
then. On a broker without an admin API (the embedded one) topics come into being when they are first asked for, with the
broker's own partition count.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from schemas.kafka_answers import answer
from schemas.topics import SNAPSHOT_CHANGELOGS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.topics import Topic

__all__ = ["TopicDrift", "TopicSetupError", "apply_topics", "check_topics"]

_TIMEOUT_S = 20.0


class TopicSetupError(Exception):
    """The broker does not answer, or refuses a topic; the text says which."""


@dataclass(frozen=True, slots=True)
class TopicDrift:
    """One difference between the table and the broker."""

    topic: str
    what: str


def _wanted() -> dict[str, dict[str, str]]:
    """Configuration by topic name: the table's topics, and the changelogs of the workers' state."""
    wanted = {topic.name: _config(topic) for topic in TOPICS}
    for name in SNAPSHOT_CHANGELOGS:
        wanted[name] = {
            # Compacted and never deleted: a changelog that retention emptied cannot be recovered from.
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "max.message.bytes": "1048588",
            # Small segments let compaction keep what a restart has to read small.
            "segment.bytes": str(32 * 1024 * 1024),
            "segment.ms": "600000",
            "min.cleanable.dirty.ratio": "0.2",
        }
    return wanted


def _config(topic: Topic) -> dict[str, str]:
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_ms),
        "compression.type": "producer",
        # Kafka's own default; original bytes come back with headers around them, perhaps packed less well.
        "max.message.bytes": "1048588" if topic.records else "2097176",
    }
    if topic.role in {"telemetry", "jobs", "reference"}:
        # Event time is in the payload; the append time is what a record's event time is judged by.
        config["message.timestamp.type"] = "LogAppendTime"
    return config


def apply_topics(bootstrap_servers: str, partitions: int, replication: int, has_admin: bool = True) -> list[str]:
    """Make the topics that are missing.

    Args:
        bootstrap_servers: the brokers.
        partitions: partition count of every topic. It cannot be changed later without moving keys.
        replication: replication factor.
        has_admin: false for a broker that makes topics by itself.

    Returns:
        Names of the topics that were made.

    Raises:
        TopicSetupError: the broker does not answer or refuses.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    try:
        existing = set(admin.list_topics(timeout=_TIMEOUT_S).topics)
        missing = {name: config for name, config in _wanted().items() if name not in existing}
        if has_admin and missing:
            asked = [
                NewTopic(name, num_partitions=partitions, replication_factor=replication, config=config)
                for name, config in missing.items()
            ]
            for name, future in admin.create_topics(asked, request_timeout=_TIMEOUT_S).items():
                try:
                    future.result(timeout=_TIMEOUT_S)
                except KafkaException as error:
                    raise TopicSetupError(f"{name}: {error.args[0].str()}") from None
            _wait_led(bootstrap_servers, [TopicPartition(name, n, 0) for name in missing for n in range(partitions)])
        elif not has_admin:
            for name in missing:
                _ask_for(admin, name)
    except KafkaException as error:
        raise TopicSetupError(f"{bootstrap_servers}: {error.args[0].str()}") from None
    return list(missing)


def _wait_led(bootstrap_servers: str, places: list[TopicPartition]) -> None:
    """Until every partition has a leader that answers: a broker makes a topic known before it leads its partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "paceline-topics"})

    def ask() -> None:
        for place in consumer.offsets_for_times(places, timeout=_TIMEOUT_S):
            if place.error is not None:
                raise KafkaException(place.error)

    with closing(consumer):
        answer(consumer, ask, _TIMEOUT_S)


def _ask_for(admin: AdminClient, name: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        described = admin.list_topics(name, timeout=_TIMEOUT_S).topics[name]
        if described.error is None and described.partitions:
            return
        time.sleep(0.05)
    raise TopicSetupError(f"{name}: the broker did not make it within {_TIMEOUT_S:.0f} s")


def check_topics(bootstrap_servers: str) -> list[TopicDrift]:
    """How the broker's topics differ from the table; empty when they agree.

    Raises:
        TopicSetupError: the broker does not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    try:
        existing = admin.list_topics(timeout=_TIMEOUT_S).topics
        wanted = _wanted()
        drift = [TopicDrift(name, "is missing") for name in wanted if name not in existing]
        counts = {name: len(existing[name].partitions) for name in wanted if name in existing}
        usual = max(set(counts.values()), key=list(counts.values()).count, default=0)
        drift += [TopicDrift(n, f"has {c} partitions, the others {usual}") for n, c in counts.items() if c != usual]
        drift += _config_drift(admin, {name: wanted[name] for name in counts})
    except KafkaException as error:
        raise TopicSetupError(f"{bootstrap_servers}: {error.args[0].str()}") from None
    return drift


def _config_drift(admin: AdminClient, wanted: Mapping[str, dict[str, str]]) -> list[TopicDrift]:
    if not wanted:
        return []
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    drift = []
    for resource, future in admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
        try:
            actual = future.result(timeout=_TIMEOUT_S)
        except TimeoutError:
            raise TopicSetupError(f"{resource.name}: the broker does not tell its settings") from None
        for name, value in wanted[resource.name].items():
            if name in actual and actual[name].value != value:
                drift.append(TopicDrift(resource.name, f"{name} is {actual[name].value}, the table says {value}"))
    return drift

"""Makes the topics of the topic table, or says how they differ. The workers make none.

All topics of roles that are read together get one partition count, because the Faust assignor keeps topics together only
then. On a broker without an admin API (the embedded one) topics come into being when they are first asked for, with the
broker's own partition count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from schemas.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def _config(topic: Topic) -> dict[str, str]:
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_ms),
        "compression.type": "producer",
        "max.message.bytes": "1048588",
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
        missing = [topic for topic in TOPICS if topic.name not in existing]
        if not has_admin:
            for topic in missing:
                _ask_for(admin, topic.name)
            return [topic.name for topic in missing]
        made = (
            admin.create_topics(
                [
                    NewTopic(
                        topic.name, num_partitions=partitions, replication_factor=replication, config=_config(topic)
                    )
                    for topic in missing
                ],
                request_timeout=_TIMEOUT_S,
            )
            if missing
            else {}
        )
        for name, future in made.items():
            try:
                future.result(timeout=_TIMEOUT_S)
            except KafkaException as error:
                raise TopicSetupError(f"{name}: {error.args[0].str()}") from None
    except KafkaException as error:
        raise TopicSetupError(f"{bootstrap_servers}: {error.args[0].str()}") from None
    return [topic.name for topic in missing]


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
        drift = [TopicDrift(topic.name, "is missing") for topic in TOPICS if topic.name not in existing]
        present = [topic for topic in TOPICS if topic.name in existing]
        counts = {topic.name: len(existing[topic.name].partitions) for topic in present}
        usual = max(set(counts.values()), key=list(counts.values()).count, default=0)
        drift += [TopicDrift(n, f"has {c} partitions, the others {usual}") for n, c in counts.items() if c != usual]
        drift += _config_drift(admin, present)
    except KafkaException as error:
        raise TopicSetupError(f"{bootstrap_servers}: {error.args[0].str()}") from None
    return drift


def _config_drift(admin: AdminClient, topics: Sequence[Topic]) -> list[TopicDrift]:
    if not topics:
        return []
    resources = {ConfigResource(ResourceType.TOPIC, topic.name): topic for topic in topics}
    drift = []
    for resource, future in admin.describe_configs(list(resources), request_timeout=_TIMEOUT_S).items():
        actual = future.result(timeout=_TIMEOUT_S)
        for name, wanted in _config(resources[resource]).items():
            if name in actual and actual[name].value != wanted:
                drift.append(TopicDrift(resource.name, f"{name} is {actual[name].value}, the table says {wanted}"))
    return drift

"""Reads the pipeline's outputs from Kafka, from the beginning, without a group: for the demo and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.topics import topic_named

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["OUTPUT_FAMILIES", "OutputListener"]

OUTPUT_FAMILIES = ("findings", "incidents", "actions", "step-results")


class OutputListener:
    """Hands out records of topics as they come.

    Args:
        bootstrap_servers: the brokers.
        families: which topics.
    """

    def __init__(self, bootstrap_servers: str, families: tuple[str, ...] = OUTPUT_FAMILIES) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "paceline-listener",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        metadata = self._consumer.list_topics(timeout=20.0)
        places = []
        for family in families:
            name = topic_named(family).name
            places += [TopicPartition(name, number, OFFSET_BEGINNING) for number in metadata.topics[name].partitions]
        self._consumer.assign(places)
        self.refused = 0

    def poll(self, timeout_s: float) -> list[Record]:
        """Records that came within the time; empty when none did."""
        records = []
        for message in self._consumer.consume(500, timeout_s):
            topic, value = message.topic(), message.value()
            if message.error() is not None or topic is None or value is None:
                continue
            try:
                records.append(decode(topic, value))
            except SchemaError:
                self.refused += 1
        return records

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

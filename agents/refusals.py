"""Which of Kafka's errors are about a record or its topic, and will be the same at every further try.

Everything else (brokers away, time over, authentication, a client that failed) says nothing about the record, and the
record is kept.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

__all__ = ["is_of_the_batch", "is_of_the_topic"]

_OF_THE_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)
"""The client itself has waited for the topic to appear (`topic.metadata.propagation.max.ms`, 30 s) before it says so."""

_OF_THE_BATCH = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


def is_of_the_topic(error: Any) -> bool:
    """Whether the brokers take no record of this topic from this client."""
    return error.code() in _OF_THE_TOPIC


def is_of_the_batch(error: Any) -> bool:
    """Whether the brokers refused a batch for one record in it, which may be another than the one that is told."""
    return error.code() in _OF_THE_BATCH

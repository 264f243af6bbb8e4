"""Questions to brokers that are in the middle of a change.

A partition that was made a moment ago, or whose leader has just moved, is for a second or two at home nowhere: the broker that
the client asks does not lead it yet. librdkafka asks three times within some 300 ms and gives up, and a client that learned
of a topic before it had partitions keeps to that until it is told anew. So the brokers' answer about their topics comes
before each new attempt.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer, TopicPartition

__all__ = ["PASSING", "Client", "answer", "watermarks"]

_T = TypeVar("_T")
_PAUSE_S = 0.2

PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""Codes of errors that pass by themselves (https://kafka.apache.org/protocol#protocol_error_codes, "retriable"), and of the
client's own about what it was told before."""


class Client(Protocol):
    """A consumer, producer or admin client, as far as it is used here."""

    def list_topics(self, *, timeout: float) -> object:
        """Ask the brokers for their topics."""


def answer(
    client: Client,
    question: Callable[[], _T],
    wait_s: float,
    now_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> _T:
    """What a question is answered, asked again for as long as its error is one that passes.

    Args:
        client: what asks.
        question: one call of the client; one that has the error in its result raises it.
        wait_s: how long it is asked again.
        now_s: the clock.
        pause: how to wait.

    Raises:
        KafkaException: an error that does not pass, or has not within that time.
    """
    deadline_s = now_s() + wait_s
    is_again = False
    while True:
        try:
            if is_again:
                client.list_topics(timeout=wait_s)
            return question()
        except KafkaException as error:
            if error.args[0].code() not in PASSING or now_s() >= deadline_s:
                raise
        is_again = True
        pause(_PAUSE_S)


def watermarks(consumer: Consumer, place: TopicPartition, wait_s: float) -> tuple[int, int]:
    """The first offset that a partition holds, and the one after its last.

    Args:
        consumer: what asks.
        place: topic and number of the partition; its offset makes no difference.
        wait_s: how long the brokers have for each answer, and how long they are asked again.

    Raises:
        KafkaException: as `answer` does.
    """
    low, high = answer(consumer, partial(consumer.get_watermark_offsets, place, timeout=wait_s), wait_s)
    return low, high

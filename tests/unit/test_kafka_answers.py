"""Questions to brokers in the middle of a change: what is asked again, and what is not."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.kafka_answers import answer


class Broker:
    """Answers with errors first, on a clock that only its pauses move."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.now_s = 0.0
        self.told_of_topics = 0

    def list_topics(self, *, timeout: float) -> None:
        self.told_of_topics += 1

    def question(self) -> str:
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return "here"

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def answer(self, wait_s: float) -> str:
        return answer(self, self.question, wait_s, lambda: self.now_s, self.pause)


def test_a_partition_without_its_leader_is_asked_for_again() -> None:
    broker = Broker(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TRANSPORT)
    assert broker.answer(30.0) == "here"
    assert broker.now_s == pytest.approx(0.6)
    assert broker.told_of_topics == 3


def test_what_does_not_pass_is_told_at_once() -> None:
    broker = Broker(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as told:
        broker.answer(30.0)
    assert told.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert broker.now_s == 0.0


def test_a_leader_that_does_not_come_is_told_when_the_time_is_over() -> None:
    broker = Broker(*[KafkaError.LEADER_NOT_AVAILABLE] * 100)
    with pytest.raises(KafkaException):
        broker.answer(2.0)
    assert broker.now_s == pytest.approx(2.0, abs=0.21)

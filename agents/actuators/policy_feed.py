"""The site's policy and its keeper's heartbeats, as an actuator hears them: both topics, without a group.

The policy is read whole before anything is done, heartbeats from their last few on. Each question reads first what has come
since, so that a kill switch is heard before the next act. What cannot be read changes nothing, and is logged.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.fleet import Policy, PolicyHeartbeat
from schemas.kafka_answers import watermarks
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agents.actuators.permission import Permission
    from agents.actuators.verification import Refusal

__all__ = ["PolicyFeed", "PolicyFeedError"]

_LOG = logging.getLogger(__name__)
_POLICY = topic_of(Policy).name
_BEATS = topic_of(PolicyHeartbeat).name
_LAST_BEATS = 64


class PolicyFeedError(Exception):
    """The topics cannot be read; the text says why, in one line."""


class PolicyFeed:
    """Keeps a permission up to date.

    Args:
        client: properties of the Kafka client: where the brokers are, and how to reach them.
        permission: what is kept up to date.
        wait_s: how long the brokers are waited for at the start, and for the topics to be read to their ends.

    Raises:
        PolicyFeedError: they could not be read within that time.
    """

    def __init__(self, client: Mapping[str, object], permission: Permission, wait_s: float = 30.0) -> None:
        self._permission = permission
        self._consumer = Consumer(
            {
                **client,
                "group.id": "paceline-act-policy",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # librdkafka would write a line for each try to connect, twenty a second, and bury the one that says why.
                "log_level": 2,
            }
        )
        try:
            self._begin(wait_s)
        except KafkaException as error:
            self._consumer.close()
            raise PolicyFeedError(f"{_POLICY}: {error.args[0].str()}") from None
        except PolicyFeedError:
            self._consumer.close()
            raise

    def refusal(self, now_ns: int) -> Refusal | None:
        """Why nothing may be done at a time, by all that has come; None when it may."""
        self.read()
        return self._permission.refusal(now_ns)

    def read(self) -> None:
        """Take what has come."""
        self._take_all(0.0)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def _begin(self, wait_s: float) -> None:
        there = self._consumer.list_topics(timeout=wait_s).topics
        places = []
        for topic in (_POLICY, _BEATS):
            if topic not in there or there[topic].error is not None:
                raise PolicyFeedError(f"{topic} does not exist; make it with: paceline topics apply")
            for number in there[topic].partitions:
                place = TopicPartition(topic, number, OFFSET_BEGINNING)
                if topic == _BEATS:
                    low, high = watermarks(self._consumer, place, wait_s)
                    place.offset = max(low, high - _LAST_BEATS)
                places.append(place)
        self._consumer.assign(places)
        unread = {(place.topic, place.partition) for place in places}
        deadline_s = time.monotonic() + wait_s
        while unread:
            if time.monotonic() > deadline_s:
                raise PolicyFeedError(f"{_POLICY} could not be read to its end within {wait_s:.0f} s")
            unread -= self._take_all(0.2)

    def _take_all(self, wait_s: float) -> set[tuple[str, int]]:
        """Take what has come; places whose end was reached."""
        ends: set[tuple[str, int]] = set()
        for got in self._consumer.consume(1000, wait_s):
            error = got.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ends.add((got.topic() or "", got.partition() or 0))
                else:
                    _LOG.warning("policy: %s", error.str())
                continue
            try:
                self._permission.take(decode(got.topic() or "", got.value() or b""))
            except SchemaError as error:
                _LOG.error("%s at offset %s: %s", got.topic(), got.offset(), error)
        return ends

"""Findings and the records that they cite, read from brokers: without a group, bounded, and nothing is ever written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.archive import ArchiveLine
from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.findings import Finding
from schemas.topics import topic_named, topic_of
from streams.core.roster import Roster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from confluent_kafka import Message

__all__ = ["BrokersError", "TopicSource"]

_ANSWER_S = 10.0
"""So long brokers have to say what they hold."""

_PATIENCE_S = 30.0
"""So long without a message the brokers are given up."""

_MOST = 200_000
"""Messages read around a place, at most."""

_REFERENCE = ("jobs", "nodes", "policy")


class BrokersError(Exception):
    """The brokers cannot be read; the text says why."""


class TopicSource:
    """Reads parts of topics.

    Args:
        bootstrap_servers: the brokers.

    Raises:
        BrokersError: they do not answer.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "paceline-explain",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        try:
            self._topics = self._consumer.list_topics(timeout=_ANSWER_S).topics
        except KafkaException as error:
            self._consumer.close()
            raise BrokersError(f"{bootstrap_servers}: {error.args[0].str()}") from None

    def finding(self, finding_id: str) -> Finding | None:
        """The finding as it opened, or None; the topic is read until it is found."""
        sought = finding_id.encode()
        topic = topic_of(Finding).name
        for partition in self._partitions(topic):
            for message in self._between(topic, partition, 0, None):
                value = message.value()
                if value is None or sought not in value:
                    continue
                try:
                    record = decode(topic, value)
                except SchemaError:
                    continue
                if isinstance(record, Finding) and record.finding_id == finding_id and record.state == "open":
                    return record
        return None

    def roster(self) -> Roster:
        """What is registered now."""
        roster = Roster()
        for family in _REFERENCE:
            topic = topic_named(family).name
            for partition in self._partitions(topic):
                for message in self._between(topic, partition, 0, None):
                    value = message.value()
                    try:
                        roster.take(decode(topic, value or b""))
                    except SchemaError:
                        continue
        return roster

    def around(self, topic: str, partition: int, offset: int, before: int, after: int) -> Iterator[ArchiveLine]:
        """Records of a partition about a place, in order.

        Args:
            topic: full name.
            partition: its number.
            offset: of the place.
            before: how many offsets before it, at most.
            after: how many from it on, at most.
        """
        if partition not in self._partitions(topic):
            return
        for message in self._between(topic, partition, max(0, offset - before), offset + after):
            try:
                value = orjson.loads(message.value() or b"")
            except orjson.JSONDecodeError:
                continue
            place = message.offset()
            assert place is not None
            key = message.key()
            yield ArchiveLine(
                topic,
                partition,
                place,
                message.timestamp()[1],
                key.decode(errors="replace") if key is not None else None,
                value,
            )

    def _partitions(self, topic: str) -> list[int]:
        known = self._topics.get(topic)
        return sorted(known.partitions) if known is not None else []

    def _between(self, topic: str, partition: int, first: int, end: int | None) -> Iterator[Message]:
        place = TopicPartition(topic, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
        except KafkaException as error:
            raise BrokersError(f"{topic}/{partition}: {error.args[0].str()}") from None
        first, end = max(first, low), min(end if end is not None else high, high)
        if end - first > _MOST and end != high:
            end = first + _MOST
        if first >= end:
            return
        self._consumer.assign([TopicPartition(topic, partition, first)])
        heard = time.monotonic()
        while True:
            messages = self._consumer.consume(1000, 0.5)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _PATIENCE_S:
                raise BrokersError(f"{topic}/{partition}: nothing came for {_PATIENCE_S:.0f} s")
            for message in messages:
                failure = message.error()
                if failure is not None:
                    raise BrokersError(f"{topic}/{partition}: {failure.str()}")
                offset = message.offset()
                if offset is None or offset >= end:
                    return
                yield message
            # Compaction and transactions leave gaps: the position tells the end, not a count.
            position = self._consumer.position([place])[0].offset
            if position >= end:
                return

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

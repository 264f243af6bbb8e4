"""Findings and the records that they cite, read from brokers: without a group, bounded, and nothing is ever written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.codec import decode, decode_value
from schemas.errors import SchemaError
from schemas.findings import Evidence, Finding
from schemas.kafka_answers import watermarks
from schemas.topics import REFERENCE_FAMILIES, topic_named, topic_of
from streams.core.reference import take_reference
from streams.core.roster import Roster
from streams.recording.kafka_range import taken_of
from streams.recording.taken import archive_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.archive import ArchiveLine
    from streams.recording.taken import Taken

__all__ = ["BrokersError", "TopicSource"]

_ANSWER_S = 10.0
"""So long brokers have to say what they hold."""

_PATIENCE_S = 30.0
"""So long without a message the brokers are given up."""

_MOST = 200_000
"""Messages read around a place, at most."""


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
            for taken in self._between(topic, partition, 0, None):
                if taken.value is None or sought not in taken.value:
                    continue
                try:
                    record = decode(topic, taken.value)
                except SchemaError:
                    continue
                if isinstance(record, Finding) and record.finding_id == finding_id and record.state == "open":
                    return record
        return None

    def roster(self) -> Roster:
        """What is registered now, as far as workers take it."""
        roster = Roster()
        for family in sorted(REFERENCE_FAMILIES):
            topic = topic_named(family).name
            for partition in self._partitions(topic):
                for taken in self._between(topic, partition, 0, None):
                    line = archive_line(taken)
                    place = Evidence(topic=topic, partition=partition, offset=taken.offset)
                    try:
                        record = decode_value(topic, line.value)
                        take_reference(roster, record, taken.key, line.headers.get("schema"), place)
                    except (SchemaError, ValueError):
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
        for taken in self._between(topic, partition, max(0, offset - before), offset + after):
            yield archive_line(taken)

    def _partitions(self, topic: str) -> list[int]:
        known = self._topics.get(topic)
        return sorted(known.partitions) if known is not None else []

    def _between(self, topic: str, partition: int, first: int, end: int | None) -> Iterator[Taken]:
        place = TopicPartition(topic, partition)
        try:
            low, high = watermarks(self._consumer, place, _ANSWER_S)
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
                yield taken_of(message, (topic, partition), offset)
            # Compaction and transactions leave gaps: the position tells the end, not a count.
            position = self._consumer.position([place])[0].offset
            if position >= end:
                return

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

"""Jobs, nodes and policy, read whole by every worker: a plain consumer without a group.

The topics are small and every worker needs all of them, so they are not shared out among a group. The feed is ready
once it has read up to the ends that stood when it started; no record of another topic is judged before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.findings import Evidence
from schemas.fleet import Job, Node, Policy
from schemas.topics import topic_of
from streams.core.reference import take_reference

if TYPE_CHECKING:
    from streams.core.roster import Roster

__all__ = ["ReferenceFeed"]

_TOPICS = tuple(topic_of(family).name for family in (Job, Node, Policy))
_log = structlog.get_logger(__name__)


class ReferenceFeed:
    """Keeps a roster up to date.

    Args:
        bootstrap_servers: the brokers.
        roster: what is kept up to date.
    """

    def __init__(self, bootstrap_servers: str, roster: Roster) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._roster = roster
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=200,
        )
        await consumer.start()
        try:
            partitions = await self._partitions(consumer)
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            await consumer.seek_to_beginning(*partitions)
            while True:
                if not self.ready.is_set() and await self._has_reached(consumer, ends):
                    self.ready.set()
                batches = await consumer.getmany(timeout_ms=200, max_records=1000)
                for partition, messages in batches.items():
                    for message in messages:
                        place = Evidence(topic=partition.topic, partition=partition.partition, offset=message.offset)
                        schema = next((value for name, value in message.headers if name == "schema"), None)
                        self._take(place, message.key, schema, message.value)
        finally:
            await consumer.stop()

    @staticmethod
    async def _partitions(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
        """All partitions of the topics; waits until the topics exist."""
        while True:
            await consumer._client.force_metadata_update()
            known = {topic: consumer.partitions_for_topic(topic) for topic in _TOPICS}
            missing = sorted(topic for topic, partitions in known.items() if not partitions)
            if not missing:
                return [TopicPartition(topic, number) for topic in _TOPICS for number in sorted(known[topic] or ())]
            _log.warning("waiting for topics", missing=missing, advice="paceline topics apply")
            for topic in missing:
                consumer._client.add_topic(topic)
            await asyncio.sleep(1.0)

    @staticmethod
    async def _has_reached(consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            if end > 0 and await consumer.position(partition) < end:
                return False
        return True

    def _take(self, place: Evidence, key: bytes | None, schema: bytes | None, value: bytes | None) -> None:
        if value is None:
            return
        try:
            record = decode(place.topic, value)
            take_reference(
                self._roster, record, key, schema.decode(errors="replace") if schema is not None else None, place
            )
        except (SchemaError, ValueError) as error:
            # The owner of the reference data sees it in `paceline topics check`; a worker keeps what it has.
            _log.error("reference record refused", topic=place.topic, reason=str(error))

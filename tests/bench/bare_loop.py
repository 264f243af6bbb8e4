"""The least that reading a topic costs: one client in a loop, each message decoded or not. A child of the benchmarks.

`bare_loop.py CLIENT DECODING SERVERS TOPIC COUNT` prints what messages cost as one JSON object, from the first message's arrival to the
last's. CLIENT is `confluent` (librdkafka) or `aiokafka`; DECODING is `none`, `orjson` or `decode`. One partition.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH = 500


class _Meter:
    """Processor and wall time from the first message on."""

    def __init__(self, decoding: Callable[[bytes], object] | None) -> None:
        self._decoding = decoding
        self._begun: tuple[float, float] | None = None
        self.messages = 0

    def take(self, value: bytes) -> None:
        if self._begun is None:
            self._begun = time.process_time(), time.monotonic()
        if self._decoding is not None:
            self._decoding(value)
        self.messages += 1

    def cost(self) -> dict[str, float]:
        assert self._begun is not None
        cpu_s, wall_s = self._begun
        return {
            "messages": self.messages,
            "cpu_s": time.process_time() - cpu_s,
            "wall_s": time.monotonic() - wall_s,
        }


def main() -> None:
    """Run one loop."""
    client, decoding, servers, topic, count = sys.argv[1:6]
    meter = _Meter(_decoder(decoding, topic))
    if client == "confluent":
        _confluent(meter, servers, topic, int(count))
    else:
        asyncio.run(_aiokafka(meter, servers, topic, int(count)))
    print(json.dumps(meter.cost()))


def _decoder(decoding: str, topic: str) -> Callable[[bytes], object] | None:
    if decoding == "none":
        return None
    if decoding == "orjson":
        return orjson.loads
    from schemas.codec import decode

    return lambda value: decode(topic, value)


def _confluent(meter: _Meter, servers: str, topic: str, count: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bare-loop", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while meter.messages < count:
        for received in consumer.consume(_BATCH, 0.1):
            value = received.value()
            if received.error() is None and isinstance(value, bytes):
                meter.take(value)


async def _aiokafka(meter: _Meter, servers: str, topic: str, count: int) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer: Any = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while meter.messages < count:
            for batch in (await consumer.getmany(timeout_ms=1000, max_records=_BATCH)).values():
                for received in batch:
                    meter.take(received.value)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    main()

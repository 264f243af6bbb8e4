"""A Kafka client that delivers when a test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from confluent_kafka import KafkaError


class FakeProducer:
    """Queues without sending; `room` is how many messages fit."""

    made: ClassVar[list[FakeProducer]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.room = config["queue.buffering.max.messages"]
        self.queue: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.polls = 0
        self.purged = self.closed = False
        self.on_poll: Any = None
        FakeProducer.made.append(self)

    def __len__(self) -> int:
        return len(self.queue)

    def produce(self, topic: str, **named: Any) -> None:
        if len(self.queue) >= self.room:
            raise BufferError("Local: Queue full")
        self.queue.append((topic, named))

    def poll(self, timeout: float) -> int:
        self.polls += 1
        if self.on_poll is not None:
            self.on_poll(timeout)
        return 0

    def flush(self, timeout: float) -> int:
        return len(self.queue)

    def purge(self) -> None:
        self.purged = True
        self.settle(KafkaError(KafkaError._PURGE_QUEUE))

    def close(self) -> None:
        self.closed = True

    def settle(self, error: KafkaError | None, count: int | None = None) -> None:
        """Deliver the first messages or all, or fail them."""
        count = len(self.queue) if count is None else count
        queue, self.queue = self.queue[:count], self.queue[count:]
        for topic, named in queue:
            if error is None:
                self.sent.append((topic, named))
            named["on_delivery"](error, SimpleNamespace(topic=lambda topic=topic: topic))

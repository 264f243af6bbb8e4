"""A local Apache Kafka for the benchmarks: topics filled beforehand, workers as processes of their own, and their cost.

Everything started here ends with its `with` block. The broker shares the machine with what is measured, so processor
time of the measured process counts, and wall time is told only beside it.
"""

from __future__ import annotations

import re
import sys
import time
import urllib.request
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.brokers import open_broker
from deploy.brokers.apache import free_port
from deploy.brokers.errors import BrokerMissingError
from deploy.topics import apply_topics
from paceline.processes import Children
from schemas.codec import message
from schemas.kafka_answers import watermarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import Message as Received

    from schemas.base import Record
    from schemas.codec import Message

__all__ = [
    "SITE",
    "Cost",
    "Usage",
    "Worker",
    "broker_process",
    "followed",
    "local_kafka",
    "produce",
    "producer",
    "read_all",
    "records_of",
    "run_worker",
]

SITE = "bench"
_READY_TIMEOUT_S = 90.0
_COUNTED = re.compile(rb"^paceline_records_in_total\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)


@contextmanager
def local_kafka(partitions: int = 1) -> Iterator[str]:
    """Bootstrap servers of a broker of one's own, with all topics; the process ends with status 0 where none can run."""
    broker = open_broker("apache")
    try:
        broker.start()
    except BrokerMissingError as error:
        print(f"not measured: needs Apache Kafka on this machine: {error}", file=sys.stderr)
        raise SystemExit(0) from None
    with broker:
        apply_topics(broker.bootstrap_servers, partitions, 1)
        yield broker.bootstrap_servers


def broker_process() -> psutil.Process:
    """The broker's Java process."""
    for process in psutil.Process().children(recursive=True):
        # The process that guards it carries the same words in its arguments.
        if process.name() == "java" and "kafka.Kafka" in process.cmdline():
            return process
    raise LookupError("no broker among the children of this process")


def producer(servers: str, linger_ms: int = 20) -> Producer:
    """A producer that places keys as the agents' does."""
    return Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "compression.type": "zstd",
            "linger.ms": linger_ms,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,
        }
    )


def produce(servers: str, wires: Iterable[Message]) -> int:
    """Publish messages as fast as the broker takes them, and wait until it has all; how many they were."""
    client = producer(servers)
    sent = 0
    for wire in wires:
        while True:
            try:
                client.produce(wire.topic, wire.value, wire.key, headers=list(wire.headers))
                break
            except BufferError:
                client.poll(0.1)
        sent += 1
        client.poll(0)
    left = client.flush(60.0)
    if left:
        raise RuntimeError(f"{left} messages were not delivered")
    return sent


def records_of(records: Iterable[Record]) -> list[Message]:
    """Records as they go on the wire."""
    return [message(record) for record in records]


@dataclass(frozen=True, slots=True)
class Usage:
    """How far a worker was at a moment, and what it had cost until then."""

    records: int
    cpu_s: float
    wall_s: float
    rss: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a number of messages cost a process.

    Attributes:
        messages: how many.
        cpu_s: its processor time, all threads.
        wall_s: how long they took.
        rss: its memory at the end, bytes.
    """

    messages: int
    cpu_s: float
    wall_s: float
    rss: int = 0

    @property
    def cpu_us(self) -> float:
        """Processor time a message, in microseconds."""
        return self.cpu_s / self.messages * 1e6


class Worker:
    """A worker process that runs now."""

    def __init__(self, process: psutil.Process, metrics_port: int) -> None:
        self.process = process
        self._metrics_port = metrics_port

    def metrics(self) -> bytes:
        """Its metrics page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=30) as page:
            body: bytes = page.read()
        return body

    def usage(self) -> Usage:
        """How far it is and what it cost so far."""
        records = sum(float(value) for _, value in _COUNTED.findall(self.metrics()))
        times = self.process.cpu_times()
        return Usage(int(records), times.user + times.system, time.monotonic(), self.process.memory_info().rss)

    def cost_until(self, records: int, run_in: int, timeout_s: float = 300.0) -> Cost:
        """What it costs to get from `run_in` to `records` records, as near as half a second of looking can tell.

        Raises:
            TimeoutError: it did not get there.
        """
        deadline = time.monotonic() + timeout_s
        begun: Usage | None = None
        while time.monotonic() < deadline:
            now = self.usage()
            if begun is None and now.records >= run_in:
                begun = now
            if begun is not None and now.records >= records:
                return Cost(now.records - begun.records, now.cpu_s - begun.cpu_s, now.wall_s - begun.wall_s, now.rss)
            time.sleep(0.5)
        raise TimeoutError(f"the worker did not get to {records} records within {timeout_s:.0f} s")


@contextmanager
def run_worker(servers: str, *roles: str) -> Iterator[list[Worker]]:
    """One worker process a role, each ready; ended with the block."""
    with Children() as children:
        started = []
        for role in roles:
            before = {process.pid for process in psutil.Process().children()}
            port = free_port()
            children.start(
                f"worker {role}",
                [
                    *("paceline", "worker", "--role", role, "--bootstrap", servers, "--site", SITE),
                    *("--metrics-port", str(port), "--announce"),
                ],
            )
            (process,) = (child for child in psutil.Process().children() if child.pid not in before)
            started.append(Worker(process, port))
        children.wait_ready(_READY_TIMEOUT_S)
        yield started


@contextmanager
def followed(servers: str, *topics: str) -> Iterator[Consumer]:
    """A reader of topics from their ends on, in no group, which hands on what comes at once."""
    client = Consumer(_reader(servers) | {"fetch.wait.max.ms": 5})
    try:
        there = client.list_topics(timeout=20).topics
        places = [TopicPartition(topic, number) for topic in topics for number in there[topic].partitions]
        for place in places:
            place.offset = watermarks(client, place, 20)[1]
        client.assign(places)
        yield client
    finally:
        client.close()


def read_all(servers: str, topic: str) -> list[Received]:
    """All that a topic holds now."""
    client = Consumer(_reader(servers) | {"enable.partition.eof": True, "fetch.wait.max.ms": 50})
    found: list[Received] = []
    try:
        open_ends = set(client.list_topics(timeout=20).topics[topic].partitions)
        client.assign([TopicPartition(topic, number, 0) for number in open_ends])
        deadline = time.monotonic() + 120
        while open_ends and time.monotonic() < deadline:
            for received in client.consume(500, 0.5):
                error = received.error()
                if error is None:
                    found.append(received)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ends.discard(received.partition() or 0)
    finally:
        client.close()
    return found


def _reader(servers: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": servers,
        "group.id": f"bench-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "log_level": 0,
    }

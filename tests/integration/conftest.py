"""What the integration tests share: a broker of a module's own, the command line, and reading topics to their ends.

Topic names and consumer groups are fixed, so tests that run the workers or change topics must not share a broker with
others. Every wait here is bounded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.brokers import open_broker
from deploy.brokers.errors import BrokerError
from deploy.brokers.jars import missing_tools
from schemas.codec import message
from schemas.kafka_answers import answer, watermarks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from deploy.brokers import Broker
    from schemas.base import Record

MARK = "PACELINE_TEST_MARK"
"""Environment variable by which the descendants of a process are found, whoever their parent is by now."""

ReadTopics = Callable[..., "list[Message]"]
RunPaceline = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for one module alone: Apache Kafka where it can run, else the embedded one; without topics."""
    yield from _own_broker(tmp_path_factory)


@pytest.fixture(scope="module")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Another one, for tests that must not see what the first one's have published."""
    yield from _own_broker(tmp_path_factory)


def _own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    demanded = os.environ.get("PACELINE_TEST_BROKER")
    kinds = (demanded,) if demanded in {"apache", "embedded"} else ("apache", "embedded")
    for kind in kinds:
        if kind == "apache" and demanded is None and missing_tools():
            continue
        broker = open_broker(kind, data_dir=tmp_path_factory.mktemp("own-kafka") if kind == "apache" else None)
        try:
            broker.start()
        except BrokerError:
            if kind == kinds[-1]:
                raise
            continue
        try:
            yield broker
        finally:
            broker.stop()
        return


@pytest.fixture(scope="session")
def read_topics() -> ReadTopics:
    """Reads topics of a broker from their beginnings to the ends that stand now, in the order of each partition."""

    def read(bootstrap_servers: str, *topics: str, timeout_s: float = 60.0) -> list[Message]:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": f"reader-{uuid.uuid4()}", "enable.auto.commit": False}
            | {"enable.partition.eof": True, "fetch.wait.max.ms": 50, "log_level": 0}
        )
        found: list[Message] = []
        try:
            there = consumer.list_topics(timeout=20).topics
            open_ends = {(topic, number) for topic in topics for number in there[topic].partitions}
            consumer.assign([TopicPartition(topic, number, 0) for topic, number in open_ends])
            deadline = time.monotonic() + timeout_s
            while open_ends:
                assert time.monotonic() < deadline, f"no end of {sorted(open_ends)} within {timeout_s:.0f} s"
                for got in consumer.consume(500, 0.2):
                    error = got.error()
                    if error is None:
                        found.append(got)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        open_ends.discard((got.topic(), got.partition()))
        finally:
            consumer.close()
        return found

    return read


@pytest.fixture(scope="session")
def wait_drained() -> Callable[..., None]:
    """Waits until a consumer group has committed all that its topics hold, and asks `check` that its workers live."""

    def wait(
        bootstrap_servers: str, group: str, *topics: str, check: Callable[[], None], timeout_s: float = 120.0
    ) -> None:
        # Asks for the group's offsets and never joins it, so nothing is rebalanced.
        consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        )
        try:
            there = consumer.list_topics(timeout=20).topics
            places = [TopicPartition(topic, number) for topic in topics for number in there[topic].partitions]
            deadline = time.monotonic() + timeout_s
            while True:
                check()
                ends = {(p.topic, p.partition): watermarks(consumer, p, 20)[1] for p in places}
                committed = answer(consumer, partial(consumer.committed, places, timeout=20), 20)
                done = {(p.topic, p.partition): max(0, p.offset) for p in committed}
                behind = {place: (done[place], end) for place, end in ends.items() if done[place] < end}
                if not behind:
                    return
                assert time.monotonic() < deadline, f"{group} is still behind after {timeout_s:.0f} s: {behind}"
                time.sleep(0.1)
        finally:
            consumer.close()

    return wait


@pytest.fixture(scope="session")
def run_paceline() -> RunPaceline:
    """Runs the command line in a process of its own and returns what it said and its status."""

    def run(*arguments: str, timeout_s: float = 120.0, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paceline", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            **options,
        )

    return run


class Sender:
    """Publishes and keeps where each message came to stand, in the order of sending."""

    def __init__(self, servers: str) -> None:
        self.places: dict[int, tuple[str, int, int]] = {}
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "compression.type": "zstd",
                "message.max.bytes": 20_000_000,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        number, self._sent = self._sent, self._sent + 1

        def stand(error: Any, found: Message) -> None:
            assert error is None, f"{topic}: {error}"
            self.places[number] = (found.topic() or "", found.partition() or 0, found.offset() or 0)

        self._producer.produce(
            topic, key=key, value=value, headers=headers or [], timestamp=timestamp_ms, on_delivery=stand
        )
        self._producer.poll(0)
        return number

    def record(self, record: Record, timestamp_ms: int = 0) -> int:
        wire = message(record)
        return self.send(wire.topic, wire.key, wire.value, timestamp_ms=timestamp_ms)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


@pytest.fixture(scope="session")
def sender_to() -> type[Sender]:
    """Makes a sender to brokers."""
    return Sender


class Marked:
    """A process of the command line whose descendants can be found when it is gone.

    Args:
        *arguments: of `paceline`.
    """

    def __init__(self, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: self.mark, "COLUMNS": "200"},
            start_new_session=True,
        )

    def family(self) -> list[psutil.Process]:
        """All living processes that were started below it, and it."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def read_until(self, text: str, timeout_s: float = 120.0) -> str:
        """Standard error up to and including the line that holds the text."""
        assert self.process.stderr is not None
        # A line that never comes must not be waited for without end.
        patience = threading.Timer(timeout_s, self.process.kill)
        patience.start()
        said = ""
        try:
            while line := self.process.stderr.readline():
                said += line
                if text in line:
                    return said
        finally:
            patience.cancel()
        raise AssertionError(f"ended without {text!r} within {timeout_s:.0f} s:\n{said}")

    def end(self) -> None:
        """End whatever is left of it."""
        for process in self.family():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)


@pytest.fixture
def start_paceline() -> Iterator[Callable[..., Marked]]:
    """Starts the command line in a process of its own; whatever is left of it afterwards is ended."""
    started: list[Marked] = []

    def start(*arguments: str) -> Marked:
        started.append(Marked(*arguments))
        return started[-1]

    yield start
    for marked in started:
        marked.end()

"""Both local brokers as their clients see them."""

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from deploy.brokers import Broker, open_broker
from deploy.brokers.apache import ApacheBroker
from deploy.brokers.embedded import PARTITION_KEPT_BYTES, PARTITIONS_PER_TOPIC, EmbeddedBroker, touch_topic
from deploy.brokers.errors import BrokerError, BrokerRunningError, BrokerStartError
from deploy.brokers.jars import missing_tools
from deploy.brokers.record import running_broker
from deploy.brokers.server_properties import ApacheSettings
from schemas import kafka_answers

QUIET = {"log_level": 0}
KINDS = ["embedded", "apache"]


def skip_unless_possible(kind: str) -> None:
    if kind == "apache" and (lacks := missing_tools()):
        pytest.skip(f"needs_kafka: {'; '.join(lacks)}")


@pytest.fixture(scope="module")
def apache() -> Iterator[Broker]:
    skip_unless_possible("apache")
    with open_broker("apache") as one:
        yield one


@pytest.fixture(scope="module")
def embedded() -> Iterator[Broker]:
    with open_broker("embedded") as one:
        yield one


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest) -> Broker:
    one: Broker = request.getfixturevalue(request.param)
    return one


@pytest.fixture
def apache_dir(tmp_path: Path) -> Path:
    skip_unless_possible("apache")
    return tmp_path / "data"


def new_topic(broker: Broker, partitions: int = PARTITIONS_PER_TOPIC) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    if broker.has_admin:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=10)[name].result(20)
    else:
        assert touch_topic(broker.bootstrap_servers, name) == partitions
    return name


def produced(address: str, topic: str, records: list[tuple[bytes, bytes]], **more: object) -> dict[bytes, int]:
    """Writes records with confluent; returns the partition of each key. Every one must be acknowledged."""
    producer = Producer(
        {"bootstrap.servers": address, "partitioner": "murmur2_random", "compression.type": "zstd", **QUIET, **more}
    )
    placed: dict[bytes, int] = {}
    failures: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)
        else:
            placed[message.key()] = message.partition()  # type: ignore[attr-defined]

    for key, value in records:
        producer.produce(topic, key=key, value=value, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    assert failures == []
    return placed


def consumed(address: str, topic: str, count: int, partitions: int = PARTITIONS_PER_TOPIC) -> list[tuple[bytes, bytes]]:
    """Reads all partitions from their start with confluent until `count` records came, sorted."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "check.crcs": True, **QUIET})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    records: list[tuple[bytes, bytes]] = []
    deadline = time.monotonic() + 20
    while len(records) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            records.append((message.key() or b"", message.value() or b""))
    consumer.close()
    return sorted(records)


async def consumed_by_group(address: str, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Reads a topic with an aiokafka group from the earliest offset until `count` records came, sorted."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        records: list[tuple[bytes, bytes]] = []
        async with asyncio.timeout(30):
            async for record in consumer:
                records.append((record.key, record.value))
                if len(records) == count:
                    break
        await consumer.commit()
    finally:
        await consumer.stop()
    return sorted(records)


def some_records(count: int = 200) -> list[tuple[bytes, bytes]]:
    return sorted((f"node-{n:04d}".encode(), f"value {n} ".encode() * 20) for n in range(count))


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- The wire -----------------------------------------------------------------------------------------------------


async def test_what_confluent_writes_both_clients_read(broker: Broker) -> None:
    topic = new_topic(broker)
    records = some_records()
    produced(broker.bootstrap_servers, topic, records)

    assert consumed(broker.bootstrap_servers, topic, len(records)) == records
    assert await consumed_by_group(broker.bootstrap_servers, topic, len(records)) == records


async def test_what_aiokafka_writes_both_clients_read(broker: Broker) -> None:
    topic = new_topic(broker)
    records = some_records()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type="zstd", linger_ms=20)
    await producer.start()
    try:
        for sent in [await producer.send(topic, key=key, value=value) for key, value in records]:
            await sent
    finally:
        await producer.stop()

    assert await consumed_by_group(broker.bootstrap_servers, topic, len(records)) == records
    assert consumed(broker.bootstrap_servers, topic, len(records)) == records


async def test_both_clients_agree_on_the_partition_of_every_key(broker: Broker) -> None:
    topic = new_topic(broker)
    keys = [f"node-{n}".encode() for n in range(200)] + [b"", b"\xff\x00\x80", "späte Straße".encode()]
    by_confluent = produced(broker.bootstrap_servers, topic, [(key, b"x") for key in keys])
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    try:
        by_aiokafka = {key: (await producer.send_and_wait(topic, key=key, value=b"x")).partition for key in keys}
    finally:
        await producer.stop()

    assert by_confluent == by_aiokafka
    assert set(by_confluent.values()) == set(range(PARTITIONS_PER_TOPIC))


def test_an_idempotent_producer_is_served(broker: Broker) -> None:
    topic = new_topic(broker)
    records = some_records(50)
    produced(broker.bootstrap_servers, topic, records, **{"enable.idempotence": True, "acks": "all"})

    assert consumed(broker.bootstrap_servers, topic, len(records)) == records


def test_creating_topics_works_exactly_where_has_admin_says_so(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    name = f"made-{uuid.uuid4().hex[:8]}"
    asked = admin.create_topics([NewTopic(name, 7, 1)], operation_timeout=1, request_timeout=3)[name]
    try:
        asked.result(10)
        works = len(admin.list_topics(name, timeout=10).topics[name].partitions) == 7
    except KafkaException:
        works = False

    assert works is broker.has_admin


# --- What the embedded broker forgets -----------------------------------------------------------------------------


def watermarks(address: str, topic: str, partition: int = 0) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, **QUIET})
    marks = kafka_answers.watermarks(consumer, TopicPartition(topic, partition), 10)
    consumer.close()
    return marks


@pytest.mark.parametrize("value_bytes", [1_000, 50_000])
def test_a_partition_keeps_the_newest_five_mebibytes(embedded: Broker, value_bytes: int) -> None:
    topic = new_topic(embedded)
    producer = Producer(
        {"bootstrap.servers": embedded.bootstrap_servers, "linger.ms": 5, "batch.size": 100_000, **QUIET}
    )
    count = 2 * PARTITION_KEPT_BYTES // value_bytes
    for _ in range(count):
        producer.produce(topic, value=os.urandom(value_bytes), partition=0)
    assert producer.flush(30) == 0

    low, high = watermarks(embedded.bootstrap_servers, topic)

    assert high == count
    assert PARTITION_KEPT_BYTES - 250_000 < (high - low) * value_bytes <= PARTITION_KEPT_BYTES


def test_a_batch_past_the_bound_is_acknowledged_and_lost(embedded: Broker) -> None:
    topic = new_topic(embedded)
    settings = {"message.max.bytes": 20_000_000, "compression.type": "none"}
    partition = produced(embedded.bootstrap_servers, topic, [(b"k", b"x")], **settings)[b"k"]

    produced(embedded.bootstrap_servers, topic, [(b"k", bytes(PARTITION_KEPT_BYTES + 1))], **settings)

    assert watermarks(embedded.bootstrap_servers, topic, partition) == (2, 2)


def test_the_embedded_broker_starts_again_empty(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=tmp_path)
    with broker:
        produced(broker.bootstrap_servers, "kept", some_records(3))
        assert running_broker(tmp_path) is not None
    assert running_broker(tmp_path) is None
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        assert "kept" not in admin.list_topics(timeout=10).topics


def test_an_embedded_cluster_may_have_several_brokers() -> None:
    with EmbeddedBroker(brokers=3) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        assert len(admin.list_topics(timeout=10).brokers) == 3
        assert len(broker.bootstrap_servers.split(",")) == 3


# --- What Apache Kafka keeps --------------------------------------------------------------------------------------


def test_a_restart_keeps_data_and_address_and_a_killed_broker_starts_again_on_other_ports(apache_dir: Path) -> None:
    records = some_records()
    with ApacheBroker(data_dir=apache_dir) as broker:
        address = broker.bootstrap_servers
        topic = new_topic(broker)
        produced(address, topic, records)
        broker.stop()
        assert not broker.is_running
        assert running_broker(apache_dir) is None

        broker.start()
        assert broker.bootstrap_servers == address
        assert consumed(address, topic, len(records)) == records

        record = running_broker(apache_dir)
        assert record is not None
        (java,) = psutil.Process(record.pid).children()
        java.kill()
        assert until(lambda: not broker.is_running, 5)
        assert broker.has_failed

    moved = ApacheBroker(data_dir=apache_dir)
    with moved:
        assert moved.bootstrap_servers != address
        assert consumed(moved.bootstrap_servers, topic, len(records)) == records
        with pytest.raises(BrokerRunningError, match=moved.bootstrap_servers):
            ApacheBroker(data_dir=apache_dir).start()
    moved.wipe()
    assert not apache_dir.exists()


def test_apache_stamps_arrival_and_makes_no_topic_unasked(apache: Broker) -> None:
    topic = new_topic(apache, partitions=1)
    produced(apache.bootstrap_servers, topic, [(b"k", b"v")])
    consumer = Consumer({"bootstrap.servers": apache.bootstrap_servers, "group.id": uuid.uuid4().hex, **QUIET})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    message = consumer.poll(15)
    consumer.close()
    assert message is not None
    assert message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME

    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PART"):
        touch_topic(apache.bootstrap_servers, f"unasked-{uuid.uuid4().hex[:8]}")


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(apache_dir: Path) -> None:
    bad = ApacheBroker(data_dir=apache_dir, settings=ApacheSettings(extra={"authorizer.class.name": "no.such.Guard"}))

    with pytest.raises(BrokerStartError, match=r"(?s)ended before it answered.*no\.such\.Guard"):
        bad.start()

    assert not bad.is_running
    assert running_broker(apache_dir) is None


def test_settings_that_do_not_even_format_are_shown_too(apache_dir: Path) -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)could not format .*num\.io\.threads"):
        ApacheBroker(data_dir=apache_dir, settings=ApacheSettings(extra={"num.io.threads": "many"})).start()


def test_a_port_that_is_taken_is_named(broker: Broker, apache_dir: Path) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])

    with pytest.raises(BrokerStartError, match=f"port {port} "):
        ApacheBroker(data_dir=apache_dir, port=port).start()


def test_brokers_side_by_side_do_not_see_each_other(broker: Broker) -> None:
    topic = new_topic(broker)
    with open_broker("apache" if broker.is_real else "embedded") as other:
        assert other.bootstrap_servers != broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": other.bootstrap_servers, **QUIET})
        assert topic not in admin.list_topics(timeout=10).topics
        records = some_records(10)
        theirs = new_topic(other)
        produced(other.bootstrap_servers, theirs, records)
        assert consumed(other.bootstrap_servers, theirs, len(records)) == records
    produced(broker.bootstrap_servers, topic, records)
    assert consumed(broker.bootstrap_servers, topic, len(records)) == records

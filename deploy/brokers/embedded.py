"""The embedded broker: librdkafka's mock cluster, in a process of its own.

It needs nothing beyond confluent-kafka, starts in a fraction of a second and speaks enough of the protocol for
confluent and aiokafka clients, consumer groups and commits included. It is not Kafka: no admin API, CreateTime
only, no look-up of offsets by time, and it *silently* forgets (constants below). A stop loses all data and the
next start has another address. Fit for short tests and demonstrations, never for measurements of loss.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaException, Producer

from deploy.brokers.errors import BrokerError, BrokerStartError, BrokerUsageError
from deploy.brokers.lifetime import BoundProcess, OwnersEnd, announce
from deploy.brokers.record import clear_record, refuse_if_running, write_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

# Measured with librdkafka 2.16.0 by writing past each limit and reading the watermarks; tests/integration/
# test_brokers.py measures them again.
PARTITIONS_PER_TOPIC = 4
"""Partitions of every topic; the mock cluster has no setting for it (its settings: brokers, latency)."""
PARTITION_KEPT_BYTES = 5 * 1024 * 1024
"""Bytes of record batches, as compressed by the producer, that one partition keeps. Past it the oldest batches are
dropped; a batch larger than this is acknowledged and dropped at once. A batch of one small record counts 69 bytes, so
at worst 75,983 records were kept. The number of partitions that may fill up has no bound."""
GROUP_JOIN_S = 3.7
"""Until the first record reaches a new consumer group: the mock cluster waits 3 s for further members."""
START_TIMEOUT_S = 15.0
STOP_GRACE_S = 5.0


class EmbeddedBroker:
    """A mock cluster of `brokers` brokers on loopback ports of its own choosing."""

    has_admin = False
    is_real = False

    def __init__(self, *, brokers: int = 1, data_dir: Path | None = None) -> None:
        """Prepares the broker.

        Args:
            brokers: Size of the cluster, 1 or more.
            data_dir: Where to record how to stop it from another process; nothing is recorded when None.
        """
        if brokers < 1:
            raise BrokerUsageError(f"{brokers} brokers: a cluster has at least 1")
        self._brokers = brokers
        self._data_dir = data_dir
        self._process: BoundProcess | None = None
        self._bootstrap_servers: str | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Comma-separated host:port list, other after each start."""
        if self._bootstrap_servers is None:
            raise BrokerUsageError("the embedded broker has no address before it is started")
        return self._bootstrap_servers

    @property
    def is_running(self) -> bool:
        """Whether the mock cluster's process is alive."""
        return self._process is not None and self._process.is_running

    @property
    def has_failed(self) -> bool:
        """Whether the broker's process ended without being asked to by `stop`, its record or its owner's end."""
        return self._process is not None and self._process.has_failed

    def start(self) -> Self:
        """Starts an empty cluster and returns once it has an address.

        Raises:
            BrokerStartError: It gave no address within 15 s.
            BrokerRunningError: Another broker is recorded as running on the data directory.
        """
        if self.is_running:
            return self
        self.stop()
        if self._data_dir is not None:
            refuse_if_running(self._data_dir)
        self._process = BoundProcess("deploy.brokers.embedded", ["--brokers", str(self._brokers)])
        try:
            address = self._process.greeting(START_TIMEOUT_S).get("bootstrap_servers")
            if not isinstance(address, str):
                raise BrokerStartError("the embedded broker's process gave no address")  # noqa: TRY301
            self._bootstrap_servers = address
            if self._data_dir is not None:
                write_record(self._data_dir, "embedded", self._process.pid, address)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the cluster's process; its data is gone."""
        if self._process is None:
            return
        self._process.stop(STOP_GRACE_S)
        self._process = None
        if self._data_dir is not None:
            clear_record(self._data_dir)

    def log_tail(self) -> str:
        """The last lines the process wrote to its standard error."""
        return self._process.complaints() if self._process is not None else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def touch_topic(bootstrap_servers: str, topic: str, timeout_s: float = 10.0) -> int:
    """Makes a topic on a broker without an admin API: a producer's question about it creates it.

    A confluent consumer cannot do this: it gets "unknown topic" until a producer has asked or written, and then takes
    some seconds to notice, so make topics before consumers subscribe.

    Returns:
        The topic's number of partitions.

    Raises:
        BrokerError: The broker did not answer in time, or refuses the topic.
    """
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        found = producer.list_topics(topic, timeout=timeout_s).topics[topic]
    except KafkaException as error:
        raise BrokerError(f"topic {topic}: {bootstrap_servers} did not answer: {error}") from error
    if found.error is not None:
        raise BrokerError(f"topic {topic}: {found.error}")
    return len(found.partitions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Holds a mock cluster until the owner ends; prints its address as one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.brokers.embedded", description="Hold a mock cluster.")
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--brokers", type=int, default=1)
    taken = parser.parse_args(arguments)
    owners_end = OwnersEnd(taken.owner)
    # The cluster lives inside this client and dies with it.
    holder = Producer({"test.mock.num.brokers": taken.brokers, "log_level": 0})
    try:
        members = holder.list_topics(timeout=START_TIMEOUT_S).brokers.values()
    except KafkaException as error:
        sys.stderr.write(f"the mock cluster did not answer: {error}\n")
        return 1
    announce({"bootstrap_servers": ",".join(f"{member.host}:{member.port}" for member in members)})
    owners_end.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

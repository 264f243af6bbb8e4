"""Stops a real broker under load and starts it again, and accounts for every record that the publisher took.

One publisher stands for several nodes, each with frames (bulk), status and kernel events (critical) of consecutive
numbers. Afterwards the topics are read from their beginnings, repeats are dropped by identity, and what is missing is
held against what the publisher counted. `python -m tests.faults.broker_outage --help`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from agents.publisher import KafkaPublisher, PublisherSettings
from agents.spool_policy import SpoolSettings
from deploy.brokers.apache import ApacheBroker
from deploy.topics import apply_topics
from schemas.codec import decode
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import GpuFrame
from schemas.kafka_answers import watermarks
from schemas.topics import topic_of

if TYPE_CHECKING:
    from schemas.base import Record

Source = tuple[str, ...]
Identity = tuple[Source, int]

STREAMS = (GpuFrame, NodeStatus, KernelEvent)
PARTITIONS = 4


@dataclass
class Plan:
    """What is done.

    Attributes:
        before_s: load before the broker is stopped.
        outage_s: load while it is away.
        after_s: load after it is back.
        nodes: how many publish.
        rate_hz: records of each stream and node a second.
        bulk_kbytes: cap of the bulk lane; small enough, and the oldest are given up.
    """

    before_s: float = 10.0
    outage_s: float = 300.0
    after_s: float = 10.0
    nodes: int = 8
    rate_hz: float = 10.0
    bulk_kbytes: int = 524_288


@dataclass
class Report:
    """What came of it."""

    taken: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    critical_refused: int = 0
    critical_missing: int = 0
    bulk_missing: int = 0
    bulk_counted: dict[str, int] = field(default_factory=dict)
    invented: int = 0
    out_of_order: int = 0
    newest_missing_is_older_than_oldest_kept: bool = True
    left: int = 0
    peak_spool_records: int = 0
    peak_spool_bytes: int = 0
    drain_s: float = 0.0
    publish_ms: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Nothing critical is missing, nothing is out of order or invented, and every other loss is counted."""
        return (
            not (self.critical_refused or self.critical_missing or self.invented or self.out_of_order or self.left)
            and self.bulk_missing == sum(self.bulk_counted.values())
            and set(self.bulk_counted) <= {"spool_full"}
        )


def identity_of(record: Record) -> Identity:
    """What names a record for ever: the source that numbers it, and its number."""
    if isinstance(record, KernelEvent):
        assert record.kmsg_seq is not None
        return ("kernel", record.node_id, record.boot_id), record.kmsg_seq
    assert isinstance(record, GpuFrame | NodeStatus)
    return (record.record, record.node_id, record.agent_session), record.seq


class Load:
    """Publishes and keeps what was taken."""

    def __init__(self, plan: Plan, publisher: KafkaPublisher, report: Report) -> None:
        self.taken: dict[type[Record], list[Identity]] = {stream: [] for stream in STREAMS}
        self.took_s: dict[type[Record], list[float]] = {stream: [] for stream in STREAMS}
        self._plan = plan
        self._publisher = publisher
        self._report = report
        self._round = 0

    def run(self, duration_s: float) -> None:
        begun = time.monotonic()
        rounds = round(duration_s * self._plan.rate_hz)
        for number in range(rounds):
            time.sleep(max(0.0, begun + number / self._plan.rate_hz - time.monotonic()))
            for node in range(self._plan.nodes):
                for stream in STREAMS:
                    self._publish(stream, f"node-{node}")
            self._round += 1
            if number % 10 == 0:
                counters = self._publisher.counters()
                records = counters.critical.spool_records + counters.bulk.spool_records
                size = counters.critical.spool_bytes + counters.bulk.spool_bytes
                self._report.peak_spool_records = max(self._report.peak_spool_records, records)
                self._report.peak_spool_bytes = max(self._report.peak_spool_bytes, size)

    def _publish(self, stream: type[Record], node_id: str) -> None:
        record = _record(stream, node_id, self._round)
        begun = time.perf_counter()
        taken = self._publisher.publish(record)
        self.took_s[stream].append(time.perf_counter() - begun)
        if taken:
            self.taken[stream].append(identity_of(record))
        elif stream is not GpuFrame:
            self._report.critical_refused += 1


def _record(stream: type[Record], node_id: str, number: int) -> Record:
    head = {"node_id": node_id, "agent_session": "session", "event_time_ns": time.time_ns()}
    if stream is GpuFrame:
        return GpuFrame(**head, seq=number, gpu_uuid=tuple(f"GPU-{i}" for i in range(8)), power_w=(500.0,) * 8)
    if stream is NodeStatus:
        return NodeStatus(**head, seq=number, state="heartbeat")
    return KernelEvent(**head, boot_id="boot", kmsg_seq=number, source="xid", code=79)


def run(plan: Plan, directory: Path) -> Report:
    """Run it; broker and publisher are ended when this returns."""
    report = Report()
    broker = ApacheBroker(data_dir=directory / "kafka", port=0)
    broker.start()
    publisher: KafkaPublisher | None = None
    try:
        apply_topics(broker.bootstrap_servers, PARTITIONS, 1)
        spool = SpoolSettings(directory / "spool", bulk_kbytes=plan.bulk_kbytes)
        publisher = KafkaPublisher(PublisherSettings(broker.bootstrap_servers, spool=spool, spool_after_s=2.0))
        load = Load(plan, publisher, report)
        load.run(plan.before_s)
        broker.stop()
        load.run(plan.outage_s)
        broker.start()
        begun = time.monotonic()
        load.run(plan.after_s)
        report.left = publisher.flush(60.0)
        report.drain_s = round(time.monotonic() - begun, 1)
        report.bulk_counted = dict(publisher.counters().bulk.dropped)
        _account(report, load, broker.bootstrap_servers)
    finally:
        if publisher is not None:
            publisher.close()
        broker.stop()
    return report


def read_all(bootstrap_servers: str, *streams: type[Record]) -> list[Record]:
    """Everything that lies in the streams' topics, each partition in its order."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "account", "enable.auto.commit": False})
    records = []
    try:
        topics = consumer.list_topics(timeout=20.0).topics
        places = [
            TopicPartition(topic_of(stream).name, number, OFFSET_BEGINNING)
            for stream in streams
            for number in topics[topic_of(stream).name].partitions
        ]
        left = sum(watermarks(consumer, place, 20.0)[1] for place in places)
        consumer.assign(places)
        while left > 0:
            batch = [message for message in consumer.consume(1000, 10.0) if message.error() is None]
            assert batch, f"{left} records do not come"
            left -= len(batch)
            records += [decode(message.topic() or "", message.value() or b"") for message in batch]
    finally:
        consumer.close()
    return records


def _account(report: Report, load: Load, bootstrap_servers: str) -> None:
    seen: dict[type[Record], set[Identity]] = {stream: set() for stream in STREAMS}
    highest: dict[Source, int] = defaultdict(lambda: -1)
    for record in read_all(bootstrap_servers, *STREAMS):
        source, number = identity = identity_of(record)
        if identity in seen[type(record)]:
            report.repeated += 1
            continue
        seen[type(record)].add(identity)
        report.out_of_order += number < highest[source]
        highest[source] = max(highest[source], number)
    for stream, arrived in seen.items():
        taken = set(load.taken[stream])
        assert len(taken) == len(load.taken[stream])
        missing = taken - arrived
        report.taken[stream.__name__], report.arrived[stream.__name__] = len(taken), len(arrived)
        report.invented += len(arrived - taken)
        times = sorted(load.took_s[stream])
        report.publish_ms[f"{stream.__name__} p50"] = round(times[len(times) // 2] * 1e3, 3)
        report.publish_ms[f"{stream.__name__} p99"] = round(times[int(len(times) * 0.99)] * 1e3, 3)
        if stream is not GpuFrame:
            report.critical_missing += len(missing)
            continue
        report.bulk_missing = len(missing)
        gaps = Counter(source for source, number in missing if (source, number - 1) not in missing)
        # The oldest go first: what is missing of a node is one run of numbers.
        report.newest_missing_is_older_than_oldest_kept = all(count == 1 for count in gaps.values())


def main() -> int:
    """Run it once and print the report as JSON; 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in asdict(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--directory", type=Path, required=True)
    options = vars(parser.parse_args())
    directory = options.pop("directory")
    directory.mkdir(parents=True, exist_ok=True)
    report = run(Plan(**options), directory)
    print(json.dumps({**vars(report), "holds": report.holds}, indent=1))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())

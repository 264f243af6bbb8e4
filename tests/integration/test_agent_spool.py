"""An agent and brokers that go away, and agents that are killed: what was taken arrives, once and in order.

Short forms of `make soak` (a broker away under load) and `make faults` (kills), and restarts of the real agent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from agents.publisher import KafkaPublisher, PublisherSettings
from agents.spool_policy import SpoolSettings
from deploy.brokers.apache import ApacheBroker
from deploy.topics import apply_topics
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import GpuFrame
from streams.core.sequence import OrderedSources, SeenNumbers
from tests.faults.agent_kills import run as run_kills
from tests.faults.broker_outage import Plan, identity_of, read_all
from tests.faults.broker_outage import run as run_outage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemas.base import Record

NODE = "node-1"
PAGE = 'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1A:00.0"} 1980\n'
XIDS = (13, 31, 43, 45, 63, 74, 79, 92, 94, 95)


def test_eight_kills_lose_and_invent_no_critical_record(tmp_path: Path) -> None:
    report = run_kills(8, tmp_path)
    assert report.kills == 8
    assert report.acknowledged > 100
    assert report.holds, report


@pytest.mark.needs_kafka
def test_a_broker_away_for_twenty_seconds_costs_only_the_oldest_bulk_above_the_cap(
    kafka: object, tmp_path: Path
) -> None:
    report = run_outage(Plan(before_s=3.0, outage_s=20.0, after_s=3.0, bulk_kbytes=64), tmp_path)
    assert report.taken["NodeStatus"] == report.arrived["NodeStatus"] > 1500
    assert report.taken["KernelEvent"] == report.arrived["KernelEvent"] > 1500
    assert report.bulk_missing > 0, "the cap was not reached"
    assert report.newest_missing_is_older_than_oldest_kept, report
    assert report.holds, report


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ApacheBroker]:
    made = ApacheBroker(data_dir=tmp_path / "kafka", port=0)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.needs_kafka
def test_what_the_broker_refuses_is_a_dead_letter_and_holds_up_nothing(
    kafka: object, broker: ApacheBroker, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    topic = "paceline.kernel-events.v1"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": "1200"})]).values():
        future.result(timeout=30)
    publisher = KafkaPublisher(
        PublisherSettings(
            broker.bootstrap_servers,
            linger_ms=200,
            spool=SpoolSettings(tmp_path / "spool"),
            properties={"topic.metadata.propagation.max.ms": "2000", "compression.type": "none"},
        )
    )
    try:
        # All in one batch, which the broker refuses as a whole for the large one in its middle.
        text = random.Random(1).randbytes(1000).hex()  # what packs well is not large to the broker
        events = [event(number, text if number == 5 else "") for number in range(10)]
        assert publisher.publish_all(events) == 10
        assert publisher.flush(30.0) == 0
        letters = [json.loads(line) for line in (tmp_path / "spool" / "dead-letters.jsonl").read_text().splitlines()]
        assert [(letter["topic"], letter["reason"]) for letter in letters] == [(topic, "MSG_SIZE_TOO_LARGE")]
        arrived = [record.kmsg_seq for record in read_all(broker.bootstrap_servers, KernelEvent)]  # type: ignore[attr-defined]
        assert sorted(set(arrived)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        # A topic that does not exist.
        assert publisher.publish(NodeStatus(node_id=NODE, agent_session="s", seq=0, event_time_ns=1, state="start"))
        assert publisher.publish(event(10, ""))
        assert publisher.flush(60.0) == 0
        counters = publisher.counters().critical
        assert (counters.dead_letters, dict(counters.dropped)) == (2, {"refused": 2})
        assert 10 in [record.kmsg_seq for record in read_all(broker.bootstrap_servers, KernelEvent)]  # type: ignore[attr-defined]
    finally:
        publisher.close()


def event(number: int, text: str) -> KernelEvent:
    head = {"node_id": NODE, "agent_session": "s", "boot_id": "b"}
    return KernelEvent(**head, kmsg_seq=number, event_time_ns=1, source="xid", code=79, raw=text)


class KernelLog:
    """A log that grows by a line every 50 ms; every line is another error of another device."""

    def __init__(self, path: Path) -> None:
        self.lines = 0
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        path.touch()
        self._thread.start()

    def _write(self) -> None:
        with self._path.open("a") as log:
            while not self._stop.wait(0.05):
                code, bus = XIDS[self.lines % len(XIDS)], 1 + self.lines % 97
                log.write(f"4,{self.lines},{5_000_000 + self.lines},-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, x\n")
                log.flush()
                self.lines += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.needs_kafka
def test_an_agent_that_is_killed_and_stopped_again_and_again_says_everything_once(
    kafka: object, broker: ApacheBroker, tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"agent restarts: seed {seed}", file=sys.stderr)
    rng = random.Random(seed)
    apply_topics(broker.bootstrap_servers, 4, 1)
    config = _config(broker.bootstrap_servers, tmp_path)
    log = KernelLog(tmp_path / "kmsg")
    how = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]
    try:
        for number, end in enumerate(how):
            if number == 2:  # the third and fourth run meet no broker, the fifth one finds their leftovers
                broker.stop()
            _run_agent(config, tmp_path, rng.uniform(2.5, 4.5), end)
            if number == 3:
                broker.start()
    finally:
        log.end()
    _run_agent(config, tmp_path, 6.0, signal.SIGTERM)

    records = read_all(broker.bootstrap_servers, GpuFrame, NodeStatus, KernelEvent)
    lines = {record.kmsg_seq for record in records if isinstance(record, KernelEvent)}
    assert lines == set(range(log.lines)), f"seed {seed}: {sorted(set(range(log.lines)) - lines)[:20]} are missing"
    assert not list((tmp_path / "state" / "spool").glob("dead-letters*"))
    states = Counter(record.state for record in records if isinstance(record, NodeStatus))
    told = f"seed {seed}: {_statuses(records)}; the agent said:\n{(tmp_path / 'agent.log').read_text()}"
    assert states["start"] == len(how) + 1, told
    assert states["stop"] == 1 + how.count(signal.SIGTERM), told
    _engine_takes_each_once(records, seed)


def _statuses(records: list[Record]) -> dict[str, list[str]]:
    """By session, what arrived of the node's status."""
    arrived: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record, NodeStatus):
            arrived.setdefault(record.agent_session, []).append(f"{record.seq} {record.state}")
    return arrived


def _engine_takes_each_once(records: list[Record], seed: int) -> None:
    """As the engine numbers sources: it drops what came before, and nothing else."""
    ordered: OrderedSources[tuple[tuple[str, ...], int]] = OrderedSources()
    kernel_lines = SeenNumbers()
    released = []
    for record in records:
        identity = identity_of(record)
        if isinstance(record, KernelEvent):
            if kernel_lines.is_new("/".join(identity[0]), identity[1]):
                released.append(identity)
            continue
        assert isinstance(record, GpuFrame | NodeStatus)
        source = f"{record.node_id}/{record.agent_session}/{record.record}"
        released += ordered.offer(source, record.seq, record.event_time_ns, identity)
    released += ordered.flush()
    distinct = {identity_of(record) for record in records}
    assert len(released) == len(set(released)), f"seed {seed}"
    assert set(released) == distinct, f"seed {seed}: {sorted(distinct - set(released))[:10]}"
    assert ordered.late == []
    assert ordered.repeats + kernel_lines.repeats == len(records) - len(distinct)
    for source in {source for source, _ in distinct if source[0] != "kernel"}:
        numbers = sorted(number for other, number in distinct if other == source)
        assert numbers == list(range(len(numbers))), f"seed {seed}: {source} has gaps"
        assert [number for other, number in released if other == source] == numbers


def _config(bootstrap_servers: str, directory: Path) -> Path:
    (directory / "metrics").write_text(PAGE)
    (directory / "state").mkdir()
    config = directory / "agent.toml"
    settings = {
        "bootstrap_servers": bootstrap_servers,
        "node_id": NODE,
        "kernel_log": str(directory / "kmsg"),
        "dcgm_exporter_url": (directory / "metrics").as_uri(),
        "socket": "",
        "state_dir": str(directory / "state"),
    }
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    text += 'sources = ["kernel-log", "dcgm-exporter"]\n'
    text += "tick_s = 0.2\ncollect_deadline_s = 0.2\nheartbeat_s = 0.5\nconnect_spread_s = 0\nspool_after_s = 0.5\n"
    config.write_text(f"[agent]\n{text}drain_s = 2\n")
    return config


_TICKED = " sources are here: "


def _run_agent(config: Path, directory: Path, seconds: float, end: signal.Signals) -> None:
    with (directory / "agent.log").open("ab") as log:
        runs_before = (directory / "agent.log").read_text().count(_TICKED)
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "agent", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for_work(process, directory, runs_before)
            time.sleep(seconds)
            process.send_signal(end)
            process.wait(30.0)
        finally:
            process.kill()
            process.wait()
    said = (directory / "agent.log").read_text()
    assert process.returncode == (0 if end is signal.SIGTERM else -signal.SIGKILL), said
    assert "Traceback" not in said, said


def _wait_for_work(process: subprocess.Popen[bytes], directory: Path, runs_before: int) -> None:
    """Until this run has ticked: what it says of its sources comes after its status `start` is in the spool."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        said = (directory / "agent.log").read_text()
        assert process.poll() is None, said
        if said.count(_TICKED) > runs_before:
            return
        time.sleep(0.05)
    raise AssertionError(f"the agent does not tick: {(directory / 'agent.log').read_text()}")

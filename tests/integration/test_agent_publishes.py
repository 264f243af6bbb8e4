"""An agent and a training loop against a broker: what other clients read is what was measured."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from agents.agent import Agent, build_collectors
from agents.identity import AgentIdentity
from agents.publisher import KafkaPublisher, PublisherSettings
from agents.settings import AgentSettings
from agents.testing import ScriptedCollector
from deploy.brokers.embedded import touch_topic
from paceline_trainer import StepReporter
from schemas.codec import decode, schema_name
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import RankProgress, StepTiming
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.base import Record

pytestmark = pytest.mark.needs_broker

PUBLISHED = [
    topic.name
    for topic in TOPICS
    if topic.family in {"gpu-frames", "fabric-frames", "kernel-events", "node-status", "step-timings", "jobs"}
]
PAGE = (
    'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1A:00.0"} 1980\n'
    'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1A:00.0"} 650.5\n'
)


@pytest.fixture
def topics(kafka: Any) -> None:
    if kafka.has_admin:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        there = set(admin.list_topics(timeout=15).topics)
        wanted = [NewTopic(name, num_partitions=4, replication_factor=1) for name in PUBLISHED if name not in there]
        for future in admin.create_topics(wanted).values() if wanted else ():
            future.result(timeout=30)
    else:
        for name in PUBLISHED:
            touch_topic(kafka.bootstrap_servers, name)


def read(servers: str, timeout_s: float = 60) -> list[tuple[str, bytes, Record]]:
    """Everything that was published, from the start of all topics to their ends."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"test-{uuid.uuid4()}", "enable.partition.eof": True}
    )
    found: list[tuple[str, bytes, Record]] = []
    try:
        there = consumer.list_topics(timeout=15).topics
        open_ends = {(name, number) for name in PUBLISHED for number in there[name].partitions}
        consumer.assign([TopicPartition(name, number, 0) for name, number in open_ends])
        deadline = time.monotonic() + timeout_s
        while open_ends:
            assert time.monotonic() < deadline, f"no end of {sorted(open_ends)}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            name, key, value, error = message.topic(), message.key(), message.value(), message.error()
            assert name is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_ends.discard((name, message.partition() or 0))
                continue
            assert key is not None
            assert value is not None
            record = decode(name, value)
            assert dict(message.headers() or ()) == {"schema": schema_name(record).encode()}
            found.append((name, key, record))
    finally:
        consumer.close()
    return found


def of(found: list[Record], family: Any) -> list[Any]:
    return [record for record in found if isinstance(record, family)]


def test_what_a_node_measures_is_what_a_consumer_reads(kafka: Any, topics: None, tmp_path: Path) -> None:
    node_id, job_id = f"node-{uuid.uuid4().hex[:8]}", f"job-{uuid.uuid4().hex[:8]}"
    (tmp_path / "metrics").write_text(PAGE)
    (tmp_path / "kmsg").write_text("4,77,5000000,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n")
    settings = AgentSettings(
        node_id=node_id,
        sources=("kernel-log", "dcgm-exporter"),
        kernel_log=str(tmp_path / "kmsg"),
        state_dir=str(tmp_path / "state"),
        dcgm_exporter_url=(tmp_path / "metrics").as_uri(),
        socket=str(tmp_path / "t.sock"),
        tick_s=0.2,
        collect_deadline_s=0.2,
        heartbeat_s=0.5,
        progress_s=0.5,
    )
    identity = AgentIdentity(node_id, "boot-1", "session-1")
    publisher = KafkaPublisher(PublisherSettings(kafka.bootstrap_servers))
    # A source beside the others that never answers.
    hang = threading.Event()
    collectors = [*build_collectors(settings, identity), ScriptedCollector("hung", [lambda: _wait(hang)])]
    agent = Agent(settings, publisher, collectors, identity=identity)
    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(stop,))
    running.start()
    try:
        hook = StepReporter(
            job_id,
            model={"parameters": 7e9},
            device="GPU-1",
            warmup_steps=0,
            socket_path=settings.socket,
            environ={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        )
        for step in range(5):
            assert hook._link is not None
            hook._link._retry_at = 0.0  # the agent may still be opening its socket
            with hook.step(step, tokens=128), hook.phase("forward"):
                time.sleep(0.2)
        time.sleep(0.5)
    finally:
        stop.set()
        running.join(timeout=30)
        hang.set()
    assert not running.is_alive()

    found = [
        (key, record)
        for _, key, record in read(kafka.bootstrap_servers)
        if node_id in (named := _names(record)) or job_id in named
    ]
    records = [record for _, record in found]
    assert {key for key, record in found if isinstance(record, GpuFrame | KernelEvent | NodeStatus)} == {
        node_id.encode()
    }
    assert {key for key, record in found if isinstance(record, StepTiming | RankProgress | Job | RankPlacement)} == {
        job_id.encode()
    }
    frames = of(records, GpuFrame)
    assert [frame.seq for frame in sorted(frames, key=lambda frame: frame.event_time_ns)] == list(range(len(frames)))
    assert len(frames) >= 3
    assert frames[-1].gpu_uuid == ("GPU-1",)
    assert (frames[-1].sm_clock_mhz, frames[-1].power_w) == ((1980,), (650.5,))
    (event,) = of(records, KernelEvent)
    assert (event.code, event.kmsg_seq, event.pci_bus_id) == (79, 77, "0000:1a:00")
    states = [status.state for status in of(records, NodeStatus)]
    assert (states[0], states[-1], set(states[1:-1])) == ("start", "stop", {"heartbeat"})
    timings = sorted(of(records, StepTiming), key=lambda timing: timing.step)
    assert [timing.step for timing in timings] == [0, 1, 2, 3, 4]
    assert all(timing.tokens == (128,) and timing.forward_us[0] >= 190_000 for timing in timings)
    assert max(progress.last_step[0] or 0 for progress in of(records, RankProgress)) == 4
    assert of(records, Job)[-1].world_size == 1
    assert of(records, RankPlacement)[-1].gpu_uuid == ("GPU-1",)
    assert publisher.dropped == 0


def test_records_of_one_node_and_job_keep_their_partition(kafka: Any, topics: None) -> None:
    publisher = KafkaPublisher(PublisherSettings(kafka.bootstrap_servers))
    nodes = [f"node-{uuid.uuid4().hex[:8]}" for _ in range(16)]
    for seq in range(3):
        for node in nodes:
            assert publisher.publish(
                NodeStatus(node_id=node, agent_session="s", seq=seq, event_time_ns=seq, state="heartbeat")
            )
    assert publisher.flush(30) == 0
    assert publisher.delivered == {"paceline.node-status.v1": 48}
    publisher.close()
    found = of([record for _, _, record in read(kafka.bootstrap_servers)], NodeStatus)
    for node in nodes:
        assert [record.seq for record in found if record.node_id == node] == [0, 1, 2]


def test_a_node_without_a_gpu_says_what_it_found_and_publishes_what_it_can(
    kafka: Any, topics: None, tmp_path: Path, start_paceline: Any
) -> None:
    node_id = f"node-{uuid.uuid4().hex[:8]}"
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, value in {"state": "4: ACTIVE", "link_layer": "InfiniBand", "counters/port_rcv_data": "1000"}.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(f"{value}\n")
    (tmp_path / "kmsg").write_text("4,77,5000000,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n")
    config = tmp_path / "agent.toml"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics_port = probe.getsockname()[1]
    config.write_text(
        f"""[agent]
bootstrap_servers = "{kafka.bootstrap_servers}"
node_id = "{node_id}"
disable = ["nvml", "flight-recorder-dumps"]
connect_spread_s = 0
heartbeat_s = 1
metrics_port = {metrics_port}
kernel_log = "{tmp_path}/kmsg"
sysfs_root = "{tmp_path}/sys"
dcgm_exporter_url = "http://127.0.0.1:9/metrics"
state_dir = "{tmp_path}/state"
socket = "{tmp_path}/t.sock"
stamp_arrival = {str(not kafka.is_real).lower()}
"""
    )
    agent = start_paceline("agent", "--config", str(config))
    said = agent.read_until(f"node {node_id}: ")
    assert "source nic: here" in said
    assert "source dcgm-exporter: not here: http://127.0.0.1:9/metrics cannot be fetched" in said
    time.sleep(3)
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert 'paceline_agent_source_up{source="nic"} 1.0' in page
    agent.process.terminate()
    assert agent.process.wait(30) == 0

    records = [record for _, _, record in read(kafka.bootstrap_servers) if node_id in _names(record)]
    assert of(records, GpuFrame) == []
    frames = of(records, FabricFrame)
    assert len(frames) >= 2
    assert frames[0].device == ("mlx5_0",)
    (event,) = of(records, KernelEvent)
    assert event.code == 79
    states = sorted(of(records, NodeStatus), key=lambda status: status.seq)
    assert [states[0].state, states[-1].state] == ["start", "stop"]
    assert {"kernel-log", "nic", "host"} <= set(states[-1].sources)
    assert any(status.host is not None and status.host.cpu_count for status in states)


def test_the_doctor_reaches_the_brokers_of_the_agent_s_settings(
    kafka: Any, topics: None, tmp_path: Path, run_paceline: Any
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f"""[agent]
bootstrap_servers = "{kafka.bootstrap_servers}"
socket = "{tmp_path}/t.sock"
state_dir = "{tmp_path}/state"
"""
    )
    done = run_paceline("doctor", "--json", "--config", str(config))
    found = {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert found["brokers"]["ok"], found["brokers"]
    assert found["spool"]["ok"]
    assert found["trainers' socket"]["ok"]
    # Only what an agent publishes to was made here.
    assert not found["topics"]["ok"]
    assert done.returncode == 1
    if kafka.has_admin:
        assert "is missing" in found["topics"]["note"]
        assert "paceline topics apply" in found["topics"]["note"]


def _wait(hang: threading.Event) -> Any:
    hang.wait(60)
    raise TimeoutError


def _names(record: Record) -> set[object]:
    return {getattr(record, "node_id", None), getattr(record, "job_id", None)}

"""The three roles in Faust on a broker: a fleet in real time, and what happens to input that cannot be used."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import psutil
import pytest
from factories import gpu_frame

from agents.simulation import deliver, load_scenario, simulate
from deploy.topics import apply_topics
from paceline.demo import SITE, DemoOptions, DemoResult, DemoView, run_demo
from paceline.processes import Children
from schemas.archive import read_archive
from schemas.codec import decode, message
from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, Node, Policy, RankPlacement
from schemas.remediation import Command
from schemas.steps import StepTiming
from schemas.topics import DEAD_LETTER, LATE, topic_named
from streams.core.position import Position
from streams.engines.pipeline import Pipeline
from streams.faust_roles.app import INPUTS
from streams.faust_roles.boundary import EXIT_DEAD_LETTER_FAILED, Boundary
from streams.faust_roles.metrics import WorkerMetrics
from streams.faust_roles.snapshot_table import SnapshotSlots
from streams.faust_roles.state_keeper import StateKeeper
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import Message

    from deploy.brokers import Broker
    from schemas.base import Record

GPU_FRAMES = topic_named("gpu-frames").name
KERNEL_EVENTS = topic_named("kernel-events").name
LARGEST_MESSAGE = 1_048_400
"""Bytes of a value that still goes into an input topic, and with the headers of a dead letter into none of its size."""
STEP_TIMINGS = topic_named("step-timings").name
FINDINGS = topic_named("findings").name
ACTIONS = topic_named("actions").name
INPUT_TOPICS = [
    topic_named(family).name for family in ("nodes", "jobs", "policy", *INPUTS["telemetry"], *INPUTS["jobs"])
]


def headers_of(found: Message) -> dict[str, bytes]:
    return {str(pair[0]): bytes(pair[1]) for pair in found.headers() or ()}  # type: ignore[arg-type]


def records_of(messages: list[Message], family: type[Any]) -> list[Any]:
    decoded = [decode(found.topic() or "", found.value() or b"") for found in messages]
    return [record for record in decoded if isinstance(record, family)]


# --- A fleet in real time ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetRun:
    """What a short demo left behind on its broker."""

    broker: Broker
    result: DemoResult


@pytest.fixture(scope="module")
def fleet_run(own_kafka: Broker) -> FleetRun:
    apply_topics(own_kafka.bootstrap_servers, 4, 1, has_admin=own_kafka.has_admin)
    options = DemoOptions(duration_s=20.0, bootstrap_servers=own_kafka.bootstrap_servers)
    return FleetRun(own_kafka, run_demo(options, DemoView()))


@pytest.mark.needs_broker
def test_a_fleet_through_the_roles_has_all_faults_found_and_nobody_blamed(fleet_run: FleetRun) -> None:
    verdict = fleet_run.result.verdict
    assert {truth.cause_class for truth in fleet_run.result.truths} == {"thermal", "host", "gpu_lost", "pause_storm"}
    assert set(verdict.found) == {truth.truth_id for truth in fleet_run.result.truths}, verdict.details
    assert verdict.missed == ()
    assert verdict.blamed_healthy == ()


@pytest.mark.needs_broker
def test_commands_are_cloud_events_keyed_by_what_they_act_on(fleet_run: FleetRun, read_topics: Any) -> None:
    sent = read_topics(fleet_run.broker.bootstrap_servers, ACTIONS)
    commands = records_of(sent, Command)
    assert {command.command_id for command in commands} >= set(fleet_run.result.heard.commands)
    nodes = {f"node-{index:04d}" for index in range(8)}
    for found, command in zip(sent, commands, strict=True):
        headers = headers_of(found)
        assert headers["ce_specversion"] == b"1.0"
        assert headers["ce_id"] == command.command_id.encode()
        assert headers["ce_type"] == headers["schema"] == b"paceline.command.v1"
        assert headers["ce_source"] == f"/paceline/{SITE}".encode()
        assert headers["content-type"] == b"application/json"
        assert headers["ce_time"].endswith(b"Z")
        assert (found.key() or b"").decode() == command.target.key()
        assert command.target.node_id in nodes or (command.target.level, command.kind) == ("job", "restart_job")
        assert command.mode == "observe"


@pytest.mark.needs_broker
def test_a_clean_fleet_leaves_no_dead_letter(fleet_run: FleetRun, read_topics: Any) -> None:
    assert read_topics(fleet_run.broker.bootstrap_servers, DEAD_LETTER.name) == []


@pytest.mark.needs_broker
def test_replay_of_the_recorded_topics_finds_what_the_workers_found(
    fleet_run: FleetRun, read_topics: Any, tmp_path: Path
) -> None:
    servers = fleet_run.broker.bootstrap_servers
    live = read_topics(servers, FINDINGS)
    recorded = read_topics(servers, *INPUT_TOPICS)
    # By arrival, as a recorder that follows all topics writes them; what shares a millisecond keeps its topic's order.
    recorded.sort(key=lambda m: (m.timestamp()[1], INPUT_TOPICS.index(m.topic()), m.partition(), m.offset()))
    archive = tmp_path / "recorded.jsonl"
    archive.write_bytes(b"".join(archive_line(found) for found in recorded))
    problems = Problems()
    replayed = list(replay(read_archive(archive), SITE, problems))
    assert problems.bad_lines == []
    found = {record.finding_id for record in replayed if isinstance(record, Finding)}
    assert {finding.finding_id for finding in records_of(live, Finding)} == found
    assert {record.command_id for record in replayed if isinstance(record, Command)} == {
        command.command_id for command in records_of(read_topics(servers, ACTIONS), Command)
    }


def archive_line(found: Message) -> bytes:
    line = {
        "topic": found.topic(),
        "partition": found.partition(),
        "offset": found.offset(),
        "timestamp_ms": found.timestamp()[1],
        "key": (found.key() or b"").decode(),
        "headers": {name: value.decode() for name, value in headers_of(found).items()},
        "value": orjson.Fragment(found.value() or b"null"),
    }
    return orjson.dumps(line) + b"\n"


# --- Input that cannot be used ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poison:
    """A message that no engine may see."""

    what: str
    topic: str
    key: bytes | None
    value: bytes | None
    told: str


@dataclass
class BoundaryRun:
    """Good records with bad ones among them, and what came of them."""

    servers: str
    good: list[tuple[int, Record]]
    poisons: list[Poison]
    places: dict[int, tuple[str, int, int]]
    late: list[tuple[bytes, tuple[str, int, int]]]
    workers_before: dict[int, float]
    workers_after: dict[int, float]


def poisons(now_ns: int) -> list[Poison]:
    future = gpu_frame(0, node_id="node-0000", session="future").model_copy(
        update={"event_time_ns": now_ns + 300_000_000_000}
    )
    foreign = gpu_frame(0, node_id="node-0001", session="foreign").model_copy(update={"event_time_ns": now_ns})
    frame = orjson.loads(message(foreign).value)
    node = b"node-0000"
    return [
        Poison("torn JSON", GPU_FRAMES, node, message(future).value[:-20], "JSON"),
        Poison("no UTF-8", GPU_FRAMES, node, b'{"record":"gpu_frame","node_id":"\xff\xfe"}', ""),
        Poison("no JSON at all", KERNEL_EVENTS, node, b"NVRM: Xid 79", "JSON"),
        Poison("an empty value", KERNEL_EVENTS, node, b"", "JSON"),
        Poison("a JSON value that is no object", KERNEL_EVENTS, node, b"[79]", ""),
        Poison("another version of the record", GPU_FRAMES, node, orjson.dumps(frame | {"record": "gpu_frame.v2"}), ""),
        Poison("an unknown record", STEP_TIMINGS, b"job-x", b'{"record":"step_guess","job_id":"job-x"}', "step_guess"),
        Poison("an unknown record for decisions", FINDINGS, b"boundary", b'{"record":"rumour"}', "rumour"),
        Poison(
            "a column of another length", GPU_FRAMES, b"node-0001", orjson.dumps(frame | {"power_w": [1.0]}), "power_w"
        ),
        Poison(
            "a time that no clock shows",
            GPU_FRAMES,
            node,
            orjson.dumps(frame | {"event_time_ns": 2**63}),
            "event_time_ns",
        ),
        Poison("an event of the future", GPU_FRAMES, node, message(future).value, "ahead"),
        Poison("a record of another node", GPU_FRAMES, node, message(foreign).value, "node-0001"),
        Poison("more than a record may have", GPU_FRAMES, node, os.urandom(LARGEST_MESSAGE), "limit"),
        Poison("megabytes that were packed small", GPU_FRAMES, node, b'{"pad":"' + b"x" * 8_000_000 + b'"}', "limit"),
        Poison("a tombstone", GPU_FRAMES, node, None, "value"),
        Poison("neither key nor value", GPU_FRAMES, None, None, "value"),
        Poison("an unknown record without a key", STEP_TIMINGS, None, b'{"record":"step_guess"}', "step_guess"),
        Poison("nested without end", STEP_TIMINGS, b"job-x", b'{"record":' * 5000, "JSON"),
    ]


def late_timings(now_ns: int) -> list[StepTiming]:
    """A job of two nodes, of which one reports its first step when that was closed long ago."""

    def timing(node_id: str, rank: int, step: int, seq: int) -> StepTiming:
        return StepTiming(
            job_id="job-late",
            node_id=node_id,
            agent_session="s1",
            seq=seq,
            event_time_ns=now_ns - 60_000_000_000 + step * 500_000_000,
            step=step,
            rank=(rank,),
            step_us=(500_000,),
            own_us=(400_000,),
        )

    timings = [timing("late-a", 0, 0, 0)]
    for step in range(1, 60):
        timings += [timing("late-a", 0, step, step), timing("late-b", 1, step, step)]
    return [*timings, timing("late-b", 1, 0, 0)]


def late_frames(now_ns: int) -> list[Record]:
    """A node whose second frame comes when the wait for it is over."""
    frames = [
        gpu_frame(second, node_id="late-a", gpus=1).model_copy(
            update={"event_time_ns": now_ns - 60_000_000_000 + second * 1_000_000_000}
        )
        for second in range(16)
    ]
    return [frames[0], *frames[2:], frames[1]]


def workers() -> dict[int, float]:
    """Process id and start of each worker below this process."""
    return {
        child.pid: child.create_time()
        for child in psutil.Process().children(recursive=True)
        if "--role" in child.cmdline()
    }


@pytest.fixture(scope="module")
def boundary_run(second_kafka: Broker, wait_drained: Callable[..., None], sender_to: Any) -> BoundaryRun:
    servers = second_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=second_kafka.has_admin)
    now_ns = time.time_ns()
    scenario = load_scenario("mixed", nodes=8, duration_s=40.0, seed=7)
    good = list(deliver(simulate(scenario, now_ns - 45_000_000_000), seed=7))
    sender = sender_to(servers)
    policy = Policy(policy_version="test", site_id="boundary", effective_from_ns=1, settle_ns=3_000_000_000)
    late_job = Job(job_id="job-late", effective_from_ns=1, world_size=2)
    # What workers judge by is there before they start: here nothing waits for a clock that would let it come first.
    good = [(0, policy), (0, late_job), *good]
    reference = [pair for pair in good if isinstance(pair[1], Job | RankPlacement | Node | Policy)]
    rest = [pair for pair in good if not isinstance(pair[1], Job | RankPlacement | Node | Policy)]
    for _, record in reference:
        sender.record(record)
    sender.flush()
    bad = poisons(now_ns)
    with Children() as children:
        for role in INPUTS:
            children.start(
                f"worker {role}",
                ["paceline", "worker", "--role", role, "--bootstrap", servers, "--site", "boundary", "--announce"],
            )
        children.wait_ready(120.0)
        before = workers()
        every = len(rest) // len(bad)
        sent_bad: dict[int, int] = {}
        for number, (_, record) in enumerate(rest):
            if number % every == every // 2 and len(sent_bad) < len(bad):
                poison = bad[len(sent_bad)]
                sent_bad[len(sent_bad)] = sender.send(poison.topic, poison.key, poison.value)
            sender.record(record)
        sent_late = [[(r, sender.record(r)) for r in late][-1] for late in (late_timings(now_ns), late_frames(now_ns))]
        sender.flush()
        for role in ("telemetry", "jobs", "decisions"):  # in the order in which records flow
            topics = [topic_named(family).name for family in INPUTS[role]]
            wait_drained(servers, f"paceline-{role}", *topics, check=children.check)
        after = workers()
    assert len(sent_bad) == len(bad)
    return BoundaryRun(
        servers,
        reference + rest,
        bad,
        {index: sender.places[number] for index, number in sent_bad.items()},
        [(message(record).value, sender.places[number]) for record, number in sent_late],
        before,
        after,
    )


@pytest.mark.needs_broker
def test_what_cannot_be_used_is_a_dead_letter_with_its_bytes_and_its_place(
    boundary_run: BoundaryRun, read_topics: Any
) -> None:
    letters = read_topics(boundary_run.servers, DEAD_LETTER.name)
    by_place = {
        (h["dlq.topic"].decode(), int(h["dlq.partition"]), int(h["dlq.offset"])): (found, h)
        for found in letters
        for h in [headers_of(found)]
    }
    for index, poison in enumerate(boundary_run.poisons):
        assert boundary_run.places[index] in by_place, poison.what
        found, headers = by_place.pop(boundary_run.places[index])
        assert (found.value() or None) == (poison.value or None), poison.what
        assert (found.key() or None) == poison.key, poison.what
        assert headers["dlq.reason"] == b"invalid_record", poison.what
        assert poison.told in headers["dlq.text"].decode(), (poison.what, headers["dlq.text"])
        assert headers["dlq.text"], poison.what
        assert int(headers["dlq.timestamp_ms"]) > 0, poison.what
    assert by_place == {}, "good records are among the dead letters"
    assert len(letters) == len(boundary_run.poisons), "a dead letter was written twice"


@pytest.mark.needs_broker
def test_the_workers_live_through_bad_input(boundary_run: BoundaryRun) -> None:
    assert len(boundary_run.workers_before) == len(INPUTS)
    assert boundary_run.workers_after == boundary_run.workers_before


@pytest.mark.needs_broker
def test_findings_of_good_records_are_those_without_the_bad_ones(boundary_run: BoundaryRun, read_topics: Any) -> None:
    pipeline = Pipeline("boundary")
    expected: set[str] = set()
    offsets: Counter[tuple[str, int]] = Counter()
    for arrival_ns, record in boundary_run.good:
        wire = message(record)
        place = (wire.topic, 0)
        outputs = pipeline.on_record(record, Position(wire.topic, 0, offsets[place], arrival_ns // 1_000_000))
        offsets[place] += 1
        expected |= {output.finding_id for output in outputs if isinstance(output, Finding)}
    expected |= {output.finding_id for output in pipeline.flush() if isinstance(output, Finding)}
    # Of what stands on the topic, one is no record: a bad one was sent there too.
    rumour = next(p.value for p in boundary_run.poisons if p.topic == FINDINGS)
    sent = [found for found in read_topics(boundary_run.servers, FINDINGS) if found.value() != rumour]
    live = {finding.finding_id for finding in records_of(sent, Finding) if finding.job_id != "job-late"}
    assert len(expected) > 20
    assert live == expected


@pytest.mark.needs_broker
def test_what_comes_for_a_closed_step_or_a_passed_number_is_late_with_its_bytes(
    boundary_run: BoundaryRun, read_topics: Any
) -> None:
    late = read_topics(boundary_run.servers, LATE.name)
    found = {
        (h["dlq.topic"].decode(), int(h["dlq.partition"]), int(h["dlq.offset"])): (letter.value(), h["dlq.reason"])
        for letter in late
        for h in [headers_of(letter)]
    }
    assert found == {place: (value, b"late") for value, place in boundary_run.late}
    assert len(late) == len(boundary_run.late) == 2


# --- A dead letter that cannot be written -----------------------------------------------------------------------------


class Ended(BaseException):
    """What stands in for the end of the process."""


class ScriptedEngine:
    """Says the same to every record, and remembers nothing."""

    def __init__(self, outputs: list[Record]) -> None:
        self._outputs = outputs

    def on_record(self, record: Record, position: Position) -> list[Record]:
        return self._outputs

    def resume_offsets(self) -> dict[str, int]:
        return {}

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any], folded: dict[str, int]) -> None:
        pytest.fail("there is nothing to restore")


def keeper_of(metrics: WorkerMetrics, *outputs: Record) -> StateKeeper:
    return StateKeeper(lambda _: ScriptedEngine(list(outputs)), SnapshotSlots({}), 60.0, lambda: 0.0, metrics)


def raw_message(key: bytes, value: bytes, at_ns: int) -> Any:
    return SimpleNamespace(topic=GPU_FRAMES, partition=1, offset=7, timestamp=at_ns / 1e9, key=key, value=value)


async def test_a_dead_letter_that_cannot_be_written_ends_the_process_before_its_offset_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise Ended

    async def refuse(topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        raise ConnectionError(f"{topic} cannot be reached")

    monkeypatch.setattr(os, "_exit", end)
    metrics = WorkerMetrics("telemetry")
    keeper = keeper_of(metrics)
    boundary = Boundary(keeper, refuse, metrics)
    with pytest.raises(Ended):
        await boundary.on_message(raw_message(b"node-1", b"{", 1))
    assert statuses == [EXIT_DEAD_LETTER_FAILED] == [70]
    assert keeper.folded(1, GPU_FRAMES) == -1


async def test_output_that_cannot_be_published_makes_its_input_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"ended with {status}"))
    sent: list[tuple[bytes | None, bytes | None, dict[str, bytes]]] = []

    async def send(topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        if topic != DEAD_LETTER.name:
            raise ConnectionError(f"{topic} cannot be reached")
        sent.append((key, value, dict(headers)))

    frame = gpu_frame(0)
    wire = message(frame)
    metrics = WorkerMetrics("telemetry")
    keeper = keeper_of(metrics, ProgressMark(site_id="s", role="telemetry", partition=1, mark_ns=1))
    boundary = Boundary(keeper, send, metrics)
    await boundary.on_message(raw_message(wire.key, wire.value, frame.event_time_ns))
    ((key, value, headers),) = sent
    assert (key, value) == (wire.key, wire.value)
    assert headers["dlq.reason"] == b"processing_failed"
    assert b"cannot be reached" in headers["dlq.text"]
    assert keeper.folded(1, GPU_FRAMES) == 7

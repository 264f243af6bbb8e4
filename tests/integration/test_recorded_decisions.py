"""Decisions of live workers, recorded from their topics, replay to the same bytes: undisturbed, and with a worker killed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from reference_records import is_reference
from worker_processes import ROLES, WorkerProcesses

from agents.simulation import deliver, load_scenario, simulate
from deploy.topics import apply_topics
from schemas.fleet import Policy
from schemas.topics import topic_named
from streams.faust_roles.app import INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import Message

    from deploy.brokers import Broker
    from schemas.base import Record

SITE = "recorded"
OUTPUTS = tuple(topic_named(family).name for family in ("decisions", "incidents", "actions"))
JOURNAL = OUTPUTS[0]
TOPICS = tuple(
    topic_named(family).name for family in ("findings", "jobs", "nodes", "policy", "approvals", "action-results")
)


@dataclass(frozen=True)
class Recording:
    """What lay in the topics of the decisions role, as messages and as an archive."""

    messages: list[Message]
    archive: Path
    statuses: dict[str, int]
    starts: dict[str, int]

    def values(self, *topics: str) -> list[bytes]:
        return [found.value() or b"" for found in self.messages if found.topic() in topics]


def policy(price: float) -> Policy:
    version = f"price-{price:g}"
    return Policy(
        policy_version=version,
        site_id=SITE,
        effective_from_ns=time.time_ns(),
        settle_ns=3_000_000_000,
        gpu_hour_cost=price,
    )


def record(broker: Broker, directory: Path, tools: Any, is_killed: bool) -> Recording:
    """Half a fleet's records, new prices, a worker killed if asked, the other half; then everything that was said."""
    wait_drained, sender_to, read_topics = tools
    servers = broker.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=broker.has_admin)
    sender = sender_to(servers)
    scenario = load_scenario("mixed", nodes=8, duration_s=60.0, seed=5)
    arriving = [record for _, record in deliver(simulate(scenario, time.time_ns() - 65_000_000_000), seed=5)]
    rest = [record for record in arriving if not is_reference(record)]
    for known in [policy(1.0), *filter(is_reference, arriving)]:
        sender.record(known)
    sender.flush()
    with WorkerProcesses(servers, SITE, directory, "--snapshot-every", "30", "--session-timeout", "6") as workers:

        def publish(records: list[Record]) -> None:
            for known in records:
                sender.record(known)
            sender.flush()
            for role in ROLES:
                topics = [topic_named(family).name for family in INPUTS[role]]  # type: ignore[index]
                wait_drained(servers, f"paceline-{role}", *topics, check=workers.check, timeout_s=120.0)

        workers.start(*ROLES)
        first, second = len(rest) // 2, len(rest) * 2 // 3
        publish(rest[:first])
        sender.record(policy(2.0))
        sender.flush()
        time.sleep(1.0)
        publish(rest[first:second])
        if is_killed:
            workers.kill("decisions")
            sender.record(policy(3.0))
            sender.flush()
            workers.start("decisions")
        publish(rest[second:])
        statuses = workers.stop()
        starts = dict(workers.starts)
    messages = read_topics(servers, *TOPICS, *OUTPUTS)
    archive = directory / "site.jsonl"
    archive.write_bytes(b"".join(map(archive_line, messages)))
    return Recording(messages, archive, statuses, starts)


def archive_line(found: Message) -> bytes:
    headers = {str(name): bytes(value).decode() for name, value in found.headers() or ()}  # type: ignore[arg-type]
    line = {"topic": found.topic(), "partition": found.partition(), "offset": found.offset()}
    line |= {"timestamp_ms": found.timestamp()[1], "key": (found.key() or b"").decode(), "headers": headers}
    return orjson.dumps({**line, "value": orjson.Fragment(found.value() or b"null")}) + b"\n"


@pytest.fixture(scope="module")
def tools(wait_drained: Callable[..., None], sender_to: Any, read_topics: Any) -> Any:
    return wait_drained, sender_to, read_topics


@pytest.fixture(scope="module")
def undisturbed(own_kafka: Broker, tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Recording:
    return record(own_kafka, tmp_path_factory.mktemp("undisturbed"), tools, is_killed=False)


@pytest.fixture(scope="module")
def killed(second_kafka: Broker, tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Recording:
    return record(second_kafka, tmp_path_factory.mktemp("killed"), tools, is_killed=True)


@pytest.mark.needs_broker
@pytest.mark.parametrize("name", ["undisturbed", "killed"])
def test_recorded_decisions_replay_to_the_bytes_that_were_written(
    request: pytest.FixtureRequest, run_paceline: Any, name: str
) -> None:
    recording: Recording = request.getfixturevalue(name)
    distinct = set(recording.values(*OUTPUTS))
    assert len(set(recording.values(OUTPUTS[1]))) >= 4
    assert len(set(recording.values(OUTPUTS[2]))) >= 3
    result = run_paceline("replay", str(recording.archive), "--journal")
    assert (result.returncode, result.stdout) == (0, f"same {len(distinct)}, differs 0\n"), result.stderr
    assert "at the end of one side alone 0" in result.stderr
    # What is compared are parsed values, and those are the bytes on the wire.
    assert all(orjson.dumps(orjson.loads(value)) == value for value in distinct)


@pytest.mark.needs_broker
def test_the_journal_says_when_each_price_came_into_force(undisturbed: Recording) -> None:
    entries = [orjson.loads(value) for value in undisturbed.values(JOURNAL)]
    points = [entry["detail"] for entry in entries if entry["action"] == "reference_taken"]
    read = [sum(count for name, count in point.items() if "policy" in name) for point in points]
    assert read[0] == 1
    assert read[-1] == 2
    assert [entry["sequence"] for entry in entries] == list(range(len(entries)))


@pytest.mark.needs_broker
def test_a_killed_worker_wrote_numbers_again_under_another_price(killed: Recording) -> None:
    assert killed.starts == {"telemetry": 1, "jobs": 1, "decisions": 2}
    assert killed.statuses == dict.fromkeys(ROLES, 0)
    entries = [orjson.loads(value) for value in killed.values(JOURNAL)]
    times = Counter(entry["sequence"] for entry in entries)
    assert max(times.values()) == 2
    commands = [orjson.loads(value) for value in killed.values(OUTPUTS[2])]
    versions = {(command["command_id"], command["policy_version"]) for command in commands}
    assert len(versions) > len({command["command_id"] for command in commands})


@pytest.mark.needs_broker
@pytest.mark.parametrize("topic", OUTPUTS)
def test_one_changed_byte_is_found(undisturbed: Recording, run_paceline: Any, tmp_path: Path, topic: str) -> None:
    lines = undisturbed.archive.read_bytes().splitlines(keepends=True)
    index = next(i for i, line in enumerate(lines) if orjson.loads(line)["topic"] == topic)
    fields = orjson.loads(lines[index])
    name = "event_time_ns" if topic != OUTPUTS[2] else "decided_at_ns"
    fields["value"][name] += 1
    lines[index] = orjson.dumps(fields) + b"\n"
    path = tmp_path / "changed.jsonl"
    path.write_bytes(b"".join(lines))
    result = run_paceline("replay", str(path), "--journal")
    assert result.returncode == 1, result.stderr
    assert ", differs " in result.stdout
    assert "differs 0" not in result.stdout


@pytest.mark.needs_broker
def test_a_recording_of_the_second_half_is_refused(undisturbed: Recording, run_paceline: Any, tmp_path: Path) -> None:
    lines = undisturbed.archive.read_bytes().splitlines(keepends=True)
    path = tmp_path / "half.jsonl"
    path.write_bytes(b"".join(line for line in lines if orjson.loads(line)["offset"] >= 5))
    result = run_paceline("replay", str(path), "--journal")
    assert result.returncode == 2
    assert "from its beginning" in result.stderr

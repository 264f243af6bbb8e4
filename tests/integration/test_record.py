"""An incident of live workers, recorded from their topics: its journal replays byte for byte, its inputs to the same ids.

From the archive and from the range on Kafka alike; and a recording that was killed goes on to the same lines. Nobody's
consumer group is touched, and none comes into being.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient
from interrupted_replays import interrupted_at
from reference_records import is_reference
from worker_processes import ROLES, WorkerProcesses

from agents.simulation import deliver, load_scenario, simulate
from agents.simulation.player import play
from deploy.topics import apply_topics
from paceline.replay_command import ReplayOptions, replay_command
from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import marks_of
from schemas.fleet import Policy
from schemas.topics import topic_named
from streams.faust_roles.app import INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.brokers import Broker
    from schemas.base import Record

SITE = "reviewed"
OUTPUTS = tuple(topic_named(family).name for family in ("decisions", "incidents", "actions"))


RATE = 3.0
"""Seconds of the fleet a second. It begins 50 s ago and is over in 20 s, so that no record is ahead of the brokers' clock."""


class Published:
    """A sender as the player wants one."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def publish(self, record: Record) -> bool:
        self._sender.record(record)
        return True


@dataclass(frozen=True)
class Recorded:
    """Brokers that an incident went through, and the archive of it."""

    broker: Broker
    archive: Path
    directory: Path

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers


@pytest.fixture(scope="module")
def recorded(
    own_kafka: Broker,
    tmp_path_factory: pytest.TempPathFactory,
    wait_drained: Callable[..., None],
    sender_to: Any,
    run_paceline: Any,
) -> Recorded:
    directory = tmp_path_factory.mktemp("recorded")
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    sender = sender_to(servers)
    scenario = load_scenario("mixed", nodes=8, duration_s=60.0, seed=5)
    policy = Policy(policy_version="known", site_id=SITE, effective_from_ns=time.time_ns(), settle_ns=8_000_000_000)
    reference = [record for _, record in simulate(scenario, time.time_ns()) if is_reference(record)]
    for record in (policy, *reference):
        sender.record(record)
    sender.flush()
    # Append times tell a replay that these came first.
    time.sleep(0.05)
    with WorkerProcesses(servers, SITE, directory, "--snapshot-every", "30", "--session-timeout", "6") as workers:
        workers.start(*ROLES)
        # Faster than it was, and in its own order: what came all at once would be settled in the order of the partitions.
        begun_ns = time.time_ns() - 50_000_000_000
        arriving = (item for item in deliver(simulate(scenario, begun_ns), seed=5) if not is_reference(item[1]))
        play(arriving, Published(sender), threading.Event(), rate=RATE)
        sender.flush()
        for role in ROLES:
            topics = [topic_named(family).name for family in INPUTS[role]]  # type: ignore[index]
            wait_drained(servers, f"paceline-{role}", *topics, check=workers.check, timeout_s=180.0)
        workers.stop()
    archive = directory / "incident.jsonl.zst"
    done = run_paceline("record", "-o", str(archive), "--bootstrap", servers, "--site", SITE, "--journal")
    assert done.returncode == 0, done.stderr
    return Recorded(own_kafka, archive, directory)


def lines_of(path: Path) -> list[ArchiveLine]:
    lines = list(read_archive(path))
    assert all(isinstance(line, ArchiveLine) for line in lines)
    return [line for line in lines if isinstance(line, ArchiveLine)]


@pytest.mark.needs_broker
def test_an_archive_holds_every_message_with_sums_and_a_manifest(
    recorded: Recorded, read_topics: Any, run_paceline: Any
) -> None:
    told = run_paceline("archive", str(recorded.archive), "--json")
    assert told.returncode == 0, told.stderr
    manifest = orjson.loads(told.stdout)
    assert (manifest["is_whole"], manifest["damages"], manifest["gaps"]) == (True, [], [])
    assert [policy["value"]["policy_version"] for policy in manifest["policies"]] == ["known"]
    names = {line.topic for line in lines_of(recorded.archive)}
    live = read_topics(recorded.servers, *names)
    places = {(line.topic, line.partition, line.offset): line for line in lines_of(recorded.archive)}
    assert len(places) == len(live) == sum(count for _, _, count in manifest["places"].values())
    for found in live:
        line = places[found.topic(), found.partition(), found.offset()]
        assert (line.timestamp_ms, line.key) == (found.timestamp()[1], (found.key() or b"").decode())
        assert line.value == orjson.loads(found.value())
        assert line.headers == {name: value.decode() for name, value in found.headers() or ()}


@pytest.mark.needs_broker
def test_its_journal_replays_to_every_byte(recorded: Recorded, run_paceline: Any, read_topics: Any) -> None:
    distinct = {found.value() for found in read_topics(recorded.servers, *OUTPUTS)}
    told = run_paceline("replay", str(recorded.archive), "--journal")
    assert (told.returncode, told.stdout) == (0, f"same {len(distinct)}, differs 0\n"), told.stderr


@pytest.mark.needs_broker
@pytest.mark.parametrize("kind", ["archive", "range"])
def test_its_inputs_replay_to_what_was_said(recorded: Recorded, run_paceline: Any, kind: str) -> None:
    source = str(recorded.archive) if kind == "archive" else f"kafka://{recorded.servers}"
    told = run_paceline("replay", source, "--compare", "--json", "--site", SITE)
    assert told.returncode == 0, told.stdout + told.stderr
    (last,) = [orjson.loads(line) for line in told.stdout.splitlines()]
    same = {family: count["same"] for family, count in last["counts"].items()}
    assert same["finding"] > 20
    assert same["incident"] >= 3
    assert same["command"] >= 3


@pytest.mark.needs_broker
def test_archive_and_range_replay_to_the_same_bytes(recorded: Recorded, run_paceline: Any) -> None:
    sides = [
        run_paceline("replay", source, "--json", "--site", SITE).stdout
        for source in (str(recorded.archive), f"kafka://{recorded.servers}")
    ]
    assert sides[0]
    assert sides[0] == sides[1]


@pytest.mark.needs_broker
def test_a_replay_of_a_range_goes_on_where_it_was_interrupted(recorded: Recorded) -> None:
    def replayed(name: str, cut: int | None) -> tuple[bytes, int]:
        output = recorded.directory / name
        options = {"site_id": SITE, "output": output, "is_resumed": True, "checkpoint_every_s": 0.0}
        with interrupted_at(cut) as reading:
            status = replay_command(ReplayOptions(f"kafka://{recorded.servers}", **options))  # type: ignore[arg-type]
        assert status == (0 if cut is None else 130)
        return output.read_bytes(), reading.lines

    whole, lines = replayed("whole.ndjson", None)
    assert lines > 1000
    for cut in (lines // 3, lines // 2):
        replayed("cut.ndjson", cut)
    again, rest = replayed("cut.ndjson", None)
    assert again == whole
    assert rest < lines // 4


@pytest.mark.needs_broker
def test_a_recording_that_was_killed_goes_on_to_the_same_lines(recorded: Recorded, run_paceline: Any) -> None:
    path = recorded.directory / "killed.jsonl.zst"
    arguments = ("record", "-o", str(path), "--bootstrap", recorded.servers, "--site", SITE, "--journal")
    whole = lines_of(recorded.archive)
    assert run_paceline(*arguments).returncode == 0
    marks = marks_of(path)
    # As a kill leaves it: in the middle of its last block.
    path.write_bytes(path.read_bytes()[: marks.whole_to - 100])
    refused = run_paceline("replay", str(path), "--summary")
    assert refused.returncode == 2
    assert "--readable replays the rest" in refused.stderr
    resumed = run_paceline(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert lines_of(path) == whole


@pytest.mark.needs_broker
def test_a_live_recording_of_one_job_ends_when_it_is_asked_to(recorded: Recorded) -> None:
    path = recorded.directory / "job.jsonl.zst"
    options = ("--site", SITE, "--live", "--job", "finetune-8b")
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "record", "-o", str(path), "--bootstrap", recorded.servers, *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wanted = {line.topic for line in lines_of(recorded.archive)} - {topic_named("decisions").name}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if path.exists() and path.stat().st_size > 1000 and marks_of(path).blocks:
                break
            time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(30)
    assert process.returncode == 0, said
    lines = lines_of(path)
    jobs = {line.value["job_id"] for line in lines if line.topic == topic_named("step-timings").name}
    assert jobs == {"finetune-8b"}
    assert {line.topic for line in lines} <= wanted


@pytest.mark.needs_broker
def test_nobody_became_a_group_by_reading(recorded: Recorded, run_paceline: Any) -> None:
    ranged = run_paceline("replay", f"kafka://{recorded.servers}", "--summary", "--from", "-1m", "--site", SITE)
    if not recorded.broker.has_admin:
        assert (ranged.returncode, "cannot look a time up" in ranged.stderr) == (2, True)
        pytest.skip("needs_kafka: this broker has no admin API to ask for groups")
    assert ranged.returncode == 0, ranged.stderr
    names = {group.id for group in AdminClient({"bootstrap.servers": recorded.servers}).list_groups(timeout=20)}
    assert "paceline-range-reader" not in names
    assert {f"paceline-{role}" for role in ROLES} <= names

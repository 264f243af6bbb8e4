"""Real Slurm: what an actuator does to it, what a second, forged, expired or replayed command does not, and whom it resumes."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, START_NS, xid_event
from logged_process import LoggedProcess
from signed_commands import RING, SIGNER, command, signed
from slurm_cluster import SlurmCluster
from worker_processes import WorkerProcesses

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.limits import LocalLimits
from agents.actuators.memory import ActuatorMemory
from agents.actuators.scontrol import Scontrol
from agents.actuators.slurm import SlurmHands
from deploy.topics import apply_topics
from schemas.codec import decode, message
from schemas.events import NodeStatus
from schemas.findings import Evidence
from schemas.key_files import make_private_key, store_keyring
from schemas.keyring import Keyring
from schemas.remediation import ActionResult, Command, Target
from streams.faust_roles.command_signer import CommandSigner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deploy.brokers import Broker
    from schemas.codec import Message

pytestmark = pytest.mark.needs_slurm

NODES = ("node-1", "node-2")
SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    # Sockets have short names.
    home = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with SlurmCluster(home, NODES) as cluster:
            yield cluster
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def in_service(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test begins with nodes in service and without jobs."""
    slurm: SlurmCluster = request.getfixturevalue("slurm")
    yield
    slurm.run("scancel", "--full", "-u", str(os.getuid()))
    for node in NODES:
        if slurm.state(node) != "IDLE":
            slurm.run("scontrol", "cancel_reboot", node)
            slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    slurm.until(lambda: all(slurm.state(node) == "IDLE" for node in NODES), "all nodes idle")


class Rig:
    """An actuator in this process, on a real cluster, with a log of what it told Slurm to change."""

    def __init__(self, slurm: SlurmCluster, path: Path) -> None:
        self.slurm, self.path = slurm, path
        self.told: list[list[str]] = []
        self.sent: list[ActionResult] = []
        self.now_ns = time.time_ns()
        self._offset = 0
        self.start()

    def start(self) -> None:
        self.memory = ActuatorMemory(self.path, "slurm", self.now_ns - SECOND_NS)
        self.actuator = Actuator(
            ActuatorSettings("slurm", SITE, LocalLimits(costly_per_hour=50)),
            SlurmHands(Scontrol(run=self._run)),
            self.memory,
            lambda _: None,
            lambda: Keyring(keys=tuple(key.model_copy(update={"valid_from_ns": 0}) for key in RING.keys)),
            lambda: self.now_ns,
            time.sleep,
        )

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if arguments[1] != "show":
            self.told.append(list(arguments[1:]))
        return self.slurm.run(*arguments)

    def order(self, number: int = 0, **fields: Any) -> Command:
        fields.setdefault("decided_at_ns", self.now_ns)
        fields.setdefault("expires_at_ns", self.now_ns + 600 * SECOND_NS)
        return command(number=number, **fields)

    def take(self, wire: Message, offset: int | None = None) -> str:
        self._offset += 1
        place = Evidence(topic="paceline.actions.v1", partition=0, offset=self._offset if offset is None else offset)
        return self.actuator.on_message(wire.value, wire.headers, place)

    def results(self) -> list[ActionResult]:
        for number, result in self.memory.outbox():
            self.sent.append(result)
            self.memory.sent(number)
        return self.sent


@pytest.fixture
def rig(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(slurm, tmp_path / "memory.sqlite")
    yield rig
    rig.memory.close()


def test_a_command_drains_a_node_with_its_reason_and_a_second_delivery_changes_nothing(
    rig: Rig, slurm: SlurmCluster
) -> None:
    order = rig.order(reason="Xid 79; the GPU has fallen off the bus (0000:1b:00)")
    assert rig.take(signed(order), 7) == "applied"
    after = slurm.node("node-1")
    assert slurm.state("node-1") == "IDLE+DRAIN"
    assert slurm.reason("node-1") == "paceline cmd-node-1-0: Xid 79; the GPU has fallen off the bus (0000:1b:00)"
    assert rig.take(signed(order), 7) == "redelivered"
    assert rig.take(signed(order), 8) == "reused_id"
    assert len(rig.told) == 1
    assert slurm.reason("node-1") in after
    assert slurm.state("node-2") == "IDLE"


def test_forged_expired_and_replayed_commands_are_refused_and_change_nothing(rig: Rig, slurm: SlurmCluster) -> None:
    stranger = CommandSigner(make_private_key(rig.path.with_name("stranger.key")))
    good = signed(rig.order(5))
    cases: list[tuple[str, Message]] = [
        ("unsigned", message(rig.order())),
        ("unknown_key", signed(rig.order(key_id=stranger.key_id), stranger)),
        ("bad_signature", replace(good, value=good.value.replace(b"node-1", b"node-2"))),
        ("wrong_audience", signed(rig.order(audience="actuators/another"))),
        ("from_the_future", signed(rig.order(decided_at_ns=rig.now_ns + 601 * SECOND_NS))),
        ("expired", signed(rig.order(expires_at_ns=rig.now_ns - 1))),
        ("before_memory", signed(rig.order(decided_at_ns=rig.now_ns - 90 * SECOND_NS))),
    ]
    assert [rig.take(wire) for _, wire in cases] == [word for word, _ in cases]
    assert (rig.told, slurm.state("node-1"), slurm.state("node-2")) == ([], "IDLE", "IDLE")
    assert rig.take(good) == "applied"
    assert rig.take(signed(rig.order(4))) == "old_sequence"
    assert [(result.code, result.outcome) for result in rig.results()] == [
        *((word, "expired" if word == "expired" else "refused") for word, _ in cases),
        (None, "applied"),
        ("old_sequence", "refused"),
    ]
    assert len(rig.told) == 1


def test_recovery_resumes_only_what_was_drained_from_here(rig: Rig, slurm: SlurmCluster) -> None:
    slurm.told("scontrol", "update", "NodeName=node-2", "State=DRAIN", "Reason=fan exchange")
    assert rig.take(signed(rig.order(0))) == "applied"
    assert rig.take(signed(rig.order(0, node_id="node-2"))) == "already_so"
    rig.memory.close()
    rig.start()
    assert rig.take(signed(rig.order(1, kind="uncordon_node", node_id="node-2"))) == "not_ours"
    assert (slurm.state("node-2"), slurm.reason("node-2")) == ("IDLE+DRAIN", "fan exchange")
    assert rig.take(signed(rig.order(1, kind="uncordon_node"))) == "applied"
    slurm.until(lambda: slurm.state("node-1") == "IDLE", "node-1 is back")
    assert rig.take(signed(rig.order(2, kind="uncordon_node"))) == "already_so"
    assert [told[0] for told in rig.told] == ["update", "update"]


def test_a_node_that_an_administrator_has_taken_over_is_left_to_them(rig: Rig, slurm: SlurmCluster) -> None:
    assert rig.take(signed(rig.order(0))) == "applied"
    slurm.told("scontrol", "update", "NodeName=node-1", "State=DRAIN", "Reason=I look at it")
    for number, kind in enumerate(("uncordon_node", "reboot_node"), 1):
        assert rig.take(signed(rig.order(number, kind=kind))) == "not_ours"
    assert (slurm.state("node-1"), slurm.reason("node-1"), slurm.reboots()) == ("IDLE+DRAIN", "I look at it", [])


def test_a_running_job_goes_on_while_its_node_drains_and_is_requeued_elsewhere(rig: Rig, slurm: SlurmCluster) -> None:
    number = slurm.submit("-w", "node-1")
    assert rig.take(signed(rig.order(0, kind="drain_node", when="after_checkpoint"))) == "applied"
    assert slurm.state("node-1") == "ALLOCATED+DRAIN"
    assert slurm.job(number, "JobState") == "RUNNING"
    job = Target(level="job", job_id=number)
    assert rig.take(signed(rig.order(0, kind="restart_job", target=job, command_id="cmd-requeue"))) == "applied"
    assert slurm.job(number, "Restarts") == "1"
    slurm.until(lambda: slurm.job(number, "JobState") == "PENDING", "what ran has ended, and the job waits")
    assert rig.take(signed(rig.order(1, kind="restart_job", target=job, command_id="cmd-again"))) == "already_so"
    assert slurm.job(number, "Restarts") == "1"
    held = slurm.submit("--no-requeue", "-w", "node-2")
    owned = Target(level="job", job_id=held)
    assert rig.take(signed(rig.order(0, kind="restart_job", target=owned, command_id="cmd-held"))) == "not_permitted"
    assert slurm.job(held, "JobState") == "RUNNING"


def test_a_drained_node_is_rebooted_once_and_stays_drained(rig: Rig, slurm: SlurmCluster) -> None:
    before = len(slurm.reboots())
    assert rig.take(signed(rig.order(0))) == "applied"
    assert rig.take(signed(rig.order(1, kind="reboot_node")), 9) == "applied"
    slurm.until(lambda: len(slurm.reboots()) == before + 1, "the reboot program ran")
    assert rig.take(signed(rig.order(1, kind="reboot_node")), 9) == "redelivered"
    assert rig.take(signed(rig.order(2, kind="reboot_node"))) == "already_so"
    assert "DRAIN" in slurm.state("node-1")
    assert slurm.reason("node-1").startswith("paceline cmd-node-1-0: reboot by cmd-node-1-1")
    assert len(slurm.reboots()) == before + 1


def test_what_slurm_does_not_know_is_told_as_failed(rig: Rig) -> None:
    assert rig.take(signed(rig.order(node_id="node-9"))) == "act_failed"
    job = Target(level="job", job_id="99999")
    assert rig.take(signed(rig.order(kind="restart_job", target=job, command_id="cmd-job"))) == "act_failed"
    assert [result.outcome for result in rig.results()] == ["failed", "failed"]
    assert "not found" in rig.results()[0].reason


def test_a_controller_that_comes_back_in_time_is_waited_for(
    rig: Rig, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.end("slurmctld")
    # A program asks a controller that is away once a second for this long; it comes back to the usual ten seconds.
    hasty = slurm.home / "hasty.conf"
    hasty.write_text((slurm.home / "slurm.conf").read_text() + "MessageTimeout=2\n")
    monkeypatch.setitem(slurm.environment, "SLURM_CONF", str(hasty))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            monkeypatch.undo()
            slurm.start_controller()

    rig.actuator._wait_s = wait
    assert rig.take(signed(rig.order())) == "applied"
    assert waited == [1.0, 2.0]
    assert "DRAIN" in slurm.state("node-1")


@pytest.fixture(scope="module")
def servers(own_kafka: Broker) -> str:
    """Brokers with all topics."""
    apply_topics(own_kafka.bootstrap_servers, 4, 1, has_admin=own_kafka.has_admin)
    return own_kafka.bootstrap_servers


@pytest.mark.needs_broker
def test_a_signed_command_on_kafka_drains_a_node_and_its_result_comes_back(
    slurm: SlurmCluster,
    servers: str,
    sender_to: Any,
    read_topics: Any,
    tmp_path: Path,
) -> None:
    key, ring = tmp_path / "decisions.key", tmp_path / "ring.json"
    signer = CommandSigner(make_private_key(key))
    store_keyring(ring, Keyring().with_key(signer._key.public_key().public_bytes_raw(), "commands", "d", 0))
    (tmp_path / "site.toml").write_text('mode = "auto"\n')
    common = ["--bootstrap", servers, "--site", SITE]
    keeping = ["policy", "keep", str(tmp_path / "site.toml"), "--every", "1", *common]
    options = ["act", "slurm", "--keyring", str(ring), "--state-dir", str(tmp_path / "state"), "--announce", *common]
    with ExitStack() as started:
        keeper = started.enter_context(LoggedProcess(keeping, tmp_path / "keeper", slurm.environment))
        # An actuator that is ready has read what was on its topics when it began: the policy, and that it is kept.
        keeper.until(lambda: bool(read_topics(servers, "paceline.policy-heartbeats.v1")))
        actuator = started.enter_context(LoggedProcess(options, tmp_path / "actuator-1", slurm.environment))
        actuator.until_said(b'"ready"')
        sender = sender_to(servers)
        now_ns = time.time_ns()
        times = {"decided_at_ns": now_ns, "expires_at_ns": now_ns + 600 * SECOND_NS, "key_id": signer.key_id}
        first, second = command(0, **times), command(number=1, kind="uncordon_node", **times)

        def publish(order: Command, who: CommandSigner | None = signer) -> None:
            wire = signed(order, who) if who is not None else message(order)
            sender.send(wire.topic, wire.key, wire.value, list(wire.headers))
            sender.flush()

        publish(command(0, command_id="cmd-forged", **{**times, "key_id": SIGNER.key_id}), SIGNER)
        publish(first)
        publish(first)
        slurm.until(lambda: slurm.state("node-1") == "IDLE+DRAIN", "node-1 is drained")
        actuator.until(lambda: len(results(read_topics, servers)) >= 3)
        actuator.kill()
        publish(second)
        actuator = started.enter_context(LoggedProcess(options, tmp_path / "actuator-2", slurm.environment))
        slurm.until(lambda: slurm.state("node-1") == "IDLE", "node-1 is resumed by the next process", 90)
        actuator.until(lambda: len(results(read_topics, servers)) >= 4)
        told = results(read_topics, servers)
        assert [(r.command_id.split("-")[0], r.outcome, r.code) for r in told] == [
            ("unverified", "refused", "unknown_key"),
            ("cmd", "applied", None),
            ("cmd", "refused", "reused_id"),
            ("cmd", "applied", None),
        ]
        assert [result.command_id for result in told[1:]] == [first.command_id, first.command_id, second.command_id]
        assert [actuator.end(), keeper.end()] == [0, 0]


@pytest.mark.needs_broker
def test_a_gpu_that_falls_off_the_bus_is_drained_by_the_workers_and_the_actuator_together(
    slurm: SlurmCluster, servers: str, sender_to: Any, read_topics: Any, tmp_path: Path
) -> None:
    """Kernel line, finding, incident, guards, signature, actuator, Slurm: with a policy that says `auto`."""
    site, key, ring = "site-2", tmp_path / "decisions.key", tmp_path / "ring.json"
    public_key = make_private_key(key).public_key().public_bytes_raw()
    store_keyring(ring, Keyring().with_key(public_key, "commands", "decisions", 0))
    (tmp_path / "site.toml").write_text('mode = "auto"\n')
    common = ["--bootstrap", servers, "--site", site]
    keeping = ["policy", "keep", str(tmp_path / "site.toml"), "--every", "1", *common]
    options = ["--actuator-id", "slurm-2", "--keyring", str(ring), "--state-dir", str(tmp_path), "--announce"]
    acting = ["act", "slurm", *options, *common]
    sender, session = sender_to(servers), uuid.uuid4().hex
    with (
        LoggedProcess(keeping, tmp_path / "keeper", slurm.environment),
        LoggedProcess(acting, tmp_path / "actuator", slurm.environment) as actuator,
        WorkerProcesses(servers, site, tmp_path, "--signing-key", str(key)) as workers,
    ):
        workers.start("telemetry", "decisions")
        actuator.until_said(b'"ready"')
        second = (time.time_ns() - START_NS) / 1e9
        sender.record(xid_event(second, 79, node_id="node-2", boot_id=session))
        beats = itertools.count()

        def beat() -> bool:
            # The partition's time goes on with its records.
            at_ns = time.time_ns()
            beat = NodeStatus(
                node_id="node-2", agent_session=session, seq=next(beats), event_time_ns=at_ns, state="heartbeat"
            )
            sender.record(beat)
            sender.flush()
            workers.check()
            return slurm.state("node-2") == "IDLE+DRAIN"

        actuator.until(beat)
        actuator.until(lambda: len(results(read_topics, servers, site)) == 1)
        assert set(workers.stop().values()) == {0}
    [result] = results(read_topics, servers, site)
    assert (result.outcome, result.actuator_id) == ("applied", "slurm-2")
    assert slurm.reason("node-2").startswith(f"paceline {result.command_id}: Xid 79")
    assert slurm.state("node-1") == "IDLE"


def results(read_topics: Any, servers: str, site_id: str = SITE) -> list[ActionResult]:
    found = []
    for got in read_topics(servers, "paceline.action-results.v1"):
        record = decode(got.topic(), got.value())
        assert isinstance(record, ActionResult)
        if record.site_id == site_id:
            found.append(record)
    return sorted(found, key=lambda result: result.event_time_ns)

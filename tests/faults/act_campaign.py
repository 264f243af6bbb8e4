"""Kills the decisions worker, the actuator and the broker while GPUs fail, and counts in the target's own log what was done.

Kernel lines of lost GPUs and memory errors, one node each, go through the telemetry and decisions workers and `paceline act
slurm` to a stand-in for `scontrol`, or to a real Slurm. Part of the lines are nearly as old as their orders may become, so that some expire
while nobody is there to act. Every order must take effect exactly once or expire, and be reported so.
`python -m tests.faults.act_campaign --directory DIR --seed 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agents.actuators.memory import ActuatorMemory
from agents.publisher import KafkaPublisher, PublisherSettings
from deploy.brokers.apache import ApacheBroker
from deploy.brokers.errors import BrokerStartError
from deploy.brokers.server_properties import ApacheSettings
from deploy.topics import apply_topics
from paceline.listener import OutputListener
from schemas.events import KernelEvent, NodeStatus
from schemas.key_files import make_private_key, store_keyring
from schemas.keyring import Keyring
from schemas.remediation import ActionResult, Command
from tests.faults.act_account import Account, account
from tests.faults.act_targets import RealSlurm, StandIn

if TYPE_CHECKING:
    from schemas.base import Record

SITE = "act-campaign"
SECOND_NS = 1_000_000_000
TERM_S = 600.0
"""How long an order for a lost GPU or bad memory holds after the line that caused it."""

MOST_REVIVALS = 100
"""Processes that end by themselves, as a worker without brokers does; what never runs ends oftener."""

VICTIMS = {"decisions": 2, "actuator": 2, "broker": 1}
"""Who is killed, and how often in proportion: after a broker all stand for ten to thirty seconds."""

POLICY = """\
mode = "auto"
[guards.common_mode.thresholds]
count = 100_000
"""
BLAST = """\
[guards.blast_{place}.thresholds]
count = 100_000
share = 1.0
"""


@dataclass
class Plan:
    """What is done.

    Attributes:
        duration_s: span over which faults and kills are drawn.
        incidents: faults, each on a node of its own.
        kills: SIGKILLs, each of one of `VICTIMS`, at random moments.
        aged_share: faults whose order expires within three minutes.
        long_absences: kills of the actuator after which it stays away for half a minute.
        controller_absences: spans of up to 5 s in which the target does not answer.
        seed: of all moments.
        target: `stand-in`, or `slurm` for a real one with a node for each fault.
    """

    duration_s: float = 420.0
    incidents: int = 200
    kills: int = 30
    aged_share: float = 0.3
    long_absences: int = 3
    controller_absences: int = 4
    seed: int = 1
    target: str = "stand-in"


@dataclass
class Report:
    """What was done, and what came of it."""

    seed: int
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    kills_during_an_act: int = 0
    actuator_alone: int = 0
    revived: int = 0
    account: Account = field(default_factory=Account)

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, late or told wrongly."""
        return self.account.holds


class Processes:
    """The processes of the loop; what ended is started again, as a supervisor does."""

    def __init__(self, commands: dict[str, list[str]], directory: Path) -> None:
        self._commands, self._directory = commands, directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._down_until: dict[str, float] = {}
        self.revived = 0

    def start(self, name: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "paceline", *self._commands[name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str, down_s: float, alone: bool = False) -> None:
        """SIGKILL a process, with all that it started or alone; it is started again later."""
        process = self._running[name]
        if process.poll() is None:
            (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
        process.wait()
        self._down_until[name] = time.monotonic() + down_s

    def keep_up(self) -> None:
        """Start what has ended, unless it is to stay away."""
        for name, process in self._running.items():
            if process.poll() is not None and time.monotonic() >= self._down_until.get(name, 0.0):
                if self._down_until.pop(name, None) is None:
                    self.revived += 1
                    assert self.revived <= MOST_REVIVALS, f"{name} ends again and again; see {name}.log"
                self.start(name)

    def end_all(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Fleet(threading.Thread):
    """Publishes heartbeats of all nodes and, at their moments, the lines of those that fail."""

    def __init__(self, plan: Plan, nodes: list[str], bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        rng = random.Random(f"{plan.seed} fleet")
        self._nodes = nodes
        aged = {node for node in nodes if rng.random() < plan.aged_share}
        self.fresh, self.aged = sorted(set(nodes) - aged), sorted(aged)
        self.stopped = threading.Event()
        self._lines = sorted(
            (
                rng.uniform(0.0, plan.duration_s),
                node,
                rng.choice((79, 48)),
                TERM_S - rng.uniform(10.0, 180.0) if node in aged else 0.0,
            )
            for node in nodes
        )
        self._publisher = KafkaPublisher(
            PublisherSettings(bootstrap_servers, delivery_timeout_ms=120_000, properties={"log_level": "2"})
        )

    def run(self) -> None:
        """Go on with heartbeats until told to stop: the workers' time goes on with them."""
        begun_s, turn = time.monotonic(), 0
        while not self.stopped.wait(0.05):
            while self._lines and self._lines[0][0] <= time.monotonic() - begun_s:
                _, node, code, age_s = self._lines.pop(0)
                self._publisher.publish(
                    KernelEvent(
                        node_id=node,
                        agent_session="s1",
                        boot_id="b1",
                        kmsg_seq=1,
                        event_time_ns=time.time_ns() - round(age_s * SECOND_NS),
                        source="xid",
                        code=code,
                        pci_bus_id="0000:18:00",
                    )
                )
            node = self._nodes[turn % len(self._nodes)]
            turn += 1
            self._publisher.publish(
                NodeStatus(node_id=node, agent_session="s1", seq=turn, event_time_ns=time.time_ns(), state="heartbeat")
            )
            self._publisher.poll()
        self._publisher.flush(30.0)
        self._publisher.close()


def run(plan: Plan, directory: Path) -> Report:
    """Run the campaign; everything is ended when this returns."""
    report = Report(plan.seed)
    nodes = [f"n{number:04d}" for number in range(plan.incidents)]
    with RealSlurm(directory, nodes) if plan.target == "slurm" else StandIn(directory, plan.seed) as target:
        _run(plan, directory, target, nodes, report)
    return report


def _run(plan: Plan, directory: Path, target: RealSlurm | StandIn, nodes: list[str], report: Report) -> None:
    settings = ApacheSettings(extra={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "1000"})
    broker = ApacheBroker(data_dir=directory / "kafka", port=0, settings=settings)
    broker.start()
    processes = Processes(_commands(target.program, broker.bootstrap_servers, directory), directory)
    fleet = Fleet(plan, nodes, broker.bootstrap_servers)
    try:
        apply_topics(broker.bootstrap_servers, 4, 1)
        processes.start("keeper")
        for name in ("telemetry", "decisions", "actuator"):
            processes.start(name)
        fleet.start()
        _disturb(plan, processes, broker, target, report)
        records = _hear_all(broker.bootstrap_servers, processes, nodes)
        report.revived = processes.revived
        report.account = account(records, target.lines(), fleet.fresh, fleet.aged)
    finally:
        fleet.stopped.set()
        if fleet.is_alive():
            fleet.join(60.0)
        processes.end_all()
        broker.stop()


def _commands(scontrol: Path, bootstrap_servers: str, directory: Path) -> dict[str, list[str]]:
    key, ring, policy = directory / "decisions.key", directory / "ring.json", directory / "site.toml"
    public_key = make_private_key(key).public_key().public_bytes_raw()
    store_keyring(ring, Keyring().with_key(public_key, "commands", "decisions", 0))
    policy.write_text(POLICY + "".join(BLAST.format(place=place) for place in ("job", "rack", "leaf", "fleet")))
    # Orders for old lines were decided, by their own time, before an actuator started now has a memory.
    born_ns = time.time_ns() - round(2 * TERM_S * SECOND_NS)
    ActuatorMemory(directory / "state" / "slurm.sqlite", "slurm", born_ns).close()
    common = ["--bootstrap", bootstrap_servers, "--site", SITE]
    worker = ["worker", *common, "--session-timeout", "6", "--snapshot-every", "5", "--role"]
    return {
        "keeper": ["policy", "keep", str(policy), "--every", "5", *common],
        "telemetry": [*worker, "telemetry"],
        "decisions": [*worker, "decisions", "--signing-key", str(key)],
        "actuator": [
            *("act", "slurm", *common, "--keyring", str(ring), "--state-dir", str(directory / "state")),
            *("--scontrol", str(scontrol), "--costly-per-hour", "100000"),
        ],
    }


def _disturb(
    plan: Plan, processes: Processes, broker: ApacheBroker, target: RealSlurm | StandIn, report: Report
) -> None:
    """Do what the plan says at moments drawn from the seed."""
    rng = random.Random(f"{plan.seed} kills")
    doings = [
        (rng.uniform(10.0, plan.duration_s), *rng.choices(list(VICTIMS), list(VICTIMS.values())))
        for _ in range(plan.kills)
    ]
    doings += [(rng.uniform(10.0, plan.duration_s), "controller") for _ in range(plan.controller_absences)]
    absences = plan.long_absences
    begun_s = time.monotonic()
    for at_s, what in sorted(doings):
        _wait_until(begun_s + at_s, processes)
        _announce(f"{time.monotonic() - begun_s:6.1f} s: {what}")
        if what == "controller":
            target.be_away(lambda: _wait_until(time.monotonic() + rng.uniform(1.0, 4.0), processes))
            continue
        report.kills[what] += 1
        if what == "broker":
            # Its supervisor takes the JVM with it.
            assert broker._process is not None
            os.killpg(broker._process.pid, signal.SIGKILL)
            down_s = time.monotonic()
            _wait_until(down_s + rng.uniform(0.0, 4.0), processes)
            _start_again(broker, processes)
            # Else all that was due meanwhile would come at once.
            begun_s += time.monotonic() - down_s
        elif what == "actuator":
            report.kills_during_an_act += target.is_busy
            alone, is_long = rng.random() < 0.5, absences > 0 and rng.random() < 0.5
            absences -= is_long
            report.actuator_alone += alone
            processes.kill("actuator", rng.uniform(25.0, 40.0) if is_long else rng.uniform(0.0, 1.5), alone)
        else:
            processes.kill(what, rng.uniform(0.0, 1.5))
    _wait_until(begun_s + plan.duration_s, processes)


def _start_again(broker: ApacheBroker, processes: Processes) -> None:
    """Start a broker that was killed; a big process takes a while to let go of its port."""
    deadline_s = time.monotonic() + 60.0
    while True:
        try:
            broker.start()
        except BrokerStartError:
            if time.monotonic() > deadline_s:
                raise
            _wait_until(time.monotonic() + 0.5, processes)
        else:
            return


def _wait_until(at_s: float, processes: Processes) -> None:
    while time.monotonic() < at_s:
        processes.keep_up()
        time.sleep(0.1)
    processes.keep_up()


def _hear_all(bootstrap_servers: str, processes: Processes, nodes: list[str]) -> list[Record]:
    """All of the topics, once every node's order has its result and nothing has come for a while."""
    records: list[Record] = []
    deadline_s = time.monotonic() + 420.0
    quiet_since_s = time.monotonic()
    with closing(OutputListener(bootstrap_servers, ("incidents", "actions", "action-results"))) as listener:
        while time.monotonic() < deadline_s:
            processes.keep_up()
            came = listener.poll(1.0)
            records += came
            if came:
                quiet_since_s = time.monotonic()
            orders = {r.command_id: r.target.key() for r in records if isinstance(r, Command) and r.mode == "auto"}
            told = {r.command_id for r in records if isinstance(r, ActionResult)}
            answered = {r.target.key() for r in records if isinstance(r, Command)}
            is_whole = set(nodes) <= answered and orders.keys() <= told
            if is_whole and time.monotonic() - quiet_since_s > 15.0:
                break
    return records


def _announce(text: str) -> None:
    print(f"act campaign: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run one campaign and print its report as JSON; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--directory", type=Path, required=True)
    options = vars(parser.parse_args())
    directory = options.pop("directory")
    directory.mkdir(parents=True)
    # What was started is ended also when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report = run(Plan(**options), directory)
    print(json.dumps({**asdict(report), "holds": report.holds}, indent=1))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kills workers and the broker while a simulated fleet runs, and holds what came out against an undisturbed run.

The undisturbed run is the pure pipeline over the very records that lie in the topics at the end, in the order of their
append times, each partition by its own engine. Findings, incidents and commands must be the same sets by id: nothing
missing, nothing more. `python -m tests.faults.campaign --help`.
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
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from agents.publisher import KafkaPublisher, PublisherSettings
from agents.simulation.delivery import deliver
from agents.simulation.fleet_run import simulate
from agents.simulation.player import play
from agents.simulation.scenario import FaultPlan, Scenario, default_scenario
from deploy.brokers.apache import ApacheBroker
from deploy.brokers.server_properties import ApacheSettings
from deploy.topics import apply_topics
from paceline.listener import OutputListener
from paceline.verdict import Heard
from schemas.codec import decode
from schemas.fleet import Policy
from schemas.kafka_answers import watermarks
from schemas.topics import TOPICS
from streams.core.position import Position
from streams.engines.pipeline import Pipeline

SITE = "campaign"
ROLES = ("telemetry", "jobs", "decisions")
PARTITIONS = 4
SETTLE_NS = 10_000_000_000


@dataclass
class Plan:
    """What is done to the pipeline.

    Attributes:
        duration_s: how long the fleet runs.
        nodes: its size.
        kills: SIGKILLs of single workers at random moments.
        rebalances: workers ended cleanly and started again.
        late_kills: kills placed just before a snapshot is due, long after commits.
        broker_stops: stops and starts of the broker.
        snapshot_every_s: the workers' cadence.
        seed: of fleet and moments.
    """

    duration_s: float = 900.0
    nodes: int = 16
    kills: int = 50
    rebalances: int = 10
    late_kills: int = 1
    broker_stops: int = 2
    snapshot_every_s: float = 60.0
    seed: int = 1


@dataclass
class Report:
    """What came of it."""

    kills: int = 0
    rebalances: int = 0
    broker_stops: int = 0
    records: int = 0
    expected: dict[str, int] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    more: dict[str, list[str]] = field(default_factory=dict)
    repeated: int = 0

    @property
    def holds(self) -> bool:
        return not any(self.missing.values()) and not any(self.more.values())


class Workers:
    """Two workers of each role, as processes."""

    def __init__(self, bootstrap_servers: str, snapshot_every_s: float, log_directory: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._snapshot_every_s = snapshot_every_s
        self._logs = log_directory
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def start(self, role: str, number: int) -> None:
        log = (self._logs / f"{role}-{number}.log").open("ab")
        self._processes[(role, number)] = subprocess.Popen(
            [
                *(sys.executable, "-m", "paceline", "worker", "--role", role, "--bootstrap", self._bootstrap_servers),
                *("--site", SITE, "--snapshot-every", str(self._snapshot_every_s), "--session-timeout", "6"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def start_all(self) -> None:
        for role in ROLES:
            for number in (0, 1):
                self.start(role, number)

    def end(self, role: str, number: int, how: int, timeout_s: float = 60.0) -> None:
        process = self._processes[(role, number)]
        if process.poll() is None:
            os.killpg(process.pid, how)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def revive_ended(self) -> None:
        """What a supervisor does: start what ended by itself."""
        for (role, number), process in list(self._processes.items()):
            if process.poll() is not None:
                self.start(role, number)

    def end_all(self) -> None:
        for role, number in list(self._processes):
            self.end(role, number, signal.SIGKILL)


def fleet(plan: Plan) -> Scenario:
    """A fleet with a fault every 45 s or so, on nodes of their own as long as there are some."""
    base = default_scenario(nodes=plan.nodes, duration_s=plan.duration_s, seed=plan.seed, scenario="healthy")
    job = base.jobs[0].job_id
    count = max(2, min(plan.nodes - 6, int(plan.duration_s / 45)))
    faults = []
    for index in range(count):
        onset = 0.05 + 0.8 * index / count
        end = min(0.95, onset + max(20.0 / plan.duration_s, 0.6 * 0.8 / count))
        kind = ("thermal", "cpu_contention")[index % 2]
        faults.append(FaultPlan(kind=kind, job=job, onset=onset, end=end))  # type: ignore[arg-type]
    faults.append(FaultPlan(kind="xid79", job=base.jobs[1].job_id, onset=0.5))
    faults.append(FaultPlan(kind="pause_storm", job=job, onset=0.7, end=0.7 + max(0.03, 18.0 / plan.duration_s)))
    return base.model_copy(update={"faults": tuple(faults)})


def _announce(text: str) -> None:
    print(f"campaign: {text}", file=sys.stderr, flush=True)


def run(plan: Plan, directory: Path) -> Report:
    """Run the campaign; everything is ended when this returns."""
    report = Report()
    rng = random.Random(plan.seed)
    settings = ApacheSettings(extra={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "1000"})
    broker = ApacheBroker(data_dir=directory / "kafka", port=0, settings=settings)
    broker.start()
    bootstrap = broker.bootstrap_servers
    workers = Workers(bootstrap, plan.snapshot_every_s, directory)
    publisher = KafkaPublisher(
        PublisherSettings(bootstrap, delivery_timeout_ms=120_000, queue_messages=200_000, properties={"log_level": "2"})
    )
    stop = threading.Event()
    try:
        apply_topics(bootstrap, PARTITIONS, 1)
        publisher.publish(
            Policy(policy_version="campaign", site_id=SITE, effective_from_ns=time.time_ns(), settle_ns=SETTLE_NS)
        )
        publisher.flush(10.0)
        workers.start_all()
        time.sleep(15.0)
        start_ns = time.time_ns() + 1_000_000_000
        events = deliver(simulate(fleet(plan), start_ns), seed=plan.seed)

        def observed():  # type: ignore[no-untyped-def]
            for event in events:
                publisher.poll()
                yield event

        player = threading.Thread(target=play, args=(observed(), publisher, stop), daemon=True)
        begun = time.monotonic()
        player.start()
        _disturb(plan, rng, workers, broker, report, begun, player)
        player.join(plan.duration_s + 120.0)
        publisher.flush(60.0)
        _announce("the fleet has ended; waiting for the workers")
        heard, report.repeated = _hear_all(bootstrap, workers, plan)
        expected, report.records = _undisturbed(bootstrap)
        _compare(report, heard, expected, start_ns, int((plan.duration_s - 40.0) * 1e9))
    finally:
        stop.set()
        workers.end_all()
        publisher.close()
        broker.stop()
    return report


def _disturb(
    plan: Plan,
    rng: random.Random,
    workers: Workers,
    broker: ApacheBroker,
    report: Report,
    begun: float,
    player: threading.Thread,
) -> None:
    """Does to the pipeline what the plan says, at moments drawn over the run; stops when the fleet ends."""
    window = (5.0, plan.duration_s - 45.0)
    acts = [(rng.uniform(*window), "kill") for _ in range(plan.kills)]
    acts += [(rng.uniform(*window), "rebalance") for _ in range(plan.rebalances)]
    acts += [(rng.uniform(0.3, 0.8) * plan.duration_s, "broker") for _ in range(plan.broker_stops)]
    # Commits come every second: just before the next snapshot is due they are a whole cadence ahead of the last.
    acts += [
        (min(window[1], plan.snapshot_every_s * (index + 1) - 3.0), "late_kill") for index in range(plan.late_kills)
    ]
    for at, act in sorted(acts):
        while time.monotonic() - begun < at:
            if not player.is_alive():
                return
            time.sleep(0.2)
            workers.revive_ended()
        role, number = rng.choice(ROLES), rng.choice((0, 1))
        _announce(f"{time.monotonic() - begun:6.1f} s: {act} {'' if act == 'broker' else f'{role}-{number}'}")
        if act == "broker":
            broker.stop()
            time.sleep(3.0)
            broker.start()
            report.broker_stops += 1
            continue
        workers.end(role, number, signal.SIGTERM if act == "rebalance" else signal.SIGKILL, 30.0)
        time.sleep(rng.uniform(0.0, 1.5))
        workers.start(role, number)
        if act == "rebalance":
            report.rebalances += 1
        else:
            report.kills += 1


def _hear_all(bootstrap: str, workers: Workers, plan: Plan) -> tuple[Heard, int]:
    """Everything on the output topics, once nothing more has come for a while."""
    heard, repeated = Heard(), 0
    deadline = time.monotonic() + 180.0
    with closing(OutputListener(bootstrap)) as listener:
        quiet_since = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - quiet_since < 40.0:
            workers.revive_ended()
            for record in listener.poll(1.0):
                fresh = heard.take(record)
                repeated += not fresh
                if fresh:
                    quiet_since = time.monotonic()
    return heard, repeated


def _undisturbed(bootstrap: str) -> tuple[Heard, int]:
    """The pure pipeline over what lies in the input topics."""
    inputs = [topic for topic in TOPICS if topic.role in {"telemetry", "jobs", "reference"} or topic.family == "policy"]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "campaign-reference", "enable.auto.commit": False})
    lines = []
    try:
        places = [
            TopicPartition(topic.name, number, OFFSET_BEGINNING) for topic in inputs for number in range(PARTITIONS)
        ]
        ends = {(p.topic, p.partition): watermarks(consumer, p, 20.0)[1] for p in places}
        consumer.assign(places)
        left = sum(ends.values())
        while left > 0:
            batch = consumer.consume(1000, 5.0)
            if not batch:
                break
            for message in batch:
                if message.error() is None:
                    left -= 1
                    lines.append(
                        (
                            message.timestamp()[1],
                            message.topic(),
                            message.partition(),
                            message.offset(),
                            message.value(),
                        )
                    )
    finally:
        consumer.close()
    lines.sort(key=lambda line: line[:4])
    heard = Heard()
    pipeline = Pipeline(SITE)
    reference = {"paceline.jobs.v1", "paceline.nodes.v1", "paceline.policy.v1"}
    # The workers read reference topics whole before anything else.
    for first in (True, False):
        for append_ms, topic, partition, offset, value in lines:
            if (topic in reference) == first:
                for record in pipeline.on_record(decode(topic, value), Position(topic, partition, offset, append_ms)):
                    heard.take(record)
    for record in pipeline.flush():
        heard.take(record)
    return heard, len(lines)


def _compare(report: Report, heard: Heard, expected: Heard, start_ns: int, span_ns: int) -> None:
    """The sets by id, up to a time at which both have said all they will."""
    until_ns = start_ns + span_ns

    def sets(side: Heard) -> dict[str, set[str]]:
        incidents = {i.incident_id for i in side.incidents.values() if i.onset_ns <= until_ns}
        return {
            "findings": {
                f"{f.kind} {f.state} {f.subject.key()} {f.finding_id}"
                for f in side.findings.values()
                if f.event_time_ns <= until_ns
            },
            "incidents": incidents,
            "commands": {
                c.command_id
                for c in side.commands.values()
                if c.decided_at_ns <= until_ns and c.cause.incident_id in incidents
            },
            "steps": {f"{s.job_id}/{s.epoch}/{s.step}" for s in side.steps.values() if s.event_time_ns <= until_ns},
        }

    ours, theirs = sets(heard), sets(expected)
    for name, wanted in theirs.items():
        report.expected[name] = len(wanted)
        report.missing[name] = sorted(wanted - ours[name])
        report.more[name] = sorted(ours[name] - wanted)


def main() -> int:
    """Run one campaign and print its report as JSON; 1 when anything is missing or doubled."""
    defaults = Plan()
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(defaults).items():
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

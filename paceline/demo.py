"""The demo: a simulated fleet publishes through a real broker, the workers judge it, and the truth is held against that.

The workers are the product's own, in processes of their own; the truth goes to the verdict and never to them.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agents.publisher import KafkaPublisher, PublisherSettings
from agents.simulation.delivery import deliver
from agents.simulation.fleet_run import simulate
from agents.simulation.player import play
from agents.simulation.scenario import default_scenario
from agents.simulation.truth import truth
from deploy.brokers import open_broker
from deploy.topics import apply_topics
from paceline.listener import OutputListener
from paceline.processes import Children
from paceline.verdict import Heard, judge
from schemas.findings import ProgressMark
from schemas.fleet import Job, Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agents.simulation.scenario import Scenario
    from agents.simulation.truth import Truth
    from paceline.verdict import Verdict
    from schemas.base import Record

__all__ = ["DemoError", "DemoOptions", "DemoResult", "DemoView", "run_demo"]

SITE = "demo"
SETTLE_NS = 3_000_000_000
"""The demo's settling wait; a fleet's default is 10 s. All of its nodes are on one machine."""

MIN_DURATION_S = 20.0
"""Below this a fault lasts too short for a fair rule to see it."""

_RUN_IN_S = 3.0
"""Faults come this much later: the jobs' starts and masked first steps would hide the first one of a short demo."""

_QUIET_TAIL_S = 12.0
"""The fleet runs on for this long without faults, so that what was said last can settle."""

_GRACE_S = 15.0
_PARTITIONS = 4


class DemoError(Exception):
    """The demo cannot run as asked; the text says why and what would work."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for.

    Attributes:
        duration_s: how long the fleet runs.
        nodes: nodes of 8 GPUs each.
        seed: draws placement and noise.
        scenario: name of a scenario, or a TOML file.
        broker: `embedded` or `apache`.
        bootstrap_servers: a broker that runs already; none is started then.
        truth_file: where the truth is written, if anywhere. The workers never see it.
    """

    duration_s: float = 60.0
    nodes: int = 8
    seed: int = 0
    scenario: str = "mixed"
    broker: str = "embedded"
    bootstrap_servers: str | None = None
    truth_file: Path | None = None


class DemoView:
    """What is shown while it runs; the base shows nothing."""

    def note(self, text: str) -> None:
        """Something happened that the user may want to know."""

    def update(self, heard: Heard, fresh: list[Record], elapsed_s: float, duration_s: float) -> None:
        """New records came, or time passed."""

    def close(self) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How it went."""

    truths: list[Truth]
    heard: Heard
    verdict: Verdict
    gpus: dict[str, int]
    published: int

    def as_json(self) -> dict[str, Any]:
        """The machine-readable result, as one flat object with details under `truth` and `findings`."""
        seconds = [d["seconds_to_command"] for d in self.verdict.details if d["seconds_to_command"] is not None]
        mfus = sorted(step.mfu for step in self.heard.steps.values() if step.mfu is not None and step.phase == "train")
        return {
            "injected": len(self.truths),
            "found": len(self.verdict.found),
            "commands": len(self.heard.commands),
            "steps": len(self.heard.steps),
            "missed": list(self.verdict.missed),
            "blamed_healthy": list(self.verdict.blamed_healthy),
            "gpu_hours_lost": round(self.heard.gpu_hours_lost(self.gpus), 6),
            "seconds_to_command_max": max(seconds, default=None),
            "mfu_median": mfus[len(mfus) // 2] if mfus else None,
            "records_published": self.published,
            "truth": list(self.verdict.details),
            "findings": [
                {
                    "finding_id": finding.finding_id,
                    "kind": finding.kind,
                    "state": finding.state,
                    "severity": finding.severity,
                    "job_id": finding.job_id,
                    "step": finding.step,
                    "subject": finding.subject.model_dump(exclude_none=True),
                    "slowdown": finding.slowdown,
                    "explanation": finding.explanation,
                }
                for finding in sorted(self.heard.findings.values(), key=lambda f: (f.event_time_ns, f.finding_id))
            ],
            "actions": [
                command.model_dump(mode="json", exclude_none=True)
                for command in sorted(self.heard.commands.values(), key=lambda c: (c.decided_at_ns, c.command_id))
            ],
        }

    @property
    def is_good(self) -> bool:
        """Everything found, nobody blamed."""
        return not self.verdict.missed and not self.verdict.blamed_healthy


def run_demo(options: DemoOptions, view: DemoView) -> DemoResult:
    """Run it; all processes are ended when this returns or raises.

    Raises:
        DemoError: the options cannot be met.
        BrokerError, ChildFailedError, TopicSetupError: something did not start.
    """
    if options.duration_s < MIN_DURATION_S:
        raise DemoError(f"--duration {options.duration_s:g} is too short; take at least {MIN_DURATION_S:g} s")
    scenario = _with_quiet_ends(
        default_scenario(
            nodes=options.nodes, duration_s=options.duration_s, seed=options.seed, scenario=options.scenario
        )
    )
    _check_size(scenario, options)
    if options.truth_file is not None:
        # Tried now: a minute later is late to learn that it cannot be written.
        _write_truth(options.truth_file, b"")
    if options.bootstrap_servers is not None:
        return _run_on(options.bootstrap_servers, True, scenario, options, view)
    with open_broker(options.broker) as broker:
        view.note(f"{options.broker} broker on {broker.bootstrap_servers}")
        return _run_on(broker.bootstrap_servers, broker.has_admin, scenario, options, view)


def _with_quiet_ends(scenario: Scenario) -> Scenario:
    """The same faults for the same time, after a run-in and before a while of running on."""
    total_s = _RUN_IN_S + scenario.duration_s + _QUIET_TAIL_S

    def share(of_faults: float) -> float:
        return (_RUN_IN_S + of_faults * scenario.duration_s) / total_s

    faults = tuple(
        fault.model_copy(
            update={"onset": share(fault.onset), "end": fault.end if fault.kind == "xid79" else share(fault.end)}
        )
        for fault in scenario.faults
    )
    return scenario.model_copy(update={"duration_s": total_s, "faults": faults})


def _check_size(scenario: Scenario, options: DemoOptions) -> None:
    """The embedded broker keeps a few MB a partition in memory: refuse what it would silently forget."""
    if options.bootstrap_servers is not None or options.broker != "embedded":
        return
    from deploy.brokers.embedded import PARTITION_KEPT_BYTES

    # A step report is about 2.5 kB a node and the default job steps twice a second: the fullest partition of all.
    bytes_per_node = 2.5e3 * 2 * scenario.duration_s
    if bytes_per_node * options.nodes > PARTITION_KEPT_BYTES:
        most = int(PARTITION_KEPT_BYTES / bytes_per_node)
        raise DemoError(
            f"{options.nodes} nodes for {scenario.duration_s:.0f} s are more than the embedded broker holds in memory; "
            f"take at most {most} nodes, a shorter --duration, or --broker apache"
        )


def _run_on(
    bootstrap_servers: str, has_admin: bool, scenario: Scenario, options: DemoOptions, view: DemoView
) -> DemoResult:
    apply_topics(bootstrap_servers, _PARTITIONS, 1, has_admin=has_admin)
    with Children() as workers:
        for role in ("telemetry", "jobs", "decisions"):
            workers.start(
                f"worker {role}",
                ["paceline", "worker", "--role", role, "--bootstrap", bootstrap_servers, "--site", SITE, "--announce"],
            )
        publisher = KafkaPublisher(
            PublisherSettings(
                bootstrap_servers,
                client_id="paceline-demo",
                # The broker goes away before the client when the demo ends: no line on that.
                properties={"log_level": "2"},
            )
        )
        try:
            publisher.publish(_policy(time.time_ns()))
            workers.wait_ready(90.0)
            view.note("workers are ready: telemetry, jobs, decisions")
            return _play(bootstrap_servers, scenario, options, view, publisher, workers)
        finally:
            publisher.close()


def _policy(now_ns: int) -> Policy:
    return Policy(policy_version="demo", site_id=SITE, effective_from_ns=now_ns, settle_ns=SETTLE_NS)


def _play(
    bootstrap_servers: str,
    scenario: Scenario,
    options: DemoOptions,
    view: DemoView,
    publisher: KafkaPublisher,
    workers: Children,
) -> DemoResult:
    start_ns = time.time_ns() + 500_000_000
    truths = truth(scenario, start_ns)
    if options.truth_file is not None:
        _write_truth(options.truth_file, b"".join(orjson.dumps(t) + b"\n" for t in truths))
    stop = threading.Event()
    published: list[int] = []
    gpus: dict[str, int] = {}
    events = _observed(deliver(simulate(scenario, start_ns), seed=scenario.seed), publisher, gpus)
    fleet = threading.Thread(
        target=lambda: published.append(play(events, publisher, stop).published), name="fleet", daemon=True
    )
    heard = Heard()
    begun = time.monotonic()
    fleet.start()
    try:
        with closing(OutputListener(bootstrap_servers)) as listener:
            marks: dict[str, int] = {}
            end_ns = start_ns + int(scenario.duration_s * 1e9)
            while not _is_over(fleet, begun, scenario.duration_s, marks, end_ns):
                workers.check()
                _listen(listener, heard, marks, view, begun, scenario.duration_s)
            # What was decided on the last mark may still be on its way.
            quiet_until = time.monotonic() + 2.0
            while time.monotonic() < quiet_until:
                _listen(listener, heard, marks, view, begun, scenario.duration_s)
    finally:
        stop.set()
        fleet.join(timeout=10.0)
        view.close()
    publisher.flush(5.0)
    return DemoResult(truths, heard, judge(truths, heard), gpus, sum(published))


def _write_truth(path: Path, lines: bytes) -> None:
    try:
        path.write_bytes(lines)
    except OSError as error:
        raise DemoError(f"--truth-file {path}: {error.strerror}") from None


def _observed(
    events: Iterator[tuple[int, Record]], publisher: KafkaPublisher, gpus: dict[str, int]
) -> Iterator[tuple[int, Record]]:
    """The events as they pass by: delivery reports are let in, and the jobs' sizes are noted."""
    for due_ns, record in events:
        publisher.poll()
        if isinstance(record, Job):
            gpus[record.job_id] = record.world_size
        yield due_ns, record


def _is_over(fleet: threading.Thread, begun: float, duration_s: float, marks: dict[str, int], end_ns: int) -> bool:
    """The fleet has ended, and either all partitions have come near its end or the tail is over."""
    if fleet.is_alive():
        return False
    if time.monotonic() - begun > duration_s + _GRACE_S:
        return True
    return bool(marks) and min(marks.values()) > end_ns - 6_000_000_000 and time.monotonic() - begun > duration_s + 1.0


def _listen(
    listener: OutputListener, heard: Heard, marks: dict[str, int], view: DemoView, begun: float, duration_s: float
) -> None:
    fresh = []
    for record in listener.poll(0.2):
        if isinstance(record, ProgressMark):
            name = f"{record.role}-{record.partition}"
            marks[name] = max(record.mark_ns, marks.get(name, 0))
        elif heard.take(record):
            fresh.append(record)
    view.update(heard, fresh, time.monotonic() - begun, duration_s)

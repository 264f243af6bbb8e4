"""From the last rank's report of a step to its result and to the findings of it on their topics, in real time, at 16,384 ranks.

One job on one partition, one step a second: 2,048 messages within some ten milliseconds of every second, as a
synchronous job sends them. One GPU after the other is slow for some steps, so that stragglers are named and cleared. Generator, broker, worker and this reader share the machine; what each takes of a core is
told. The first steps are left out: nobody can know which step is a job's first until the lateness bound has passed, and
what has piled up by then is read first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import psutil
from kafka_side import broker_process, followed, local_kafka, produce, records_of, run_worker
from report import Section, Table, figure, options, publish
from simulated_bytes import GPUS_PER_NODE, step_timings

from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_side import Worker
    from numpy.typing import NDArray

_RESULTS, _FINDINGS = topic_named("step-results").name, topic_named("findings").name
_GENERATOR = Path(__file__).with_name("step_generator.py")
_RUN_IN = 30
_PATIENCE_S = 45.0
_SNAPSHOT = re.compile(
    rb'^(paceline_snapshot\w*|paceline_restore\w*)\{[^}]*partition="\d+"[^}]*\} ([0-9.e+-]+)$', re.MULTILINE
)


@dataclass(slots=True)
class _Heard:
    """Results by step and findings, in nanoseconds since the epoch, and processor time per process over the measured span."""

    result_ns: dict[int, int] = field(default_factory=dict)
    findings: list[tuple[int, int]] = field(default_factory=list)
    """The step that a finding is of, and when it was read."""
    span_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss: dict[str, int] = field(default_factory=dict)


def main() -> None:
    """Play and listen."""
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    ranks, steps = (1024, 60) if asked.quick else (16384, 180)
    with local_kafka() as servers:
        produce(servers, records_of(step_timings(ranks, 1).reference))
        arguments = [sys.executable, str(_GENERATOR), servers, str(ranks), str(steps), str(_RUN_IN)]
        generator = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert generator.stdin is not None
        assert generator.stdout is not None
        try:
            with run_worker(servers, "jobs") as (worker,):
                if generator.stdout.readline().strip() != "ready":
                    raise RuntimeError("the generator did not get ready")
                processes = {
                    "generator": psutil.Process(generator.pid),
                    "broker": broker_process(),
                    "worker": worker.process,
                    "reader": psutil.Process(),
                }
                heard = _listen(servers, generator, processes, steps)
                played = json.loads(generator.stdout.readline())
                state = _snapshot_figures(worker)
                worker.process.kill()
                killed = time.monotonic()
                worker.process.wait()
        finally:
            generator.kill()
            generator.wait()
        recovery = _recover(servers, killed, steps - 1)
    last_sent = {int(step): at_ns for step, at_ns in played["last_sent_ns"].items()}
    publish(_section(ranks, steps, heard, last_sent, played["behind_ms"], state, recovery), asked, load_before)


def _listen(
    servers: str, generator: subprocess.Popen[str], processes: Mapping[str, psutil.Process], steps: int
) -> _Heard:
    heard = _Heard()
    with followed(servers, _RESULTS, _FINDINGS) as client:
        assert generator.stdin is not None
        generator.stdin.write("go\n")
        generator.stdin.flush()
        begun: tuple[float, dict[str, float]] | None = None
        started = time.monotonic()
        while len(heard.result_ns) < steps and time.monotonic() < started + steps + _PATIENCE_S:
            received = client.poll(0.2)
            if received is not None and received.error() is None:
                now_ns, record = time.time_ns(), orjson.loads(received.value() or b"{}")
                if record["record"] == "step_result":
                    heard.result_ns[record["step"]] = now_ns
                elif record["record"] == "finding" and record.get("step") is not None:
                    heard.findings.append((record["step"], now_ns))
            # Shares are of the time in which the generator plays; what is caught up afterwards is not in them.
            played_s = time.monotonic() - started
            if begun is None and played_s >= _RUN_IN:
                begun = time.monotonic(), _cpu_times(processes)
            if begun is not None and played_s < steps:
                heard.span_s = time.monotonic() - begun[0]
                heard.cpu_s = {name: at - begun[1][name] for name, at in _cpu_times(processes).items()}
                # The generator may have ended already: a process that has ended has no memory.
                heard.rss = {
                    name: max(process.memory_info().rss, heard.rss.get(name, 0)) for name, process in processes.items()
                }
    return heard


def _cpu_times(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: (times := process.cpu_times()).user + times.system for name, process in processes.items()}


def _snapshot_figures(worker: Worker) -> list[tuple[str, float]]:
    return [(name.decode(), float(value)) for name, value in _SNAPSHOT.findall(worker.metrics())]


def _recover(servers: str, killed: float, last_step: int) -> list[tuple[str, float]]:
    """A second worker takes up what the killed one left: seconds since the kill, and what its page says of the restore.

    The records since the last snapshot are folded again, so the last step's result comes a second time.
    """
    found: list[tuple[str, float]] = []
    with followed(servers, _RESULTS) as client, run_worker(servers, "jobs") as (worker,):
        found.append(("kill to ready again", time.monotonic() - killed))
        deadline = time.monotonic() + 2 * _PATIENCE_S
        first = True
        while time.monotonic() < deadline:
            received = client.poll(0.2)
            if received is None or received.error() is not None:
                continue
            if first:
                found.append(("kill to the first result", time.monotonic() - killed))
                first = False
            if orjson.loads(received.value() or b"{}")["step"] == last_step:
                found.append(("kill to the last step's result", time.monotonic() - killed))
                break
        found += [(name, value) for name, value in _snapshot_figures(worker) if name.startswith("paceline_restore")]
    return found


def _section(
    ranks: int,
    steps: int,
    heard: _Heard,
    last_sent: Mapping[int, int],
    behind_ms: float,
    state: list[tuple[str, float]],
    recovery: list[tuple[str, float]],
) -> Section:
    measured = [step for step in range(_RUN_IN, steps) if step in heard.result_ns]
    latencies = np.array([(heard.result_ns[step] - last_sent[step]) / 1e6 for step in measured])
    of_findings = np.array([(at_ns - last_sent[step]) / 1e6 for step, at_ns in heard.findings if step >= _RUN_IN])
    halves = np.array_split(latencies, 2)
    kept_up = len(latencies) > 1 and float(np.median(halves[1])) < 2 * float(np.median(halves[0])) + 100

    def at(values: NDArray[np.float64], percentile: int) -> str:
        return figure(float(np.percentile(values, percentile))) if values.size else "-"

    latency = Table(
        f"{ranks:,} ranks, {ranks // GPUS_PER_NODE:,} messages a step, one step a second; steps {_RUN_IN} to {steps - 1}, ms from "
        "the last report of a step:",
        ("until", "heard", "p50", "p90", "p99", "longest"),
        [
            (name, heard_of, *(at(values, percentile) for percentile in (50, 90, 99, 100)))
            for name, heard_of, values in (
                ("its result is read", f"{len(measured)} of {steps - _RUN_IN}", latencies),
                ("a finding of it is read", str(of_findings.size), of_findings),
            )
        ],
    )
    shares = Table(
        f"Processes over {heard.span_s:.0f} s of play; the worker {'kept' if kept_up and len(measured) == steps - _RUN_IN else 'did NOT keep'} "
        f"up, the generator was behind its plan by at most {behind_ms:.0f} ms:",
        ("process", "share of a core", "RSS, MB"),
        [
            (name, f"{100 * cpu_s / heard.span_s:.0f} %", figure(heard.rss.get(name, 0) / 1e6))
            for name, cpu_s in heard.cpu_s.items()
        ],
    )
    snapshots = Table(
        "Snapshots, as the worker's metrics page has them after the play:",
        ("metric", "value"),
        [(name, figure(value)) for name, value in state] or [("the worker took none", "-")],
    )
    recovered = Table(
        "The worker is killed after the play, and another one started at once:",
        ("until", "s"),
        [(name, figure(value)) for name, value in recovery],
    )
    return Section(
        "latency",
        "End to end: a step of 16,384 ranks",
        "Bytes made beforehand are played in real time through a producer (linger 5 ms) and the broker to one "
        "`paceline worker --role jobs`; a reader of `step-results` and `findings` takes the time. One clock: everything is on one machine.",
        (latency, shares, snapshots, recovered),
        (
            "Time begins when the last report of a step is handed to the client, and ends when the result is read.",
            (
                "All nodes report within about ten milliseconds, so this is mostly the time to get through the burst: the worker "
                "reads it one message after another."
            ),
            (
                "Findings are stragglers named and cleared, and what else the rules say of those steps: one GPU after the other is 1.8 times as slow "
                "as its peers for 5 s of every 8."
            ),
            (
                f"{steps - _RUN_IN} steps: p99 is all but the longest. The `rank-progress` records of a real job (every 5 s "
                "a node) are not played."
            ),
        ),
    )


if __name__ == "__main__":
    main()

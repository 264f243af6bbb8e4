"""A page of 16,384 ranks over two hours, for looking at and for measuring: its maps are filled whole, not record by record.

python -m tests.bench.large_report OUTPUT.html [RANKS]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline.report.collected import Collected, Silence
from paceline.report.page import render_page
from paceline.report.page_data import page_data
from schemas.findings import Evidence, Finding, Subject
from schemas.fleet import Job
from schemas.remediation import ActionResult, Cause, Command, Incident, Target
from schemas.results import StepResult
from streams.core.position import Position

START_NS = 1_767_225_600_000_000_000
STEP_NS = 4_000_000_000
STEPS = 1_800
SLOW = 4_243
_COMMON: dict[str, Any] = {"site_id": "large"}


def collected_of(ranks: int, steps: int) -> Collected:
    """Steps of 4 s; one rank is slow and hot for a sixth of the time, and a leaf's ports are stopped now and then."""
    noise, found, slow = np.random.default_rng(7), Collected(), SLOW % ranks
    job = Job(job_id="pretrain", effective_from_ns=START_NS, world_size=ranks, gpu_hour_cost=2.5)
    found.take_input(job, Position("paceline.jobs.v1", 0, 0, 0))
    found.placed = {("pretrain", rank): (f"node-{rank // 8:04d}", f"GPU-{rank:05d}") for rank in range(ranks)}
    found.nodes = {node for node, _ in found.placed.values()}
    found.worst_ratio["pretrain", slow], found.slow_counts["pretrain", slow] = 1.34, 300
    by_rank = found.own_ratio.rows_of([("pretrain", rank) for rank in range(ranks)])
    gpus = [(f"node-{rank // 8:04d}", f"GPU-{rank:05d}") for rank in range(ranks)]
    heats = (found.temperature_c, found.clock_mhz, found.power_w)
    by_gpu, *_ = [heat.rows_of(gpus) for heat in heats]
    by_port = found.pause_per_s.rows_of([(f"node-{rank // 8:04d}", f"mlx5_{rank % 8} 1") for rank in range(ranks)])
    stream = found.delay_s.rows_of(["gpu-frames", "step-timings"])
    found.first_ns, found.last_ns = START_NS, START_NS + steps * STEP_NS
    for step in range(steps):
        at_ns, is_slow = START_NS + step * STEP_NS, steps // 3 <= step < steps // 2
        ratios = noise.normal(1.0, 0.006, ranks)
        temperatures, clocks = noise.normal(60.0, 3.0, ranks), np.full(ranks, 1980.0)
        if is_slow:
            ratios[slow], temperatures[slow], clocks[slow] = 1.33, 91.0, 1230.0
        found.own_ratio.add(by_rank, at_ns, ratios)
        for heat, values in zip(heats, (temperatures, clocks, clocks / 3), strict=True):
            heat.add(by_gpu, at_ns, values)
        pauses = np.zeros(ranks)
        pauses[256:384] = 900.0 if step % 300 < 20 else 0.0
        found.pause_per_s.add(by_port, at_ns, pauses)
        found.delay_s.add(stream, at_ns, np.array([0.4, 0.9]))
        longest = int(3e6 * float(ratios.max()))
        times = {"step_time_us": longest + 400_000, "own_median_us": 3_000_000, "own_max_us": longest}
        result = {"job_id": "pretrain", "epoch": 0, "step": step, "event_time_ns": at_ns, "phase": "train"}
        counts = {
            "ranks_expected": ranks,
            "ranks_reported": ranks,
            "own_max_rank": slow,
            "mfu": 0.42 / float(ratios.max()),
        }
        found.take_said(StepResult(**result, **times, **counts), None)
    _said(found, slow, START_NS + steps // 3 * STEP_NS)
    found.silences = [
        Silence(f"node-{n:04d}", "gpu-frames", START_NS + n * 10**9, START_NS + n * 10**10) for n in range(40, 340)
    ]
    found.finish()
    return found


def _said(found: Collected, slow: int, onset_ns: int) -> None:
    """4,000 findings, one incident, one command and its result."""
    node_id, gpu_uuid = found.placed["pretrain", slow]
    culprit = Subject(level="gpu", job_id="pretrain", rank=slow, node_id=node_id, gpu_uuid=str(gpu_uuid))
    for number in range(4_000):
        at_ns = onset_ns + number * 10**9
        finding = Finding(
            **_COMMON,
            finding_id=f"find-{number:04d}",
            rule="thermal_violation",
            kind="thermal_violation",
            severity="info" if number else "warning",
            state="open",
            subject=culprit if number == 0 else Subject(level="node", node_id=f"node-{number % 2048:04d}"),
            event_time_ns=at_ns,
            onset_ns=at_ns,
            explanation="905 ms of thermal violation in the trailing minute",
            evidence=(Evidence(topic="paceline.gpu-frames.v1", partition=0, offset=number),),
        )
        found.take_said(finding, at_ns // 10**6 + 400)
    summary = f"rank {slow} is slower than its peers by a factor of 1.33; thermal violation on the same GPU"
    for state, after_s in (("open", 20), ("resolved", 1_300)):
        fields: dict[str, Any] = {"state": state, "event_time_ns": onset_ns + after_s * 10**9, "onset_ns": onset_ns}
        told = {
            "summary": summary,
            "advice": "Check airflow, fan duty and the thermal interface.",
            "gpu_hours_lost": 1_820.0,
        }
        blame = {
            "cause_class": "thermal",
            "culprit": culprit,
            "job_id": "pretrain",
            "findings": ("find-0000",),
            "slowdown": 1.33,
        }
        incident = Incident(**_COMMON, incident_id="inc-1", **fields, **told, **blame)
        found.take_said(incident, onset_ns // 10**6 + after_s * 1000 + 900)
    command = Command(
        **_COMMON,
        command_id="cmd-1",
        kind="drain_node",
        target=Target(level="node", node_id=node_id),
        audience="actuators",
        cause=Cause(incident_id="inc-1"),
        decided_at_ns=onset_ns + 20 * 10**9,
        expires_at_ns=onset_ns + 10**12,
        sequence=0,
        mode="auto",
        when="after_checkpoint",
        reason=summary,
    )
    found.take_said(command, onset_ns // 10**6 + 21_000)
    result = ActionResult(
        **_COMMON,
        command_id="cmd-1",
        actuator_id="slurm",
        event_time_ns=onset_ns + 10**12,
        outcome="applied",
        reason="drained",
    )
    found.take_said(result, onset_ns // 10**6 + 10**6)


def large_page(ranks: int, steps: int = STEPS) -> bytes:
    """The page's bytes.

    Args:
        ranks: of the job.
        steps: of 4 s; fewer are made sooner, and drawn as finely from 400 on.
    """
    about = {"source": f"{ranks} ranks", "site": "large", "paceline": "0", "policies": ["the defaults"]}
    about |= {"is_recorded": True, "unusable": 0, "unusable_lines": []}
    onset_ms = (START_NS + steps // 3 * STEP_NS) // 10**6
    raw = {
        ("paceline.gpu-frames.v1", 0, n): (onset_ms + 1_000 * n + 300, '{"node_id":"node-0530"}') for n in range(1_500)
    }
    return render_page(page_data(collected_of(ranks, steps), about, raw), f"{ranks} ranks")


if __name__ == "__main__":
    begun = time.process_time()
    page = large_page(int(sys.argv[2]) if len(sys.argv) > 2 else 16_384)
    Path(sys.argv[1]).write_bytes(page)
    print(f"{len(page) / 1e6:.1f} MB in {time.process_time() - begun:.0f} s of CPU")

"""The hook in real PyTorch loops, two ranks over gloo on the CPU: what arrives at an agent, and an agent that is killed.

The loops run in an interpreter that has PyTorch: this one, or the one that PACELINE_TORCH_PYTHON names. They need no
GPU, so CUDA events are not exercised here. Ratios of step times are printed and never asserted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from agents.clock import SystemClock
from agents.identity import AgentIdentity, Sequences
from agents.local_ranks import LocalRanks
from agents.testing import RecordingPublisher
from agents.trainer_socket import TrainerSocket
from schemas.fleet import Job
from schemas.steps import RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs_torch

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("PACELINE_TORCH_PYTHON") or sys.executable

COMMON = """
import json, os, statistics, sys, time
import torch
import torch.distributed as dist
from torch import nn
import paceline_trainer

torch.set_num_threads(1)
RANK = int(os.environ["RANK"])
STEPS = int(sys.argv[2])

def start():
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=RANK, world_size=2)

def batches(count):
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(count):
        time.sleep(0.002)
        yield torch.randn(32, 128, generator=generator)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(inplace=True), nn.Linear(256, 16))

    def forward(self, batch):
        if RANK == 1:
            time.sleep(SLEEP_S)
        return {"logits": self.layers(batch)}
"""

WATCHED = (
    COMMON
    + """
SLEEP_S = 0.05
start()
model = nn.parallel.DistributedDataParallel(Slow())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reporter = paceline_trainer.watch(
    model, optimizer, job_id="job-torch", tokens=32, warmup_steps=0, groups={dist.group.WORLD: "dp"}
)
model.register_comm_hook(None, reporter.comm_hook(group=dist.group.WORLD))
for batch in reporter.batches(batches(STEPS)):
    optimizer.zero_grad()
    loss = model(batch)["logits"].pow(2).mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())  # behind the step: counted, not timed
model.eval()
with torch.no_grad():
    model(batch)
reporter.close()
print(json.dumps({"counters": reporter.counters, "put_back": dist.all_reduce.__module__}))
"""
)

BY_HAND = (
    COMMON
    + """
SLEEP_S = 0.05
start()
model = Slow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reporter = paceline_trainer.TorchStepReporter("job-hand", warmup_steps=0)
reporter.time_collectives({dist.group.WORLD: "dp"})
source = batches(STEPS)
for _ in range(STEPS):
    with reporter.step(tokens=32):
        with reporter.data():
            batch = next(source)
        with reporter.forward():
            loss = model(batch)["logits"].pow(2).mean()
        with reporter.backward():
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        with reporter.optimizer():
            optimizer.step()
            optimizer.zero_grad()
reporter.close()
print(json.dumps({"counters": reporter.counters}))
"""
)

KILLED = (
    COMMON
    + """
SLEEP_S = 0.0
start()
model = nn.parallel.DistributedDataParallel(Slow())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def run(count, wrap=lambda items: items):
    times_s, before_s = [], time.perf_counter()
    for batch in wrap(batches(count)):
        optimizer.zero_grad()
        model(batch)["logits"].pow(2).mean().backward()
        optimizer.step()
        now_s = time.perf_counter()
        times_s.append(now_s - before_s)
        before_s = now_s
    return times_s
run(10)
bare_s = run(STEPS)
reporter = paceline_trainer.watch(model, optimizer, job_id="job-killed", warmup_steps=0)
with_agent_s = run(STEPS, reporter.batches)
print("killed?", flush=True)
sys.stdin.readline()
dist.barrier()
without_agent_s = run(STEPS, reporter.batches)
counters = reporter.counters
reporter.close()
bare_s += run(STEPS)  # before and after, since other work on the machine comes and goes
print(json.dumps({
    "done": len(with_agent_s) + len(without_agent_s),
    "median_ms": [1000 * statistics.median(times) for times in (bare_s, with_agent_s, without_agent_s)],
    "counters": counters,
}))
"""
)

HOOKS = """
import copy, io, json, sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import paceline_trainer

torch.set_num_threads(1)
steps = []

def watched(model, *optimizers, **named):
    reporter = paceline_trainer.watch(model, list(optimizers), job_id="j", socket_path=sys.argv[1], **named)
    reporter._send = lambda kind, fields: steps.append(fields)
    return reporter

def taken():
    found = [sorted(name for name in step if name.endswith("_us")) for step in steps]
    numbers = [step["step"] for step in steps]
    steps.clear()
    return numbers, found

def model_and_optimizer():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

batch = torch.randn(2, 8)
result = {}
model, optimizer = model_and_optimizer()
reporter = watched(model, optimizer, first_step=100)
output = model(batch)
output.mul_(2.0)  # in place, which hooks on a module's backward pass forbid
output.sum().backward()
optimizer.step()
result["in_place"] = taken()
for _ in range(3):  # accumulated gradients are one step
    model(batch).sum().backward()
optimizer.step()
result["accumulated"] = taken()
model.eval()
model(batch)
model.train()
with torch.no_grad():
    model(batch)
result["not_training"] = taken()
try:
    model(torch.randn(2, 3))
except RuntimeError:
    pass
model(batch).sum().backward()
optimizer.step()
result["after_an_error"] = taken()
checkpoint(model, batch.clone().requires_grad_(), use_reentrant=True).sum().backward()
optimizer.step()
checkpoint(model, batch.clone().requires_grad_(), use_reentrant=False).sum().backward()
optimizer.step()
result["recomputed"] = [number for number in taken()[0]]
copied = copy.deepcopy(model)
stored = io.BytesIO()
torch.save(model, stored)
stored.seek(0)
loaded = torch.load(stored, weights_only=False)
for other in (copied, loaded):
    other(batch).sum().backward()
result["copies"] = taken()
compiled = torch.compile(model, backend="eager", fullgraph=True)
compiled(batch).sum().backward()  # hooks inside of the compiled region are not seen, and do not break it
reporter.close()
model(batch).sum().backward()
optimizer.step()
result["closed"] = taken()
result["errors"] = reporter.counters["errors"]

inner, optimizer = model_and_optimizer()
model = torch.compile(inner, backend="eager", fullgraph=True)
reporter = watched(model, optimizer)
for _ in range(2):
    model(batch).sum().backward()
    optimizer.step()
result["compiled"] = taken()
reporter.close()

model, first = model_and_optimizer()
second = torch.optim.Adam(model.parameters())
reporter = watched(model, first, second)
for _ in range(2):
    model(batch).sum().backward()
    first.step()
    second.step()
result["two_optimizers"] = taken()[0]
reporter.close()

class Foreign:
    def step(self):
        pass

model, _ = model_and_optimizer()
reporter = watched(model, Foreign())
model(batch).sum().backward()
result["foreign"] = taken()
result["hooks_left"] = len(model._forward_pre_hooks)
print(json.dumps(result))
"""

AGENT = """
import sys
from agents.agent import run_agent
from agents.settings import AgentSettings
run_agent(AgentSettings(
    bootstrap_servers="127.0.0.1:9", sources=(), socket=sys.argv[1], drain_s=0, connect_spread_s=0
))
"""


class Ranks:
    """Two ranks of a script."""

    def __init__(self, script: str, tmp_path: Path, socket_path: Path, steps: int) -> None:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PACELINE_SOCKET": str(socket_path),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "OMP_NUM_THREADS": "1",
        }
        self.processes = [
            subprocess.Popen(
                [PYTHON, "-c", script, str(tmp_path / "rendezvous"), str(steps)],
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
            )
            for rank in range(2)
        ]

    def wait_for(self, line: str) -> None:
        """Read what both ranks print up to a line."""
        for process in self.processes:
            assert process.stdout is not None
            # A line that never comes must not be waited for without end.
            patience = threading.Timer(120, process.kill)
            patience.start()
            try:
                while (said := process.stdout.readline()) != line:
                    assert said, process.communicate()[1]
            finally:
                patience.cancel()

    def say(self, line: str) -> None:
        """Say a line to both ranks, which may wait for each other behind it."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()

    def results(self) -> list[dict[str, Any]]:
        """What both ranks printed last."""
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert "Traceback" not in err, err
            found.append(json.loads(out.splitlines()[-1]))
        return found

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def running(script: str, tmp_path: Path, socket_path: Path, steps: int) -> Iterator[Ranks]:
    ranks = Ranks(script, tmp_path, socket_path, steps)
    try:
        yield ranks
    finally:
        ranks.end()


@contextmanager
def recording_agent(path: Path) -> Iterator[tuple[TrainerSocket, RecordingPublisher]]:
    publisher = RecordingPublisher()
    identity = AgentIdentity("node-1", "boot-1", "session-1")
    ranks = LocalRanks(identity, Sequences(), progress_ns=200_000_000)
    served = TrainerSocket(path, ranks, publisher.publish, SystemClock())
    served.start()
    try:
        yield served, publisher
    finally:
        served.stop()


def middle(timings: list[StepTiming], name: str, rank: int) -> float:
    """The median over steps of one rank's column, without the first steps, which set things up."""
    values = [getattr(timing, name)[timing.rank.index(rank)] for timing in timings[5:]]
    assert None not in values, name
    return float(median(values))


def test_the_steps_of_a_watched_loop_arrive_and_tell_who_is_late_from_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    steps = 25
    with recording_agent(path) as (served, publisher), running(WATCHED, tmp_path, path, steps) as ranks:
        results = ranks.results()
        assert publisher.wait_for(lambda p: sum(isinstance(r, StepTiming) for r in p.records) >= steps, 10)
    timings = publisher.of(StepTiming)
    assert [timing.step for timing in timings] == list(range(steps))
    assert all(timing.rank == (0, 1) and timing.phase == "train" for timing in timings)
    assert all(timing.tokens == (32, 32) for timing in timings)
    for name in ("forward_us", "backward_us", "optimizer_us", "data_us"):
        assert middle(timings, name, 0) > 0
    # Rank 1 sleeps 50 ms in its forward pass; rank 0 gets that as waiting for the buckets, and not as its own time.
    assert middle(timings, "own_us", 1) > 50_000 > middle(timings, "own_us", 0)
    assert middle(timings, "wait_us", 0) > middle(timings, "wait_us", 1)
    assert middle(timings, "forward_us", 1) > 50_000
    assert middle(timings, "data_us", 0) >= 2_000
    buckets = [c for timing in timings[5:] for c in timing.collectives]
    assert {(c.group, c.instance, c.op) for c in buckets} == {("dp", (0, 1, 2), "all_reduce")}
    assert median(c.duration_us[0] or 0 for c in buckets) > median(c.duration_us[1] or 0 for c in buckets)
    # All gradients of the model, four bytes each: 128 x 256 and 256 x 16 weights and their biases.
    assert {c.size_bytes for c in buckets} == {(4 * (128 * 256 + 256 + 256 * 16 + 16),) * 2}
    progress = publisher.of(RankProgress)[-1]
    assert set(progress.groups) == {"dp"}
    assert publisher.of(Job)[-1].state == "ended"
    assert served.counters["bad_message"] == served.counters["pid_of_another"] == 0
    assert all(result["counters"]["errors"] == result["counters"]["lost"] == 0 for result in results)
    assert {result["put_back"] for result in results} <= {"torch.distributed.distributed_c10d"}


def test_a_loop_with_parts_by_hand_has_its_collectives_as_waiting(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    steps = 25
    with recording_agent(path) as (_, publisher), running(BY_HAND, tmp_path, path, steps) as ranks:
        results = ranks.results()
        assert publisher.wait_for(lambda p: sum(isinstance(r, StepTiming) for r in p.records) >= steps, 10)
    timings = publisher.of(StepTiming)
    assert len(timings) == steps
    assert middle(timings, "own_us", 1) > 50_000 > middle(timings, "own_us", 0)
    assert middle(timings, "wait_us", 0) > 30_000
    assert middle(timings, "backward_us", 0) < middle(timings, "wait_us", 0)
    for timing in timings:
        (collective,) = timing.collectives  # four gradients, one entry
        assert collective.duration_us == timing.wait_us
    assert all(result["counters"]["errors"] == 0 for result in results)


def test_hooks_find_steps_in_every_kind_of_loop_and_never_stand_in_its_way(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-c", HOOKS, str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    parts = ["backward_us", "compute_us", "forward_us", "optimizer_us", "step_us"]
    assert result["in_place"] == [[100], [parts]]
    assert result["accumulated"] == [[101], [parts]]
    assert result["not_training"] == [[], []]
    assert result["after_an_error"] == [[102], [parts]]
    assert result["recomputed"] == [103, 104]
    assert result["copies"] == [[], []]
    assert result["closed"] == [[], []]
    assert result["compiled"] == [[0, 1], [parts, parts]]
    assert result["two_optimizers"] == [0, 1]
    assert result["foreign"] == [[], []]
    assert result["hooks_left"] == 0
    assert result["errors"] <= 3  # attempts to find an agent, not errors of hooks
    assert "hook:" not in done.stderr


def test_an_agent_that_is_killed_in_mid_run_costs_the_loop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trainer.sock"
    steps = 60
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(path)], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
        while not _answers(path):
            assert time.monotonic() < deadline, "the agent does not open its socket"
            assert agent.poll() is None, agent.communicate()[1]
            time.sleep(0.05)
        with running(KILLED, tmp_path, path, steps) as ranks:
            ranks.wait_for("killed?\n")
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            ranks.say("yes\n")
            results = ranks.results()
    finally:
        agent.kill()
        agent.communicate()
    for rank, result in enumerate(results):
        assert result["done"] == 2 * steps
        assert result["counters"]["sent"] >= steps
        bare_ms, with_agent_ms, without_agent_ms = result["median_ms"]
        with capsys.disabled():
            print(
                f"\nrank {rank}: median step {bare_ms:.2f} ms bare, {with_agent_ms:.2f} ms with an agent "
                f"({with_agent_ms / bare_ms:.3f} times), {without_agent_ms:.2f} ms after it was killed "
                f"({without_agent_ms / bare_ms:.3f} times)"
            )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0

"""A job under the reference controller, as processes, and what it leaves in its directories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from signed_commands import command

from agents.actuators.job_spool import Answer, JobSpool
from deploy.job_controller.checkpoints import Checkpoints
from schemas.remediation import Command, Target

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JOB", "WORLD", "RealJob", "wait_for"]

ROOT = Path(__file__).parents[1]
JOB = "llama"
WORLD = 4

SETTINGS = """
job_id = "{job}"
run_dir = "{home}/run"
spool = "{home}/spool/{job}"
command = {command}
register = ["{python}", "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])", "{{file}}", "{home}/registered"]
nodes = [{{node_id = "node-1", ranks = [0, 1]}}, {{node_id = "node-2", ranks = [2]}}, {{node_id = "node-3", ranks = [3]}}]
spares = [{{node_id = "node-4"}}, {{node_id = "node-5"}}]
"""


STUB = [
    *("{python}", "-m", "deploy.job_controller.stub_trainer", "--run-dir", "{run_dir}", "--ranks", "{ranks}"),
    *("--world", "{world}", "--nodes", "{nodes}", "--epoch", "{epoch}", "--step-s", "0.002"),
]


def wait_for(what: str, holds: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    """What a condition gives once it holds."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.01)
    return value


class RealJob:
    """A job's controller as a process, and what it leaves in its directories."""

    def __init__(self, home: Path, worker: list[str] = STUB, timeout_s: float = 90.0) -> None:
        self.timeout_s = timeout_s
        self.home, self.run_dir = home, home / "run"
        (home / "registered").mkdir()
        (home / "job.toml").write_text(
            SETTINGS.format(job=JOB, home=home, python=sys.executable, command=json.dumps(worker))
        )
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints")
        self.spool = JobSpool(home / "spool")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def start(self) -> None:
        with (self.home / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.job_controller", str(self.home / "job.toml")],
                cwd=ROOT,
                # torchrun does not look for modules where it was started.
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def reached(self, step: int) -> int:
        def whole() -> int | None:
            latest = self.latest() or 0
            return latest if latest >= step else None

        return int(wait_for(f"a checkpoint from step {step} on", whole, self.timeout_s))

    def latest(self) -> int | None:
        self.alive()
        return self.checkpoints.latest()

    def alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, (self.home / "controller.log").read_text()

    def finish(self) -> list[dict[str, Any]]:
        """Let the job come to its end; its log."""
        assert self.process is not None
        (self.run_dir / "finish").touch()
        assert self.process.wait(self.timeout_s) == 0, (self.home / "controller.log").read_text()
        return [json.loads(line) for line in (self.run_dir / "steps.log").read_text().splitlines()]

    def offer(self, order: Command) -> None:
        """Put an order for the job's first epoch in the spool, as an actuator does."""
        fields = {"kind": order.kind, "job_id": JOB, "node_id": order.target.node_id, "when": order.when}
        fields |= {"expected_epoch": 0, "expires_at_ns": order.expires_at_ns}
        self.spool.offer(JOB, order.command_id, fields)

    def last_answer(self, order: Command) -> Answer:
        """The answer that brings an order to its end, once it is there."""

        def ended() -> Answer | None:
            self.alive()
            answer = self.spool.answer(JOB, order.command_id)
            return answer if answer is not None and answer.has_ended else None

        found: Answer = wait_for("the answer", ended, self.timeout_s)
        return found

    def order(self, kind: str, number: int = 0, node_id: str = "node-2", **fields: Any) -> Command:
        level = "job" if kind in {"restart_job", "collect_evidence"} else "node"
        now_ns = time.time_ns()
        return command(
            node_id=node_id,
            number=number,
            kind=kind,
            target=Target(level=level, node_id=node_id if level == "node" else None, job_id=JOB),
            decided_at_ns=now_ns,
            expires_at_ns=now_ns + 3_600_000_000_000,
            **fields,
        )

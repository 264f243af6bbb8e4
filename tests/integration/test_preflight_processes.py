"""Processes as nodes: one is slow, one is killed, and every process ends with what is true of its own node.

One interpreter loads the command line and forks every rank, since to load it eight times would take longer than to measure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 90.0

FORK = """
import json, os, sys
from paceline import preflight_command, preflight_pairs
from paceline.cli import app
from agents.preflight import member

home, ranks = sys.argv[1], json.loads(sys.argv[2])
children = {}
for rank, arguments in enumerate(ranks):
    child = os.fork()
    if child == 0:
        for number, name in ((1, "out"), (2, "errors")):
            os.dup2(os.open(f"{home}/{name}-{rank}", os.O_WRONLY | os.O_CREAT), number)
        status = 70
        try:
            app(arguments)
        except SystemExit as end:
            sys.stdout.flush()
            status = end.code
        finally:
            os._exit(status)
    children[child] = rank
print(json.dumps({rank: child for child, rank in children.items()}), flush=True)
while children:
    child, end = os.wait()
    print(json.dumps([children.pop(child), os.waitstatus_to_exitcode(end)]), flush=True)
"""


class Ranks:
    """Processes of `paceline preflight --only pairs`, one a rank, all on this machine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pids: dict[int, int] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self, options: list[list[str]]) -> None:
        (port,) = free_ports(1)
        common = ["preflight", "--only", "pairs", "--json", "--backend", "sockets", "--mib", "0.25", "--repeats", "3"]
        # They share two cores here, so a good pair may be far off another one.
        common += ["--nodes", str(len(options)), "--rendezvous", f"127.0.0.1:{port}", "--slow-below", "0.3"]
        arguments = [
            [*common, "--rank", str(rank), "--node-name", f"node-{rank}", *own] for rank, own in enumerate(options)
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORK, str(self.home), json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PACELINE_PREFLIGHT_TOKEN": "0123456789abcdef"},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.pids = {int(rank): pid for rank, pid in json.loads(self._process.stdout.readline()).items()}

    def ends(self) -> dict[int, tuple[int, list[dict[str, Any]]]]:
        """Of each rank its status and the lines that it printed."""
        assert self._process is not None
        out, _ = self._process.communicate(timeout=WAIT_S)
        statuses = dict(json.loads(line) for line in out.splitlines())
        return {
            rank: (status, [json.loads(line) for line in (self.home / f"out-{rank}").read_text().splitlines()])
            for rank, status in statuses.items()
        }

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline_s, self.said(0)
            time.sleep(0.02)

    def said(self, rank: int) -> str:
        path = self.home / f"errors-{rank}"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=WAIT_S)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    started.close()


def test_one_slowed_process_of_eight_is_found_by_name(ranks: Ranks) -> None:
    slow = 5
    # Held to this it needs half a second, where two processes on one busy core need some hundredths.
    ranks.start([["--throttle-mb-s", "0.5"] if rank == slow else [] for rank in range(8)])
    ends = ranks.ends()
    checks = {line["subject"]: line for line in ends[0][1] if line["record"] == "preflight_check"}
    assert len(checks) == 8
    assert [subject for subject, line in checks.items() if line["status"] == "failed"] == [f"node-{slow}"], checks
    assert checks[f"node-{slow}"]["bears_on"] == "other"
    assert checks[f"node-{slow}"]["values"]["rounds"] <= 6
    # Only the slow node's own process says that its node is not fit: nobody else's is drained for it.
    assert {rank: status for rank, (status, _) in ends.items()} == {rank: int(rank == slow) for rank in range(8)}
    assert (ends[slow][1][-1]["fit"], ends[slow][1][-1]["failed"]) == (False, ["pairs"])


def test_a_process_that_is_killed_while_it_measures_is_said_by_name_and_holds_nobody_up(ranks: Ranks) -> None:
    # What it is held to would take minutes, so it is in its first measurement when it is killed.
    ranks.start([["--throttle-mb-s", "0.001"] if rank == 3 else [] for rank in range(4)])
    ranks.until(lambda: "round 1" in ranks.said(0))
    os.kill(ranks.pids[3], signal.SIGKILL)
    ends = ranks.ends()
    checks = {line["subject"]: line for line in ends[0][1] if line["record"] == "preflight_check"}
    assert checks["node-3"]["status"] == "not_measured"
    assert "has hung up" in checks["node-3"]["note"]
    assert {rank: status for rank, (status, _) in ends.items()} == {0: 0, 1: 0, 2: 0, 3: -signal.SIGKILL}

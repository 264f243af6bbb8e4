"""Real hangs of PyTorch jobs over Gloo, five ranks each, judged from what the recorder of this build has of them.

One interpreter imports PyTorch and forks every rank. A rank says when it has issued its last operation, so that nothing
is read too early, and lives on behind its dump: a rank that ends would end the others' operations too. Gloo is no NCCL:
nothing here says how a GPU's collectives hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from paceline.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs_torch

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("PACELINE_TORCH_PYTHON") or sys.executable
RANKS = 5
FAULTY = 2
HANGS = ("stopped", "skipped", "size", "operation", "pairs")
WAIT_S = 240

RANK = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as bindings
import paceline_trainer

RANKS, FAULTY = int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)

def mark(folder, what):
    (folder / f"{what}-{RANK}").touch()

def dump_when_told(folder):
    while not (folder / "dump").exists():
        time.sleep(0.05)
    own = getattr(bindings, "_dump_fr_trace", None)
    if own is not None:
        (folder / "own").mkdir(exist_ok=True)
        (folder / "own" / f"trace_rank_{RANK}").write_bytes(own())
        (folder / "nccl").mkdir(exist_ok=True)
        (folder / "nccl" / f"trace_rank_{RANK}").write_bytes(bindings._dump_nccl_trace())
        (folder / "ours").mkdir(exist_ok=True)
        paceline_trainer.write_flight_recording(str(folder / "ours"))
    mark(folder, "dumped")

def job(folder, fault):
    threading.Thread(target=dump_when_told, args=(folder,), daemon=True).start()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=RANK, world_size=RANKS)
    values = torch.ones(8)
    gathered = [torch.empty(8) for _ in range(RANKS)]
    pair = None
    if fault == "pairs":  # ranks 0 and 1, 2 and 3; the last rank is in none
        for first in (0, 2):
            group = dist.new_group([first, first + 1])
            pair = group if RANK in (first, first + 1) else pair
    for _ in range(3):
        dist.all_reduce(values)
        dist.all_gather(gathered, values)
        if pair is not None:
            dist.all_reduce(values, group=pair)
    if fault == "pairs":
        if RANK == FAULTY:
            mark(folder, "stuck")
            time.sleep(600)
        if RANK == FAULTY + 1:
            work = dist.all_reduce(values, group=pair, async_op=True)
        else:
            work = dist.all_reduce(values, async_op=True)
    elif fault == "healthy":
        mark(folder, "stuck")
        time.sleep(600)
    elif RANK != FAULTY:
        work = dist.all_reduce(values, async_op=True)
    elif fault == "stopped":
        mark(folder, "stuck")
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "skipped":
        mark(folder, "stuck")
        time.sleep(600)
    elif fault == "size":  # fewer: with more than it expects Gloo ends the receiver's process
        dist.all_reduce(torch.ones(2))
        work = dist.all_gather(gathered, values, async_op=True)
    elif fault == "operation":
        work = dist.broadcast(values, 0, async_op=True)
    mark(folder, "stuck")
    work.wait()
    time.sleep(600)

for fault in sys.argv[4:]:
    for RANK in range(RANKS):
        if os.fork() == 0:
            folder = Path(sys.argv[1]) / fault
            try:
                job(folder, fault)
            except BaseException as error:
                (folder / f"failed-{RANK}").write_text(repr(error))
            os._exit(0)
print("forked", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder per hang, with dumps of all ranks that can write one."""
    folder = tmp_path_factory.mktemp("hangs")
    hangs = [*HANGS, "healthy"]
    for fault in hangs:
        (folder / fault).mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [PYTHON, "-c", RANK, str(folder), str(RANKS), str(FAULTY), *hangs],
        env=environ,
        cwd=folder,
        stdout=(folder / "log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        for fault in hangs:
            wait_for(folder, fault, "stuck", RANKS)
        time.sleep(1)  # what was issued before has ended long since; its end may be a moment from being recorded
        for fault in hangs:
            (folder / fault / "dump").touch()
        for fault in hangs:
            wait_for(folder, fault, "dumped", RANKS - (fault == "stopped"))
        if not (folder / "healthy" / "own").exists():
            pytest.skip("needs_torch: this build of PyTorch has no recorder for Gloo: there is nothing to judge")
        yield folder
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(folder: Path, fault: str, mark: str, count: int) -> None:
    end = time.monotonic() + WAIT_S
    while len(list((folder / fault).glob(f"{mark}-*"))) < count:
        failed = [path.read_text() for path in (folder / fault).glob("failed-*")]
        log = (folder / "log").read_text()[-2000:]
        assert not failed, (fault, failed, log)
        assert time.monotonic() < end, (fault, mark, log)
        time.sleep(0.1)


def verdict_of(dumps: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["diagnose", "hang", str(dumps), "--json"])
    verdict: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if verdict["verdict"] == "hang" else 0)
    return verdict


@pytest.mark.parametrize("writer", ["own", "ours"])
@pytest.mark.parametrize(
    ("fault", "cause", "op"),
    [
        ("stopped", "not_entered", "all_reduce"),
        ("skipped", "not_entered", "all_reduce"),
        ("size", "inconsistent", "all_reduce"),
        ("operation", "inconsistent", "all_reduce"),
    ],
)
def test_the_rank_at_fault_is_named(dumps: Path, fault: str, cause: str, op: str, writer: str) -> None:
    verdict = verdict_of(dumps / fault / writer)
    assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("hang", cause, [FAULTY])
    assert verdict["waiting_ranks"] == [rank for rank in range(RANKS) if rank != FAULTY]
    assert (verdict["op"], verdict["seq"], verdict["group_desc"]) == (op, 7, "default_pg")
    assert verdict["ranks_without_dump"] == ([FAULTY] if fault == "stopped" else [])


def test_a_rank_missing_in_a_small_group_is_named_where_the_program_gives_the_members(dumps: Path) -> None:
    verdict = verdict_of(dumps / "pairs" / "ours")
    assert (verdict["cause"], verdict["culprit_ranks"], verdict["waiting_ranks"]) == ("not_entered", [2], [0, 1, 3, 4])


def test_without_members_of_the_groups_nobody_is_named(dumps: Path) -> None:
    """The recorder keeps the members of the group that was made last, under an empty name."""
    verdict = verdict_of(dumps / "pairs" / "own")
    assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("undecided", "insufficient", [])


def test_a_job_that_waits_for_nothing_is_healthy(dumps: Path) -> None:
    for writer in ("own", "ours"):
        assert verdict_of(dumps / "healthy" / writer)["verdict"] == "healthy"


def test_the_recorder_of_nccl_has_nothing_of_gloo(dumps: Path) -> None:
    """So nothing is pending in its dumps, and that is all that they say."""
    assert verdict_of(dumps / "skipped" / "nccl")["verdict"] == "healthy"

"""nccl-tests: what it printed, within a node and between two, and what never reaches a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.collectors.program import ProgramError
from agents.preflight.nccl_tests import NcclMeter, found_launcher, local_all_reduce, read_all_reduce
from agents.preflight.pairs import MeterError, Peer, RoundOrder

if TYPE_CHECKING:
    from collections.abc import Sequence


def printed(hosts: Sequence[str], gpus: int = 2, bus: float = 480.2, wrong: str = "0", found: bool = True) -> str:
    ranks = [
        f"#  Rank {rank if found else rank % gpus:2d} Group  0 Pid  14840 on {host} device  {gpu} [0x07] NVIDIA H100 80GB HBM3"
        for rank, (host, gpu) in enumerate((host, gpu) for host in hosts for gpu in range(gpus))
    ]
    return "\n".join(
        [
            "# nThread 1 nGpus 2 minBytes 536870912 maxBytes 536870912 step: 1048576(bytes) warmup iters: 5 iters: 20",
            "# Using devices",
            *ranks,
            "#                                                              out-of-place                       in-place",
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
            f"   536870912     134217728     float     sum      -1   1806.7  297.16  {bus}      {wrong}   1835.9  292.43  470.1      0",
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 475.1",
        ]
    )


def test_the_table_of_all_reduce_perf_is_read_from_its_end() -> None:
    found = read_all_reduce(printed(["a", "b"]))
    assert found is not None
    assert (found.bus_gb_s, found.wrong, found.ranks, found.hosts) == (480.2, 0, 4, 2)
    unchecked = read_all_reduce(printed(["a"], wrong="N/A"))
    assert unchecked is not None
    assert unchecked.wrong == 0
    assert read_all_reduce("NCCL failure unhandled cuda error") is None
    # Built without MPI each process has a rank 0 of its own.
    assert read_all_reduce(printed(["a", "b"], found=False)) is None


def test_an_all_reduce_within_the_node_is_held_against_a_floor(tmp_path: Path) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def checked(text: str | ProgramError, gpus: int = 2, floor: float | None = 460.0, path: Path = program) -> str:
        def run(command: Sequence[str], timeout_s: float) -> bytes:
            assert command[:2] == [str(program), "-b"]
            if isinstance(text, ProgramError):
                raise text
            return text.encode()

        return local_all_reduce(str(path), gpus, "n", floor, run).status

    assert checked(printed(["a"])) == "passed"
    assert checked(printed(["a"], bus=300.0)) == "failed"
    assert checked(printed(["a"], wrong="7")) == "failed"
    assert checked(printed(["a"]), floor=None) == "not_measured"
    assert checked(ProgramError("status 3")) == "not_measured"
    assert checked("?") == "not_measured"
    assert checked(printed(["a"]), gpus=1) == "not_measured"
    assert checked("", path=tmp_path / "none") == "not_measured"


def order(*names: str) -> RoundOrder:
    peers = tuple(Peer(rank, name, "10.0.0.1", 1) for rank, name in enumerate(names))
    return RoundOrder(0, peers, 1 << 20, 5, 60.0)


def test_a_pair_is_measured_by_its_first_member_through_the_launcher() -> None:
    ran: list[list[str]] = []

    def run(command: Sequence[str], timeout_s: float) -> bytes:
        ran.append(list(command))
        return printed(["a", "b"]).encode()

    meter = NcclMeter("/opt/all_reduce_perf", 2, "srun -N {nodes} -w {hosts}", run)
    assert meter.measure(order("node-a", "node-b"), 0) == 480.2
    assert meter.measure(order("node-a", "node-b"), 1) is None
    assert ran == [
        [
            *("srun", "-N", "2", "-w", "node-a,node-b", "/opt/all_reduce_perf"),
            *("-b", "1048576", "-e", "1048576", "-g", "2", "-n", "5", "-w", "5", "-c", "1"),
        ]
    ]


@pytest.mark.parametrize("name", ["a b", "-x", "a,b", "$(reboot)", "", "a/../b", "a" * 300])
def test_what_is_no_host_name_never_reaches_a_command(name: str) -> None:
    meter = NcclMeter("p", 1, "srun -w {hosts}", lambda *_: pytest.fail("ran"))
    with pytest.raises(MeterError, match="no host name"):
        meter.measure(order("node-a", name), 0)


def test_ranks_that_did_not_find_each_other_and_wrong_sums_are_no_figure() -> None:
    for text, why in (
        (printed(["a", "b"], found=False), "MPI"),
        (printed(["a"]), "MPI"),
        (printed(["a", "b"], wrong="3"), "3 wrong sums"),
    ):
        meter = NcclMeter("p", 2, "srun", lambda *_, text=text: text.encode())
        with pytest.raises(MeterError, match=why):
            meter.measure(order("a", "b"), 0)


def test_the_launcher_is_slurms_inside_a_job_and_else_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found_launcher({"SLURM_JOB_ID": "7"}) is None
    for name in ("srun", "mpirun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert (found_launcher({"SLURM_JOB_ID": "7"}) or "").startswith("srun --overlap")
    assert (found_launcher({}) or "").startswith("mpirun")

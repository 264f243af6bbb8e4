"""nccl-tests' `all_reduce_perf`, where it is installed: within a node, and between the nodes of a pair through a launcher.

Guarantees: what is run is this node's own program and launcher, and of what another rank says only host names enter the
command, checked and without a shell; a run whose ranks did not find each other (a program built without MPI) is no
measurement; wrong sums are an error and not a figure.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agents.collectors.program import ProgramError, run_program
from agents.preflight.check import PreflightCheck
from agents.preflight.pairs import MeterError, RoundOrder

__all__ = ["AllReduceRun", "NcclMeter", "found_launcher", "local_all_reduce", "read_all_reduce"]

Run = Callable[[Sequence[str], float], bytes]

_BYTES = 1 << 29
_LOCAL_S = 180.0
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_RANK = re.compile(r"^#?\s*Rank\s+(?P<rank>\d+)\s.*\bon\s+(?P<host>\S+)\s+device\b", re.MULTILINE)
_ROW = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+.*$", re.MULTILINE)
_SLURM_LAUNCHER = "srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --nodelist={hosts}"
_MPI_LAUNCHER = "mpirun -np {nodes} --host {hosts}"


@dataclass(frozen=True, slots=True)
class AllReduceRun:
    """What a run of `all_reduce_perf` printed.

    Attributes:
        bus_gb_s: bus bandwidth, out of place (GB/s).
        wrong: elements with a wrong sum.
        ranks: different ranks.
        hosts: different hosts.
    """

    bus_gb_s: float
    wrong: int
    ranks: int
    hosts: int


def read_all_reduce(text: str) -> AllReduceRun | None:
    """The last row of the table; None where there is none.

    Columns are size, count, type, redop, root (newer ones), and twice time, algbw, busbw, #wrong: so they are counted from
    the end. Two processes that did not find each other each print a rank 0.
    """
    ranks = [(found["rank"], found["host"]) for found in _RANK.finditer(text)]
    if len({rank for rank, _ in ranks}) != len(ranks):
        return None
    for line in reversed(_ROW.findall(text)):
        words = line.split()
        if len(words) < 12:
            continue
        try:
            bus_gb_s = float(words[-6])
            wrong = sum(0 if words[place] == "N/A" else int(float(words[place])) for place in (-5, -1))
        except ValueError:
            continue
        return AllReduceRun(bus_gb_s, wrong, len(ranks), len({host for _, host in ranks}))
    return None


def local_all_reduce(
    program: str, gpus: int, node: str, floor_gb_s: float | None, run: Run = run_program
) -> PreflightCheck:
    """The check `nccl`: one process over all GPUs of the node.

    Args:
        program: a path, or a name on the PATH.
        gpus: how many there are.
        node: its name.
        floor_gb_s: what it must reach (GB/s); None for no such figure, which depends on part and links.
        run: runs a program within a time.
    """
    if gpus < 2:
        return PreflightCheck("nccl", node, "not_measured", f"{gpus} GPUs: an all-reduce needs two")
    path = shutil.which(program)
    if path is None:
        return PreflightCheck("nccl", node, "not_measured", f"{program} of nccl-tests is not on the PATH")
    try:
        found = read_all_reduce(run(_command(path, gpus, _BYTES, 20), _LOCAL_S).decode("utf-8", "replace"))
    except ProgramError as error:
        return PreflightCheck("nccl", node, "not_measured", str(error))
    if found is None:
        return PreflightCheck("nccl", node, "not_measured", f"{program} printed no row that can be read")
    values = {"bus_gb_s": found.bus_gb_s, "wrong": found.wrong, "gpus": gpus, "floor_gb_s": floor_gb_s}
    if found.wrong:
        return PreflightCheck("nccl", node, "failed", f"{found.wrong} wrong sums", values)
    if floor_gb_s is None:
        note = f"{found.bus_gb_s:g} GB/s, and nothing to hold it against; give --nccl-floor-gb-s"
        return PreflightCheck("nccl", node, "not_measured", note, values)
    if found.bus_gb_s < floor_gb_s:
        note = f"{found.bus_gb_s:g} GB/s, least {floor_gb_s:g}"
        return PreflightCheck("nccl", node, "failed", note, values)
    return PreflightCheck("nccl", node, "passed", f"{found.bus_gb_s:g} GB/s", values)


def found_launcher(environment: Mapping[str, str]) -> str | None:
    """How processes are started on two nodes here: Slurm's srun inside a job, else mpirun; None where there is neither."""
    if environment.get("SLURM_JOB_ID") and shutil.which("srun"):
        return _SLURM_LAUNCHER
    return _MPI_LAUNCHER if shutil.which("mpirun") else None


class NcclMeter:
    """Measures a pair by `all_reduce_perf`, started by its first member on all of them.

    Args:
        program: a path, or a name on the PATH, the same on all nodes.
        gpus: how many each node has.
        launcher: what is put before the program; `{nodes}` and `{hosts}` (separated by commas) are filled in.
        run: runs a program within a time.
    """

    def __init__(self, program: str, gpus: int, launcher: str, run: Run = run_program) -> None:
        self._program, self._gpus, self._launcher, self._run = program, gpus, launcher, run

    def measure(self, order: RoundOrder, own: int) -> float | None:
        """The group's bus bandwidth (GB/s) for its first member, None for the others; see `Meter`."""
        if own != 0:
            return None
        hosts = [peer.name for peer in order.members]
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise MeterError(f"{host!r} is no host name")
        filled = {"{nodes}": str(len(hosts)), "{hosts}": ",".join(hosts)}
        launcher = [_filled(word, filled) for word in shlex.split(self._launcher)]
        command = [*launcher, *_command(self._program, self._gpus, order.total_bytes, order.repeats)]
        try:
            text = self._run(command, order.within_s).decode("utf-8", "replace")
        except ProgramError as error:
            raise MeterError(str(error)) from None
        found = read_all_reduce(text)
        if found is None or found.ranks != len(hosts) * self._gpus:
            raise MeterError("all_reduce_perf's ranks did not find each other: is it built with MPI=1?")
        if found.wrong:
            raise MeterError(f"{found.wrong} wrong sums")
        return found.bus_gb_s


def _command(program: str, gpus: int, total_bytes: int, repeats: int) -> list[str]:
    size = str(total_bytes)
    return [program, "-b", size, "-e", size, "-g", str(gpus), "-n", str(repeats), "-w", "5", "-c", "1"]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word

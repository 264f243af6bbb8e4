"""What `paceline preflight --pairs` needs to know of its place among the others, and what comes out of it for this node."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agents.preflight.check import PreflightCheck
from agents.preflight.nccl_tests import NcclMeter, found_launcher
from agents.preflight.pairs import PairsSettings

if TYPE_CHECKING:
    from agents.preflight.check import Status
    from agents.preflight.pairs import Meter, PairsOutcome
    from paceline.preflight_options import PairsOptions

__all__ = ["PreflightUsageError", "first_host", "nccl_meters", "pair_checks", "pairs_settings"]

TOKEN_VARIABLE = "PACELINE_PREFLIGHT_TOKEN"  # noqa: S105 - a name
_LEAST_TOKEN_BYTES = 16
_FIRST_PORT, _PORTS = 20_000, 10_000
"""Below the range of outgoing connections; a job's number chooses one."""

_NODE_LIST = re.compile(r"\[(?P<number>\d+)[^\]]*\]|(?P<text>[^\[\],]+)|(?P<comma>,)")


class PreflightUsageError(Exception):
    """What was given does not do; one line."""


def pairs_settings(options: PairsOptions, name: str, environment: Mapping[str, str]) -> PairsSettings:
    """How this process takes part.

    Args:
        options: of the command line.
        name: this node's.
        environment: the process's variables.

    Raises:
        PreflightUsageError: something is missing or does not fit.
    """
    rank = _number(options.rank, environment, "--rank", "SLURM_PROCID")
    nodes = _number(options.nodes, environment, "--nodes", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if nodes < 2 or not 0 <= rank < nodes:
        raise PreflightUsageError(f"rank {rank} of {nodes}: pairs need two nodes at least, and ranks begin at 0")
    if options.backend not in {"auto", "nccl", "sockets"}:
        raise PreflightUsageError(f"--backend {options.backend}: auto, nccl or sockets")
    if not 0 < options.limits.slow_below < 1:
        raise PreflightUsageError(f"--slow-below {options.limits.slow_below:g}: a share between 0 and 1")
    host, port = _rendezvous(options.rendezvous, environment)
    return PairsSettings(
        rank=rank,
        nodes=nodes,
        host=host,
        port=port,
        token=_token(options.token_file, environment),
        name=name,
        address=options.address,
        backend=options.backend,
        total_bytes=max(1, int(options.mebibytes * (1 << 20))),
        repeats=options.repeats,
        join_s=options.join_s,
        measure_s=options.measure_s,
        throttle_bytes_per_s=options.throttle_mb_s * 1e6 if options.throttle_mb_s else None,
        limits=options.limits,
    )


def nccl_meters(
    options: PairsOptions, program: str, gpus: Callable[[], int], environment: Mapping[str, str]
) -> dict[str, Meter]:
    """The meter of nccl-tests, if it is wanted and this node has the program, a launcher and GPUs.

    Args:
        options: of the command line.
        program: nccl-tests' all_reduce_perf.
        gpus: how many GPUs the node has; asked only where the rest is there.
        environment: the process's variables.
    """
    path = shutil.which(program)
    launcher = options.nccl_launcher or found_launcher(environment)
    if options.backend == "sockets" or path is None or launcher is None:
        return {}
    count = gpus()
    return {"nccl": NcclMeter(path, count, launcher)} if count else {}


def pair_checks(outcome: PairsOutcome, rank: int) -> list[PreflightCheck]:
    """The check `pairs` of this node and its links; of rank 0 also what is known of the others.

    Args:
        outcome: what all ranks learnt.
        rank: this one's.
    """
    names, verdict = outcome.names, outcome.verdict
    checks = [_node(outcome, other, own=rank) for other in range(len(names)) if rank in (0, other)]
    for links, what in ((verdict.slow_links, "slow"), (verdict.broken_links, "gave no figure")):
        for low, high in links:
            if rank not in (0, low, high):
                continue
            note = f"{what}, while both ends are at pace with others: look at cables, ports and routes between them"
            checks.append(
                PreflightCheck(
                    "pairs",
                    f"{names[low]} - {names[high]}",
                    "failed" if what == "slow" else "not_measured",
                    note,
                    {"backend": outcome.backend},
                    "link" if rank in (low, high) else "other",
                )
            )
    return checks


def _node(outcome: PairsOutcome, rank: int, own: int) -> PreflightCheck:
    verdict, pace = outcome.verdict, outcome.verdict.pace_gb_s
    figure = verdict.gb_s.get(rank)
    values = {"gb_s": figure, "pace_gb_s": pace, "rounds": verdict.rounds, "backend": outcome.backend}
    shown = "" if figure is None else f"{figure:.3g} GB/s"
    status: Status = "not_measured"
    if rank in verdict.slow:
        status, note = "failed", f"{shown} with everyone, where the others reach {pace:.3g}"
    elif rank in verdict.at_pace:
        status, note = "passed", shown
    elif rank in verdict.unmeasured:
        note = outcome.reasons.get(rank, "no figure")
    elif verdict.is_widespread:
        note = f"{shown}; so many nodes are slow that none is named: look at the fabric"
    elif pace is None:
        note = f"{shown}; two nodes have no third to compare with, give --floor-gb-s"
    else:
        note = f"{shown}, where others reach {pace:.3g}, and too few to compare with to name it"
    bears_on: Literal["node", "other"] = "node" if rank == own else "other"
    return PreflightCheck("pairs", outcome.names[rank], status, note, values, bears_on)


def first_host(node_list: str) -> str:
    """The first host of a list in Slurm's form, as `rack[1-2]n[01-16],login1`."""
    host = ""
    for found in _NODE_LIST.finditer(node_list):
        if found["comma"]:
            break
        host += found["number"] or found["text"]
    return host


def _rendezvous(given: str | None, environment: Mapping[str, str]) -> tuple[str, int]:
    if given is None:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
        job = environment.get("SLURM_JOB_ID", "")
        if not nodes or not job.isdecimal():
            raise PreflightUsageError("--rendezvous HOST:PORT of rank 0 is missing, and this is no step of a Slurm job")
        return first_host(nodes), _FIRST_PORT + int(job) % _PORTS
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise PreflightUsageError(f"--rendezvous {given}: HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _number(given: int | None, environment: Mapping[str, str], option: str, *variables: str) -> int:
    if given is not None:
        return given
    for variable in variables:
        if environment.get(variable, "").isdecimal():
            return int(environment[variable])
    raise PreflightUsageError(f"{option} is missing, and so is {variables[0]} of a Slurm step")


def _token(path: Path | None, environment: Mapping[str, str]) -> bytes:
    token = os.fsencode(_secret(path) if path is not None else environment.get(TOKEN_VARIABLE, "").strip())
    if len(token) < _LEAST_TOKEN_BYTES:
        where = str(path) if path is not None else TOKEN_VARIABLE
        raise PreflightUsageError(
            f"{where} has {len(token)} bytes; the ranks need a secret of at least {_LEAST_TOKEN_BYTES} in common"
        )
    return token


def _secret(path: Path) -> str:
    # Reading key files loads what signs, which nobody else here needs.
    from schemas.key_files import KeyFileError, read_secret

    try:
        return read_secret(path)
    except KeyFileError as error:
        raise PreflightUsageError(str(error)) from None

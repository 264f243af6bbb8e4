"""`paceline preflight`: is this node fit for a job, and with `--pairs` the way from it to its peers."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import orjson
import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from agents.preflight.check import Fitness, PreflightCheck
    from agents.preflight.pairs import PairsSettings
    from agents.settings import AgentSettings
    from paceline.preflight_node import NodeReader
    from paceline.preflight_options import NodeOptions, PairsOptions

__all__ = ["preflight", "preflight_command"]

_GPU, _PAIRS = "GPUs", "Pairs"
_MARKS = {"passed": "ok", "failed": "FAILED", "not_measured": "not measured"}


def preflight(
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also all-reduces with the other nodes; run one per node.")
    ] = False,
    only: Annotated[Optional[str], typer.Option(help="Make only these checks, comma separated.")] = None,  # noqa: UP045
    require: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Checks that must have been measured, comma separated; gpu, and pairs with --pairs, by default."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="NDJSON: a line per check, then one of all.")] = False,
    config: Annotated[Optional[Path], typer.Option(help="The agent's TOML file.")] = None,  # noqa: UP045
    node_name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="This node's name; Slurm's or the host's by default."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a source.")] = 30.0,
    gpus: Annotated[Optional[int], typer.Option(help="How many there should be.", rich_help_panel=_GPU)] = None,  # noqa: UP045
    torch_python: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="The interpreter that has PyTorch; this one by default.",
            rich_help_panel=_GPU,
            envvar="PACELINE_TORCH_PYTHON",
        ),
    ] = None,
    gemm_seconds: Annotated[float, typer.Option(help="How long GPUs multiply.", rich_help_panel=_GPU)] = 5.0,
    gemm_floor_tflops: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="What each must reach, bf16; 40 % of the datasheet's peak by default.", rich_help_panel=_GPU),
    ] = None,
    gemm_slow_below: Annotated[
        float, typer.Option(help="Share of the node's median below which a GPU is slow.", rich_help_panel=_GPU)
    ] = 0.9,
    nccl_program: Annotated[
        str, typer.Option(help="nccl-tests' program, a name or a path.", rich_help_panel=_GPU)
    ] = "all_reduce_perf",
    nccl_floor_gb_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Bus bandwidth that an all-reduce of this node's GPUs must reach.", rich_help_panel=_GPU),
    ] = None,
    rank: Annotated[Optional[int], typer.Option(help="This node's number, from 0.", rich_help_panel=_PAIRS)] = None,  # noqa: UP045
    nodes: Annotated[Optional[int], typer.Option(help="How many there are.", rich_help_panel=_PAIRS)] = None,  # noqa: UP045
    rendezvous: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="HOST:PORT where rank 0 listens.", rich_help_panel=_PAIRS),
    ] = None,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The secret of all ranks; PACELINE_PREFLIGHT_TOKEN by default.", rich_help_panel=_PAIRS),
    ] = None,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Where others reach this node; by default where it calls from.", rich_help_panel=_PAIRS),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="auto, nccl or sockets; rank 0's counts.", rich_help_panel=_PAIRS)
    ] = "auto",
    nccl_launcher: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Starts a program on {nodes} {hosts}; srun or mpirun by default.", rich_help_panel=_PAIRS),
    ] = None,
    mib: Annotated[
        float, typer.Option(help="Buffer of an all-reduce, MiB; rank 0's counts.", rich_help_panel=_PAIRS)
    ] = 64.0,
    repeats: Annotated[int, typer.Option(min=1, help="The median of so many counts.", rich_help_panel=_PAIRS)] = 5,
    slow_below: Annotated[
        float, typer.Option(help="Share of the pace of all below which a pair is slow.", rich_help_panel=_PAIRS)
    ] = 0.75,
    floor_gb_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="What a pair must reach whatever the others do.", rich_help_panel=_PAIRS),
    ] = None,
    join_timeout: Annotated[float, typer.Option(help="Seconds to wait for all ranks.", rich_help_panel=_PAIRS)] = 120.0,
    measure_timeout: Annotated[float, typer.Option(help="Seconds for a round.", rich_help_panel=_PAIRS)] = 120.0,
    throttle_mb_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="A drill: hold this node's sending to so many MB/s.", rich_help_panel=_PAIRS),
    ] = None,
) -> None:
    """Is this node, and with --pairs the way to its peers, fit for a job? Status 0 fit, 1 not fit, 2 cannot be said."""
    from agents.preflight.bisection import BisectionLimits
    from agents.preflight.gemm import GemmLimits
    from paceline.preflight_options import NodeOptions, PairsOptions

    of_node = NodeOptions(
        gpus,
        torch_python or sys.executable,
        gemm_seconds,
        GemmLimits(slow_below=gemm_slow_below, floor_tflops=gemm_floor_tflops),
        nccl_program,
        nccl_floor_gb_s,
    )
    of_pairs = PairsOptions(
        rank,
        nodes,
        rendezvous,
        token_file,
        address,
        backend,
        mib,
        repeats,
        join_timeout,
        measure_timeout,
        throttle_mb_s,
        nccl_launcher,
        BisectionLimits(slow_below=slow_below, floor_gb_s=floor_gb_s),
    )
    try:
        status = preflight_command(pairs, only, require, json, config, node_name, timeout, of_node, of_pairs)
    except Exception:  # noqa: BLE001 - status 1 says that the node is not fit, and what broke is this program
        traceback.print_exc()
        status = 2
    raise typer.Exit(status)


def preflight_command(
    pairs: bool,
    only: str | None,
    require: str | None,
    as_json: bool,
    config: Path | None,
    node_name: str | None,
    timeout_s: float,
    of_node: NodeOptions,
    of_pairs: PairsOptions,
) -> int:
    """Measure, say, and return 0 where this node is fit, 1 where it is not, 2 where it cannot be said or asked for badly.

    Args:
        pairs: measure with the other nodes too.
        only: names of the checks to make.
        require: names of the checks that must have been measured.
        as_json: print NDJSON.
        config: the agent's TOML file.
        node_name: this node's name.
        timeout_s: how long a source may take.
        of_node: how the node is measured.
        of_pairs: how the pairs are.
    """
    from agents.preflight.check import CHECKS, fitness
    from agents.settings import SettingsError, load
    from paceline.preflight_pairs import PreflightUsageError, pairs_settings

    try:
        settings = load(config, None, os.environ)
        selected = _names(only) if only is not None else set(CHECKS) - (set() if pairs else {"pairs"})
        selected |= {"pairs"} if pairs else set()
        required = _required(require, selected)
        name = node_name or settings.node_id or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        # What is missing is said before anything takes time.
        place = pairs_settings(of_pairs, name, os.environ) if "pairs" in selected else None
    except (SettingsError, PreflightUsageError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    checks = _checks(settings, name, selected, timeout_s, of_node, of_pairs, place)
    order = list(CHECKS)
    checks.sort(key=lambda check: (order.index(check.name), check.bears_on != "node"))
    found = fitness(checks, required)
    _say(checks, found, name, sorted(required), as_json)
    return found.status


def _checks(
    settings: AgentSettings,
    name: str,
    selected: Collection[str],
    timeout_s: float,
    of_node: NodeOptions,
    of_pairs: PairsOptions,
    place: PairsSettings | None,
) -> list[PreflightCheck]:
    checks: list[PreflightCheck] = []

    @cache
    def reader() -> NodeReader:
        from agents.identity import AgentIdentity
        from paceline.preflight_node import NodeReader

        return NodeReader.of_this_node(settings, AgentIdentity(name, "preflight", "preflight"), timeout_s)

    if set(selected) - {"pairs"}:
        from paceline.preflight_node import node_checks

        checks += node_checks(reader(), name, selected, of_node)
    if place is not None:
        checks += _with_others(place, reader, of_node, of_pairs)
    return checks


def _with_others(
    place: PairsSettings, reader: Callable[[], NodeReader], of_node: NodeOptions, of_pairs: PairsOptions
) -> list[PreflightCheck]:
    from agents.preflight.check import PreflightCheck
    from agents.preflight.member import take_part
    from agents.preflight.pairs import PairsError
    from paceline.preflight_pairs import nccl_meters, pair_checks

    def count() -> int:
        from paceline.preflight_node import count_of_gpus

        return of_node.gpus or count_of_gpus(reader())

    def say(what: str) -> None:
        typer.echo(f"paceline: {what}", err=True)

    meters = nccl_meters(of_pairs, of_node.nccl_program, count, os.environ)
    try:
        return pair_checks(take_part(place, meters, say), place.rank)
    except PairsError as error:
        return [PreflightCheck("pairs", place.name, "not_measured", str(error))]


def _required(text: str | None, selected: set[str]) -> set[str]:
    from paceline.preflight_pairs import PreflightUsageError

    if text is None:
        return {"gpu", "pairs"} & selected
    left_out = _names(text) - selected
    if left_out:
        raise PreflightUsageError(f"--require {', '.join(sorted(left_out))}: left out by --only")
    return _names(text)


def _names(text: str) -> set[str]:
    from agents.preflight.check import CHECKS
    from paceline.preflight_pairs import PreflightUsageError

    names = {word.strip() for word in text.split(",") if word.strip()}
    if not names or names - set(CHECKS):
        wrong = ", ".join(sorted(names - set(CHECKS))) or "no check"
        raise PreflightUsageError(f"{wrong}: the checks are {', '.join(CHECKS)}")
    return names


def _say(checks: Iterable[PreflightCheck], found: Fitness, node: str, required: list[str], as_json: bool) -> None:
    if not as_json:
        for check in checks:
            print(f"{_MARKS[check.status]:14}{check.name} {check.subject}: {check.note}")
        print(f"{node}: {found.summary}")
        return
    for check in checks:
        said = {"record": "preflight_check", "node": node} | _plain(check)
        sys.stdout.buffer.write(orjson.dumps(said) + b"\n")
    is_fit = {0: True, 1: False}.get(found.status)
    total = {"record": "preflight", "node": node, "fit": is_fit, **asdict(found), "required": required}
    sys.stdout.buffer.write(orjson.dumps(total) + b"\n")


def _plain(check: PreflightCheck) -> dict[str, Any]:
    told = asdict(check)
    return {"check": told.pop("name"), **told}

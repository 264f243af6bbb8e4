"""`paceline diagnose`: why a job does not go on, or where inside a step its time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

__all__ = ["diagnose_app"]

diagnose_app = typer.Typer(help="Why a job does not go on, or goes slowly.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="NDJSON.")]
_Gpu = Annotated[Optional[str], typer.Option(help="The GPU's name, where a trace does not say.")]  # noqa: UP045


@diagnose_app.command("hang")
def diagnose_hang(
    directory: Annotated[
        Path, typer.Argument(help="Holds one flight-recorder dump per rank, named .._rank_N, and logs of trainers.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    ranks: Annotated[Optional[int], typer.Option(min=1, help="How many the job has, if no dump says it.")] = None,  # noqa: UP045
) -> None:
    """Which rank keeps a job from going on; status 1 for a hang, 2 if nothing can be read."""
    from paceline.diagnose_command import diagnose_hang_command

    raise typer.Exit(diagnose_hang_command(directory, json, ranks))


@diagnose_app.command("profile")
def diagnose_profile(
    traces: Annotated[list[Path], typer.Argument(help="PyTorch profiler traces, one per rank: .json or .json.gz.")],
    json: _Json = False,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Write an HTML page here.")] = None,  # noqa: UP045
    gpu: _Gpu = None,
) -> None:
    """What bounds a step, from profiler traces, and which rank makes the others wait; status 2 if one cannot be read."""
    from paceline.profile_command import profile_command

    raise typer.Exit(profile_command(traces, json, output, gpu))


@diagnose_app.command("roofline")
def diagnose_roofline(
    archive: Annotated[Path, typer.Argument(help="An archive with gpu-frames: .jsonl or .jsonl.zst.")],
    json: _Json = False,
    precision: Annotated[str, typer.Option(help="Of the peak, for GPUs whose job is not in the archive.")] = "bf16",
) -> None:
    """Whether arithmetic or memory sets the pace of each GPU and job, from DCGM's profiling ratios."""
    from paceline.roofline_command import roofline_command

    raise typer.Exit(roofline_command(archive, json, precision))


@diagnose_app.command("collectives")
def diagnose_collectives(
    paths: Annotated[
        list[Path], typer.Argument(help="Flight-recorder dumps with timing, profiler traces, directories of them.")
    ],
    json: _Json = False,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks are numbered node by node.")] = 8,
    nvlink: Annotated[Optional[float], typer.Option(help="GB/s a GPU's links in its node carry each way.")] = None,  # noqa: UP045
    network: Annotated[Optional[float], typer.Option(help="GB/s the network port of a GPU carries each way.")] = None,  # noqa: UP045
    history: Annotated[Optional[Path], typer.Option(help="Bandwidths of earlier runs, to compare with.")] = None,  # noqa: UP045
    remember: Annotated[bool, typer.Option("--remember", help="Add this run's to the history.")] = False,
) -> None:
    """Bandwidth of each communicator, transfer apart from waiting; status 2 if nothing can be used."""
    from paceline.collectives_command import collectives_command

    raise typer.Exit(collectives_command(paths, json, ranks_per_node, nvlink, network, history, remember))

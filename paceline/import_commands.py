"""`paceline import`: foreign recordings to archives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.base import Record

__all__ = ["import_app"]

import_app = typer.Typer(help="Foreign traces and logs to an archive that replay reads.", no_args_is_help=True)

_Output = Annotated[Path, typer.Option("--output", "-o", help="Archive to write: .jsonl or .jsonl.zst.")]


@import_app.command("op-trace")
def op_trace(
    trace: Annotated[Path, typer.Argument(help="Parquet file, one row per operation.")],
    layout: Annotated[Path, typer.Option(help="YAML file of the job's degrees of parallelism.")],
    output: _Output,
) -> None:
    """An operation-level trace of a training job."""
    from agents.importers.op_trace import ImportFailedError, op_trace_records

    try:
        count = _write(output, op_trace_records(trace, layout))
    except (ImportFailedError, OSError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{count} records in {output}", err=True)


@import_app.command("steps")
def steps(
    logs: Annotated[list[Path], typer.Argument(help="Trainer logs: one, or one per rank.")],
    output: _Output,
    job: Annotated[Optional[Path], typer.Option(help="TOML description of the job, for MFU.")] = None,  # noqa: UP045
) -> None:
    """Trainer logs: Megatron-LM, torchtitan, NeMo, DeepSpeed and others."""
    from paceline.import_steps import ImportStepsError, import_steps

    try:
        report = import_steps(logs, output, job)
    except (ImportStepsError, OSError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(report, err=True)


def _write(output: Path, records: Iterable[tuple[int, Record]]) -> int:
    from schemas.archive import ArchiveWriter

    with ArchiveWriter.open(output) as archive:
        for arrival_ns, record in records:
            archive.write(record, arrival_ns)
    return archive.lines

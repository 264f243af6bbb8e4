"""`paceline import`: foreign recordings to archives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from paceline.recording_file import ARCHIVE_STARTS, is_foreign, is_recording

if TYPE_CHECKING:
    from collections.abc import Iterable
    from zoneinfo import ZoneInfo

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

    _must_be_free(output, trace, layout)
    try:
        count = _write(output, op_trace_records(trace, layout))
    except (ImportFailedError, OSError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{count} records in {output}", err=True)


@import_app.command("steps")
def steps(
    logs: Annotated[list[Path], typer.Argument(help="Trainer logs: one of the job, or one per rank.")],
    output: _Output,
    job: Annotated[Optional[Path], typer.Option(help="TOML description of the job, for MFU and stages.")] = None,  # noqa: UP045
    zone: Annotated[str, typer.Option(help="Zone of times that are printed without one.")] = "UTC",
) -> None:
    """Trainer logs: Megatron-LM, torchtitan, NeMo, DeepSpeed and others."""
    import time

    from agents.importers.job_file import JobFileError, load_job_file
    from agents.importers.op_trace import ImportFailedError
    from agents.importers.step_logs import Report, step_log_records
    from schemas.fleet import Job, RankPlacement

    _must_be_free(output, *logs, *([job] if job is not None else []))
    report = Report()
    try:
        described = load_job_file(job, time.time_ns()) if job is not None else []
        records = step_log_records(
            logs,
            job=next((record for record in described if isinstance(record, Job)), None),
            placements=[record for record in described if isinstance(record, RankPlacement)],
            zone=_zone(zone),
            report=report,
        )
        _write(output, records)
    except (ImportFailedError, JobFileError, OSError, ValueError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    counts = " ".join(f"{name}={count}" for name, count in asdict(report).items() if count)
    typer.echo(f"{counts} in {output}", err=True)


@import_app.command("nvsentinel")
def nvsentinel(
    file: Annotated[Path, typer.Argument(help="Health events, a JSON value a line; - is standard input.")],
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Archive to write: .jsonl or .jsonl.zst."),
    ] = None,
    bootstrap: Annotated[Optional[str], typer.Option(help="Publish to these brokers instead, as lines come.")] = None,  # noqa: UP045
    site: Annotated[str, typer.Option(help="The site that findings are of.", envvar="PACELINE_SITE")] = "default",
    dead_letters: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Append what is refused here, with the reason; without it reasons are on standard error."),
    ] = None,
) -> None:
    """NVSentinel's health events: codes as kernel events, all else as findings that nothing acts on."""
    from paceline.import_nvsentinel import import_nvsentinel

    if output is not None:
        _must_be_free(output, file)
    if dead_letters is not None:
        _must_be_free(dead_letters, file, is_appended=True)
    raise typer.Exit(import_nvsentinel(file, output, bootstrap, site, dead_letters))


def _zone(name: str) -> ZoneInfo:
    """The zone of a name.

    Raises:
        ValueError: there is none.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        raise ValueError(f"--zone: there is no zone {name!r}; write one as Europe/Berlin or UTC") from None


def _must_be_free(output: Path, *given: Path, is_appended: bool = False) -> None:
    """Keep what is written from replacing what it is made of, what somebody recorded, and what is no archive at all.

    Args:
        output: where to.
        given: what it is made of.
        is_appended: it goes behind what is there, which may be anything but a recording.
    """
    try:
        if not output.parent.is_dir():
            told = f"{output}: {output.parent} is no directory"
        elif any(path.resolve() == output.resolve() for path in given):
            told = f"{output} is what is to be imported"
        elif is_recording(output):
            told = f"{output} is there already, and was recorded: name another file"
        elif not is_appended and is_foreign(output, *ARCHIVE_STARTS):
            told = f"{output} is there already, and is no archive: name another file"
        else:
            return
    except OSError as error:
        told = f"{output}: {error.strerror}"
    typer.echo(f"paceline: {told}", err=True)
    raise typer.Exit(2)


def _write(output: Path, records: Iterable[tuple[int, Record]]) -> int:
    from schemas.archive import ArchiveWriter

    with ArchiveWriter.open(output) as archive:
        for arrival_ns, record in records:
            archive.write(record, arrival_ns)
    return archive.lines

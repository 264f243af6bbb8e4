"""`paceline export`: an archive or a range of Kafka as Parquet files, for DuckDB, pandas and whatever else reads columns.

Reads as a replay does, and judges nothing. The directory appears whole or not at all.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paceline.export.parquet import MissingPyarrowError, ParquetTables
from paceline.progress_bar import ProgressBar
from paceline.replay_command import report_problems
from paceline.replay_source import ReplaySpan, open_source
from schemas.archive import ArchiveLine, NotAnArchiveError
from schemas.topics import TOPICS
from streams.recording.bounds import BoundError
from streams.recording.kafka_range import RangeError
from streams.replay import Problems, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.archive import BadLine

__all__ = ["export_command"]

_ORIGINAL_BYTES = frozenset(topic.name for topic in TOPICS if not topic.records)


def export_command(source: str, directory: Path, start: str | None, end: str | None, is_tolerant: bool) -> int:
    """Write the records of a source as Parquet.

    Args:
        source: an archive, or `kafka://host:port`.
        directory: does not exist yet.
        start: text of the beginning; reference records are from their first on.
        end: text of the end.
        is_tolerant: read around what is damaged.

    Returns:
        0 when all of it could be read; 2 when something could not, or when nothing was written.
    """
    if directory.exists():
        typer.echo(f"paceline: {directory} is there already", err=True)
        return 2
    if not directory.parent.is_dir():
        typer.echo(f"paceline: {directory}: {directory.parent} is no directory", err=True)
        return 2
    try:
        return _export(source, directory, ReplaySpan.parse(start, end, "0s"), is_tolerant)
    except (BoundError, RangeError, NotAnArchiveError, MissingPyarrowError) as error:
        typer.echo(f"paceline: {str(error).replace('--readable replays', '--readable exports')}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {error.filename or directory}: {error.strerror or error}", err=True)
        return 2


def _export(text: str, directory: Path, span: ReplaySpan, is_tolerant: bool) -> int:
    problems, passed_over = Problems(), 0

    def records(lines: Iterable[ArchiveLine | BadLine]) -> Iterator[ArchiveLine | BadLine]:
        nonlocal passed_over
        for line in lines:
            if isinstance(line, ArchiveLine) and line.topic in _ORIGINAL_BYTES:
                passed_over += 1
            else:
                yield line

    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with closing(open_source(text, span, is_tolerant, has_outputs=True)) as source:
            with ProgressBar("exporting", source.total) as bar, ParquetTables(partial) as tables:
                for _, record, position in decoded(records(source.lines(bar.reach)), problems):
                    tables.take(record, position)
            for note in source.notes:
                typer.echo(note, err=True)
        if not tables.rows:
            report_problems(problems, None)
            typer.echo(f"paceline: {text}: there is no record in it to export", err=True)
            return 2
        partial.chmod(0o755)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for name, rows in sorted(tables.rows.items()):
        typer.echo(f"{rows:10d} rows  {directory / name}.parquet", err=True)
    if tables.unfit:
        typer.echo(f"{tables.unfit} numbers of more than 64 bits are null", err=True)
    if passed_over:
        typer.echo(f"{passed_over} dead letters and late records are not exported: they are no records", err=True)
    return report_problems(problems, None)

"""The commands of incident review, as the command line declares them: record and archive.

Nothing is computed here: each imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

__all__ = ["archive", "record"]


def record(
    output: Annotated[Path, typer.Option("--output", "-o", help="Archive to write, .jsonl.zst.")],
    bootstrap: Annotated[
        str, typer.Option(help="host:port of the brokers.", envvar="PACELINE_BOOTSTRAP_SERVERS")
    ] = "localhost:9092",
    site: Annotated[str, typer.Option(help="The site that is recorded.", envvar="PACELINE_SITE")] = "default",
    start: Annotated[
        str, typer.Option("--from", help="earliest, a time, -15m, or offsets: gpu-frames/0:1200,...")
    ] = "earliest",
    end: Annotated[Optional[str], typer.Option("--to", help="The same forms; the ends that stand now.")] = None,  # noqa: UP045
    live: Annotated[bool, typer.Option("--live", help="Go on with what comes, until stopped.")] = False,
    duration: Annotated[Optional[str], typer.Option(help="With --live: end after 90s, 15m, 2h.")] = None,  # noqa: UP045
    job: Annotated[Optional[list[str]], typer.Option(help="Only this job and its nodes; may be repeated.")] = None,  # noqa: UP045
    node: Annotated[Optional[list[str]], typer.Option(help="Only this node and its jobs; may be repeated.")] = None,  # noqa: UP045
    journal: Annotated[
        bool, typer.Option("--journal", help="Decisions from their first record on, for replay --journal.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a recording, with its own options.")] = False,
) -> None:
    """Topics to an archive with an index, sums and a manifest, for replay and report without Kafka."""
    from paceline.record_command import RecordOptions, record_command

    options = RecordOptions(site, start, end, live, tuple(job or ()), tuple(node or ()), journal)
    raise typer.Exit(record_command(output, bootstrap, options, duration, resume))


def archive(
    file: Annotated[Path, typer.Argument(help="An archive that paceline record made.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check every sum of a recorded archive and say what is in it; status 1 when something cannot be read."""
    from paceline.record_command import archive_command

    raise typer.Exit(archive_command(file, json))

"""The commands of incident review, as the command line declares them: record, archive, replay, diff, tune, report, export.

Nothing is computed here: each imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from paceline.brokers_option import Bootstrap

__all__ = ["Readable", "archive", "diff", "export", "record", "replay", "report", "tune"]

From = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--from", help="A time, -15m, or offsets: gpu-frames/0:1200,..."),
]
To = Annotated[Optional[str], typer.Option("--to", help="The same forms.")]  # noqa: UP045
Readable = Annotated[bool, typer.Option("--readable", help="Read around what is damaged, and name it.")]
RedactKey = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="With --redact: file of the key, so that archives map alike; made where there is none."),
]


def record(
    output: Annotated[Path, typer.Option("--output", "-o", help="Archive to write, .jsonl.zst.")],
    bootstrap: Bootstrap = "localhost:9092",
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
    redact: Annotated[bool, typer.Option("--redact", help="Names become pseudonyms, for people outside.")] = False,
    redact_key: RedactKey = None,
) -> None:
    """Topics to an archive with an index, sums and a manifest, for replay and report without Kafka."""
    from paceline.record_command import RecordOptions, record_command

    options = RecordOptions(site, start, end, live, tuple(job or ()), tuple(node or ()), journal)
    if not redact:
        _goes_with_redact({"--redact-key": redact_key})
        raise typer.Exit(record_command(output, bootstrap, options, duration, resume))
    if journal:
        typer.echo("paceline: a redacted archive has no journal: leave out --journal", err=True)
        raise typer.Exit(2)
    from paceline.redact_command import record_redacted

    def recorded(original: Path) -> int:
        return record_command(original, bootstrap, options, duration, resume)

    raise typer.Exit(record_redacted(output, redact_key, recorded))


def archive(
    file: Annotated[Path, typer.Argument(help="An archive that paceline record made.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="Write a copy without names instead, of an archive of any form.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="With --redact: the copy, .jsonl.zst.")] = None,
    redact_key: RedactKey = None,
    readable: Annotated[bool, typer.Option("--readable", help="With --redact: leave out what is damaged.")] = False,
) -> None:
    """Check every sum of a recorded archive and say what is in it; status 1 when something cannot be read."""
    if redact:
        from paceline.redact_command import redact_command

        if output is None or json:
            typer.echo("paceline: --redact writes a copy: name it with --output, and leave out --json", err=True)
            raise typer.Exit(2)
        raise typer.Exit(redact_command(file, output, redact_key, readable))
    _goes_with_redact({"--output": output, "--redact-key": redact_key, "--readable": readable})
    from paceline.record_command import archive_command

    raise typer.Exit(archive_command(file, json))


def _goes_with_redact(options: dict[str, object]) -> None:
    if given := [name for name, value in options.items() if value]:
        typer.echo(f"paceline: {', '.join(given)} goes with --redact", err=True)
        raise typer.Exit(2)


def replay(
    source: Annotated[str, typer.Argument(help="An archive, or kafka://HOST:PORT.")],
    json: Annotated[bool, typer.Option("--json", help="Every output as NDJSON {topic, value}.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Whom it would have had cordoned.")] = False,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Write the NDJSON to this file.")] = None,  # noqa: UP045
    resume: Annotated[bool, typer.Option("--resume", help="Go on with that file, after an interruption.")] = False,
    site: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The site that findings are of; by default the recording's own, else replay."),
    ] = None,
    policy: Annotated[Optional[Path], typer.Option(help="TOML file of thresholds and switches.")] = None,  # noqa: UP045
    start: From = None,
    end: To = None,
    warm_up: Annotated[str, typer.Option(help="Read before the start, so that rules know what is usual.")] = "10m",
    rate: Annotated[float | None, typer.Option(help="Seconds of the recording a second; as fast as it goes.")] = None,
    readable: Readable = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Hold what comes out against what was recorded; 1 if it differs.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="What --policy would have changed, against the recorded policies.")
    ] = False,
    truth: Annotated[
        Path | None, typer.Option(help="With --what-if: what was really wrong, as simulate writes it.")
    ] = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Run the recorded decisions again and compare every byte.")
    ] = False,
) -> None:
    """Step results, findings, incidents and commands of an archive or a range; nothing can be commanded from here."""
    if journal:
        from paceline.journal_command import journal_command

        others = (summary, policy, site, output, resume, start, end, rate, readable, compare, what_if, truth)
        raise typer.Exit(journal_command(Path(source), json, any(others)))
    from paceline.replay_command import ReplayOptions, replay_command

    options = ReplayOptions(
        source, site, policy, start, end, warm_up, rate, readable, compare, json, summary, output, resume
    )
    if what_if:
        from paceline.diff_command import what_if_command

        ignored = {"--compare": compare, "--summary": summary, "--output": output, "--resume": resume, "--rate": rate}
        if given := [name for name, value in ignored.items() if value]:
            typer.echo(f"paceline: --what-if prints differences alone; leave out {', '.join(given)}", err=True)
            raise typer.Exit(2)
        raise typer.Exit(what_if_command(options, truth))
    if truth is not None:
        typer.echo("paceline: --truth goes with --what-if", err=True)
        raise typer.Exit(2)
    raise typer.Exit(replay_command(options))


def diff(
    a: Annotated[str, typer.Argument(help="An archive with outputs, a replay's NDJSON, or an archive to replay.")],
    b: Annotated[str, typer.Argument(help="The other one.")],
    json: Annotated[bool, typer.Option("--json", help="NDJSON: a line per difference, then counts and costs.")] = False,
    truth: Annotated[Optional[Path], typer.Option(help="What was really wrong, as simulate writes it.")] = None,  # noqa: UP045
    site: Annotated[Optional[str], typer.Option(help="The site of archives that are replayed.")] = None,  # noqa: UP045
) -> None:
    """What two sides said, by id: same, changed, missing, new, each explained; status 1 when they differ."""
    from paceline.diff_command import diff_command

    raise typer.Exit(diff_command(a, b, json, truth, site))


def tune(
    archives: Annotated[list[Path], typer.Argument(help="Archives of incidents.")],
    threshold: Annotated[
        str,
        typer.Option(help="What is tried, named as in policy files: straggler.floor, straggler.enabled, settle_ns."),
    ],
    values: Annotated[Optional[str], typer.Option(help="Its values: 0.05,0.1,0.2, or true,false.")] = None,  # noqa: UP045
    range_: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--range", help="Instead: 0.05:0.5:10 for ten values, 0.05:0.5:10:log by equal factors."),
    ] = None,
    policy: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="TOML file taken for what was in force all the time. Without it the policies in each archive hold from "
            "where they stand. Either way the value that is tried holds over them, for every part."
        ),
    ] = None,
    truth: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            help="What was really wrong, as simulate writes it; repeated in the order of the archives. Without it "
            "RUN.truth.jsonl beside RUN.jsonl.zst."
        ),
    ] = None,
    processes: Annotated[Optional[int], typer.Option(help="How many at once; without it one per core.")] = None,  # noqa: UP045
    readable: Readable = False,
    json: Annotated[bool, typer.Option("--json", help="NDJSON: a line per value, then the trade-off.")] = False,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Write that NDJSON to this file.")] = None,  # noqa: UP045
) -> None:
    """What recorded incidents would have come to under other values of one threshold or switch, and which is best."""
    from paceline.tune_command import TuneOptions, tune_command

    options = TuneOptions(
        tuple(archives), threshold, values, range_, policy, tuple(truth or ()), processes, readable, json, output
    )
    raise typer.Exit(tune_command(options))


def report(
    source: Annotated[str, typer.Argument(help="An archive, or kafka://HOST:PORT.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")],
    start: From = None,
    end: To = None,
    readable: Readable = False,
    site: Annotated[Optional[str], typer.Option(help="The site of findings, where they are replayed.")] = None,  # noqa: UP045
) -> None:
    """One self-contained HTML page of an incident: who was slow, why, what was known when, and what was ordered."""
    from paceline.report_command import report_command

    raise typer.Exit(report_command(source, output, (start, end), readable, site))


def export(
    source: Annotated[str, typer.Argument(help="An archive, or kafka://HOST:PORT.")],
    parquet: Annotated[Path, typer.Option(help="Directory to write, a Parquet file for each table.")],
    start: From = None,
    end: To = None,
    readable: Readable = False,
) -> None:
    """Records as Parquet for DuckDB and pandas: a table for each family, a row for each GPU, port or rank."""
    from paceline.export_command import export_command

    raise typer.Exit(export_command(source, parquet, start, end, readable))

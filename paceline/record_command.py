"""`paceline record`: topics to an archive, live or for a range, whole or of one job or node; and `paceline archive`.

The archive is written block by block under its own name, so that a recording that was killed can be read and gone on with.
The wall clock is read here, to say when it was made and what `-15m` means.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import orjson
import typer

from paceline.one_line import one_line
from paceline.progress_bar import ProgressBar
from paceline.stop_signals import stop_on_signals
from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import BlockWriter, NotAnArchiveError, is_recorded, marks_of
from schemas.topics import REFERENCE_FAMILIES, TOPICS
from streams.recording.bounds import Bound, BoundError, parse_bound, parse_span_s
from streams.recording.kafka_range import KafkaRange, RangeError
from streams.recording.recorder import Recorder, positions_of, summed_up
from streams.recording.selection import Selection

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from schemas.archive_blocks import ArchiveMarks

__all__ = ["RecordOptions", "archive_command", "record_command"]

_DECISIONS = ("findings", "approvals", "decisions", "incidents", "actions", "action-results")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What is recorded; kept in the head of the archive, so that a recording goes on with the same.

    Attributes:
        site_id: whose policies count.
        start: text of the beginning.
        end: text of the end; null with `is_live`.
        is_live: go on with what comes.
        jobs: only these jobs.
        nodes: only these nodes.
        has_journal: decisions from their first record on, so that the journal can be replayed.
    """

    site_id: str
    start: str = "earliest"
    end: str | None = None
    is_live: bool = False
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    has_journal: bool = False


def record_command(
    output: Path, bootstrap_servers: str, options: RecordOptions, duration: str | None, is_resumed: bool
) -> int:
    """Record; 0 when the archive is whole, 2 when it could not be begun or the brokers failed.

    Args:
        output: the archive, `.jsonl.zst`.
        bootstrap_servers: host:port list.
        options: what is recorded; when resumed, those of the archive count.
        duration: span after which a live recording ends.
        is_resumed: go on with a recording that is there.
    """
    try:
        return _record(output, bootstrap_servers, options, parse_span_s(duration) if duration else None, is_resumed)
    except (BoundError, RangeError, NotAnArchiveError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {output}: {error.strerror}", err=True)
        return 2


def _record(output: Path, servers: str, options: RecordOptions, duration_s: float | None, is_resumed: bool) -> int:
    if output.suffix != ".zst":
        typer.echo(f"paceline: {output}: a recording is compressed; name it .jsonl.zst", err=True)
        return 2
    if output.exists() and not is_resumed:
        typer.echo(f"paceline: {output} is there already; --resume goes on with it", err=True)
        return 2
    if options.has_journal and (options.jobs or options.nodes):
        typer.echo("paceline: --journal needs all decisions: leave out --job and --node", err=True)
        return 2
    if duration_s is not None and not options.is_live and not is_resumed:
        typer.echo("paceline: --duration ends a recording with --live; a range ends with --to", err=True)
        return 2
    known = _begun(output) if is_resumed else None
    if known is not None and known.head is not None:
        asked = known.head["asked"]
        options = RecordOptions(**{**asked, "jobs": tuple(asked["jobs"]), "nodes": tuple(asked["nodes"])})
    now_ms = time.time_ns() // 1_000_000
    made_ms = known.head["begun_ms"] if known is not None and known.head is not None else now_ms
    start = parse_bound(options.start, made_ms)
    end = None if options.is_live else parse_bound(options.end, made_ms)
    if start.time_ms is not None and end is not None and end.time_ms is not None and end.time_ms <= start.time_ms:
        raise BoundError(f"--to {options.end} is not after --from {options.start}")
    whole, rest = _topics(options, start)
    stopped = stop_on_signals()
    positions = positions_of(known.blocks) if known is not None else {}
    with closing(KafkaRange(servers, rest, whole, start, end, positions)) as source:
        head = {
            "site_id": options.site_id,
            "asked": asdict(options),
            "begun_ms": now_ms,
            "paceline": metadata.version("paceline"),
            "cluster_id": source.cluster_id,
        }
        if known is not None and known.head is not None and known.head["cluster_id"] != source.cluster_id:
            typer.echo("paceline: the recording is of another cluster", err=True)
            return 2
        return _write(output, source, options, head, known, stopped, duration_s)


def _write(
    output: Path,
    source: KafkaRange,
    options: RecordOptions,
    head: dict[str, Any],
    known: ArchiveMarks | None,
    stopped: threading.Event,
    duration_s: float | None,
) -> int:
    begun_s = time.monotonic()

    def must_stop() -> bool:
        return stopped.is_set() or (duration_s is not None and time.monotonic() - begun_s >= duration_s)

    with output.open("r+b" if known is not None else "xb") as stream:
        if known is not None:
            stream.truncate(known.whole_to)
            stream.seek(known.whole_to)
        writer = BlockWriter(stream, head, known.blocks if known is not None else None)
        selection = _selection(output, options, known)
        recorder, gaps = Recorder(writer, selection), 0
        with ProgressBar("recording", source.expected) as bar:
            for taken in source.messages(must_stop):
                if taken is not None:
                    recorder.take(taken)
                for place, first, last in source.gaps[gaps:]:
                    recorder.gap(place, first, last)
                gaps = len(source.gaps)
                if taken is None or source.read % 1_000 == 0:
                    recorder.tick(time.monotonic())
                    bar.reach(source.read, f"{writer.lines} records written")
        is_whole = options.is_live or source.is_complete
        writer.close_block()
        writer.end(
            {
                **head,
                "ended_ms": time.time_ns() // 1_000_000,
                "is_whole": is_whole,
                "python": platform.python_version(),
                "cut": sorted(f"{topic}/{number}" for (topic, number), span in source.spans.items() if span.is_cut),
                **summed_up(writer.blocks),
            }
        )
        os.fsync(stream.fileno())
    for topic, number in sorted(place for place, span in source.spans.items() if span.is_cut):
        typer.echo(f"{topic}/{number}: older records than those recorded are gone from the broker", err=True)
    typer.echo(f"{writer.lines} records in {len(writer.blocks)} blocks in {output}", err=True)
    for name in selection.unseen():
        typer.echo(f"paceline: no placement of {name} is in it: is that its name?", err=True)
    if not is_whole:
        typer.echo("interrupted before the end of the range; --resume goes on", err=True)
    return 0


def _selection(output: Path, options: RecordOptions, known: ArchiveMarks | None) -> Selection:
    """What is wanted; of a recording that goes on, with the placements that it holds already."""
    selection = Selection(options.jobs, options.nodes)
    if known is not None and (options.jobs or options.nodes):
        for line in read_archive(output, is_tolerant=True):
            if isinstance(line, ArchiveLine):
                selection.learn(line.value)
    return selection


def _begun(output: Path) -> ArchiveMarks:
    """What a recording that is to go on holds.

    Raises:
        NotAnArchiveError: it is none, or it is damaged before its last block.
    """
    marks = marks_of(output)
    if marks.head is None:
        raise NotAnArchiveError(f"{output} was not made by paceline record, or its beginning is damaged")
    if "redacted" in marks.head:
        raise NotAnArchiveError(f"{output} has no names any more: a recording cannot go on with it")
    whole = sum(1 for block in marks.blocks if block["at"] < marks.whole_to)
    if whole < len(marks.blocks):
        raise NotAnArchiveError(f"{output}: {marks.damages[0].reason}; what lies behind it would be lost")
    return marks


def _topics(options: RecordOptions, start: Bound) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Full names of the topics that are read whole, and of the others; those that an offset names are not read whole."""
    named = {topic for topic, _ in start.offsets}
    whole = REFERENCE_FAMILIES | (set(_DECISIONS) if options.has_journal else set())
    return (
        tuple(topic.name for topic in TOPICS if topic.family in whole and topic.name not in named),
        tuple(topic.name for topic in TOPICS if topic.family not in whole or topic.name in named),
    )


def archive_command(archive: Path, as_json: bool) -> int:
    """Check every sum of a recorded archive and say what is in it; 1 when something of it cannot be read.

    Args:
        archive: the file.
        as_json: one JSON object on stdout.
    """
    try:
        with archive.open("rb") as stream:
            start = stream.read(12)
        if not is_recorded(start):
            typer.echo(f"paceline: {archive} has no index and no sums: paceline record did not make it", err=True)
            return 2
        marks = marks_of(archive)
    except NotAnArchiveError as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {archive}: {error.strerror}", err=True)
        return 2
    summed = marks.end or {**summed_up(marks.blocks), "blocks": marks.blocks}
    told = {**(marks.head or {}), **summed}
    told.pop("note", None)
    told["damages"] = [damage.reason for damage in marks.damages]
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
    else:
        _print_archive(told)
    sys.stdout.flush()
    return 1 if marks.damages else 0


def _print_archive(told: dict[str, Any]) -> None:
    def say(text: str) -> None:
        print(one_line(text))

    say(f"paceline {told.get('paceline', 'unknown')}, site {told.get('site_id') or 'unknown'}")
    say(f"{sum(block['lines'] for block in told['blocks'])} records in {len(told['blocks'])} blocks")
    if told["first_ms"] is not None:
        say(f"arrived over {(told['last_ms'] - told['first_ms']) / 1000:.0f} s")
    for name, (first, last, count) in told["places"].items():
        say(f"  {count:8d}  {name} {first}..{last}")
    if redacted := told.get("redacted"):
        say(f"redacted: names are pseudonyms of mapping {redacted['mapping']}")
        for reason, count in redacted.get("left_out", {}).items():
            say(f"left out: {count} ({reason})")
    for name, first, last in told["gaps"]:
        say(f"not on the broker: {name} {first}..{last}")
    for name in told.get("cut", []):
        say(f"older records were gone: {name}")
    if told.get("is_whole") is False:
        say("interrupted before the end of what was asked for")
    for reason in told["damages"]:
        say(f"damaged: {reason}")

"""`paceline import nvsentinel`: health events to an archive, or to brokers as they come."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from itertools import chain, islice
from typing import TYPE_CHECKING

import typer

from agents.decode.text import lines
from agents.importers.nvsentinel import HealthEvents, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, BinaryIO

    from schemas.base import Record

__all__ = ["import_nvsentinel"]

_FLUSH_S = 20.0
_SAID = 20
"""Reasons that are said on standard error."""


def import_nvsentinel(
    file: Path, output: Path | None, bootstrap_servers: str | None, site_id: str, dead_letters: Path | None
) -> int:
    """Import a file or a stream.

    Returns:
        0; 2 when the file cannot be read, nothing of it was taken, or brokers did not take all. Without any event no archive
        is written: what is at its place stays.
    """
    if (output is None) == (bootstrap_servers is None):
        typer.echo("paceline: either --output or --bootstrap", err=True)
        return 2
    if not 1 <= len(site_id) <= 253:
        typer.echo("paceline: --site is a name of 1 to 253 characters", err=True)
        return 2
    events = HealthEvents(site_id, time.time_ns())
    try:
        with ExitStack() as stack:
            stream = sys.stdin.buffer if str(file) == "-" else stack.enter_context(file.open("rb"))
            refused = _refusals(stack, dead_letters)
            records = _records(stream, events, refused)
            if output is not None:
                is_whole = _archive(output, records, events)
            else:
                assert bootstrap_servers is not None
                is_whole = _publish(bootstrap_servers, records)
    except OSError as error:
        typer.echo(f"paceline: {error.filename or output}: {error.strerror or error}", err=True)
        return 2
    counts = events.counts
    typer.echo(" ".join(f"{name}={count}" for name, count in sorted(counts.items())) or "no events", err=True)
    return 0 if is_whole and (counts["events"] or not counts["refused"]) else 2


def _records(
    stream: BinaryIO, events: HealthEvents, refused: Callable[[int, Refused], None]
) -> Iterator[tuple[int, Record]]:
    """Records with the time at which they arrive in an archive: their own, which does not go back there."""
    arrival_ns = 0
    for number, line in lines(stream):
        events.now_ns = time.time_ns()
        for got in events.feed(line):
            if isinstance(got, Refused):
                refused(number, got)
                continue
            arrival_ns = max(arrival_ns, int(got.event_time_ns))  # type: ignore[attr-defined]
            yield arrival_ns, got


def _refusals(stack: ExitStack, path: Path | None) -> Callable[[int, Refused], None]:
    """What takes refusals: a file of JSON lines, or a few words on standard error."""
    said = 0
    file = stack.enter_context(path.open("a", encoding="utf-8")) if path is not None else None

    def take(number: int, refused: Refused) -> None:
        nonlocal said
        if file is not None:
            letter: dict[str, Any] = {"line": number, "reason": refused.reason, "value": refused.value}
            file.write(json.dumps(letter) + "\n")
            file.flush()
            return
        said += 1
        if said <= _SAID:
            typer.echo(f"line {number}: {refused.reason}", err=True)

    return take


def _archive(output: Path, records: Iterator[tuple[int, Record]], events: HealthEvents) -> bool:
    from schemas.archive import ArchiveWriter

    first = list(islice(records, 1))
    if not events.counts["events"]:
        typer.echo(f"paceline: there is no event in it: {output} is not written", err=True)
        return False
    with ArchiveWriter.open(output) as archive:
        for arrival_ns, record in chain(first, records):
            archive.write(record, arrival_ns)
    return True


def _publish(bootstrap_servers: str, records: Iterator[tuple[int, Record]]) -> bool:
    from agents.publisher import KafkaPublisher, PublisherSettings

    publisher = KafkaPublisher(PublisherSettings(bootstrap_servers, client_id="paceline-nvsentinel"))
    try:
        for _, record in records:
            publisher.publish(record)
        left = publisher.flush(_FLUSH_S)
    finally:
        publisher.close()
    if left or publisher.dropped:
        typer.echo(f"paceline: {bootstrap_servers} did not take {left or publisher.dropped} records", err=True)
    return not (left or publisher.dropped)

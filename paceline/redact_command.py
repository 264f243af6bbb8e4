"""`paceline archive --redact` and `paceline record --redact`: an archive whose names are pseudonyms, for people outside.

The archive is read twice, first for its names and then to be written anew. Nothing of it is written that has not been through
the table of fields (`streams.redaction.table`). The copy appears whole or not at all.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import time
from contextlib import closing
from importlib import metadata
from typing import TYPE_CHECKING, Any

import typer

from paceline.one_line import one_line
from paceline.progress_bar import ProgressBar
from paceline.replay_source import ArchiveSource, ReplaySpan
from schemas.archive import ArchiveLine, NotAnArchiveError
from schemas.archive_blocks import BlockWriter, marks_of
from schemas.errors import UnknownTopicError
from schemas.topics import topic_named
from streams.recording.recorder import Recorder, summed_up
from streams.recording.selection import Selection
from streams.redaction.redactor import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas.archive_blocks import ArchiveMarks

__all__ = ["record_redacted", "redact_command"]

_KEY_BYTES = 32
_LEAST_KEY_BYTES = 16
"""128 bits; below that a key may be a word that somebody tries."""

_MOST_LEFT = 20
"""Names told to a person; who needs more looks at the texts."""


class _RedactionError(Exception):
    """What was asked for cannot be done; the text says why, in one line."""


def redact_command(archive: Path, output: Path, key_file: Path | None, is_tolerant: bool) -> int:
    """Write a redacted copy of an archive of any form.

    Args:
        archive: the file.
        output: the copy, `.jsonl.zst`.
        key_file: key of the pseudonyms, made where there is none; without one a key is drawn and forgotten.
        is_tolerant: copy what can be read of a damaged archive.

    Returns:
        0 when all of the archive was read; 2 when something of it is damaged, or when there is no copy.
    """
    try:
        _must_be_new(output)
        _must_be_apart(output, key_file)
        _must_be_a_file(archive)
        return _redact(archive, output, _key(key_file), is_tolerant)
    except (NotAnArchiveError, _RedactionError) as error:
        typer.echo(f"paceline: {str(error).replace('--readable replays', '--readable copies')}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {error.filename or output}: {error.strerror or error}", err=True)
        return 2


def record_redacted(output: Path, key_file: Path | None, record: Callable[[Path], int]) -> int:
    """Record beside the output, redact what was recorded, and take the recording away.

    Args:
        output: the redacted archive.
        key_file: as for `redact_command`.
        record: records into the file that it is given, and says how it went.
    """
    try:
        _must_be_new(output)
        _must_be_apart(output, key_file)
        _key(key_file)
    except (_RedactionError, OSError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    original = output.with_suffix(".original.zst")
    status = record(original)
    if status == 0 and not (marks_of(original).end or {}).get("is_whole"):
        typer.echo(f"paceline: {original} has the names still: go on with --resume, or redact it as it is", err=True)
        return 2
    if status != 0:
        return status
    # What stopped the recording must stop this as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    status = 2
    try:
        status = redact_command(original, output, key_file, is_tolerant=False)
    finally:
        if status == 0:
            original.unlink()
        else:
            typer.echo(f"paceline: {original} has the names still", err=True)
    return status


def _must_be_a_file(archive: Path) -> None:
    if not archive.exists():
        raise _RedactionError(f"{archive}: No such file or directory")
    if not archive.is_file():
        raise _RedactionError(f"{archive}: it is read twice, and must be a file")


def _must_be_new(output: Path) -> None:
    if output.suffix != ".zst":
        raise _RedactionError(f"{output}: an archive is compressed; name it .jsonl.zst")
    if output.exists():
        raise _RedactionError(f"{output} is there already")


def _must_be_apart(output: Path, key_file: Path | None) -> None:
    """Before a key is made: it must neither be where the copy goes, nor be made for a copy that has no place."""
    if not output.parent.is_dir():
        raise _RedactionError(f"{output}: {output.parent} is no directory")
    if key_file is not None and key_file.resolve() == output.resolve():
        raise _RedactionError(f"--output and --redact-key are both {output}")


def _key(key_file: Path | None) -> bytes:
    """The key of the pseudonyms.

    Raises:
        OSError: its file cannot be read or made.
        _RedactionError: it is too short.
    """
    if key_file is None:
        return secrets.token_bytes(_KEY_BYTES)
    if not key_file.exists():
        with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES) + "\n")
        typer.echo(f"{key_file}: made a new key; who has it can try names against the pseudonyms", err=True)
    key = key_file.read_bytes().strip()
    if len(key) < _LEAST_KEY_BYTES:
        raise _RedactionError(f"{key_file}: {len(key)} bytes are too few for a key; {_LEAST_KEY_BYTES} are the least")
    return key


def _redact(archive: Path, output: Path, key: bytes, is_tolerant: bool) -> int:
    redactor, damaged = Redactor(key), 0
    with closing(ArchiveSource(archive, ReplaySpan(), is_tolerant)) as source:
        size = source.total or 0
        with ProgressBar("redacting", 2 * size) as bar:
            for line in source.lines(bar.reach):
                if isinstance(line, ArchiveLine):
                    redactor.learn(line)
            redactor.learnt()
            known = source.marks
            # Of a name of its own: another that writes the same copy has its own, and neither takes the other's away.
            partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
            stream = partial.open("xb")
            try:
                with stream:
                    writer = BlockWriter(stream, _head(known, redactor))
                    recorder = Recorder(writer, Selection())
                    _keep_gaps(recorder, known)
                    # A source gives its lines once.
                    again = ArchiveSource(archive, ReplaySpan(), is_tolerant)
                    for line in again.lines(lambda at: bar.reach(size + at)):
                        if not isinstance(line, ArchiveLine):
                            damaged += 1
                        elif (taken := redactor.redacted(line)) is not None:
                            recorder.take(taken)
                        elif _is_topic(line.topic):
                            writer.looked_at(line.topic, line.partition, line.offset)
                    _end(writer, known, redactor, damaged)
                    if not writer.lines and (damaged or known is None):
                        # A copy would read as a recording in which nothing was found.
                        raise _RedactionError(f"{archive}: there is no record in it to copy")
                    os.fsync(stream.fileno())
                _must_be_new(output)
                partial.replace(output)
            finally:
                partial.unlink(missing_ok=True)
    _tell(output, writer, redactor, damaged)
    return 2 if damaged else 0


def _head(known: ArchiveMarks | None, redactor: Redactor) -> dict[str, Any]:
    """The head of the copy: of the original's what says nothing of the site."""
    of = (known.head if known is not None else None) or {}
    asked, site = of.get("asked") or {}, of.get("site_id")
    names = redactor.names
    return {
        "site_id": names.of(site) if site is not None else None,
        "asked": {
            **{name: asked[name] for name in ("start", "end", "is_live", "has_journal") if name in asked},
            **{name: [names.of(each) for each in asked.get(name, ())] for name in ("jobs", "nodes")},
        },
        "begun_ms": of.get("begun_ms"),
        "paceline": metadata.version("paceline"),
        "cluster_id": None,
        "redacted": {"mapping": names.mapping},
    }


def _keep_gaps(recorder: Recorder, known: ArchiveMarks | None) -> None:
    for block in known.blocks if known is not None else ():
        for place, first, last in block.get("gaps", []):
            topic, _, partition = place.rpartition("/")
            if _is_topic(topic):
                recorder.gap((topic, int(partition)), first, last)


def _end(writer: BlockWriter, known: ArchiveMarks | None, redactor: Redactor, damaged: int) -> None:
    writer.close_block()
    of = (known.end if known is not None else None) or {}
    writer.end(
        {
            **_head(known, redactor),
            "ended_ms": of.get("ended_ms", time.time_ns() // 1_000_000),
            "is_whole": bool(of.get("is_whole", known is None)) and not damaged,
            "python": platform.python_version(),
            "cut": [place for place in of.get("cut", []) if _is_topic(place.rpartition("/")[0])],
            **summed_up(writer.blocks),
            "redacted": {
                "mapping": redactor.names.mapping,
                "left_out": {**dict(sorted(redactor.left_out.items())), **({"damaged": damaged} if damaged else {})},
                "unknown_fields": dict(sorted(redactor.unknown_fields.items())),
            },
        }
    )


def _is_topic(name: str) -> bool:
    try:
        topic_named(name)
    except UnknownTopicError:
        return False
    return True


def _tell(output: Path, writer: BlockWriter, redactor: Redactor, damaged: int) -> None:
    typer.echo(f"{writer.lines} records in {len(writer.blocks)} blocks in {output}, without names", err=True)
    left_out = {**redactor.left_out, **({"damaged": damaged} if damaged else {})}
    for reason, count in sorted(left_out.items()):
        typer.echo(f"left out: {count} ({reason})", err=True)
    for family, count in sorted(redactor.unknown_fields.items()):
        typer.echo(f"dropped: {count} fields of {family} that this paceline does not know", err=True)
    if left := sorted(redactor.names.left_in_texts):
        named = ", ".join(left[:_MOST_LEFT]) + (f" and {len(left) - _MOST_LEFT} more" if len(left) > _MOST_LEFT else "")
        typer.echo(one_line(f"left in texts, where they are words like any other: names {named}"), err=True)

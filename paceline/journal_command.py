"""`paceline replay --journal`: the recorded decisions of an archive run again, and held against what was recorded."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson
import typer

from schemas.archive import NotAnArchiveError, read_archive
from streams.journal_replay import replay_journal
from streams.recorded_journal import UnusableJournalError

if TYPE_CHECKING:
    from pathlib import Path

    from streams.journal_replay import Comparison

__all__ = ["journal_command"]

_SHOWN = 5


def journal_command(archive: Path, as_json: bool, has_other_options: bool) -> int:
    """Replay and compare; 0 when all is the same, 1 when something differs, 2 when the archive cannot be used.

    Args:
        archive: the file.
        as_json: one JSON object on stdout instead of a line.
        has_other_options: whether options were given that a journal leaves no room for.
    """
    if has_other_options:
        typer.echo(
            "paceline: --journal takes site and policy from the archive; leave out --site, --policy, --summary",
            err=True,
        )
        return 2
    try:
        comparison = replay_journal(read_archive(archive))
    except NotAnArchiveError as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except UnusableJournalError as error:
        typer.echo(f"paceline: {archive}: {error}", err=True)
        return 2
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(asdict(comparison), default=_text) + b"\n")
    else:
        typer.echo(f"same {comparison.same}, differs {len(comparison.differences)}")
    sys.stdout.flush()
    _tell(comparison)
    return 1 if comparison.differences else 0


def _tell(comparison: Comparison) -> None:
    typer.echo(
        f"findings read {comparison.findings}, written twice {comparison.repeated}, "
        f"at the end of one side alone {comparison.beyond}, restarts under other reference records {comparison.restarts}",
        err=True,
    )
    for difference in comparison.differences[:_SHOWN]:
        typer.echo(f"{difference.what}: {difference.name}", err=True)
        typer.echo(f"  recorded: {_text(difference.recorded or b'-')}", err=True)
        typer.echo(f"  replayed: {_text(difference.replayed or b'-')}", err=True)
    if len(comparison.differences) > _SHOWN:
        typer.echo(f"and {len(comparison.differences) - _SHOWN} more", err=True)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")

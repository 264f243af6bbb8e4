"""`paceline diagnose hang DIR`: who keeps a job from going on, from the flight-recorder dumps in a directory.

Each dump is decoded and digested as an agent does it, and the digests are judged as the job's worker judges them: both
come to the same verdict. Guarantees: files whose names do not end with a rank are not read; a dump that is refused or cut is
counted and named; nothing in a dump is run. Links are followed, for people collect dumps by linking them.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agents.decode.driver import encode
from agents.decode.flight_recorder import LARGEST_DUMP_BYTES, dumps_in
from agents.decode.flight_recorder_dump import Dump, rank_in_name
from agents.digest import collective_digest
from streams.detectors.hang import HangCase

if TYPE_CHECKING:
    from schemas.steps import CollectiveDigest
    from streams.detectors.hang_verdict import HangVerdict

__all__ = ["diagnose_hang_command", "digests_of_directory"]

_HANG, _NO_HANG, _NOTHING_TO_READ = 1, 0, 2
_LAST_NS = 2**63 - 1


def diagnose_hang_command(directory: Path, as_json: bool) -> int:
    """Print the verdict.

    Args:
        directory: Holds one dump per rank.
        as_json: One JSON object on standard output instead of a sentence.

    Returns:
        1 for a hang, 0 if there is none or it cannot be decided, 2 if no dump could be read.
    """
    try:
        digests, unreadable = digests_of_directory(directory)
    except OSError as error:
        typer.echo(f"paceline: cannot read {directory}: {error.strerror or error}", err=True)
        return _NOTHING_TO_READ
    case = HangCase()
    for record in digests:
        case.add(record)
    verdict = case.verdict()
    if as_json:
        sys.stdout.buffer.write(encode(verdict.as_record(unreadable)))
        sys.stdout.buffer.flush()
    else:
        typer.echo(_sentence(verdict))
    for name in unreadable:
        typer.echo(f"paceline: {name} could not be read", err=True)
    typer.echo(f"dumps={len(digests)} unreadable={len(unreadable)}", err=True)
    if not digests:
        typer.echo(f"paceline: no readable dump in {directory}; names end with rank_N or dump_N", err=True)
        return _NOTHING_TO_READ
    return _HANG if verdict.verdict == "hang" else _NO_HANG


def digests_of_directory(directory: Path) -> tuple[list[CollectiveDigest], tuple[str, ...]]:
    """The digests of the dumps in a directory, by rank, and the names of files that gave none.

    Raises:
        OSError: The directory could not be read.
    """
    digests, unreadable = [], []
    for path in sorted(directory.iterdir(), key=lambda path: (rank_in_name(path.name) or 0, path.name)):
        if rank_in_name(path.name) is None or not path.is_file():
            continue
        record = _digest(path)
        if record is None:
            unreadable.append(path.name)
        else:
            digests.append(record)
    return digests, tuple(sorted(unreadable))


def _digest(path: Path) -> CollectiveDigest | None:
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_DUMP_BYTES + 1)
    except OSError:
        return None
    found = next(iter(dumps_in(data, path.name)), None)
    if not isinstance(found, Dump) or found.rank is None:
        return None
    latest_ns = max((entry.created_ns for entry in found.collectives if entry.created_ns is not None), default=0)
    return collective_digest(
        found,
        job_id="dumps",
        epoch=0,
        node_id="local",
        agent_session="diagnose",
        seq=0,
        event_time_ns=min(max(latest_ns, 0), _LAST_NS),
        dump_path=str(path),
        dump_sha256=hashlib.sha256(data).hexdigest(),
    )


def _sentence(verdict: HangVerdict) -> str:
    """The verdict for people."""
    if verdict.verdict == "healthy":
        return "healthy: nothing is pending in these dumps"
    where = ""
    if verdict.operation is not None:
        where = f" in {verdict.operation.op} {verdict.operation.number} of {verdict.operation.group.desc}"
    if not verdict.culprit_ranks:
        sides = "; ".join(f"ranks {_ranks(side.ranks)} issued {side.op}" for side in verdict.sides)
        return f"{verdict.verdict}: {verdict.cause}{where}; nobody can be named{': ' + sides if sides else ''}"
    return (
        f"hang: rank {_ranks(verdict.culprit_ranks)}, {verdict.cause}{where}; {len(verdict.waiting_ranks)} ranks wait"
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))

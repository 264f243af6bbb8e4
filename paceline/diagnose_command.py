"""`paceline diagnose hang DIR`: who keeps a job from going on, from the dumps and logs in a directory.

Each dump is decoded and digested as an agent does it, and the digests are judged as the job's worker judges them: both
come to the same verdict. Lines of the watchdog in logs speak for ranks without a dump. Guarantees: files that are named
neither as a rank's dump nor as a log are not read; a dump that is refused or cut is counted and named; nothing in a dump
is run. Links are followed, for people collect dumps by linking them.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agents.decode.driver import encode
from agents.decode.flight_recorder import LARGEST_DUMP_BYTES, dumps_in
from agents.decode.flight_recorder_dump import Dump, rank_in_name
from agents.decode.text import lines
from agents.decode.watchdog_line import watchdog_record
from agents.digest import collective_digest
from agents.importers.step_lines import rank_in_name as rank_in_log_name
from agents.watchdog_digest import WatchdogLines
from paceline.one_line import one_line
from streams.detectors.hang import HangCase

if TYPE_CHECKING:
    from schemas.steps import CollectiveDigest
    from streams.detectors.hang_verdict import HangVerdict

__all__ = ["diagnose_hang_command", "digests_of_directory", "digests_of_logs"]

_HANG, _NO_HANG, _NOTHING_TO_READ = 1, 0, 2
_LAST_NS = 2**63 - 1
_LOG_SUFFIXES = frozenset({".log", ".txt", ".out", ".err"})


def diagnose_hang_command(directory: Path, as_json: bool, rank_count: int | None = None) -> int:
    """Print the verdict.

    Args:
        directory: Holds one dump per rank, and logs.
        as_json: One JSON object on standard output instead of a sentence.
        rank_count: How many ranks the job has; None if the dumps say it.

    Returns:
        1 for a hang, 0 if there is none or it cannot be decided, 2 if nothing could be read.
    """
    try:
        digests, unreadable = digests_of_directory(directory)
        from_logs = digests_of_logs(directory)
    except OSError as error:
        typer.echo(f"paceline: cannot read {directory}: {error.strerror or error}", err=True)
        return _NOTHING_TO_READ
    case = HangCase(rank_count)
    for record in (*digests, *from_logs):
        case.add(record)
    verdict = case.verdict()
    if as_json:
        sys.stdout.buffer.write(encode(verdict.as_record(tuple(unreadable))))
        sys.stdout.buffer.flush()
    else:
        typer.echo(one_line(_sentence(verdict)))
    for name, why in unreadable.items():
        typer.echo(one_line(f"paceline: {name} could not be read: {why}"), err=True)
    told = Counter(record.rank for record in digests)
    for rank, count in sorted(told.items()):
        if count > 1:
            typer.echo(f"paceline: rank {rank} has {count} dumps; the latest counts", err=True)
    for name in unreadable:
        if rank_in_name(name) in verdict.culprit_ranks and rank_in_name(name) not in told:
            typer.echo(
                f"paceline: rank {rank_in_name(name)} is named without its dump, which is there: read it by other means",
                err=True,
            )
    in_logs = f" ranks_in_logs={len(from_logs)}" if from_logs else ""
    typer.echo(f"dumps={len(digests)} unreadable={len(unreadable)}{in_logs}", err=True)
    if not digests and not from_logs:
        typer.echo(
            f"paceline: no readable dump in {directory} (names end with rank_N or dump_N), and no log with a watchdog's line",
            err=True,
        )
        return _NOTHING_TO_READ
    return _HANG if verdict.verdict == "hang" else _NO_HANG


def digests_of_directory(directory: Path) -> tuple[list[CollectiveDigest], dict[str, str]]:
    """The digests of the dumps in a directory, by rank, and why files gave none, by name.

    Raises:
        OSError: The directory could not be read.
    """
    digests, unreadable = [], {}
    for path in sorted(directory.iterdir(), key=lambda path: (rank_in_name(path.name) or 0, path.name)):
        if rank_in_name(path.name) is None or not path.is_file():
            continue
        record = _digest(path)
        if isinstance(record, str):
            unreadable[path.name] = record
        else:
            digests.append(record)
    return digests, dict(sorted(unreadable.items()))


def digests_of_logs(directory: Path) -> list[CollectiveDigest]:
    """What the watchdog said in the logs of a directory, by rank; of a long log its end counts.

    Raises:
        OSError: The directory could not be read.
    """
    told = WatchdogLines()
    last: dict[int, Path] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix.lower() not in _LOG_SUFFIXES or not path.is_file():
            continue
        in_name = rank_in_log_name(path.name)
        try:
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - LARGEST_DUMP_BYTES))
                for _, line in lines(stream):
                    found = watchdog_record(line)
                    rank = told.take(found, in_name) if found is not None else None
                    if rank is not None:
                        last[rank] = path
        except OSError as error:
            typer.echo(f"paceline: {path.name} could not be read: {error.strerror or error}", err=True)
    return [
        told.digest(
            rank,
            job_id="dumps",
            epoch=0,
            node_id="local",
            agent_session="diagnose",
            seq=0,
            event_time_ns=0,
            log_path=str(last[rank]),
        )
        for rank in told.ranks
    ]


def _digest(path: Path) -> CollectiveDigest | str:
    """The digest of a dump, or why there is none."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_DUMP_BYTES + 1)
    except OSError as error:
        return error.strerror or str(error)
    found = next(iter(dumps_in(data, path.name)))
    if not isinstance(found, Dump):
        return found.reason
    if found.rank is None:
        return "neither the dump nor its name says which rank's it is"
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

"""`paceline explain`: how a finding came about, so that a person can recompute it by hand."""

from __future__ import annotations

import heapq
import sys
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import orjson
import typer

from paceline.explanation.cited import cited_records
from paceline.explanation.explain import explained
from paceline.explanation.recorded import history_around
from paceline.explanation.replayed import find_again
from paceline.explanation.text import explanation_lines
from paceline.one_line import one_line
from paceline.replay_command import report_problems
from schemas.archive import BadLine, NotAnArchiveError, read_archive
from streams.core.policy_file import load_policy
from streams.replay import Problems

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.explanation.model import CitedRecord, Explanation
    from paceline.explanation.topic_source import TopicSource
    from schemas.archive import ArchiveLine
    from schemas.findings import Finding
    from schemas.fleet import Policy

__all__ = ["explain_command"]

_SITE = "replay"
_MOST_TOLD = 12
_OTHERS = {"inc": "an incident", "cmd": "a command"}
"""What people take for a finding, by how its id begins."""
_MOST_PRICE = 1e9
_STEPS_BEFORE = 50
_RECORDS_BEFORE = 2_000
"""Offsets before a cited frame that are looked through for the same node's earlier ones."""


class _UnusableError(Exception):
    """The finding cannot be explained from what there is; the text says why."""


def explain_command(
    finding_id: str,
    archive: Path | None,
    bootstrap: str | None,
    price_per_gpu_hour: float | None,
    policy_file: Path | None,
    is_readable: bool,
    as_json: bool,
) -> int:
    """Explain; 0 when the finding was found, 2 when not, or when something up to it could not be read."""
    try:
        explanation, problems = _explanation(
            finding_id, archive, bootstrap, price_per_gpu_hour, policy_file, is_readable
        )
    except (_UnusableError, NotAnArchiveError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(explanation.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
    else:
        for line in explanation_lines(explanation):
            print(one_line(line))
    sys.stdout.flush()
    return report_problems(problems, None)


def _explanation(
    finding_id: str,
    archive: Path | None,
    bootstrap: str | None,
    price: float | None,
    policy_file: Path | None,
    is_readable: bool,
) -> tuple[Explanation, Problems]:
    if (what := _OTHERS.get(finding_id.partition("-")[0])) is not None:
        raise _UnusableError(
            f"{finding_id} is {what}: give one of its findings, which its record names (paceline replay --json, or incidents --json)"
        )
    if price is not None and not 0 <= price < _MOST_PRICE:
        raise _UnusableError(f"--price-per-gpu-hour is {price:g}; it is a price, 0 or more")
    if archive is not None and bootstrap is None:
        return _from_archive(finding_id, archive, price, policy_file, is_readable)
    if is_readable and bootstrap is not None:
        raise _UnusableError("--readable goes with an archive")
    if bootstrap is not None and archive is None:
        return _from_topics(finding_id, bootstrap, price, policy_file), Problems()
    raise _UnusableError("explain reads one of an archive and --bootstrap")


def _policy(policy_file: Path | None) -> Policy | None:
    try:
        return load_policy(policy_file, _SITE) if policy_file is not None else None
    except ValueError as error:
        raise _UnusableError(str(error)) from None


def _from_archive(
    finding_id: str, archive: Path, price: float | None, policy_file: Path | None, is_readable: bool
) -> tuple[Explanation, Problems]:
    remade = find_again(_archive_lines(archive, is_readable), finding_id, _SITE, _policy(policy_file))
    finding = remade.finding or remade.recorded
    if finding is None:
        # It may have been said in a line, or have come of one, that could not be used.
        report_problems(remade.problems, None)
        raise _UnusableError(f"{archive}: no finding {finding_id}; {_told(remade.known)}")
    assert remade.roster is not None
    evidence = cited_records(_archive_lines(archive, is_readable), finding)
    if remade.finding is not None:
        return explained(finding, "recomputed", remade.roster, remade.history, evidence, price), remade.problems
    history = history_around(_archive_lines(archive, is_readable), finding, remade.roster)
    return explained(finding, "recorded", remade.roster, history, evidence, price), remade.problems


def _told(known: dict[str, Finding]) -> str:
    if not known:
        return "no finding comes of it at all"
    lines = [f"{name} ({finding.kind})" for name, finding in islice(known.items(), _MOST_TOLD)]
    more = f" and {len(known) - _MOST_TOLD} more" if len(known) > _MOST_TOLD else ""
    return f"there are {', '.join(lines)}{more}"


def _archive_lines(path: Path, is_readable: bool) -> Iterator[ArchiveLine | BadLine]:
    """Lines of an archive; of a folder those of all archives in it, in the order of their append times.

    Args:
        path: the file or folder.
        is_readable: give damaged blocks out as bad lines, and go on behind them.

    Raises:
        NotAnArchiveError: a file is none, or the folder has none.
    """
    if not path.is_dir():
        yield from read_archive(path, is_tolerant=is_readable)
        return
    files = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.zst")))
    if not files:
        raise NotAnArchiveError(f"{path}: no .jsonl or .jsonl.zst in this folder")
    yield from heapq.merge(*(read_archive(file, is_tolerant=is_readable) for file in files), key=_append_ms)


def _append_ms(line: ArchiveLine | BadLine) -> int:
    return -1 if isinstance(line, BadLine) else line.timestamp_ms


def _from_topics(finding_id: str, bootstrap: str, price: float | None, policy_file: Path | None) -> Explanation:
    from paceline.explanation.topic_source import BrokersError, TopicSource

    policy = _policy(policy_file)
    try:
        with closing(TopicSource(bootstrap)) as source:
            finding = source.finding(finding_id)
            if finding is None:
                raise _UnusableError(f"{bootstrap}: no finding {finding_id} in the topic of findings")
            roster = source.roster()
            roster.policy = policy or roster.policy
            history = history_around(_steps(source, finding), finding, roster) if finding.step is not None else None
            return explained(finding, "recorded", roster, history, _cited(source, finding), price)
    except BrokersError as error:
        raise _UnusableError(str(error)) from None


def _cited(source: TopicSource, finding: Finding) -> tuple[CitedRecord, ...]:
    found: list[CitedRecord] = []
    for place in finding.evidence:
        alone = finding.model_copy(update={"evidence": (place,)})
        before = _RECORDS_BEFORE if finding.job_id is None else 0
        found += cited_records(source.around(place.topic, place.partition, place.offset, before, 1), alone)
    return tuple(found)


def _steps(source: TopicSource, finding: Finding) -> Iterator[ArchiveLine]:
    """Records of the finding's step and of those before it, as far as the rule looks back."""
    place = finding.evidence[0] if finding.evidence else None
    if place is None:
        return
    ranks = finding.values.get("ranks")
    told = ranks if isinstance(ranks, int) and not isinstance(ranks, bool) else 1024
    # One record a node, at worst a rank; other jobs share the partition.
    yield from source.around(place.topic, place.partition, place.offset, _STEPS_BEFORE * told, 4 * told)

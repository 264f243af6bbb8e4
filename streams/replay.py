"""Replay of an archive: the pure engines in a plain loop. There is no publisher here, so nothing can be commanded.

Guarantees: same archive, same output bytes. Lines that are no record are counted and named, never skipped in silence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.archive import BadLine, NotAnArchiveError, decode_line
from schemas.codec import encode
from schemas.errors import SchemaError
from schemas.findings import Finding
from schemas.fleet import Policy
from schemas.remediation import Command, Incident
from schemas.results import StepResult
from schemas.topics import topic_of
from streams.core.admission import refusal_of_name
from streams.core.position import Position
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from schemas.archive import ArchiveLine
    from schemas.base import Record

__all__ = ["Problems", "Summary", "decoded", "ndjson_line", "replay"]


@dataclass(slots=True)
class Problems:
    """What an archive held that could not be used."""

    bad_lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, reason: str) -> None:
        """Count an unusable line, and keep the first few reasons."""
        self.counts["bad_lines"] += 1
        if len(self.bad_lines) < 20:
            self.bad_lines.append(reason)

    def note_refusal(self, number: int, position: Position, refusal: str | None) -> None:
        """Note that the engines did not take the record of a line; null where they did."""
        if refusal is not None:
            self.note(f"line {number}: {position.topic}: {refusal}")


def replay(
    lines: Iterable[ArchiveLine | BadLine],
    site_id: str,
    problems: Problems,
    policy: Policy | None = None,
    has_own_policy: bool = False,
    is_cut: bool = False,
    pipeline: Pipeline | None = None,
    between: Callable[[], None] | None = None,
) -> Iterator[Record]:
    """Step results, findings, incidents and commands of an archive, in order of event time.

    Args:
        lines: the archive.
        site_id: the site that findings are of.
        problems: filled with what could not be used.
        policy: thresholds and switches to start from.
        has_own_policy: the policies of the archive do not count: what would have been under this one.
        is_cut: the end of the lines is the end of nothing: say only what workers would have said by then.
        pipeline: one of this site to go on with, in place of a new one.
        between: called between two records, when all that was said of those before has been taken.

    Raises:
        NotAnArchiveError: the archive is damaged; everything before the damage was given out.
    """
    pipeline = pipeline if pipeline is not None else Pipeline(site_id, policy)
    try:
        yield from _fed(pipeline, lines, problems, has_own_policy, is_cut, between or _nothing)
    finally:
        problems.counts.update(pipeline.counts)


def _nothing() -> None:
    return


def _fed(
    pipeline: Pipeline,
    lines: Iterable[ArchiveLine | BadLine],
    problems: Problems,
    has_own_policy: bool,
    is_cut: bool,
    between: Callable[[], None],
) -> Iterator[Record]:
    damage: NotAnArchiveError | None = None
    records = decoded(lines, problems)
    while True:
        between()
        try:
            found = next(records, None)
        except NotAnArchiveError as error:
            # What could be read is judged to its end before the damage is told.
            damage, found = error, None
        if found is None:
            break
        number, record, position = found
        if has_own_policy and isinstance(record, Policy):
            continue
        outputs = pipeline.on_record(record, position)
        problems.note_refusal(number, position, pipeline.refusal)
        yield from outputs
    yield from pipeline.cut() if is_cut else pipeline.flush()
    if damage is not None:
        raise damage


def decoded(lines: Iterable[ArchiveLine | BadLine], problems: Problems) -> Iterator[tuple[int, Record, Position]]:
    """Records of an archive with their line and place; what a worker would refuse by its content or its key is refused here.

    Raises:
        NotAnArchiveError: the archive is damaged; everything before the damage was given out.
    """
    for line in lines:
        if isinstance(line, BadLine):
            problems.note(f"line {line.number}: {line.reason}")
            continue
        try:
            record = decode_line(line)
        except SchemaError as error:
            problems.note(f"line {line.number}: {line.topic}: {error}")
            continue
        if line.key is not None:
            # What is ahead of its arrival is refused further on: it still tells of its publisher's clock.
            refused = refusal_of_name(record, line.key.encode(), line.headers.get("schema"), line.topic)
            if refused is not None:
                problems.note(f"line {line.number}: {line.topic}: {refused}")
                continue
        yield line.number, record, Position(line.topic, line.partition, line.offset, line.timestamp_ms)


def ndjson_line(record: Record) -> bytes:
    """One output as `{"topic": ..., "value": ...}`."""
    return b'{"topic":"' + topic_of(record).name.encode() + b'","value":' + encode(record) + b"}\n"


@dataclass(slots=True)
class Summary:
    """Whom an archive would have had cordoned: commands by kind and target, and what was found."""

    commands: list[Command] = field(default_factory=list)
    incidents: dict[str, Incident] = field(default_factory=dict)
    findings: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: int = 0
    first_ns: int | None = None
    last_ns: int = 0

    def take_all(self, records: Iterable[Record]) -> None:
        """Count several outputs."""
        for record in records:
            self.take(record)

    def take(self, record: Record) -> None:
        """Count one output."""
        if isinstance(record, Command):
            self.commands.append(record)
        elif isinstance(record, Incident):
            self.incidents[record.incident_id] = record
        elif isinstance(record, Finding) and record.state == "open":
            self.findings[(record.kind, record.severity)] += 1
        elif isinstance(record, StepResult):
            self.steps += 1
            self.first_ns = record.event_time_ns if self.first_ns is None else self.first_ns
            self.last_ns = max(self.last_ns, record.event_time_ns)

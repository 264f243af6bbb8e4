"""What an archive holds of the decisions role: its findings, reference records, journal, incidents and commands.

Sorted by place, each place once, whatever order the lines have. What a replay cannot do without is checked here, and named
when it is missing: a journal is replayed from its beginning, because no archive holds the state of a worker. Topics of
other roles are passed over. Nothing is judged here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from schemas.archive import BadLine
from schemas.codec import decode_value
from schemas.errors import SchemaError
from schemas.findings import Finding
from schemas.fleet import Job, Node, Policy
from schemas.remediation import ActionResult, Approval, Command, Decision, Incident
from schemas.topics import topic_named, topic_of
from streams.decisions.journal import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.archive import ArchiveLine

__all__ = ["Entry", "RecordedJournal", "Run", "UnusableJournalError", "read_journal"]

FINDINGS = topic_of(Finding).name
HELD = (topic_of(ActionResult).name, topic_of(Approval).name)
JOURNAL = topic_of(Decision).name
OUTPUTS = (topic_of(Incident).name, topic_of(Command).name)
REFERENCE = tuple(topic_of(family).name for family in (Job, Node, Policy))


class UnusableJournalError(SchemaError):
    """The archive cannot be replayed by its journal; the text says what is missing or wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the journal with its place."""

    line: ArchiveLine
    value: bytes
    decision: Decision

    @property
    def partition(self) -> int:
        """Partition of findings that it is about."""
        assert self.decision.source is not None
        return self.decision.source.partition

    @property
    def taken_at(self) -> int:
        """Offset of the findings record at which it was made."""
        assert self.decision.source is not None
        at = self.decision.detail.get("taken_at", self.decision.source.offset)
        return at if isinstance(at, int) else self.decision.source.offset

    @property
    def is_of_held(self) -> bool:
        """Whether it says that a record of another topic than findings was taken."""
        assert self.decision.source is not None
        return self.decision.source.topic in HELD


@dataclass(slots=True)
class Run:
    """What one worker wrote between a start and its end, on top of what its snapshot held.

    Attributes:
        entries: by sequence, those that it went on from and its own.
        points: by findings offset, how much of each reference partition had been read before that record was judged.
        keys: by findings offset, the key by which commands were signed from that record on; None for none.
        held: by findings offset, entries of records of other topics that had been read by then.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    points: dict[int, dict[str, int]] = field(default_factory=dict)
    keys: dict[int, str | None] = field(default_factory=dict)
    held: dict[int, list[Entry]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """Sequence of its last entry; -1 without any."""
        return max(self.entries, default=-1)

    def before(self, sequence: int) -> Run:
        """A run that goes on before an entry: what a worker does when it is started anew."""
        run = Run()
        for number in sorted(number for number in self.entries if number < sequence):
            run.add(self.entries[number])
        return run

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        self.entries[entry.decision.sequence] = entry
        if entry.is_of_held:
            self.held.setdefault(entry.taken_at, []).append(entry)
        elif entry.decision.action == "reference_taken":
            self.points[entry.taken_at] = _counts(entry)
        elif entry.decision.action == "signing_key_taken":
            key_id = entry.decision.subject_id
            self.keys[entry.taken_at] = key_id if key_id != NO_KEY else None


@dataclass(slots=True)
class RecordedJournal:
    """An archive's share of the decisions role.

    Attributes:
        site_id: the site that it decides for.
        findings: by partition and offset, from 0 on without a gap.
        held: by topic, partition and offset, results and approvals.
        reference: by `topic/partition` and offset.
        runs: by partition of findings, in the order in which they were written; all but the last were given up.
        outputs: journal, incidents and commands in the order of their partitions.
        repeated: entries of the journal that were written again with the same bytes.
    """

    site_id: str
    findings: dict[int, dict[int, ArchiveLine]]
    held: dict[str, dict[int, dict[int, ArchiveLine]]]
    reference: dict[str, dict[int, ArchiveLine]]
    runs: dict[int, list[Run]]
    outputs: list[ArchiveLine]
    entries: dict[bytes, Entry]
    repeated: int


def canonical(value: Any) -> bytes:
    """The bytes of a parsed value as the codec writes them: compact, fields in their order."""
    return orjson.dumps(value)


def read_journal(lines: Iterable[ArchiveLine | BadLine]) -> RecordedJournal:
    """What is in an archive.

    Raises:
        UnusableJournalError: there is no journal in it, or not from the beginning, or a record under it is missing.
        NotAnArchiveError: the file is damaged as a whole.
    """
    by_topic = _by_topic(lines)
    journal = _in_order(by_topic.get(JOURNAL, {}))
    if not journal:
        raise UnusableJournalError(f"there is no record of {JOURNAL} in it")
    entries = [_entry(line) for line in journal]
    sites = sorted({entry.decision.site_id for entry in entries})
    if len(sites) > 1:
        raise UnusableJournalError(f"its journal is of several sites: {', '.join(sites)}")
    runs: dict[int, list[Run]] = {}
    repeated = 0
    for entry in entries:
        repeated += not _add(runs.setdefault(entry.partition, [Run()]), entry)
    findings = by_topic.get(FINDINGS, {})
    for partition, of_partition in runs.items():
        first = min(of_partition[0].entries)
        if first != 0:
            raise UnusableJournalError(
                f"its journal of {FINDINGS}/{partition} begins at entry {first}; it is replayed from its beginning, entry 0"
            )
        _check_whole(f"{FINDINGS}/{partition}", findings.get(partition, {}))
    return RecordedJournal(
        sites[0],
        {partition: findings[partition] for partition in sorted(runs)},
        {topic: by_topic.get(topic, {}) for topic in HELD},
        {f"{topic}/{number}": by_topic[topic][number] for topic in REFERENCE for number in by_topic.get(topic, {})},
        {partition: runs[partition] for partition in sorted(runs)},
        [
            line
            for topic in (JOURNAL, *OUTPUTS)
            for line in _in_order(by_topic.get(topic, {}))
            if _is_of(line, sites[0])
        ],
        {entry.value: entry for entry in entries},
        repeated,
    )


def _add(runs: list[Run], entry: Entry) -> bool:
    """Add an entry to the last run, or begin another with it; false when it only says again what was said."""
    run, sequence = runs[-1], entry.decision.sequence
    known = run.entries.get(sequence)
    if known is not None and known.value == entry.value:
        return False
    if sequence <= run.last:
        # The number was given already: a worker was started anew from a snapshot and went on under other reference records.
        run = run.before(sequence)
        runs.append(run)
    run.add(entry)
    return True


def _by_topic(lines: Iterable[ArchiveLine | BadLine]) -> dict[str, dict[int, dict[int, ArchiveLine]]]:
    wanted = {FINDINGS, *HELD, JOURNAL, *OUTPUTS, *REFERENCE}
    found: dict[str, dict[int, dict[int, ArchiveLine]]] = {}
    for line in lines:
        if isinstance(line, BadLine):
            raise UnusableJournalError(f"line {line.number}: {line.reason}")
        topic = _name(line.topic)
        if topic not in wanted:
            continue
        places = found.setdefault(topic, {}).setdefault(line.partition, {})
        known = places.setdefault(line.offset, line)
        if known is not line and canonical(known.value) != canonical(line.value):
            raise UnusableJournalError(
                f"lines {known.number} and {line.number} are different records of {topic}/{line.partition} at {line.offset}"
            )
    return found


def _name(topic: str) -> str:
    try:
        return topic_named(topic).name
    except SchemaError:
        return topic


def _in_order(partitions: dict[int, dict[int, ArchiveLine]]) -> list[ArchiveLine]:
    return [partitions[number][offset] for number in sorted(partitions) for offset in sorted(partitions[number])]


def _entry(line: ArchiveLine) -> Entry:
    try:
        decision = decode_value(line.topic, line.value)
    except SchemaError as error:
        raise UnusableJournalError(f"line {line.number}: {line.topic}: {error}") from None
    assert isinstance(decision, Decision)
    if decision.source is None or decision.source.topic not in {FINDINGS, *HELD}:
        raise UnusableJournalError(f"line {line.number}: entry {decision.sequence} names no record of {FINDINGS}")
    if decision.source.topic in HELD and not isinstance(decision.detail.get("taken_at"), int):
        raise UnusableJournalError(f"line {line.number}: entry {decision.sequence} does not say when it was taken")
    return Entry(line, canonical(line.value), decision)


def _check_whole(name: str, records: dict[int, ArchiveLine]) -> None:
    """Hold that a partition is there from its first record on, without a gap."""
    if not records:
        raise UnusableJournalError(f"there is no record of {name} in it, and its journal is about them")
    if all(line.key is None for line in records.values()):
        raise UnusableJournalError(f"{name} has no keys; a worker refuses what has none")
    if min(records) != 0:
        raise UnusableJournalError(
            f"{name} begins at offset {min(records)}; a journal is replayed from the beginning, offset 0"
        )
    if len(records) != max(records) + 1:
        missing = next(offset for offset in range(len(records)) if offset not in records)
        raise UnusableJournalError(f"{name} has a gap at offset {missing}")


def _counts(entry: Entry) -> dict[str, int]:
    counts = entry.decision.detail
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts.values()):
        raise UnusableJournalError(
            f"line {entry.line.number}: entry {entry.decision.sequence} has counts that are none"
        )
    return dict(counts)


def _is_of(line: ArchiveLine, site_id: str) -> bool:
    return isinstance(line.value, dict) and line.value.get("site_id") == site_id

"""Replay of the decisions journal: the engine runs again over the recorded findings, and every byte is held against the record.

Which reference records were in force at which finding is taken from the journal, and so is before which of them a result was
taken; all else follows from the findings' own order. A worker that was started anew under other reference records wrote some numbers again with other bytes: what it
wrote before is run again as well, as far as it had come. What was written twice with the same bytes counts once. Which key
signed is in the journal too; the signatures themselves are not made again.

At the end of a recording its topics may reach differently far. What lies beyond the last entry of the journal, or comes
of findings that the archive does not hold, is counted apart and not compared. Nothing can be commanded from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from schemas.codec import MAX_RECORD_BYTES, decode_value, message
from schemas.errors import SchemaError
from schemas.findings import Evidence
from schemas.remediation import Approval, Decision
from schemas.signatures import SIGNATURE_HEADER
from streams.core.admission import refusal
from streams.core.position import Position
from streams.core.reference import take_reference
from streams.core.roster import Roster
from streams.engines.decisions import DecisionsEngine
from streams.recorded_journal import JOURNAL, UnusableJournalError, canonical, read_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.archive import ArchiveLine, BadLine
    from schemas.base import Record
    from streams.recorded_journal import Entry, RecordedJournal, Run

__all__ = ["Comparison", "Difference", "replay_journal"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One record that is not the same on both sides.

    Attributes:
        what: `differs`, `not reproduced`, `not recorded`, `key or headers differ` or `out of order`.
        name: what it is: an entry's place in the journal, a command or an incident.
        recorded: bytes of the record, null when there is none.
        replayed: bytes that the engine wrote now, null when there are none.
    """

    what: str
    name: str
    recorded: bytes | None
    replayed: bytes | None


@dataclass(slots=True)
class Comparison:
    """What came of a replay.

    Attributes:
        same: distinct records of journal, incidents and commands that are equal on both sides.
        differences: those that are not.
        repeated: records that were written again with the same bytes.
        beyond: records at the end of one side that the other does not reach.
        restarts: starts of workers that wrote numbers again with other bytes.
        findings: records of findings that were read.
    """

    same: int = 0
    differences: list[Difference] = field(default_factory=list)
    repeated: int = 0
    beyond: int = 0
    restarts: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True)
class _Output:
    """One message that the engine made.

    `sequence` is an entry's own, else that of the last entry that was made of the same findings record.
    """

    topic: str
    value: bytes
    key: str
    headers: dict[str, str]
    partition: int
    sequence: int

    @property
    def is_entry(self) -> bool:
        return self.topic == JOURNAL


def replay_journal(lines: Iterable[ArchiveLine | BadLine]) -> Comparison:
    """Run the decisions of an archive again and compare.

    Raises:
        UnusableJournalError: the archive does not hold what a replay needs; the text says what.
        NotAnArchiveError: the file is damaged as a whole.
    """
    recorded = read_journal(lines)
    comparison = Comparison(
        restarts=sum(len(runs) - 1 for runs in recorded.runs.values()),
        findings=sum(map(len, recorded.findings.values())),
    )
    required: list[_Output] = []
    admitted: dict[tuple[str, bytes], _Output] = {}
    for partition, runs in recorded.runs.items():
        for run in runs:
            is_last = run is runs[-1]
            outputs = list(_again(recorded, partition, run))
            required += outputs if is_last else []
            admitted |= {(o.topic, o.value): o for o in outputs if is_last or o.sequence <= run.last}
    _compare(recorded, required, admitted, comparison)
    return comparison


def _again(recorded: RecordedJournal, partition: int, run: Run) -> Iterator[_Output]:
    """What the engine says to the findings under a run's reference records, until it is past the run's last entry."""
    roster, reference = Roster(), _ReferenceReader(recorded)
    engine = DecisionsEngine(recorded.site_id, roster)
    for offset, line in sorted(recorded.findings[partition].items()):
        if offset in run.points:
            reference.up_to(roster, run.points[offset])
        engine.key_id = run.keys.get(offset, engine.key_id)
        for entry in run.held.get(offset, ()):
            # Held until it settles: what it leads to follows from the findings record that is judged next.
            _judged(engine, _held_line(recorded, entry), entry)
        made = _judged(engine, line)
        last = max((record.sequence for record in made if isinstance(record, Decision)), default=-1)
        for record in made:
            yield _output(record, partition, record.sequence if isinstance(record, Decision) else last)
        if last > run.last:
            return


def _held_line(recorded: RecordedJournal, entry: Entry) -> ArchiveLine:
    """The record of another topic that an entry says was taken.

    Raises:
        UnusableJournalError: it is not in the archive.
    """
    source = entry.decision.source
    assert source is not None
    line = recorded.held[source.topic].get(source.partition, {}).get(source.offset)
    if line is None:
        raise UnusableJournalError(
            f"{source.topic}/{source.partition} has no record at offset {source.offset}; its journal says that it was taken"
        )
    return line


def _judged(engine: DecisionsEngine, line: ArchiveLine, entry: Entry | None = None) -> list[Record]:
    """The engine's answer to one message; what the boundary of a worker refuses is refused here.

    Args:
        engine: what judges it.
        line: the message.
        entry: what the journal says of it, where that is needed: the worker's ring and clock are not here.
    """
    if line.value is None or len(canonical(line.value)) > MAX_RECORD_BYTES:
        return []
    position = Position(line.topic, line.partition, line.offset, line.timestamp_ms)
    try:
        record = decode_value(line.topic, line.value)
        if refusal(record, _key(line), line.headers.get("schema"), position) is not None:
            return []
        if isinstance(record, Approval):
            word = entry.decision.detail.get("signature") if entry is not None else None
            return engine.on_approval(record, None if word == "holds" else str(word), position)
        return engine.on_record(record, position)
    except Exception:  # noqa: BLE001 (a worker's boundary makes a dead letter of it and goes on, and so does this)
        return []


def _output(record: Record, partition: int, sequence: int) -> _Output:
    wire = message(record)
    headers = {name: text.decode() for name, text in wire.headers}
    return _Output(wire.topic, wire.value, wire.key.decode(), headers, partition, sequence)


def _without_signature(headers: dict[str, str]) -> dict[str, str]:
    """Headers but the one that cannot be made again without the private key."""
    return {name: text for name, text in headers.items() if name != SIGNATURE_HEADER}


def _key(line: ArchiveLine) -> bytes | None:
    return line.key.encode() if line.key is not None else None


class _ReferenceReader:
    """Gives reference records to a roster, in the order of their partitions."""

    def __init__(self, recorded: RecordedJournal) -> None:
        self._recorded = recorded
        self._read: dict[str, int] = {}

    def up_to(self, roster: Roster, counts: dict[str, int]) -> None:
        """Read as far as the journal says, and have the roster say so too.

        Raises:
            UnusableJournalError: a record that was read is not in the archive.
        """
        for name, count in sorted(counts.items()):
            lines = self._recorded.reference.get(name, {})
            for offset in range(self._read.get(name, 0), count):
                if offset not in lines:
                    raise UnusableJournalError(
                        f"{name} has no record at offset {offset}; its journal says that {count} had been read"
                    )
                _take(roster, lines[offset])
            self._read[name] = max(count, self._read.get(name, 0))
        roster.taken_up_to = dict(counts)
        # A worker that began when older records were gone calls more of them changes than are changes here.
        roster.version += 1


def _take(roster: Roster, line: ArchiveLine) -> None:
    """Take one reference record, as the workers' feed does: what is refused there is refused here."""
    try:
        record = decode_value(line.topic, line.value)
        place = Evidence(topic=line.topic, partition=line.partition, offset=line.offset)
        take_reference(roster, record, _key(line), line.headers.get("schema"), place)
    except (SchemaError, ValueError):
        return


def _compare(
    recorded: RecordedJournal,
    required: list[_Output],
    admitted: dict[tuple[str, bytes], _Output],
    comparison: Comparison,
) -> None:
    written: dict[tuple[str, bytes], ArchiveLine] = {}
    for line in recorded.outputs:
        identity = (line.topic, canonical(line.value))
        comparison.repeated += identity in written
        written[identity] = line
    beyond = _beyond(recorded, [line for identity, line in written.items() if identity not in admitted])
    not_reproduced: dict[str, list[bytes]] = {}
    for (topic, value), line in written.items():
        output = admitted.get((topic, value))
        if output is None and (line.topic, line.partition, line.offset) in beyond:
            comparison.beyond += 1
        elif output is None:
            not_reproduced.setdefault(_named(line.value), []).append(value)
        elif line.key != output.key or (line.headers and _without_signature(line.headers) != output.headers):
            comparison.differences.append(Difference("key or headers differ", _named(line.value), value, value))
        else:
            comparison.same += 1
    for output in {(o.topic, o.value): o for o in required}.values():
        if (output.topic, output.value) in written:
            continue
        name = _named(orjson.loads(output.value))
        others = not_reproduced.get(name)
        other = others.pop(0) if others else None
        last = recorded.runs[output.partition][-1].last
        if other is None and (output.sequence > last or (output.sequence == last and not output.is_entry)):
            comparison.beyond += 1
            continue
        what = "differs" if other is not None else "not recorded"
        comparison.differences.append(Difference(what, name, other, output.value))
    for name, values in not_reproduced.items():
        comparison.differences += [Difference("not reproduced", name, value, None) for value in values]
    _compare_order(written, required, comparison)


def _beyond(recorded: RecordedJournal, lines: list[ArchiveLine]) -> set[tuple[str, int, int]]:
    """Places of what came of findings that were appended after the last one in the archive."""
    entries = [recorded.entries[canonical(line.value)] for line in lines if line.topic == JOURNAL]
    ends = {partition: max(records) for partition, records in recorded.findings.items()}
    entries = [entry for entry in entries if entry.taken_at > ends[entry.partition]]
    followed = {name for entry in entries for name in entry.decision.followed}
    places = {(entry.line.topic, entry.line.partition, entry.line.offset) for entry in entries}
    for line in lines:
        name = line.value.get("command_id") or line.value.get("incident_id")
        if line.topic != JOURNAL and name in followed:
            places.add((line.topic, line.partition, line.offset))
    return places


def _compare_order(
    written: dict[tuple[str, bytes], ArchiveLine], required: list[_Output], comparison: Comparison
) -> None:
    """Hold that what the engine said later stands later. Of what was written twice the last counts: it was said anew."""
    latest: dict[tuple[str, int, int], int] = {}
    by_last = {(output.topic, output.value): output for output in reversed(required)}
    for value, output in reversed(by_last.items()):
        line = written.get(value)
        if line is None:
            continue
        place = (line.topic, line.partition, output.partition)
        if line.offset < latest.get(place, -1):
            comparison.same -= 1
            comparison.differences.append(Difference("out of order", _named(line.value), output.value, output.value))
        latest[place] = max(line.offset, latest.get(place, -1))


def _named(value: dict[str, Any]) -> str:
    """A name for one output, equal for what ought to be equal."""
    if value.get("record") == "decision":
        source = value["source"]
        return f"entry {value['sequence']} of {source['topic']}/{source['partition']}"
    if value.get("record") == "command":
        return f"command {value.get('command_id')}"
    return f"incident {value.get('incident_id')} {value.get('state')} at {value.get('event_time_ns')}"

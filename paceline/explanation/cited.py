"""Records that a finding rests on, and what came before them from the same source: the counters themselves.

Of a frame only the columns of the finding's subject are kept, under their own names. Deliberately no judgement: which of
them a rule reads is said elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from paceline.explanation.model import CitedRecord
from schemas.archive import ArchiveLine, decode_line
from schemas.errors import SchemaError
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.archive import BadLine
    from schemas.base import Record
    from schemas.findings import Finding, Subject

__all__ = ["cited_records", "subject_values"]

_TRAIL_NS = 75_000_000_000
"""As far back as the longest trailing window of a device rule, and a little."""

_MOST_BEFORE = 16


def cited_records(lines: Iterable[ArchiveLine | BadLine], finding: Finding) -> tuple[CitedRecord, ...]:
    """What a finding cites, in order of the lines, each with up to 16 records of its source from 75 s before it.

    Args:
        lines: an archive, or the parts of topics that hold the places.
        finding: whose evidence.
    """
    wanted = {(cited.topic, cited.partition, cited.offset) for cited in finding.evidence}
    topics = {cited.topic for cited in finding.evidence}
    with_trail = finding.job_id is None
    trails: dict[tuple[str, str], deque[CitedRecord]] = {}
    found: list[CitedRecord] = []
    for line in lines:
        if not wanted:
            break
        if not isinstance(line, ArchiveLine) or line.topic not in topics:
            continue
        place = (line.topic, line.partition, line.offset)
        is_cited = place in wanted
        if not is_cited and not (with_trail and _may_be_of(line.value, finding.subject)):
            continue
        record = _cited(line, finding.subject, is_cited)
        source = (line.topic, record.publisher or "")
        if is_cited:
            wanted.discard(place)
            found += [
                before
                for before in trails.pop(source, ())
                if (before.event_time_ns or 0) >= (record.event_time_ns or 0) - _TRAIL_NS
            ]
            found.append(record)
        else:
            trails.setdefault(source, deque(maxlen=_MOST_BEFORE)).append(record)
    return tuple(found)


def _may_be_of(value: Any, subject: Subject) -> bool:
    if not isinstance(value, dict):
        return False
    if subject.switch_id is not None and value.get("switch_id") == subject.switch_id:
        return True
    return subject.node_id is not None and value.get("node_id") == subject.node_id


def _cited(line: ArchiveLine, subject: Subject, is_cited: bool) -> CitedRecord:
    try:
        record = decode_line(line)
    except SchemaError:
        return CitedRecord(line.topic, line.partition, line.offset, is_cited, None, None, None, {})
    publisher = getattr(record, "node_id", None) or getattr(record, "switch_id", None)
    return CitedRecord(
        line.topic,
        line.partition,
        line.offset,
        is_cited,
        str(getattr(record, "record", "")) or None,
        getattr(record, "event_time_ns", None),
        publisher,
        subject_values(record, subject),
    )


def subject_values(record: Record, subject: Subject) -> dict[str, Any]:
    """Columns of a record for one subject; of a record without columns its fields. What is null is left out."""
    if isinstance(record, GpuFrame):
        index = _gpu_index(record, subject)
        return _columns(record, len(record.gpu_uuid), index) if index is not None else {}
    if isinstance(record, FabricFrame):
        return _of_port(record, subject)
    if isinstance(record, StepTiming):
        ranks = {subject.rank} if subject.rank is not None else set(subject.ranks or ())
        here = next((index for index, rank in enumerate(record.rank) if rank in ranks), None)
        head = {"step": record.step, "phase": record.phase}
        if here is None:
            return {**head, "ranks": list(record.rank)}
        return {**head, "rank": record.rank[here], **_columns(record, len(record.rank), here)}
    return record.model_dump(mode="json", exclude_none=True, exclude={"record"})


def _gpu_index(frame: GpuFrame, subject: Subject) -> int | None:
    for names, wanted in ((frame.gpu_uuid, subject.gpu_uuid), (frame.pci_bus_id, subject.pci_bus_id)):
        if wanted is not None and names is not None and wanted in names:
            return names.index(wanted)
    return None


def _of_port(frame: FabricFrame, subject: Subject) -> dict[str, Any]:
    ports = list(zip(frame.device, frame.port, strict=True))
    index = next((i for i, port in enumerate(ports) if port == (subject.device, subject.port)), None)
    if index is None:
        return {}
    values = _columns(frame, len(ports), index)
    values.update({name: column[index] for name, column in frame.counters.items() if column[index] is not None})
    for row, port in enumerate(frame.pfc_port):
        if port == index:
            for name in ("rx_pause_frames", "tx_pause_frames"):
                values[name] = values.get(name, 0) + (getattr(frame, name)[row] or 0)
    return values


_NAMING = frozenset({"gpu_uuid", "pci_bus_id", "device", "port", "rank", "pfc_port", "pfc_priority"})


def _columns(record: Record, length: int, index: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in type(record).model_fields:
        column = getattr(record, name)
        if name in _NAMING or not isinstance(column, tuple) or len(column) != length:
            continue
        if isinstance(column[index], int | float | str) and not isinstance(column[index], bool):
            values[name] = column[index]
    return values

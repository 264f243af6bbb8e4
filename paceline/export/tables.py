"""Which table a record family becomes: columns named and typed as the family's fields, one row for each of its subjects.

Derived from the models, so that a new field is a new column. Frames, timings and placements are columns over GPUs, ports or ranks,
and become a row for each; a record inside a record becomes columns with its field's name in front (`subject_node_id`). What has no
fixed columns (dictionaries, lists of records) is JSON text. Two lists have a table of their own: pause counters by port and
priority, and collectives by rank. Knows nothing of the file format.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import orjson

from schemas.base import Record
from schemas.fleet import RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import RankProgress, StepTiming
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streams.core.position import Position

__all__ = ["EVENT_TIMES", "TABLES", "Column", "Kind", "Table"]

Kind = Literal["int", "float", "text", "flag", "json", "ints", "floats", "texts", "counters"]
_SCALARS: dict[Any, Kind] = {bool: "flag", int: "int", float: "float", str: "text"}
_LISTS: dict[Kind, Kind] = {"int": "ints", "float": "floats", "text": "texts"}

EVENT_TIMES = frozenset(
    {
        *("event_time_ns", "onset_ns", "decided_at_ns", "expires_at_ns", "mark_ns", "effective_from_ns"),
        *("window_start_ns", "window_end_ns", "observed_ns", "written_ns"),
    }
)
"""Fields that are a moment: they are a time stamp as well, named without `_ns`. All other nanoseconds are spans."""

_SUBJECTS: dict[type[Record], str] = {
    GpuFrame: "gpu_uuid",
    FabricFrame: "device",
    StepTiming: "rank",
    RankProgress: "rank",
    RankPlacement: "rank",
}
"""Families whose lists have an entry for each subject, and the list that says how many there are."""

_PAUSES = ("pfc_port", "pfc_priority", "rx_pause_frames", "tx_pause_frames", "rx_pause_us", "tx_pause_us")
_OWN_TABLE = {FabricFrame: frozenset(_PAUSES), StepTiming: frozenset({"collectives"})}


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: of the field, with the names of those that it stands in before it.
        kind: what its values are.
        path: of the field in the record.
        is_of_subject: whether the field has an entry for each subject.
    """

    name: str
    kind: Kind
    path: tuple[str, ...]
    is_of_subject: bool = False


_PLACE = (Column("kafka_partition", "int", ()), Column("kafka_offset", "int", ()), Column("append_ms", "int", ()))
"""Where a record stood in its topic, and when the broker took it."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of one family.

    Attributes:
        name: of the table.
        family: whose records it holds.
        columns: of its rows, those of the place first.
    """

    name: str
    family: type[Record]
    columns: tuple[Column, ...]

    def rows(self, record: Record, position: Position) -> Iterator[tuple[str, Sequence[Any]]]:
        """Columns of a record's rows by name, all of one length."""
        fields = record.__dict__
        if self.name.endswith("_collectives"):
            yield from _collectives(record, self.columns, position)
            return
        places: tuple[int, ...] | None = None
        if self.name.endswith("_pauses"):
            places = fields["pfc_port"]
        subject = _SUBJECTS.get(self.family)
        count = len(places) if places is not None else len(fields[subject]) if subject is not None else 1
        for column, value in zip(_PLACE, (position.partition, position.offset, position.append_ms), strict=True):
            yield column.name, (value,) * count
        for column in self.columns[len(_PLACE) :]:
            value = _at(fields, column.path)
            if not column.is_of_subject:
                yield column.name, (_told(column.kind, value),) * count
            elif value is None:
                yield column.name, (None,) * count
            elif isinstance(value, dict):
                yield column.name, [_told(column.kind, _entry(value, index)) for index in range(count)]
            elif places is not None and column.name not in _PAUSES:
                yield column.name, [value[index] for index in places]
            else:
                yield column.name, value


def _at(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value = fields[path[0]]
    for name in path[1:]:
        if value is None:
            return None
        value = getattr(value, name)
    return value


def _entry(columns: Mapping[str, Sequence[Any]], index: int) -> dict[str, Any]:
    return {name: column[index] for name, column in columns.items()}


def _told(kind: Kind, value: Any) -> Any:
    if kind != "json" or value is None:
        return value
    return orjson.dumps(value, default=_plain).decode()


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True)


def _collectives(
    record: Record, columns: tuple[Column, ...], position: Position
) -> Iterator[tuple[str, Sequence[Any]]]:
    """A row for each collective of a step and rank."""
    assert isinstance(record, StepTiming)
    ranks, collectives = record.rank, record.collectives
    none = (None,) * len(ranks)
    count = len(ranks) * len(collectives)
    for column, value in zip(_PLACE, (position.partition, position.offset, position.append_ms), strict=True):
        yield column.name, (value,) * count
    lists: dict[str, list[Any]] = {
        "rank": [rank for _ in collectives for rank in ranks],
        "group": [each.group for each in collectives for _ in ranks],
        "instance": [None if one is None else str(one) for each in collectives for one in each.instance or none],
        "op": [each.op for each in collectives for _ in ranks],
        "duration_us": [one for each in collectives for one in each.duration_us],
        "size_bytes": [one for each in collectives for one in each.size_bytes or none],
    }
    for column in columns[len(_PLACE) :]:
        known = lists.get(column.name)
        yield column.name, known if known is not None else (record.__dict__[column.path[0]],) * count


def _columns(family: type[Record]) -> tuple[Column, ...]:
    own, has_subjects = _OWN_TABLE.get(family, frozenset()), family in _SUBJECTS
    found = list(_PLACE)
    for name, field in family.model_fields.items():
        if name != "record" and name not in own:
            found += _of_field((name,), field.annotation, has_subjects)
    return tuple(found)


def _of_field(path: tuple[str, ...], annotation: Any, has_subjects: bool) -> Iterator[Column]:
    inner, name = _bare(annotation), "_".join(path)
    if isinstance(inner, type) and issubclass(inner, Record):
        for each, field in inner.model_fields.items():
            yield from _of_field((*path, each), field.annotation, has_subjects=False)
        return
    origin = get_origin(inner)
    if has_subjects and origin is tuple:
        yield Column(name, _kind(get_args(inner)[0]), path, is_of_subject=True)
    elif has_subjects and origin is dict and get_origin(get_args(inner)[1]) is tuple:
        is_counter = _kind(get_args(get_args(inner)[1])[0]) == "int"
        yield Column(name, "counters" if is_counter else "json", path, is_of_subject=True)
    else:
        yield Column(name, _kind(annotation), path)


def _kind(annotation: Any) -> Kind:
    inner = _bare(annotation)
    if get_origin(inner) is Literal:
        return "text"
    if get_origin(inner) is tuple and get_args(inner)[-1] is Ellipsis:
        return _LISTS.get(_kind(get_args(inner)[0]), "json")
    return _SCALARS.get(inner, "json")


def _bare(annotation: Any) -> Any:
    """A type without its bounds, and without null where it may be null."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        others = [each for each in get_args(annotation) if each is not type(None)]
        return _bare(others[0]) if len(others) == 1 else annotation
    return annotation


def _named(names: str, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    by_name = {column.name: column for column in columns}
    return tuple(by_name[name] for name in names.split())


def _tables() -> dict[type[Record], tuple[Table, ...]]:
    found: dict[type[Record], tuple[Table, ...]] = {}
    for family in (family for topic in TOPICS for family in topic.records):
        name = str(family.model_fields["record"].default)
        found[family] = (Table(name, family, _columns(family)),)
    places = " ".join(column.name for column in _PLACE)
    ports, steps = found[FabricFrame][0], found[StepTiming][0]
    pauses = tuple(Column(name, "int", (name,), is_of_subject=True) for name in _PAUSES)
    of_port = _named(f"{places} view node_id switch_id agent_session seq event_time_ns device port", ports.columns)
    of_step = _named(f"{places} job_id epoch node_id agent_session seq event_time_ns step phase rank", steps.columns)
    of_rank: dict[str, Kind] = {
        "group": "text",
        "instance": "text",
        "op": "text",
        "duration_us": "int",
        "size_bytes": "int",
    }
    collectives = tuple(Column(name, kind, ("collectives",), is_of_subject=True) for name, kind in of_rank.items())
    found[FabricFrame] += (Table("fabric_frame_pauses", FabricFrame, (*of_port, *pauses)),)
    found[StepTiming] += (Table("step_timing_collectives", StepTiming, (*of_step, *collectives)),)
    return found


TABLES: dict[type[Record], tuple[Table, ...]] = _tables()
"""Tables by record family; most families have one."""

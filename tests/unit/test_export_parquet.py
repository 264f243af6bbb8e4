"""Parquet of an archive: every number of every record is in it, in a row for each GPU, port or rank."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import START_NS, at, gpu_frame, nic_frame, position_of, step_timing
from filled_records import filled

import paceline.export.parquet as parquet
from paceline.export.tables import EVENT_TIMES, TABLES
from paceline.export_command import export_command
from schemas.archive import ArchiveLine, ArchiveWriter, read_archive
from schemas.base import EventTimeNs, Record
from schemas.codec import decode_value
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import StepTiming
from schemas.topics import TOPICS, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FAMILIES = [family for topic in TOPICS for family in topic.records]


def exported(directory: Path, records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Rows by table."""
    with parquet.ParquetTables(directory) as tables:
        for offset, record in enumerate(records):
            tables.take(record, position_of(record, offset))
    return {path.stem: read(path).to_pylist() for path in directory.iterdir()}


def read(path: Path) -> Any:
    """A table with its time stamps as the numbers that they are: Python's own have no nanoseconds."""
    table = pq.read_table(path)
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def flattened(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, inner in value.items():
        found[prefix + name] = inner
        if isinstance(inner, dict):
            found.update(flattened(inner, f"{prefix}{name}_"))
    return found


def is_in(row: dict[str, Any], name: str, value: Any) -> bool:
    """Whether a row tells a field: as it is, the only entry of its list, or as JSON."""
    told = row[name]
    if isinstance(told, str) and not isinstance(value, str):
        alone = value[0] if isinstance(value, list) else value
        of_subject = {key: column[0] for key, column in value.items() if column} if is_columns(value) else value
        return told == alone or orjson.loads(told) in (value, of_subject)
    if isinstance(value, dict):
        return dict(told) == {key: column[0] for key, column in value.items()}
    return told in (value, value[0] if isinstance(value, list) else value)


def is_columns(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(column, list) for column in value.values())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_field_of_every_family_is_in_its_table(family: type[Record], tmp_path: Path) -> None:
    value = filled(family, lambda path: {"id": "7"} if path in DICTIONARIES else f"a {path[-1]}")
    record = decode_value(topic_of(family).name, value)
    (first, *others) = (exported(tmp_path, [record])[table.name] for table in TABLES[family])
    (row,) = first
    beside = {name: told for (other,) in others for name, told in other.items()}
    elsewhere = {"pfc_port", "pfc_priority", "rx_pause_frames", "tx_pause_frames", "rx_pause_us", "tx_pause_us"}
    for name, inner in flattened(orjson.loads(orjson.dumps(value))).items():
        if name in row:
            assert is_in(row, name, inner), name
        elif name in elsewhere:
            assert is_in(beside, name, inner), name
        elif name == "collectives":
            assert all(is_in(beside, each, told) for each, told in inner[0].items())
        else:
            # What stands for itself, and what is told by its parts or within a text.
            assert name == "record" or isinstance(inner, dict) or any(name.startswith(f"{f}_") for f in row), name
        if name in row and name.rpartition("_")[0] and name in EVENT_TIMES:
            assert row[name.removesuffix("_ns")] == inner


DICTIONARIES = {("groups",), ("pending",), ("completed",), ("detail",)}


def test_moments_are_time_stamps_besides_and_spans_are_not() -> None:
    nested = {type_ for family in FAMILIES for type_ in family.model_fields}
    moments = {
        name
        for family in (*FAMILIES, *_inner_records())
        for name, hint in get_type_hints(family, include_extras=True).items()
        if EventTimeNs in (hint, *get_args(hint))
    }
    assert moments == EVENT_TIMES
    assert "settle_ns" in nested
    names = {column.name for tables in TABLES.values() for table in tables for column in table.columns}
    assert {"power_violation_ns", "settle_ns"} <= names


def _inner_records() -> list[type[Record]]:
    from schemas.events import HostLoad

    return [HostLoad]


def test_a_frame_is_a_row_for_each_gpu(tmp_path: Path) -> None:
    frame = gpu_frame(3, gpus=3).model_copy(update={"sm_clock_mhz": (1, None, 3), "power_w": None})
    rows = exported(tmp_path, [frame, gpu_frame(4, gpus=2)])["gpu_frame"]
    assert [row["gpu_uuid"] for row in rows[:3]] == list(frame.gpu_uuid)
    assert [row["sm_clock_mhz"] for row in rows[:3]] == [1, None, 3]
    assert {row["power_w"] for row in rows[:3]} == {None}
    assert [row["kafka_offset"] for row in rows] == [0, 0, 0, 1, 1]
    assert rows[0]["event_time"] == rows[0]["event_time_ns"] == at(3)
    assert rows[0]["append_time"] == rows[0]["append_ms"] == at(3) // 1_000_000
    moments = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "gpu_frame.parquet")}
    assert (moments["event_time"], moments["append_time"]) == ("timestamp[ns, tz=UTC]", "timestamp[ms, tz=UTC]")


def test_pauses_and_collectives_have_tables_of_their_own(tmp_path: Path) -> None:
    value = filled(FabricFrame, lambda path: f"a {path[-1]}")
    twice = {name: 2 * column if isinstance(column, list) else column for name, column in value.items()}
    twice |= {
        "device": ["mlx5_0", "mlx5_1"],
        "counters": {"drops": [4, None]},
        "pfc_port": [1, 1],
        "pfc_priority": [3, 5],
    }
    step = filled(StepTiming, lambda path: f"a {path[-1]}")
    ranks = {name: 2 * column if isinstance(column, list) else column for name, column in step.items()}
    timings = [
        {"group": "dp", "instance": [0, "b"], "op": "send", "duration_us": [5, 6]},
        {"group": "tp", "duration_us": [7, None], "size_bytes": [8, 9]},
    ]
    ranks |= {"rank": [0, 1], "collectives": timings}
    tables = exported(tmp_path, [FabricFrame.model_validate(twice), StepTiming.model_validate(ranks)])
    assert [dict(row["counters"]) for row in tables["fabric_frame"]] == [{"drops": 4}, {"drops": None}]
    pauses = [(row["device"], row["pfc_priority"], row["rx_pause_frames"]) for row in tables["fabric_frame_pauses"]]
    assert pauses == [("mlx5_1", 3, 1), ("mlx5_1", 5, 1)]
    columns = ("rank", "group", "instance", "op", "duration_us", "size_bytes")
    assert [tuple(row[name] for name in columns) for row in tables["step_timing_collectives"]] == [
        (0, "dp", "0", "send", 5, None),
        (1, "dp", "b", "send", 6, None),
        (0, "tp", None, None, 7, 8),
        (1, "tp", None, None, None, 9),
    ]


def test_what_is_read_back_are_the_numbers_of_the_records(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the simulated incident, in several groups of rows."""
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 500)
    archive = request.config.rootpath / "tests/golden/mixed.jsonl.zst"
    assert export_command(str(archive), tmp_path / "out", None, None, is_tolerant=False) == 0
    records = [decode_value(e.topic, e.value) for e in read_archive(archive) if isinstance(e, ArchiveLine)]
    for family, subject in ((GpuFrame, "gpu_uuid"), (FabricFrame, "device"), (StepTiming, "rank")):
        of_family = [record.__dict__ for record in records if isinstance(record, family)]
        (table, *_) = TABLES[family]
        read = pq.read_table(tmp_path / "out" / f"{table.name}.parquet")
        assert pq.ParquetFile(tmp_path / "out" / f"{table.name}.parquet").num_row_groups > 1
        for column in table.columns[3:]:
            if column.kind == "counters":
                continue
            expected: list[Any] = []
            for fields in of_family:
                value, count = fields[column.name], len(fields[subject])
                expected += (value or [None] * count) if column.is_of_subject else [value] * count
            assert read[column.name].to_pylist() == expected, column.name


def test_a_number_that_no_column_holds_is_null_and_counted(tmp_path: Path) -> None:
    frame = nic_frame(1, 0, 0)
    frame = frame.model_copy(update={"rx_data_bytes": (2**64 - 1,) * len(frame.device)})
    with parquet.ParquetTables(tmp_path) as tables:
        tables.take(frame, position_of(frame))
    assert tables.unfit == len(frame.device)
    assert set(pq.read_table(tmp_path / "fabric_frame.parquet")["rx_data_bytes"].to_pylist()) == {None}


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, out = tmp_path / "a.jsonl.zst", tmp_path / "out"
    with ArchiveWriter.open(archive) as writer:
        writer.write(step_timing(0, 1, [1]), START_NS)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-3])
    assert export_command(str(archive), out, None, None, is_tolerant=False) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl.zst"]
    archive.write_bytes(whole)
    assert export_command(str(archive), out, None, None, is_tolerant=False) == 0
    assert export_command(str(archive), out, None, None, is_tolerant=False) == 2
    assert "is there already" in capsys.readouterr().err


def test_what_holds_no_record_leaves_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no archive\n")
    assert export_command(str(tmp_path / "notes.txt"), tmp_path / "out", None, None, is_tolerant=False) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert "there is no record in it" in capsys.readouterr().err


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(parquet.MissingPyarrowError, match=r"paceline\[parquet\]"):
        parquet.ParquetTables(tmp_path)

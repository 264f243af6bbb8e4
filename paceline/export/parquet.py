"""Parquet files of tables, one file a table, written in groups of rows so that memory does not grow with the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from paceline.export.tables import EVENT_TIMES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from paceline.export.tables import Column, Kind, Table
    from schemas.base import Record
    from streams.core.position import Position

__all__ = ["MissingPyarrowError", "ParquetTables"]

_GROUP_ROWS = 32_768
"""Rows that are held before they are written: of GPU frames, the widest, some 60 MB."""


class MissingPyarrowError(Exception):
    """The library that writes Parquet is not installed; the text says how to get it."""


class ParquetTables:
    """Writes records to a directory of Parquet files, which has a file for each table that got a row.

    Args:
        directory: empty.

    Attributes:
        rows: rows by table.
        unfit: numbers that are above 64 bits with a sign; they are null in the files.

    Raises:
        MissingPyarrowError: pyarrow is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise MissingPyarrowError("writing Parquet needs pyarrow: pip install 'paceline[parquet]'") from None
        self._pa, self._pq = pa, pq
        self._directory = directory
        self._held: dict[str, dict[str, list[Any]]] = {}
        self._writers: dict[str, Any] = {}
        self.rows: dict[str, int] = {}
        self.unfit = 0

    def take(self, record: Record, position: Position) -> None:
        """Add the rows of a record."""
        for table in TABLES[type(record)]:
            held = self._held.get(table.name)
            if held is None:
                held = self._held[table.name] = {column.name: [] for column in table.columns}
            for name, values in table.rows(record, position):
                held[name].extend(values)
            if len(held["kafka_offset"]) >= _GROUP_ROWS:
                self._write(table, held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for table in (table for tables in TABLES.values() for table in tables):
                    if (held := self._held.get(table.name)) and held["kafka_offset"]:
                        self._write(table, held)
        finally:
            for writer in self._writers.values():
                writer.close()

    def _write(self, table: Table, held: dict[str, list[Any]]) -> None:
        arrays: dict[str, Any] = {}
        for column in table.columns:
            values = held[column.name]
            arrays[column.name] = self._array(column.kind, values)
            if (moment := _moment(column)) is not None:
                unit, name = moment
                arrays[name] = self._pa.array(values, self._pa.timestamp(unit, tz="UTC"))
        group = self._pa.table(arrays)
        writer = self._writers.get(table.name)
        if writer is None:
            path = self._directory / f"{table.name}.parquet"
            writer = self._writers[table.name] = self._pq.ParquetWriter(path, group.schema, compression="zstd")
        writer.write_table(group)
        self.rows[table.name] = self.rows.get(table.name, 0) + group.num_rows
        for values in held.values():
            values.clear()

    def _array(self, kind: Kind, values: Sequence[Any]) -> Any:
        try:
            return self._pa.array(values, self._type(kind))
        except OverflowError:
            return self._pa.array([self._fitting(value) for value in values], self._type(kind))

    def _fitting(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._fitting(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._fitting(each) for each in value]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            self.unfit += 1
            return None
        return value

    def _type(self, kind: Kind) -> Any:
        pa = self._pa
        plain = {"int": pa.int64(), "float": pa.float64(), "flag": pa.bool_(), "text": pa.string(), "json": pa.string()}
        lists = {"ints": pa.list_(pa.int64()), "floats": pa.list_(pa.float64()), "texts": pa.list_(pa.string())}
        return {**plain, **lists, "counters": pa.map_(pa.string(), pa.int64())}[kind]


def _moment(column: Column) -> tuple[str, str] | None:
    """Unit and name of the time stamp that a column is told as besides."""
    if column.name == "append_ms":
        return "ms", "append_time"
    if column.path and column.path[-1] in EVENT_TIMES:
        return "ns", column.name.removesuffix("_ns")
    return None

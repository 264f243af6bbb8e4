"""`paceline decode fabric`: counters of NICs and switches, recognised by content, to one record for each port.

Guarantees: outputs of several commands may follow each other in one file; the file is one snapshot, so a port's
lines meet in one record wherever they stand, and records come after the last line. No rates, no differences, no
verdicts: values are as the source has them, apart from their unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Literal

from agents.decode import fabric_ethtool, fabric_sonic, fabric_sysfs
from agents.decode.fabric_counters_db import Export
from agents.decode.fabric_snapshot import Port, Snapshot
from agents.decode.record import Damaged, Record, Tally, UnknownFormat, malformed
from agents.decode.text import lines

_LONGEST_LINE: Final = 1 << 28
_LONGEST_ROW: Final = 1 << 12
"""Characters of a line of text at most; only an export as JSON has longer ones."""

_SECTION = re.compile(r"\s*(?P<mark>[-=#]{3,})\s+(?P<title>[^\s=-].*?)\s*(?P=mark)?\s*")
_COMMAND = re.compile(r"(?:^|[\s/])ethtool\s+(?:-S|--statistics)\s+(?P<device>[A-Za-z][\w.@-]*)", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z_-]*[0-9][\w.-]{0,14}", re.ASCII)
_JSON_TRIES: Final = 16
_DECODER = json.JSONDecoder()


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:  # noqa: ARG001 - nothing here lacks text
    """Yields the records of one file: malformed lines, then `pfc`, `port` and `pfc_watchdog` records.

    Raises:
        UnknownFormat: Nothing in the file is of a known sub-format.
        Damaged: The file is JSON and cannot be read.
    """
    numbered = list(lines(stream, _LONGEST_LINE))
    reader = _Reader([line for _, line in numbered])
    yield from reader.read()
    if reader.recognised:
        yield from reader.snapshot.records()
    elif reader.broken is not None:
        raise Damaged(*reader.broken)
    elif any(line.strip() for _, line in numbered):
        raise UnknownFormat("no counters of ethtool, sysfs, a SONiC table or COUNTERS_DB")


@dataclass(slots=True)
class _Part:
    """What the lines at hand are part of.

    Attributes:
        kind: `text` is nothing that we know.
        port: Whose counters the lines of ethtool are.
        directory: Whose files the lines of a dump are.
        table: What the rows of a SONiC table are.
    """

    kind: Literal["text", "ethtool", "directory", "table"] = "text"
    port: Port | None = None
    directory: str = ""
    table: fabric_sonic.Table | None = None


@dataclass(slots=True)
class _Reader:
    """Reads line after line, with the part of the file that they stand in."""

    lines: list[str]
    snapshot: Snapshot = field(default_factory=Snapshot)
    recognised: bool = False
    broken: tuple[str, str] | None = None
    _export: Export = field(default_factory=Export)
    _part: _Part = field(default_factory=_Part)
    _device: str | None = None
    _blocks: int = 0
    _json_tries: int = 0

    def read(self) -> Iterator[Record]:
        """Gathers all lines into the snapshot and yields what could not be read."""
        index = 0
        while index < len(self.lines):
            line = self.lines[index]
            if self._opens_json(line):
                used, record = self._read_json(index)
                if record is not None:
                    yield record
                index += used
                continue
            if line.strip() and len(line) <= _LONGEST_ROW:
                record = self._read_line(line, index)
                if record is not None:
                    yield record
            index += 1
        yield from self._export.put_into(self.snapshot)

    def _read_line(self, line: str, index: int) -> Record | None:
        attribute = fabric_sysfs.parse_line(line)
        if attribute is not None:
            self.recognised = True
            return fabric_sysfs.put_attribute(self.snapshot, attribute, line, index + 1)
        if self._opens_part(line, index):
            return None
        part = self._part
        if part.kind == "directory":
            attribute = fabric_sysfs.parse_named(line, part.directory)
            if attribute is None:
                return None
            return fabric_sysfs.put_attribute(self.snapshot, attribute, line, index + 1)
        if part.table is not None:
            return fabric_sonic.put_row(self.snapshot, part.table, line, index + 1)
        if part.port is None and fabric_ethtool.is_counter(line):
            self._open_ethtool()
        if self._part.port is not None:
            return fabric_ethtool.put_line(self._part.port, line, index + 1)
        return None

    def _opens_part(self, line: str, index: int) -> bool:
        """Whether the line is a heading: of a command's output, a directory's dump or a table."""
        if fabric_ethtool.NOTHING.fullmatch(line):
            self.recognised = True
            self._part, self._device = _Part(), None
            return True
        if fabric_ethtool.TITLE.fullmatch(line):
            self._open_ethtool()
            return True
        if self._part.port is not None and fabric_ethtool.OTHER_OUTPUT.fullmatch(line):
            self._part, self._device = _Part(), None
            return True
        command = _COMMAND.search(line)
        if command is not None:
            self._part, self._device = _Part(), command["device"]
            return True
        section = _SECTION.fullmatch(line)
        if section is not None:
            self._open_section(section["title"])
            return True
        table = fabric_sonic.parse_header(line)
        if table is not None:
            self.recognised = True
            self._part = _Part("table", table=table)
            return True
        name = line.strip().rstrip(":")
        if _INTERFACE.fullmatch(name) and self._titles_next(index):
            self._device = name
            return True
        return False

    def _open_ethtool(self) -> None:
        self.recognised = True
        self._blocks += 1
        scope = self._blocks if self._device is None else None
        self._part = _Part("ethtool", port=self.snapshot.port("host", self._device, None, scope))
        self._device = None

    def _open_section(self, title: str) -> None:
        self._device = None
        if fabric_sysfs.is_directory(title):
            self.recognised = True
            self._part = _Part("directory", directory=title)
            return
        self._part = _Part()
        if _INTERFACE.fullmatch(title):
            self._device = title

    def _titles_next(self, index: int) -> bool:
        following = next((line for line in self.lines[index + 1 : index + 3] if line.strip()), "")
        return fabric_ethtool.TITLE.fullmatch(following) is not None

    def _opens_json(self, line: str) -> bool:
        start = line.lstrip()[:2]
        return start[:1] == "{" or start in {"[", "[{", "[ "}

    def _read_json(self, index: int) -> tuple[int, Record | None]:
        """Reads a JSON value that begins in a line; returns how many lines it took and what could not be read."""
        self._part, self._device = _Part(), None
        self._json_tries += 1
        if self._json_tries > _JSON_TRIES:
            return 1, None
        text = "\n".join(self.lines[index:])
        start = len(text) - len(text.lstrip())
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            reason = f"JSON cannot be read: {reason}"
            self.broken = self.broken or (reason, self.lines[index])
            # A file that is nothing but this is damaged as a whole, and says so at its end.
            return 1, malformed(reason, self.lines[index], index + 1) if self.recognised else None
        self._export.take(value)
        self.recognised = self.recognised or self._export.is_known
        return text.count("\n", 0, end) + 1, None

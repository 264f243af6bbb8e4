"""`paceline decode dcgm`: GPU telemetry of DCGM and nvidia-smi, recognised by content, to `gpu_sample` records.

Guarantees: whichever of the sub-formats a line is of decides how it is read, so they may follow each other in one
file; text is read line by line, whatever the file's size, JSON as a whole. An error message that a tool
printed among its data is a `collector_error`. Samples are not joined, and nothing is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, Final

from agents.decode import dcgm_csv, dcgm_dmon, dcgm_json, dcgm_prometheus
from agents.decode.record import Damaged, Record, Tally, UnknownFormat
from agents.decode.text import lines

_LONGEST_LINE: Final = 1 << 28
"""Bytes of a line at most: an export of a whole cluster may be one line of JSON."""
_HELD: Final = 1000
"""Messages kept while it is open whether this file is telemetry at all."""

# An error message of a tool that prints nothing else when it fails: alone in a file, it still says whose it is.
_FAILURE = re.compile(
    r"\s*(?:Error\b.*(?:host ?engine|DCGM|NVML|NVIDIA|\bGPU|watches|\bvalues|\bfield)|NVIDIA-SMI has failed|Unable to determine the device handle"
    r"|Unable to connect to (?:the )?host ?engine|No devices were found|No data returned from the host ?engine"
    r"|Failed to initialize NVML|Field [\"']?\S+[\"']? is not a valid field to query|Unknown Error\s*$)",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b(?:errors?|fail(?:ed|s|ure)?|unable|cannot|can't|could ?n[o']t|invalid|not valid|not found|no data"
    r"|unrecoverable|denied|refused|timed ?out|timeout|is lost|fatal|exception|insufficient|not supported|requires"
    r"|unknown field|no devices)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"\s*dmon was stopped\b", re.IGNORECASE)
_DIGIT = re.compile(r"[0-9]", re.ASCII)


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:  # noqa: ARG001 - nothing here lacks text
    """Yields the records of one file.

    Raises:
        UnknownFormat: Nothing in the file is of a known sub-format.
        Damaged: The file is JSON and none of it can be read.
    """
    numbered = lines(stream, _LONGEST_LINE)
    for first in numbered:
        if not first[1].strip():
            continue
        everything = chain([first], numbered)
        if first[1].lstrip()[:1] in {"{", "["}:
            yield from _decode_json("\n" * (first[0] - 1) + "\n".join(text for _, text in everything))
        else:
            yield from _decode_text(everything)
        return


def _decode_json(text: str) -> Iterator[Record]:
    recognised = False
    held: list[Record] = []
    broken: dcgm_json.Document | None = None
    for document in dcgm_json.documents(text):
        recognised = recognised or dcgm_json.is_sample(document.value)
        if document.error is not None:
            broken = broken or document
        record = dcgm_json.parse_document(document)
        if record is None:
            continue
        if not recognised:
            held = [*held, record][:_HELD]
            continue
        yield from held
        held = []
        yield record
    if recognised:
        return
    if any(record["kind"] == "collector_error" for record in held):
        yield from held
    elif broken is not None:
        raise Damaged(broken.error or "", broken.raw)
    elif text.strip(" \t\n[]"):
        raise UnknownFormat("JSON without entityId and fields")


def _decode_text(numbered: Iterator[tuple[int, str]]) -> Iterator[Record]:
    reader = _Reader()
    held: list[Record] = []
    for number, line in numbered:
        record = reader.read(number, line)
        if not reader.recognised:
            if record is not None and len(held) < _HELD:
                held.append(record)
            continue
        if held:
            yield from held
            held = []
        if record is not None:
            yield record
    if not reader.recognised:
        raise UnknownFormat("no dmon table, metric, nvidia-smi header, JSON or entity line")


class _Reader:
    """Reads line after line, with the header that stands above them."""

    def __init__(self) -> None:
        self.recognised = False
        self._table: dcgm_dmon.Header | dcgm_csv.Header | None = None

    def read(self, number: int, line: str) -> Record | None:
        """The record of a line, if it has one."""
        if not line.strip() or _CLOSING.match(line):
            return None
        if self._is_header(line):
            self.recognised = True
            return None
        record = self._sample(number, line)
        if record is not None:
            self.recognised = True
            return record
        if line.lstrip().startswith("#"):
            return None
        if _FAILURE.match(line):
            self.recognised = True
            return _message(line)
        return _message(line) if _ERROR.search(line) else None

    def _is_header(self, line: str) -> bool:
        table = dcgm_dmon.parse_header(line) or dcgm_csv.parse_header(line)
        if table is not None:
            self._table = table
            return True
        if isinstance(self._table, dcgm_dmon.Header) and dcgm_dmon.is_unit_line(line):
            return True
        return dcgm_prometheus.is_comment(line)

    def _sample(self, number: int, line: str) -> Record | None:
        metric = dcgm_prometheus.parse_line(line, number)
        if metric is not None:
            return metric
        if isinstance(self._table, dcgm_csv.Header):
            return self._csv_sample(number, line, self._table)
        if self._says_only_words(line):
            return None
        return dcgm_dmon.parse_row(line, self._table, number)

    def _csv_sample(self, number: int, line: str, table: dcgm_csv.Header) -> Record | None:
        whole_row = dcgm_csv.is_row(line, table)
        if whole_row and (len(table.columns) > 1 or not _ERROR.search(line) or line.lstrip().startswith("[")):
            return dcgm_csv.parse_row(line, table, number)
        plain = dcgm_dmon.parse_row(line, None, number)
        if plain is not None:
            return plain
        if (
            "," not in line
            or line.lstrip().startswith("#")
            or (_FAILURE.match(line) or not _DIGIT.match(line.lstrip()))
        ):
            return None
        return dcgm_csv.parse_row(line, table, number)

    @staticmethod
    def _says_only_words(line: str) -> bool:
        """`GPU 3 is lost` begins like a row and is a message; a row has a number, a null or a bracket."""
        entity = dcgm_dmon.parse_entity(line) if _ERROR.search(line) else None
        if entity is None:
            return False
        rest = line.expandtabs()[entity.end :]
        return not _DIGIT.search(rest) and "N/A" not in rest and "[" not in rest


def _message(line: str) -> Record:
    return {"kind": "collector_error", "message": line.strip()}

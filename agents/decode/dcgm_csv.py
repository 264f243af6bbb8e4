"""`nvidia-smi --query-gpu=... --format=csv`, with and without units: one sample a row.

Guarantees: columns are taken from the header, `[MHz]` or not; masks in hexadecimal are numbers; `[N/A]` and its
kin are null, and `[GPU is lost]` and its kin are null and told; a number with thousands separators that only one
reading of the row allows is one cell. Output of `noheader` says nothing about its columns
and is not read. A time stamp has no zone and stays text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.decode import pci_address
from agents.decode.dcgm_fields import by_nvidia_smi_name
from agents.decode.dcgm_sample import new_sample, put, stated, whole
from agents.decode.record import Record, malformed

_COLUMN = re.compile(r"(?P<name>[a-z][a-z0-9_.]*)(?:\s*\[[^\]]*\])?", re.IGNORECASE | re.ASCII)

# The groups of digits that thousands separators part: the first, those within, and the last with its unit.
_FIRST = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)
_WITHIN = re.compile(r"[0-9]{3}", re.ASCII)
_LAST = re.compile(r"[0-9]{3}(?:\.[0-9]+)?(?:\s*(?:[A-Za-z]{1,4}|%))?", re.ASCII)
_MOST_GROUPS = 7
"""Groups of a number at most: 64 bits are 20 digits."""

_IDENTITY = {
    "index": "gpu_index",
    "uuid": "gpu_uuid",
    "gpu_uuid": "gpu_uuid",
    "pci.bus_id": "pci_bus_id",
    "gpu_bus_id": "pci_bus_id",
    "timestamp": "time_text",
    "name": "model",
    "gpu_name": "model",
}
_UNMISTAKABLE = frozenset({"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"})


@dataclass(frozen=True, slots=True)
class Header:
    """Column names in order, without their units."""

    columns: tuple[str, ...]


def parse_header(line: str) -> Header | None:
    """The columns of a header; None for a line that is none or names nothing that we know."""
    names: list[str] = []
    for cell in line.split(","):
        found = _COLUMN.fullmatch(cell.strip())
        if found is None:
            return None
        names.append(found["name"].lower())
    if not any(name in _UNMISTAKABLE or by_nvidia_smi_name(name) is not None for name in names):
        return None
    return Header(tuple(names))


def is_row(line: str, header: Header) -> bool:
    """Whether a line has the cells of the header's columns."""
    return len(_cells(line, header)) == len(header.columns)


def parse_row(line: str, header: Header, number_of_line: int | None = None) -> Record:
    """The sample of one row, or `malformed` where its cells are not those of the header."""
    cells = _cells(line, header)
    if len(cells) != len(header.columns):
        reason = f"{len(cells)} cells under {len(header.columns)} columns"
        return malformed(reason, line, number_of_line)
    sample = new_sample("gpu", None)
    for name, cell in zip(header.columns, cells, strict=True):
        identity = _IDENTITY.get(name)
        if identity is None:
            put(sample, by_nvidia_smi_name(name), name, cell)
            continue
        probe: Record = {}
        put(probe, None, name, cell)  # a lost GPU may have a fault even where its name belongs
        if "read_error" in probe:
            sample.setdefault("read_error", probe["read_error"])
            cell = ""  # noqa: PLW2901 - the fault has been taken out of it
        if identity == "gpu_index":
            sample["gpu_index"] = whole(cell)
        elif identity == "pci_bus_id":
            sample["pci_bus_id"] = pci_address.normalise(cell)
        else:
            sample[identity] = stated(cell)
    return sample


def _cells(line: str, header: Header) -> list[str]:
    cells = [cell.strip() for cell in line.split(",")]
    while len(cells) > len(header.columns) and not cells[-1]:
        cells.pop()
    if len(cells) > len(header.columns):
        return _joined(line.split(",")[: len(cells)], len(header.columns)) or cells
    return cells


def _joined(pieces: list[str], columns: int) -> list[str] | None:
    """The cells of a row with numbers put together so that they fit, None unless there is exactly one way."""
    excess = len(pieces) - columns
    if excess > columns * (_MOST_GROUPS - 1):
        return None
    lengths = [_number_lengths(pieces, start) for start in range(len(pieces))]
    if not any(lengths):
        return None
    # By commas still to be joined: how many ways there are from here on, and how long the first cell is in the last.
    ways: list[dict[int, tuple[int, int]]] = [{} for _ in pieces] + [{0: (1, 0)}]
    for start in reversed(range(len(pieces))):
        for length in (1, *lengths[start]):
            for joins, (count, _) in ways[start + length].items():
                total = joins + length - 1
                if total <= excess:
                    ways[start][total] = (min(2, count + ways[start].get(total, (0, 0))[0]), length)
    if ways[0].get(excess, (0, 0))[0] != 1:
        return None
    cells: list[str] = []
    start = 0
    while start < len(pieces):
        length = ways[start][excess][1]
        cells.append(",".join(pieces[start : start + length]).strip())
        start, excess = start + length, excess - length + 1
    return cells


def _number_lengths(pieces: list[str], start: int) -> list[int]:
    """How many pieces from `start` on may be one number: a separator has no blank beside it, unlike most commas."""
    if _FIRST.fullmatch(pieces[start].lstrip()) is None:
        return []
    found: list[int] = []
    for end in range(start + 1, min(start + _MOST_GROUPS, len(pieces))):
        if _LAST.fullmatch(pieces[end].rstrip()) is not None:
            found.append(end - start + 1)
        if _WITHIN.fullmatch(pieces[end]) is None:
            break
    return found

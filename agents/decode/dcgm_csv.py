"""`nvidia-smi --query-gpu=... --format=csv`, with and without units: one sample a row.

Guarantees: columns are taken from the header, `[MHz]` or not; masks in hexadecimal are numbers; `[N/A]` and its
kin are null, and `[GPU is lost]` and its kin are null and told. Output of `noheader` says nothing about its columns
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
    return cells

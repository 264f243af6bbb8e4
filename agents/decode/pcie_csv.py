"""A CSV of PCIe link readings, columns by header: nvidia-smi's names or those of home-made tables.

Guarantees: a column is known by the words of its name, in any order and spelling; without a column for the
address the record has none. Tables that do not tell a current width or generation are not ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.decode import pci_address
from agents.decode.dcgm_fields import FIELDS
from agents.decode.dcgm_sample import new_sample, put
from agents.decode.pcie_link import generation, link_record, whole
from agents.decode.record import Record, malformed

_UNIT = re.compile(r"\s*[\[(][^\])]*[\])]\s*$")
_WORD = re.compile(r"[a-z]+", re.ASCII)
_NAME = re.compile(r"\s*\"?[A-Za-z][\w .-]*(?:[\[(][^\])]*[\])])?\"?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Header:
    """What each column holds; None for a column that says nothing about a link."""

    columns: tuple[str | None, ...]


def parse_header(line: str) -> Header | None:
    """The columns of a header, None for a line that is none."""
    cells = line.split(",")
    if len(cells) < 2 or not all(_NAME.fullmatch(cell) for cell in cells):
        return None
    columns: list[str | None] = []
    for cell in cells:
        meaning = _meaning(_UNIT.sub("", cell.strip().strip('"')).lower())
        # The first of two columns of one meaning counts: the plain one precedes its variants.
        columns.append(meaning if meaning not in columns else None)
    return Header(tuple(columns)) if {"gen", "width"} & set(columns) else None


def parse_row(line: str, header: Header, number_of_line: int) -> Record:
    """The record of one row, or `malformed` where its cells are not those of the header."""
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    while len(cells) > len(header.columns) and not cells[-1]:
        cells.pop()
    if len(cells) != len(header.columns):
        return malformed(f"{len(cells)} cells under {len(header.columns)} columns", line, number_of_line)
    by_meaning = {name: cell for name, cell in zip(header.columns, cells, strict=True) if name is not None}
    faults: Record = {}
    for name, cell in by_meaning.items():
        put(faults, None, name, cell)
    record = link_record(
        pci_address.normalise(by_meaning.get("address", "")),
        gen=_generation(by_meaning.get("gen", "")),
        lanes=_lanes(by_meaning.get("width", "")),
        max_gen=_generation(by_meaning.get("max_gen", "")),
        max_lanes=_lanes(by_meaning.get("max_width", "")),
        lost="is lost" in faults.get("read_error", "").lower(),
    )
    if "gpu_index" in by_meaning:
        record["gpu_index"] = whole(by_meaning["gpu_index"])
    if "util" in by_meaning:
        record["gpu_util_pct"] = _percentage(by_meaning["util"])
    if "replay" in by_meaning:
        replays = whole(by_meaning["replay"])
        record["replay_count"] = None if replays is None or replays < 0 else replays
    if "read_error" in faults:
        record["read_error"] = faults["read_error"]
    return record


def _meaning(name: str) -> str | None:
    words = _WORD.findall(name)
    if any(word.startswith(("host", "gpumax", "gpucurrent", "mem", "sm", "device")) for word in words):
        return None
    limit = "max_" if {"max", "maximum", "cap", "capable"} & set(words) else ""
    if "width" in words or "lanes" in words:
        return f"{limit}width"
    if {"gen", "generation", "speed"} & set(words):
        return f"{limit}gen"
    if any(word.startswith("replay") for word in words):
        return "replay"
    if any(word.startswith("util") for word in words):
        return "util"
    if {"bus", "bdf", "address"} & set(words) or words == ["pci"]:
        return "address"
    return "gpu_index" if words in (["gpu"], ["index"], ["gpu", "index"], ["gpu", "id"]) else None


def _generation(text: str) -> int | None:
    by_speed = generation(text)
    if by_speed is not None:
        return by_speed
    bare = re.sub(r"^(?:pcie)?\s*gen\s*", "", text.strip(), flags=re.IGNORECASE)
    value = whole(bare)
    return value if value is not None and 0 <= value <= 15 else None


def _lanes(text: str) -> int | None:
    value = whole(text.strip().lower().removeprefix("x"))
    return value if value is not None and 0 <= value <= 63 else None


def _percentage(text: str) -> int | float | None:
    sample = new_sample("gpu", None)
    put(sample, FIELDS["gpu_util_pct"], "util", text)
    value: int | float | None = sample["gpu_util_pct"]
    return value

"""Where nodes stand, read from a table (CSV) or from Slurm's topology.conf, turned into node records.

The format is told by the content. Slurm's switches become places from below: the lowest switch that lists a node is
its leaf, the one above that its pod, the next its zone, and `labels.switches` names the whole way up. A node on several
leaf switches (one per rail) has these as rails and no leaf; a switch below several others ends the way there, since
nothing says which of them counts. A block of topology/block is the pod of nodes that have none from switches, and
`labels.block`. Deliberately not: no ring or torus plugin, no link speeds, no aggregated blocks, no look at a fabric.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from agents.decode.pci_address import normalise
from schemas.fleet import Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PlacesError", "expand_hosts", "load_places"]

_LARGEST_FILE: Final = 64 << 20
_HOSTS_AT_MOST: Final = 65_536
"""Names in one expression; Slurm has the same limit."""
_DEPTH_AT_MOST: Final = 8
_LONGEST_NAME: Final = 253

_COLUMNS: Final = ("node_id", "sku", "rack", "leaf", "rail", "zone", "pod", "gpu_uuid", "pci_bus_id")
_LISTS: Final = ("rail", "gpu_uuid", "pci_bus_id")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_SLURM = re.compile(r"\s*(?:SwitchName|BlockName|BlockSizes|Switches|Nodes|LinkSpeed)\s*=", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"\s*(?P<key>[A-Za-z0-9_.]+)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^\s\"]*))(?=\s|$)")
_END = re.compile(r"\r\n?|\n")
_NUMBERS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


class PlacesError(Exception):
    """The file tells no places; the text names the file, the line and what is wrong with it."""


def load_places(path: Path, now_ns: int) -> list[Node]:
    """The nodes of a table or of a topology.conf, in the file's order.

    Args:
        path: CSV with a header (`node_id` and any of `sku`, `rack`, `leaf`, `rail`, `zone`, `pod`, `gpu_uuid`,
            `pci_bus_id`; several rails or devices are separated by `;`), or Slurm's topology.conf.
        now_ns: wall time from which the records hold; it makes their version.

    Raises:
        PlacesError: the file cannot be read, is neither, or says what cannot be.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise PlacesError(f"{path}: {error.strerror or error}") from None
    if len(raw) > _LARGEST_FILE:
        raise PlacesError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PlacesError(f"{path}:{line}: not UTF-8") from None
    try:
        places = list(_places(text))
        nodes = [_node(line, fields, now_ns) for line, fields in places]
    except _LineError as error:
        raise PlacesError(f"{path}:{error.line}: {error}") from None
    except PlacesError as error:
        raise PlacesError(f"{path}: {error}") from None
    return nodes


def expand_hosts(expression: str) -> list[str]:
    """The names of a Slurm host list: `gpu[001-016,020],login1`, with several brackets or brackets in brackets.

    A range counts with as many digits as its first number is written with.

    Raises:
        PlacesError: a bracket is not closed, a range counts down, or there are more than 65,536 names.
    """
    names, position = _alternatives(expression, 0, 0)
    if position != len(expression):
        raise PlacesError(f"{expression[:60]!r}: a bracket closes that was not opened")
    if not all(names):
        raise PlacesError(f"{expression[:60]!r}: a name is empty")
    return names


class _LineError(PlacesError):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


_Place = tuple[int, dict[str, Any]]
"""A line's number, and the fields of the node that it places."""


def _places(text: str) -> Iterator[_Place]:
    first = next((line for raw in _END.split(text) if (line := raw.split("#", 1)[0].strip())), None)
    if first is None:
        raise PlacesError("holds no line to read")
    if _SLURM.match(first):
        return _slurm_places(text)
    return _table_places(text)


def _node(line: int, fields: dict[str, Any], now_ns: int) -> Node:
    try:
        return Node(version=max(1, now_ns // 10**9), effective_from_ns=now_ns, **fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise _LineError(line, f"{key}: {first['msg']}") from None


def _table_places(text: str) -> Iterator[_Place]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    first_lines: dict[str, int] = {}
    try:
        for cells in rows:
            line = rows.line_num
            row = [cell.strip() for cell in cells]
            if not any(row) or row[0].startswith("#"):
                continue
            if header is None:
                header = _header(row, line)
                continue
            if len(row) != len(header):
                raise _LineError(line, f"{len(row)} cells under {len(header)} columns")
            fields = {name: _cell(name, cell, line) for name, cell in zip(header, row, strict=True) if cell}
            node_id = row[header.index("node_id")]
            if not node_id:
                raise _LineError(line, "node_id is empty")
            if node_id in first_lines:
                raise _LineError(line, f"node {node_id!r} stands in line {first_lines[node_id]} already")
            first_lines[node_id] = line
            yield line, fields
    except csv.Error as error:
        raise _LineError(rows.line_num, f"no CSV: {error}") from None


def _header(row: list[str], line: int) -> list[str]:
    header = [cell.lower() for cell in row]
    if "node_id" not in header:
        raise _LineError(
            line, "neither Slurm's topology.conf (SwitchName=... or BlockName=...) nor a CSV whose header has node_id"
        )
    for name in header:
        if name not in _COLUMNS:
            raise _LineError(line, f"no column {name[:40]!r}; known are {', '.join(_COLUMNS)}")
    if len(set(header)) != len(header):
        raise _LineError(line, "a column stands twice in the header")
    return header


def _cell(name: str, cell: str, line: int) -> str | tuple[str, ...]:
    if name not in _LISTS:
        return cell
    values = tuple(value for part in cell.split(";") if (value := part.strip()))
    if name == "rail":
        return values
    if len(set(values)) != len(values):
        raise _LineError(line, f"{name}: a device stands twice")
    return tuple(_device(name, value, line) for value in values)


def _device(name: str, value: str, line: int) -> str:
    if value.isdecimal():
        raise _LineError(line, f"{name}: {value[:20]} is an index; CUDA_VISIBLE_DEVICES renumbers devices")
    if name == "gpu_uuid":
        if _UUID.fullmatch(value) is None:
            raise _LineError(line, f"gpu_uuid: {value[:60]!r} is no UUID as nvidia-smi -L prints it")
        return value
    address = normalise(value)
    if address is None:
        raise _LineError(line, f"pci_bus_id: {value[:60]!r} is no PCI address as 0000:3b:00.0")
    return address


@dataclass(slots=True)
class _Switch:
    line: int
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    height: int | None = None
    """Switches below it, one under the other; None until it is counted."""


def _slurm_places(text: str) -> Iterator[_Place]:
    switches: dict[str, _Switch] = {}
    blocks: dict[str, str] = {}
    listed: dict[str, tuple[int, list[str]]] = {}
    names: set[str] = set()
    for line, fields in _slurm_lines(text):
        kind = "switchname" if "switchname" in fields else "blockname"
        name = fields.get(kind)
        if not name:
            if fields.keys() <= {"blocksizes"}:
                continue
            raise _LineError(line, "names no switch and no block (SwitchName= or BlockName=)")
        if name in names:
            raise _LineError(line, f"{name!r} is described twice")
        names.add(name)
        if kind == "switchname":
            switches[name] = _Switch(line, _expanded(fields.get("switches", ""), line))
        hosts = _expanded(fields.get("nodes", ""), line)
        if not hosts and not (kind == "switchname" and switches[name].children):
            raise _LineError(line, f"{name!r} has neither nodes nor switches")
        for host in hosts:
            above = listed.setdefault(host, (line, []))[1]
            if kind == "switchname":
                above.append(name)
            elif blocks.setdefault(host, name) != name:
                raise _LineError(line, f"node {host!r} is in block {blocks[host]!r} already")
    _link(switches)
    for host, (line, above) in listed.items():
        yield line, {"node_id": host, **_place(above, blocks.get(host), switches)}


def _slurm_lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Assignments of each line that has any, keys in lower case; a backslash at its end goes on with the next."""
    begun: tuple[int, str] | None = None
    # An empty last line ends what a backslash left open.
    for number, raw in enumerate([*_END.split(text), ""], 1):
        part = re.split(r"(?<!\\)#", raw, maxsplit=1)[0].rstrip()
        first, so_far = begun or (number, "")
        if part.endswith("\\"):
            begun = (first, f"{so_far}{part[:-1]}")
            continue
        begun = None
        whole = so_far + part
        if whole.strip():
            yield first, _assignments(whole, first)


def _assignments(text: str, line: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        found = _ASSIGNMENT.match(text, position)
        if found is None:
            raise _LineError(line, f"{text[position:].strip()[:60]!r} is no KEY=VALUE")
        key = found["key"].lower()
        if key not in {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}:
            raise _LineError(line, f"{found['key'][:40]} is no key of topology/tree or topology/block")
        if key in fields:
            raise _LineError(line, f"{found['key']} stands twice")
        fields[key] = found["quoted"] if found["quoted"] is not None else found["plain"]
        position = found.end()
    if "switchname" in fields and "blockname" in fields:
        raise _LineError(line, "names a switch and a block")
    return fields


def _expanded(expression: str, line: int) -> list[str]:
    if not expression:
        return []
    if expression.upper() == "ALL":
        raise _LineError(line, "ALL names no node; list them")
    try:
        return list(dict.fromkeys(expand_hosts(expression)))
    except PlacesError as error:
        raise _LineError(line, str(error)) from None


def _link(switches: dict[str, _Switch]) -> None:
    """Fill in parents and heights.

    Raises:
        _LineError: a switch is listed and not described, or stands below itself.
    """
    for name, switch in switches.items():
        for child in switch.children:
            if child not in switches:
                raise _LineError(switch.line, f"switch {child!r} below {name!r} is described nowhere")
            switches[child].parents.append(name)
    waiting = {name: len(switch.children) for name, switch in switches.items()}
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        name = ready.pop()
        switch = switches[name]
        switch.height = 1 + max((switches[child].height or 0 for child in switch.children), default=-1)
        for parent in switch.parents:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    for name, switch in switches.items():
        if switch.height is None:
            raise _LineError(switch.line, f"switch {name!r} stands below itself, or above one that does")


def _place(above: list[str], block: str | None, switches: dict[str, _Switch]) -> dict[str, Any]:
    """The place of a node that the switches `above` list."""
    lowest_height = min((switches[name].height or 0 for name in above), default=0)
    lowest = [name for name in above if (switches[name].height or 0) == lowest_height]
    way = lowest[:1] if len(lowest) == 1 else [""]
    parents = {parent for name in lowest for parent in switches[name].parents}
    while len(parents) == 1:
        way.append(parents.pop())
        parents = set(switches[way[-1]].parents)
    place: dict[str, Any] = dict(zip(("leaf", "pod", "zone"), (name or None for name in way), strict=False))
    if len(lowest) > 1:
        place["rail"] = tuple(lowest)
    labels = {}
    if any(way):
        labels["switches"] = "/".join(name for name in reversed(way) if name)
    if block is not None:
        labels["block"] = block
        place["pod"] = place.get("pod") or block
    place["labels"] = labels
    return place


def _alternatives(text: str, position: int, depth: int) -> tuple[list[str], int]:
    """Names of a comma-separated list up to its end or to the bracket that closes it, and where that is."""
    if depth > _DEPTH_AT_MOST:
        raise PlacesError("brackets are nested too deep")
    names: list[str] = []
    while True:
        some, position = _one(text, position, depth)
        names += some
        if len(names) > _HOSTS_AT_MOST:
            raise PlacesError(f"more than {_HOSTS_AT_MOST} names")
        if position >= len(text) or text[position] == "]":
            return names, position
        position += 1


def _one(text: str, position: int, depth: int) -> tuple[list[str], int]:
    """Names of one element of a list, and where it ends."""
    end = position
    while end < len(text) and text[end] not in ",[]":
        end += 1
    names = _range(text[position:end]) if depth else [text[position:end]]
    while end < len(text) and text[end] == "[":
        inside, close = _alternatives(text, end + 1, depth + 1)
        if close >= len(text):
            raise PlacesError(f"{text[:60]!r}: a bracket is not closed")
        if not all(inside):
            raise PlacesError(f"{text[:60]!r}: a bracket holds nothing")
        position = end = close + 1
        while end < len(text) and text[end] not in ",[]":
            end += 1
        rest = text[position:end]
        if len(names) * len(inside) > _HOSTS_AT_MOST:
            raise PlacesError(f"more than {_HOSTS_AT_MOST} names")
        if len(names[0]) > _LONGEST_NAME:
            raise PlacesError(f"{text[:60]!r}: a name is longer than {_LONGEST_NAME} characters")
        names = [f"{name}{middle}{rest}" for name in names for middle in inside]
    return names, end


def _range(text: str) -> list[str]:
    """The numbers of `001-016`, written as wide as the first; one number is itself, and so is what opens a bracket."""
    found = _NUMBERS.fullmatch(text)
    if found is None:
        if text:
            raise PlacesError(f"{text[:60]!r} in brackets is no number and no range as 001-016")
        return [text]
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise PlacesError(f"{text[:60]!r} counts down")
    if last - first >= _HOSTS_AT_MOST:
        raise PlacesError(f"more than {_HOSTS_AT_MOST} names")
    return [str(number).rjust(len(found[1]), "0") for number in range(first, last + 1)]

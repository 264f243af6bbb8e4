"""A dump of `/sys/class/infiniband` (and of a network device's `statistics`), as `PATH:VALUE` or by directory.

Guarantees: data counters, which the kernel keeps in 4-byte words, come out in bytes; `lifespan`, a refresh period,
is no counter; symlinked and relative paths are read like the short ones. Attributes that are neither state nor
counter (addresses, keys, firmware) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from agents.decode.fabric_snapshot import Port, Snapshot
from agents.decode.quantity import Unreadable, integer, is_unknown, number, times
from agents.decode.record import Record, malformed

_LINE = re.compile(
    r"(?P<path>(?:\S*?/)?(?:ports/[0-9]+|(?:class/net|net|infiniband)/[^/\s:]+/(?:statistics|hw_counters))/[\w./-]+)"
    r"\s*:[ \t]*(?P<value>.*)",
    re.ASCII,
)
_PORT = re.compile(r"(?:(?:.*/)?(?P<device>[^/]+)/)?ports/(?P<port>[0-9]+)/(?P<name>.+)", re.ASCII)
_DEVICE = re.compile(r"(?:.*/)?(?:infiniband|net)/(?P<device>[^/]+)/(?P<name>(?:statistics|hw_counters)/.+)", re.ASCII)
_DIRECTORY = re.compile(r"/?(?:\S*/)?(?:infiniband|net)/[^/\s]+(?:/\S*)?|(?:\S*/)?ports/[0-9]+(?:/\S*)?", re.ASCII)
_NAMED = re.compile(r"\s*(?P<name>[\w./-]+)\s*:[ \t]*(?P<value>.*)", re.ASCII)

_NUMBERED = re.compile(r"(?P<number>[0-9]+)\s*:\s*(?P<name>\S.*)", re.ASCII)
_RATE = re.compile(
    r"(?P<rate>[0-9.]+)\s*Gb(?:/s(?:ec)?|ps)\s*(?:\((?P<lanes>[0-9]{1,3})X\b.*)?", re.ASCII | re.IGNORECASE
)

_LINK_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active"}
_STATE_WORDS = {"down": "down", "init": "init", "initialize": "init", "armed": "armed", "active": "active"}

_COUNTER_DIRECTORIES = ("counters/", "hw_counters/", "counters_ext/", "statistics/")
_WORDS = {"port_rcv_data": "rx_data_bytes", "port_xmit_data": "tx_data_bytes"}
_WORD_BYTES = 4
_NO_COUNTER = frozenset({"lifespan"})


@dataclass(frozen=True, slots=True)
class Attribute:
    """One file of a dump: of which device and port, its path below the port, and its content."""

    device: str | None
    port: str | None
    name: str
    value: str


def parse(attributes: Iterable[tuple[str, str]]) -> list[Record]:
    """The `port` records of files that a collector has read.

    Args:
        attributes: Path (absolute, or from the device on) and content of each file.

    Returns:
        One record for each port, in order of appearance, then `malformed` for contents that could not be read.
    """
    snapshot = Snapshot()
    unread: list[Record] = []
    for path, content in attributes:
        attribute = attribute_at(path, content)
        if attribute is not None:
            record = put_attribute(snapshot, attribute, f"{path}:{content.strip()}", None)
            if record is not None:
                unread.append(record)
    return [*snapshot.records(), *unread]


def parse_line(line: str) -> Attribute | None:
    """The file of a line `PATH:VALUE`, None for any other line."""
    found = _LINE.fullmatch(line)
    return attribute_at(found["path"], found["value"]) if found else None


def parse_named(line: str, directory: str) -> Attribute | None:
    """The file of a line `NAME: VALUE` in the dump of a directory, None for any other line."""
    found = _NAMED.fullmatch(line)
    return attribute_at(f"{directory.rstrip('/')}/{found['name']}", found["value"]) if found else None


def is_directory(path: str) -> bool:
    """Whether a path is one whose files we read."""
    return _DIRECTORY.fullmatch(path) is not None


def attribute_at(path: str, value: str) -> Attribute | None:
    """What a path and its content say, None where the path leads to no port."""
    place = _place(path)
    return None if place is None else Attribute(*place, value.strip())


@lru_cache(maxsize=4096)  # an agent reads the same few hundred paths every second
def _place(path: str) -> tuple[str | None, str | None, str] | None:
    """Device, port and name below the port of a path."""
    found = _PORT.fullmatch(path)
    if found is not None:
        return found["device"], found["port"], found["name"]
    found = _DEVICE.fullmatch(path)
    return None if found is None else (found["device"], None, found["name"])


def put_attribute(snapshot: Snapshot, attribute: Attribute, raw: str, line: int | None) -> Record | None:
    """Adds one file to its port; `malformed` for a counter without a number, None otherwise."""
    directory, _, name = attribute.name.rpartition("/")
    if not directory:
        _put_state(snapshot.port("host", attribute.device, attribute.port), name, attribute.value)
        return None
    place = place_of(attribute.name)
    if place is None:
        return None
    port = snapshot.port("host", attribute.device, attribute.port)
    try:
        value = integer(attribute.value)
    except Unreadable:
        return malformed(f"no number in {name}", raw, line)
    if value is None and not is_unknown(attribute.value):
        return malformed(f"the number in {name} has more than 64 bits", raw, line)
    if place.is_stated:
        port.put_state(place.field, times(value, place.unit_bytes))
    else:
        port.put_counter(place.field, value)
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the number of a counter's file belongs.

    Attributes:
        field: of the `port` record; a counter without a field of its own keeps the file's name.
        is_stated: whether it is a field of the record rather than one of its `counters`.
        unit_bytes: what the number is multiplied by.
    """

    field: str
    is_stated: bool = False
    unit_bytes: int = 1


def place_of(name: str) -> Place | None:
    """Where a file belongs, from its path below the port; None for one that is no counter."""
    directory, _, name = name.rpartition("/")
    if f"{directory}/" not in _COUNTER_DIRECTORIES or name in _NO_COUNTER:
        return None
    if name in _WORDS:
        return Place(_WORDS[name], is_stated=True, unit_bytes=_WORD_BYTES)
    if name == "link_downed":
        return Place("link_down_events", is_stated=True)
    return Place(name)


def _put_state(port: Port, name: str, value: str) -> None:
    if name == "state":
        found = _NUMBERED.fullmatch(value)
        word = (found["name"] if found else value).strip().lower()
        port.put_state("link_state", _STATE_WORDS.get(word) or _LINK_STATES.get(found["number"] if found else value))
    elif name == "phys_state":
        found = _NUMBERED.fullmatch(value)
        word = (found["name"] if found else value).strip().lower()
        port.put_state("physical_state", None if is_unknown(word) else word)
    elif name == "link_layer":
        port.put_state("link_layer", None if is_unknown(value) else value.lower())
    elif name == "rate":
        rate = _RATE.fullmatch(value)
        port.put_state("rate_gbps", _rate(rate["rate"]) if rate else None)
        port.put_state("link_lanes", int(rate["lanes"]) if rate and rate["lanes"] else None)


def _rate(text: str) -> float | None:
    try:
        value = number(text)
    except Unreadable:
        return None
    return None if value is None else float(value)

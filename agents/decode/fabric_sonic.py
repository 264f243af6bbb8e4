"""The tables of a SONiC switch: `show pfc counters`, its `--history`, and `show pfcwd stats`.

Guarantees: columns are taken from the header of each table; receive and transmit tables meet in one record for each
port and priority; a history in milliseconds (older images) comes out in microseconds. Values are those since the
switch's user last cleared them, and the line that says so yields nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.decode.fabric_snapshot import Snapshot, Value
from agents.decode.quantity import Unreadable, integer, times
from agents.decode.record import Record, malformed

_COUNTERS_HEADER = re.compile(
    r"\s*Port (?P<direction>Rx|Tx)(?P<columns>(?:\s+PFC[0-9]{1,2})+)\s*", re.IGNORECASE | re.ASCII
)
_HISTORY_HEADER = re.compile(r"\s*Port\s+Priority\s+(?=.*\bPause\b)\S.*", re.IGNORECASE)
_WATCHDOG_HEADER = re.compile(r"\s*Queue\s+Status\s+(?=.*\bStorm\b)\S.*", re.IGNORECASE)
_RULE = re.compile(r"[\s-]+")
_GAP = re.compile(r"\s{2,}")
_PRIORITY = re.compile(r"PFC(?P<priority>[0-9]{1,2})", re.IGNORECASE | re.ASCII)
_PORT = re.compile(r"[A-Za-z][\w./:@|-]*", re.ASCII)
_QUEUE = re.compile(r"(?P<port>.*\S)\s*[:|]\s*(?P<queue>[0-9]{1,4})", re.ASCII)

_MILLISECOND_US = 1000

_TRANSITIONS, _TOTAL, _RECENT, _TIMESTAMP = "transitions", "total", "recent", "timestamp"
_STATUS, _STORM = "status", "storm"


@dataclass(frozen=True, slots=True)
class CountersTable:
    """A table of pause frames: its direction (`rx`, `tx`) and the priority of each column."""

    direction: str
    priorities: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table of pause history: what each column behind the priority holds, and its unit in microseconds."""

    columns: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WatchdogTable:
    """A table of the watchdog: the title of each column behind the status, as words in lower case."""

    columns: tuple[str, ...]


Table = CountersTable | HistoryTable | WatchdogTable


def parse_header(line: str) -> Table | None:
    """The table that a line opens, None for any other line."""
    found = _COUNTERS_HEADER.fullmatch(line)
    if found is not None:
        priorities = tuple(int(name["priority"]) for name in _PRIORITY.finditer(found["columns"]))
        return CountersTable(found["direction"].lower(), priorities)
    titles = _GAP.split(line.strip())
    if _HISTORY_HEADER.fullmatch(line):
        columns = tuple(_history_column(title) for title in titles[2:])
        return HistoryTable(columns)
    if _WATCHDOG_HEADER.fullmatch(line):
        return WatchdogTable(tuple(title.lower() for title in titles[2:]))
    return None


def put_row(snapshot: Snapshot, table: Table, line: str, number: int) -> Record | None:
    """Adds one row of a table; `malformed` for a row that does not fit it, None otherwise.

    What begins with no port (rules, prompts, empty lines) is no row.
    """
    if not line.strip() or _RULE.fullmatch(line):
        return None
    match table:
        case CountersTable():
            return _put_counters(snapshot, table, line, number)
        case HistoryTable():
            return _put_history(snapshot, table, line, number)
        case WatchdogTable():
            return _put_watchdog(snapshot, table, line, number)


def _put_counters(snapshot: Snapshot, table: CountersTable, line: str, number: int) -> Record | None:
    port, *cells = line.split()
    if not _is_row(port, cells):
        return None
    if len(cells) != len(table.priorities):
        return malformed(f"{len(cells)} cells under {len(table.priorities)} priorities", line, number)
    try:
        frames = [integer(cell) for cell in cells]
    except Unreadable as error:
        return malformed(str(error), line, number)
    target = snapshot.port("switch", None, port)
    for priority, value in zip(table.priorities, frames, strict=True):
        target.put_pfc(priority, f"{table.direction}_pause_frames", value)
    return None


def _put_history(snapshot: Snapshot, table: HistoryTable, line: str, number: int) -> Record | None:
    port, *cells = line.split()
    priority = _PRIORITY.fullmatch(cells[0]) if cells else None
    if priority is None or _PORT.fullmatch(port) is None:
        return None
    target = snapshot.port("switch", None, port)
    values: dict[str, Value] = {}
    cells = cells[1:]
    for name, unit_us in table.columns:
        if name == _TIMESTAMP:
            text = " ".join(cells)
            values["recent_rx_pause_time_text"] = None if text in {"", "N/A"} else text
            break
        try:
            value = integer(cells.pop(0)) if cells else None
        except Unreadable as error:
            return malformed(str(error), line, number)
        if name == _TRANSITIONS:
            values["rx_pause_transitions"] = value
        elif name == _TOTAL:
            values["rx_pause_us"] = times(value, unit_us)
        elif name == _RECENT:
            values["recent_rx_pause_us"] = times(value, unit_us)
    for field, stated in values.items():
        target.put_pfc(int(priority["priority"]), field, stated)
    return None


def _history_column(title: str) -> tuple[str, int]:
    words = title.lower().split()
    unit_us = _MILLISECOND_US if words[-1:] == ["ms"] else 1
    for name in (_TIMESTAMP, _TRANSITIONS, _TOTAL, _RECENT):
        if name in words:
            return name, unit_us
    return title, unit_us


def _put_watchdog(snapshot: Snapshot, table: WatchdogTable, line: str, number: int) -> Record | None:
    name, *cells = line.split()
    if _PORT.fullmatch(name) is None or not any(_is_pair(cell) for cell in cells):
        return None
    if len(cells) != len(table.columns) + 1:
        return malformed(f"{len(cells) + 1} cells under {len(table.columns) + 2} columns", line, number)
    port, queue = split_queue(name)
    record = watchdog_record(port, queue, cells[0])
    try:
        for title, cell in zip(table.columns, cells[1:], strict=True):
            record |= _watchdog_column(title, cell)
    except Unreadable as error:
        return malformed(str(error), line, number)
    snapshot.watchdogs.append(record)
    return None


def split_queue(name: str) -> tuple[str, int | None]:
    """`Ethernet0:3` as port and queue; the queue is None for an object id or a name without one."""
    found = _QUEUE.fullmatch(name)
    if found is None or name.startswith("oid:"):
        return name, None
    return found["port"], int(found["queue"])


def watchdog_record(port: str, queue: int | None, status: str | None) -> Record:
    """A `pfc_watchdog` record without counts. A status that is not known is null: the watchdog is stopped."""
    word = (status or "").strip().lower()
    return {
        "kind": "pfc_watchdog",
        "view": "switch",
        "port": port,
        "queue": queue,
        "status": None if word in {"", "n/a", "none", "-"} else word,
        "storms_detected": None,
        "storms_restored": None,
    }


def _watchdog_column(title: str, cell: str) -> Record:
    words = title.split()
    first, second = _pair(cell)
    if _STORM in words:
        return {"storms_detected": first, "storms_restored": second}
    if words[0] not in {"tx", "rx"}:
        return {}
    prefix = f"{words[0]}_last" if "last" in words else words[0]
    return {f"{prefix}_ok_packets": first, f"{prefix}_dropped_packets": second}


def _pair(cell: str) -> tuple[int | None, int | None]:
    first, slash, second = cell.replace("N/A", "-").partition("/")
    if not slash and first.strip("-"):
        raise Unreadable(f"not a pair: {cell[:40]!r}")
    return integer(first), integer(second)


def _is_pair(cell: str) -> bool:
    try:
        _pair(cell)
    except Unreadable:
        return False
    return True


def _is_row(port: str, cells: list[str]) -> bool:
    """Whether a line is a row: a port, and at least one cell that is a number or says that there is none."""
    if _PORT.fullmatch(port) is None:
        return False
    for cell in cells:
        try:
            integer(cell)
        except Unreadable:
            continue
        return True
    return False

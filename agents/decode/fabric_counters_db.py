"""An export of a SONiC switch's COUNTERS_DB as JSON, with or without the maps that name its objects.

Guarantees: read whatever it is wrapped in: `COUNTERS:oid:0x...` keys or a `COUNTERS` table, redis-dump's
`{"type", "value"}`, levels for databases or ASICs. Pause times are taken only where the name says microseconds; SAI's
other durations are quanta. Objects that are neither ports nor watched queues yield nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.decode.fabric_snapshot import Port, Snapshot
from agents.decode.fabric_sonic import split_queue, watchdog_record
from agents.decode.quantity import Unreadable, integer, times
from agents.decode.record import Record, malformed

_OBJECT = re.compile(r"(?:(?P<table>COUNTERS|PFC_STAT_HISTORY)[:|])?(?P<oid>oid:0x[0-9a-fA-F]+)", re.ASCII)
_TABLES = frozenset({"COUNTERS", "PFC_STAT_HISTORY"})
_PORT_MAPS = frozenset({"COUNTERS_PORT_NAME_MAP", "COUNTERS_LAG_NAME_MAP"})
_QUEUE_MAP = "COUNTERS_QUEUE_NAME_MAP"
_QUEUE_PORT_MAP = "COUNTERS_QUEUE_PORT_MAP"
_QUEUE_INDEX_MAP = "COUNTERS_QUEUE_INDEX_MAP"
_MAPS = _PORT_MAPS | {_QUEUE_MAP, _QUEUE_PORT_MAP, _QUEUE_INDEX_MAP}

_PFC = re.compile(r"(?P<source>SAI|EST)_PORT_STAT_PFC_(?P<priority>[0-9]{1,2})_(?P<what>\w+)", re.ASCII)
_PFC_FIELDS = {
    "RX_PKTS": "rx_pause_frames",
    "TX_PKTS": "tx_pause_frames",
    "ON2OFF_RX_PKTS": "rx_pause_transitions",
    "RX_PAUSE_DURATION_US": "rx_pause_us",
    "TX_PAUSE_DURATION_US": "tx_pause_us",
}
_RECENT_FIELDS = {
    "RECENT_PAUSE_TIME_US": "recent_rx_pause_us",
    "RECENT_PAUSE_TIMESTAMP": "recent_rx_pause_wall_time_us",
}
_HISTORY = re.compile(r"(?P<what>TOTAL_PAUSE_(?:TRANSITIONS|TIME_MS|TIME_US))_(?P<priority>[0-9]{1,2})", re.ASCII)
_HISTORY_FIELDS = {
    "TOTAL_PAUSE_TRANSITIONS": ("rx_pause_transitions", 1),
    "TOTAL_PAUSE_TIME_MS": ("rx_pause_us", 1000),
    "TOTAL_PAUSE_TIME_US": ("rx_pause_us", 1),
}
_PORT_COUNTER = re.compile(r"(?:SAI|EST)_PORT_STAT_\w+", re.ASCII)
_WATCHDOG = "PFC_WD_QUEUE_STATS_"
_WATCHDOG_STATUS = "PFC_WD_STATUS"
_WATCHDOG_FIELDS = {
    "DEADLOCK_DETECTED": "storms_detected",
    "DEADLOCK_RESTORED": "storms_restored",
    "TX_PACKETS": "tx_ok_packets",
    "TX_DROPPED_PACKETS": "tx_dropped_packets",
    "RX_PACKETS": "rx_ok_packets",
    "RX_DROPPED_PACKETS": "rx_dropped_packets",
    "TX_PACKETS_LAST": "tx_last_ok_packets",
    "TX_DROPPED_PACKETS_LAST": "tx_last_dropped_packets",
    "RX_PACKETS_LAST": "rx_last_ok_packets",
    "RX_DROPPED_PACKETS_LAST": "rx_last_dropped_packets",
}

_DEEPEST = 8

_Scope = tuple[str, ...]


@dataclass(slots=True)
class Export:
    """The objects of an export and its name maps, each under the keys that lead to it."""

    _objects: list[tuple[_Scope, str, dict[str, Any]]] = field(default_factory=list)
    _maps: dict[str, dict[_Scope, dict[str, Any]]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether anything of a COUNTERS_DB has been taken."""
        return bool(self._objects or self._maps)

    def take(self, document: Any) -> None:
        """Takes in a JSON value, of which an export may have several: maps apart from counters, say."""
        self._collect(document, (), 0)

    def put_into(self, snapshot: Snapshot) -> Iterator[Record]:
        """Adds all objects to a snapshot, once all maps are known; yields `malformed` for values without a number."""
        for scope, oid, values in self._objects:
            yield from _put_object(snapshot, self, scope, oid, values)

    def name_of(self, maps: frozenset[str], scope: _Scope, oid: str) -> str | None:
        """The name that the nearest map gives to an object; a map elsewhere counts if all of them agree."""
        tables = [table for name in sorted(maps) for table in self._maps.get(name, {}).items()]
        for depth in range(len(scope), -1, -1):
            for where, table in tables:
                if where == scope[:depth] and oid in table:
                    return str(table[oid])
        anywhere = {str(table[oid]) for _, table in tables if oid in table}
        return anywhere.pop() if len(anywhere) == 1 else None

    def _collect(self, node: Any, scope: _Scope, depth: int) -> None:
        if depth > _DEEPEST:
            return
        if isinstance(node, list):
            for item in node:
                self._collect(item, scope, depth + 1)
        elif isinstance(node, dict):
            for key, value in node.items():
                self._collect_entry(key, _unwrapped(value), scope, depth)

    def _collect_entry(self, key: str, value: Any, scope: _Scope, depth: int) -> None:
        found = _OBJECT.fullmatch(key)
        if found is not None and isinstance(value, dict):
            self._objects.append((scope, found["oid"], value))
        elif key in _MAPS and isinstance(value, dict):
            # Port and queue maps lead from name to object, the two others from object to what belongs to it.
            backward = key not in {_QUEUE_PORT_MAP, _QUEUE_INDEX_MAP}
            table = {str(oid): name for name, oid in value.items()} if backward else value
            self._maps.setdefault(key, {}).setdefault(scope, {}).update(table)
        elif isinstance(value, (dict, list)):
            self._collect(value, scope if key in _TABLES else (*scope, key), depth + 1)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("value"), dict) and "type" in value:
        return value["value"]
    return value


def _put_object(
    snapshot: Snapshot, export: Export, scope: _Scope, oid: str, values: dict[str, Any]
) -> Iterator[Record]:
    counts: dict[str, int | None] = {}
    watched = any(name == _WATCHDOG_STATUS or name.startswith(_WATCHDOG) for name in values)
    for name, text in values.items():
        if not (_PORT_COUNTER.fullmatch(name) or _HISTORY.fullmatch(name) or (watched and name.startswith(_WATCHDOG))):
            continue
        try:
            counts[name] = _count(text)
        except Unreadable as error:
            yield malformed(f"{oid} {name}: {error}", f"{name}: {text}")
    if watched:
        snapshot.watchdogs.append(_watchdog(export, scope, oid, values, counts))
    if any(not name.startswith(_WATCHDOG) for name in counts):
        name_of_port = export.name_of(_PORT_MAPS, scope, oid)
        port = snapshot.port("switch", None, name_of_port or oid, None if name_of_port else scope)
        _put_port(port, counts)


def _put_port(port: Port, counts: dict[str, int | None]) -> None:
    # What software estimated first, so that what the hardware counted replaces it.
    for name, value in sorted(counts.items(), key=lambda item: item[0].startswith("SAI_")):
        pfc = _PFC.fullmatch(name)
        if pfc is not None:
            field_name = _PFC_FIELDS.get(pfc["what"]) or _RECENT_FIELDS.get(pfc["what"])
            if field_name is not None:
                port.put_pfc(int(pfc["priority"]), field_name, value)
            continue
        history = _HISTORY.fullmatch(name)
        if history is not None:
            field_name, unit = _HISTORY_FIELDS[history["what"]]
            port.put_pfc(int(history["priority"]), field_name, times(value, unit))
        elif not name.startswith(_WATCHDOG):
            port.put_counter(name, value)


def _watchdog(export: Export, scope: _Scope, oid: str, values: dict[str, Any], counts: dict[str, int | None]) -> Record:
    port, queue = oid, None
    name = export.name_of(frozenset({_QUEUE_MAP}), scope, oid)
    port_oid = export.name_of(frozenset({_QUEUE_PORT_MAP}), scope, oid)
    if name is not None:
        port, queue = split_queue(name)
    elif port_oid is not None:
        port = export.name_of(_PORT_MAPS, scope, port_oid) or port_oid
        index = export.name_of(frozenset({_QUEUE_INDEX_MAP}), scope, oid)
        queue = int(index) if index is not None and index.isdecimal() and len(index) < 5 else None
    status = values.get(_WATCHDOG_STATUS)
    record = watchdog_record(port, queue, status if isinstance(status, str) else None)
    for counter, field_name in _WATCHDOG_FIELDS.items():
        if _WATCHDOG + counter in counts:
            record[field_name] = counts[_WATCHDOG + counter]
    return record


def _count(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return integer(str(value))
    if isinstance(value, float):
        return integer(repr(value))
    raise Unreadable(f"not a number: {str(value)[:40]!r}")

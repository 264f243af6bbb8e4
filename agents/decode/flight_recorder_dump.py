"""What a flight-recorder dump says, whatever version and encoding wrote it: groups, their progress, operations.

Guarantees: numbers that came as text are numbers, -1 and the largest unsigned integer are "none", a discovery time of
0 is unknown; peers of a send or receive are global ranks; a group is known by description and members, its name and
id serve only to find it within this dump. Nothing of a value that is not a dump is given out. What a rank waits for is
not decided here.

Gloo records less than NCCL: an operation keeps the state `scheduled` when it ends and is only retired, and members stand
under an empty name, where each group overwrites the one before. They count where the process made one group, and no others.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from agents.decode.record import Record

__all__ = ["Collective", "Dump", "Group", "GroupStatus", "NotADump", "looks_like_dump", "rank_in_name", "read_dump"]

_NAME_RANK = re.compile(r"(?:rank|dump)[_-]?(\d{1,7})(?:\.(?:json|pkl|pickle))?$", re.IGNORECASE)
_PEERS = re.compile(r"(send|recv)\s+(\d{1,7})\s*(->|<-)\s*(\d{1,7})$")
_INTEGER = re.compile(r"\s*[+-]?\d{1,20}\s*$")
_NUMBER = re.compile(r"\s*[+-]?\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?\s*$")
_DIGITS = re.compile(r"\d{1,10}")
_NONE: Final = frozenset({-1, 2**64 - 1})
_DUMP_KEYS: Final = frozenset({"entries", "pg_config", "pg_status"})
_WORLD: Final = "default_pg"
"""What PyTorch calls the group of all ranks."""


class NotADump(ValueError):  # noqa: N818 - says what the value is, as the contract words it
    """The value is no dump of a flight recorder; the message says why."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it.

    Attributes:
        name: Of this process only.
        desc: What the group is for; None if not given.
        ranks: Global ranks in the order of the group; None if not given.
    """

    name: str
    desc: str | None
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far this rank got in the group of an id; sequence numbers, None where it got nowhere.

    In a group of point-to-point operations the numbers are of whichever kind of operation came last.
    """

    pg_id: str
    enqueued_seq: int | None
    started_seq: int | None
    completed_seq: int | None


@dataclass(frozen=True, slots=True)
class Collective:
    """One recorded operation.

    Attributes:
        record_id: Counts the operations of the process.
        pg_id: Of this process only.
        group: None if the configuration does not know it.
        group_desc: Description, from the entry if it has one.
        seq: Number of the collective in its group.
        p2p_seq: Number of the point-to-point operation in its group.
        op: Without backend and peers.
        state: `scheduled`, `started` or `completed`, as recorded.
        created_ns, started_ns, completed_ns: Since the epoch; the last two are when somebody looked.
        input_sizes, output_sizes: Dimensions per tensor.
        dtypes: Of the inputs, or of the outputs where there are none.
        src_rank, dst_rank: Global, of a send or receive whose group is known.
        is_retired_by_gloo: Ended, or failed: Gloo's operations say it in no other way.
    """

    record_id: int | None
    pg_id: str | None
    group: Group | None
    group_desc: str | None
    seq: int | None
    p2p_seq: int | None
    is_p2p: bool
    op: str | None
    state: str | None
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None
    timeout_ms: int | None
    input_sizes: tuple[tuple[int, ...], ...] | None
    output_sizes: tuple[tuple[int, ...], ...] | None
    dtypes: tuple[str, ...] | None
    src_rank: int | None = None
    dst_rank: int | None = None
    is_retired_by_gloo: bool = False

    @property
    def is_completed(self) -> bool:
        """Whether the recorder saw it end."""
        return self.state == "completed" or self.is_retired_by_gloo


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump.

    Attributes:
        rank: From the file's name; None if that has none.
        version: As given.
        comm_lib_version: Of the communication library.
        groups: In source order.
        statuses: In source order.
        collectives: In the dump's order, oldest first.
    """

    rank: int | None
    version: str | None
    comm_lib_version: str | None
    groups: tuple[Group, ...]
    statuses: tuple[GroupStatus, ...]
    collectives: tuple[Collective, ...] = field(repr=False)

    def records(self) -> list[Record]:
        """The dump as records: itself first, then its operations in order."""
        head: Record = {
            "kind": "dump",
            "rank": self.rank,
            "version": self.version,
            "entry_count": len(self.collectives),
            "groups": [
                {
                    "pg_id": status.pg_id,
                    "last_enqueued_seq": status.enqueued_seq,
                    "last_started_seq": status.started_seq,
                    "last_completed_seq": status.completed_seq,
                }
                for status in self.statuses
            ],
        }
        if self.comm_lib_version is not None:
            head["comm_lib_version"] = self.comm_lib_version
        return [head, *(_record(self.rank, collective) for collective in self.collectives)]


def rank_in_name(name: str) -> int | None:
    """The rank that a dump's file name ends with (`.._rank_3`, `.._dump_3`); None if it ends otherwise."""
    match = _NAME_RANK.search(name)
    return int(match[1]) if match else None


def looks_like_dump(value: Any) -> bool:
    """Whether a decoded value has what makes a dump: entries, or the groups' configuration or status."""
    return isinstance(value, dict) and (not _DUMP_KEYS.isdisjoint(value) or isinstance(value.get("version"), str))


def read_dump(value: Any, name: str) -> Dump:
    """The dump in a decoded value.

    Args:
        value: Plain data, as from JSON or a pickle.
        name: Of the file, for the rank.

    Raises:
        NotADump: The value, or a part of it that a dump cannot do without, is something else.
    """
    if not looks_like_dump(value):
        raise NotADump("neither entries nor groups in it")
    entries = value.get("entries")
    if entries is None:
        entries = []
    if not isinstance(entries, (list, tuple)):
        raise NotADump("its entries are no list")
    statuses = _statuses(_table(value, "pg_status"))
    groups = _named(_groups(_table(value, "pg_config")), statuses, entries)
    by_name = {group.name: group for group in groups}
    version = value.get("version")
    library = value.get("comm_lib_version", value.get("nccl_version"))
    return Dump(
        rank=rank_in_name(name),
        version=_text(version),
        comm_lib_version=_text(library),
        groups=groups,
        statuses=statuses,
        collectives=tuple(_collective(entry, by_name) for entry in entries),
    )


def _table(value: dict[Any, Any], key: str) -> dict[Any, Any]:
    table = value.get(key)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise NotADump(f"its {key} is no table")
    return table


def _groups(table: dict[Any, Any]) -> tuple[Group, ...]:
    found = []
    for key, entry in table.items():
        if not isinstance(entry, dict):
            raise NotADump("a group of its pg_config is no table")
        found.append(Group(str(key), _text(entry.get("desc")), _ranks(entry.get("ranks"))))
    return tuple(found)


def _statuses(table: dict[Any, Any]) -> tuple[GroupStatus, ...]:
    found = []
    for key, entry in table.items():
        if not isinstance(entry, dict):
            raise NotADump("a group of its pg_status is no table")
        found.append(
            GroupStatus(
                str(key),
                _sequence(entry.get("last_enqueued_collective")),
                _sequence(entry.get("last_started_collective")),
                _sequence(entry.get("last_completed_collective")),
            )
        )
    return tuple(found)


def _named(
    groups: tuple[Group, ...], statuses: tuple[GroupStatus, ...], entries: list[Any] | tuple[Any, ...]
) -> tuple[Group, ...]:
    """The groups; one that stands under an empty name gets its own if the process made no other, and is left out if it did."""
    if not any(not group.name for group in groups):
        return groups
    named = tuple(group for group in groups if group.name)
    if named or len(statuses) != 1:
        return named
    first = next((entry for entry in entries if isinstance(entry, dict)), {})
    name, desc = _process_group(first.get("process_group"))
    return (Group(name or statuses[0].pg_id, desc or groups[0].desc or _WORLD, groups[0].ranks),)


def _collective(entry: Any, by_name: dict[str, Group]) -> Collective:
    if not isinstance(entry, dict):
        raise NotADump("an entry is no table")
    name, desc = _process_group(entry.get("process_group"))
    group = by_name.get(name) if name is not None else None
    op, peers = _operation(entry.get("profiling_name"))
    is_p2p = _boolean(entry.get("is_p2p"))
    if is_p2p is None:
        is_p2p = op in {"send", "recv"}
    src_rank, dst_rank = _global_peers(peers, group)
    state = entry.get("state")
    is_gloo = str(entry.get("profiling_name")).startswith("gloo:")
    dtypes = _texts(entry.get("input_dtypes")) or _texts(entry.get("output_dtypes"))
    return Collective(
        record_id=_integer(entry.get("record_id", entry.get("id"))),
        pg_id=_text(entry.get("pg_id")),
        group=group,
        group_desc=desc if desc is not None else (group.desc if group else None),
        seq=_sequence(entry.get("collective_seq_id", entry.get("seq_id"))),
        p2p_seq=_sequence(entry.get("p2p_seq_id")),
        is_p2p=is_p2p,
        op=op,
        state=state.strip().lower() if isinstance(state, str) else None,
        created_ns=_time(entry.get("time_created_ns")),
        started_ns=_time(entry.get("time_discovered_started_ns")),
        completed_ns=_time(entry.get("time_discovered_completed_ns")),
        duration_ms=_number(entry.get("duration_ms")),
        timeout_ms=_sequence(entry.get("timeout_ms")),
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtypes=dtypes,
        src_rank=src_rank,
        dst_rank=dst_rank,
        is_retired_by_gloo=is_gloo and _boolean(entry.get("retired")) is True,
    )


def _record(rank: int | None, collective: Collective) -> Record:
    group = collective.group
    record: Record = {
        "kind": "collective",
        "rank": rank,
        "group_desc": collective.group_desc,
        "group_ranks": sorted(group.ranks) if group is not None and group.ranks is not None else None,
        "seq": collective.seq,
        "p2p_seq": collective.p2p_seq,
        "is_p2p": collective.is_p2p,
        "op": collective.op,
        "state": collective.state,
        "created_ns": collective.created_ns,
        "started_ns": collective.started_ns,
        "completed_ns": collective.completed_ns,
        "duration_ms": collective.duration_ms,
        "timeout_ms": collective.timeout_ms,
        "input_sizes": collective.input_sizes,
        "output_sizes": collective.output_sizes,
    }
    if collective.dtypes is not None:
        record["dtypes"] = collective.dtypes
    if collective.op in {"send", "recv"}:
        record["src_rank"] = collective.src_rank
        record["dst_rank"] = collective.dst_rank
    return record


def _process_group(value: Any) -> tuple[str | None, str | None]:
    """Name and description, which stand in a pair; old dumps have the name alone."""
    if isinstance(value, (list, tuple)):
        return (_text(value[0]) if value else None), (_text(value[1]) if len(value) > 1 else None)
    return _text(value), None


def _operation(value: Any) -> tuple[str | None, tuple[int, int] | None]:
    """The operation, and source and destination within the group."""
    if not isinstance(value, str):
        return None, None
    name = value.partition(":")[2].strip() or value.strip()
    match = _PEERS.match(name)
    if match is None:
        return name or None, None
    own, peer = int(match[2]), int(match[4])
    return match[1], ((own, peer) if match[3] == "->" else (peer, own))


def _global_peers(peers: tuple[int, int] | None, group: Group | None) -> tuple[int | None, int | None]:
    if peers is None or group is None or group.ranks is None or max(peers) >= len(group.ranks):
        return None, None
    return group.ranks[peers[0]], group.ranks[peers[1]]


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Global ranks, each once, in the order given: a text `[0, 1]`, or a list."""
    if isinstance(value, str):
        found: list[int | None] = [int(digits) for digits in _DIGITS.findall(value)]
    elif isinstance(value, (list, tuple)):
        found = [_integer(item) for item in value]
    else:
        return None
    ranks = tuple(dict.fromkeys(rank for rank in found if rank is not None and rank >= 0))
    return ranks or None


def _sizes(value: Any) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    found = []
    for dimensions in value:
        if not isinstance(dimensions, (list, tuple)):
            return None
        numbers = [_integer(item) for item in dimensions]
        if any(number is None for number in numbers):
            return None
        found.append(tuple(number for number in numbers if number is not None))
    return tuple(found)


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, (list, tuple)) or not value:
        return None
    return tuple(str(item) for item in value)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    return bool(value) if isinstance(value, (bool, int)) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if _INTEGER.match(value) else _number(value)
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value.is_integer() else None
    return value if isinstance(value, int) and -(2**63) <= value < 2**64 else None


def _sequence(value: Any) -> int | None:
    number = _integer(value)
    return None if number in _NONE else number


def _time(value: Any) -> int | None:
    return _sequence(value) or None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = float(value) if _NUMBER.match(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and value >= 0 else None

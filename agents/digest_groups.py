"""Which groups a dump speaks of, and how far its rank got in each.

Progress is kept by group id, members by group name, and only entries tie the two together. Guarantees: an id is given a
group where an entry says so, or where ids and names count in one order and leave no choice: both count the groups as
the process made them. Where that does not decide, progress stands apart under its id, for whoever sees the other ranks too.
Groups with equal
description and members are told apart by the order in which they were made, which is the same on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.decode.flight_recorder_dump import Collective, Dump, Group, GroupStatus

__all__ = ["GroupIndex", "groups_of_ids", "rank_runs"]


class GroupIndex:
    """Numbers the groups of one dump."""

    def __init__(self, dump: Dump) -> None:
        self._desc: list[str | None] = []
        self._runs: list[list[list[int]] | None] = []
        self._ordinal: list[int] = []
        self._by_name: dict[str, int] = {}
        self._strange_indices: set[int] = set()
        self._unknown: dict[tuple[str | None, str | None], int] = {}
        self._status: dict[int, GroupStatus] = {}
        same: Counter[tuple[str | None, tuple[int, ...] | None]] = Counter()
        for group in sorted(dump.groups, key=lambda group: _creation(group.name)):
            ranks = tuple(sorted(group.ranks)) if group.ranks is not None else None
            self._by_name[group.name] = self._add(group.desc, ranks, same[group.desc, ranks])
            same[group.desc, ranks] += 1
        found = groups_of_ids(dump)
        for status in dump.statuses:
            group_of_id = found.get(status.pg_id)
            index = self._by_name[group_of_id.name] if group_of_id is not None else self._strange(None, status.pg_id)
            self._status[index] = status

    def of(self, entry: Collective) -> int:
        """The number of an entry's group."""
        if entry.group is not None:
            return self._by_name[entry.group.name]
        return self._strange(entry.group_desc, entry.pg_id)

    def completed_seq(self, index: int) -> int | None:
        """The last number that a group's status gives as completed, of whichever kind."""
        status = self._status.get(index)
        return status.completed_seq if status is not None else None

    def tables(
        self,
        pending: Sequence[tuple[int, Collective, int | None]],
        entries: Iterable[tuple[int, Collective]],
    ) -> list[dict[str, Any]]:
        """One table per group, by number.

        Args:
            pending: Group, entry and peer of each pending operation.
            entries: Group and entry of each operation.
        """
        seen: dict[int, int] = {}
        p2p: set[int] = set()
        for index, entry in entries:
            if entry.seq is not None:
                seen[index] = max(seen.get(index, entry.seq), entry.seq)
            if entry.is_p2p:
                p2p.add(index)
        counts: Counter[int] = Counter()
        peers: dict[int, dict[int, list[int]]] = {}
        for index, entry, peer in pending:
            counts[index] += 1
            if entry.is_p2p and peer is not None:
                pair = peers.setdefault(index, {}).setdefault(peer, [0, 0])
                pair[entry.op != "send"] += 1
        found = []
        for index, desc in enumerate(self._desc):
            table: dict[str, Any] = {"desc": desc, "ranks": self._runs[index]}
            status = self._status.get(index)
            if status is not None:
                table |= {
                    "id": status.pg_id,
                    "enqueued": status.enqueued_seq,
                    "started": status.started_seq,
                    "completed": status.completed_seq,
                }
            if index in self._strange_indices:
                table["is_unnamed"] = True
            if self._ordinal[index]:
                table["ordinal"] = self._ordinal[index]
            if index in seen:
                table["seen"] = seen[index]
            if index in p2p:
                table["is_p2p"] = True
            if counts[index]:
                table["pending"] = counts[index]
            if index in peers:
                table["peers"] = [[peer, *pair] for peer, pair in sorted(peers[index].items())]
            found.append(table)
        return found

    def _add(self, desc: str | None, ranks: tuple[int, ...] | None, ordinal: int) -> int:
        self._desc.append(desc)
        self._runs.append(None if ranks is None else rank_runs(ranks))
        self._ordinal.append(ordinal)
        return len(self._desc) - 1

    def _strange(self, desc: str | None, pg_id: str | None) -> int:
        key = (desc, pg_id)
        if key not in self._unknown:
            self._unknown[key] = self._add(desc, None, 0)
            self._strange_indices.add(self._unknown[key])
        return self._unknown[key]


def rank_runs(ranks: Sequence[int]) -> list[list[int]]:
    """Sorted ranks as runs `[first, step, count]`; equal ranks give equal runs."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs:
            last = runs[-1]
            if last[2] == 1:
                last[1] = rank - last[0]
                last[2] = 2
                continue
            if rank == last[0] + last[1] * last[2]:
                last[2] += 1
                continue
        runs.append([rank, 1, 1])
    return runs


def groups_of_ids(dump: Dump) -> dict[str, Group]:
    """The group of each id of the dump's status, as far as the dump decides it."""
    found: dict[str, Group] = {}
    for entry in dump.collectives:
        if entry.pg_id is not None and entry.group is not None:
            found[entry.pg_id] = entry.group
    by_name = {group.name: group for group in dump.groups}
    ids = [status.pg_id for status in dump.statuses]
    if all(name.isdecimal() for name in by_name):
        _by_order(found, sorted(ids, key=_creation), sorted(dump.groups, key=lambda group: _creation(group.name)))
    open_ids = [pg_id for pg_id in ids if pg_id not in found]
    open_names = by_name.keys() - {group.name for group in found.values()}
    if len(open_ids) == len(open_names) == 1:
        found[open_ids[0]] = by_name[next(iter(open_names))]
    elif all(group.name == pg_id for pg_id, group in found.items()) and all(pg_id in by_name for pg_id in ids):
        for pg_id in open_ids:
            found[pg_id] = by_name[pg_id]
    return found


def _by_order(found: dict[str, Group], ids: Sequence[str], groups: Sequence[Group]) -> None:
    """Adds what follows from ids and counted names standing in one order: as many between two known ones leave no choice."""
    place = {group.name: i for i, group in enumerate(groups)}
    known = [(i, place[found[pg_id].name]) for i, pg_id in enumerate(ids) if pg_id in found]
    if not _is_rising([there for _, there in known]):
        return
    bounds = [(-1, -1), *known, (len(ids), len(groups))]
    for (first, there), (last, end) in pairwise(bounds):
        if last - first == end - there:
            for step in range(1, last - first):
                found[ids[first + step]] = groups[there + step]


def _is_rising(places: Sequence[int]) -> bool:
    return all(first < second for first, second in pairwise(places))


def _creation(name: str) -> tuple[int, int, str]:
    """Sorts names and ids as they were given out: counted ones by number, others by text behind them."""
    return (0, int(name), "") if name.isascii() and name.isdigit() and len(name) < 19 else (1, 0, name)

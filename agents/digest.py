"""A rank's flight-recorder dump in at most 16 kB: all that is needed to say who hangs, and nothing else of it.

Guarantees: the same dump gives the same digest; the progress of every group, the first pending operations of every
group and peer, and how many more there are; completed operations only as far as they tell two sides of a mismatch
apart. Ranks of a group are runs `[first, step, count]`, so that a group of 16,384 takes a few bytes. Operations that
were launched as one batch stand or fall with the entry that closes it: on their own they never complete. Stacks and
times stay with the dump. Who hangs is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson

from agents.digest_groups import GroupIndex
from schemas.steps import CollectiveDigest

if TYPE_CHECKING:
    from agents.decode.flight_recorder_dump import Collective, Dump

__all__ = ["DIGEST_BYTES", "Digest", "collective_digest", "digest"]

DIGEST_BYTES: Final = 16_000
_ENVELOPE_BYTES: Final = 1_200
"""Names, path and hash around the three lists; paths may be long."""

_FIRST_PENDING: Final = 4
"""Per group and peer, before completed operations are taken in; the rest of the pending ones follows those."""

_LAST_COMPLETED: Final = 3


@dataclass(frozen=True, slots=True)
class Digest:
    """What a dump says about progress.

    Attributes:
        groups: One table per group, in the order of making: `desc`, `ranks` (runs; null if unknown), `ordinal` (if several
            groups of the rank have these members and this description), `id` (of the process), `is_unnamed` (nothing but its
            id is known), `enqueued`, `started`, `completed` (null if unknown), `seen` (highest number of a collective among
            the entries), `is_p2p`, `pending` (how many), `peers` (`[rank, sends, receives]` pending).
        pending: One table per operation, in order of issue: `group` (index), `op`, `seq`, `order`, `is_p2p`, `p2p_seq`,
            `src`, `dst`, `input_sizes`, `dtypes`, `overtaken` (something issued later has completed).
        completed: The same for the last ones of each group.
        pending_total: Pending operations of the dump.
    """

    groups: tuple[dict[str, Any], ...]
    pending: tuple[dict[str, Any], ...]
    completed: tuple[dict[str, Any], ...]
    pending_total: int


@dataclass(frozen=True, slots=True)
class _Operation:
    entry: Collective
    group: int
    order: int
    is_pending: bool
    is_overtaken: bool
    input_sizes: tuple[tuple[int, ...], ...] | None

    @property
    def peer(self) -> int | None:
        return self.entry.dst_rank if self.entry.op == "send" else self.entry.src_rank

    def table(self) -> dict[str, Any]:
        entry = self.entry
        found: dict[str, Any] = {"group": self.group, "op": entry.op, "seq": entry.seq, "order": self.order}
        if entry.is_p2p:
            found |= {"is_p2p": True, "p2p_seq": entry.p2p_seq, "src": entry.src_rank, "dst": entry.dst_rank}
        found["input_sizes"] = self.input_sizes
        found["dtypes"] = entry.dtypes
        if self.is_overtaken:
            found["overtaken"] = True
        return {key: value for key, value in found.items() if value is not None}


def digest(dump: Dump, limit_bytes: int | None = DIGEST_BYTES) -> Digest:
    """The digest of a dump.

    Args:
        dump: As decoded.
        limit_bytes: Of the whole record as JSON; None for everything that a digest may hold.
    """
    index = GroupIndex(dump)
    operations = _operations(dump, index)
    pending = [operation for operation in operations if operation.is_pending]
    completed = [operation for operation in operations if not operation.is_pending]
    groups = index.tables(
        [(operation.group, operation.entry, operation.peer) for operation in pending],
        [(operation.group, operation.entry) for operation in operations],
    )
    budget = _Budget(limit_bytes)
    groups = budget.groups(groups, {operation.group for operation in pending})
    heads, rest = _by_depth(pending)
    kept = [*budget.take(heads)]
    told = [*budget.take(_last(completed))]
    kept += budget.take(rest)
    return Digest(
        groups=tuple(groups),
        pending=tuple(sorted((table for table in kept), key=_order)),
        completed=tuple(sorted(told, key=_order)),
        pending_total=len(pending),
    )


def collective_digest(
    dump: Dump,
    *,
    job_id: str,
    epoch: int,
    node_id: str,
    agent_session: str,
    seq: int,
    event_time_ns: int,
    dump_path: str,
    dump_sha256: str,
    limit_bytes: int | None = DIGEST_BYTES,
    written_ns: int | None = None,
) -> CollectiveDigest:
    """The digest of a dump as the record that is published.

    Raises:
        ValueError: The dump's file name had no rank.
    """
    if dump.rank is None:
        raise ValueError("a dump without a rank in its name has no digest")
    content = digest(dump, limit_bytes)
    return CollectiveDigest(
        job_id=job_id,
        epoch=epoch,
        node_id=node_id,
        agent_session=agent_session,
        seq=seq,
        event_time_ns=event_time_ns,
        rank=dump.rank,
        version=dump.version or "",
        dump_path=dump_path,
        dump_sha256=dump_sha256,
        groups=content.groups,
        pending=content.pending,
        completed=content.completed,
        entry_count=len(dump.collectives),
        pending_total=content.pending_total,
        written_ns=written_ns,
    )


def _operations(dump: Dump, index: GroupIndex) -> list[_Operation]:
    """The entries that count as operations of their own, in order, with the state that their batch gives them."""
    entries = dump.collectives
    closing, is_part = _batches(entries)
    states = [
        entry.is_completed or (closer is not None and entries[closer].is_completed)
        for entry, closer in zip(entries, closing, strict=True)
    ]
    for part in _closed_unseen(dump, index, closing):
        states[part] = True
    overtaken = _overtaken(entries, states, closing)
    found = []
    for i, entry in enumerate(entries):
        parts = is_part.get(i)
        if parts is not None and any(entries[part].is_p2p for part in parts):
            continue  # the sends and receives of the batch speak for it
        if closing[i] is not None and not entry.is_p2p:
            continue  # the batch speaks for its collectives
        sizes = entry.input_sizes
        if parts:
            sizes = tuple(size for part in parts for size in entries[part].input_sizes or ())
        found.append(_Operation(entry, index.of(entry), i, not states[i], overtaken[i], sizes))
    return found


def _batches(entries: Sequence[Collective]) -> tuple[list[int | None], dict[int, list[int]]]:
    """By entry the one that closes its batch, and by closing entry the parts of the batch."""
    closing: list[int | None] = [None] * len(entries)
    parts_of: dict[int, list[int]] = {}
    recent: dict[tuple[str | None, str | None], list[int]] = {}
    for i, entry in enumerate(entries):
        key = (entry.pg_id, entry.group.name if entry.group else None)
        open_run = recent.setdefault(key, [])
        if entry.op != "coalesced":
            open_run.append(i)
            continue
        parts: list[int] = []
        for part in reversed(open_run):
            if not _is_part(entries[part], entry):
                break
            parts.append(part)
            closing[part] = i
        open_run.clear()
        if parts:
            parts_of[i] = parts[::-1]
    return closing, parts_of


def _closed_unseen(dump: Dump, index: GroupIndex, closing: Sequence[int | None]) -> list[int]:
    """Parts of batches whose closing entry is not in the dump because it has completed.

    The process is past a batch when the record behind it is gone and others follow, or when the group's status is; in a dump
    of active operations alone, one that nothing follows would be one that it is about to launch. Where a group's messages
    are not sent in batches nothing is closed. Batches show in entries that close, in shared numbers, and in an entry
    that has not completed though its number is the last completed one.
    """
    entries = dump.collectives
    is_active_only = not any(entry.is_completed for entry in entries)
    recorded = {entry.record_id for entry in entries if entry.record_id is not None}
    by_group: dict[int, list[int]] = {}
    is_shared, is_sure = False, False
    numbers: set[tuple[int, int]] = set()
    for i, entry in enumerate(entries):
        if not entry.is_p2p:
            continue
        group = index.of(entry)
        is_sure = is_sure or entry.op == "coalesced" or _is_done_yet_open(entry, index.completed_seq(group))
        if entry.p2p_seq:
            is_shared = is_shared or (group, entry.p2p_seq) in numbers
            numbers.add((group, entry.p2p_seq))
        if entry.op != "coalesced" and closing[i] is None and not entry.is_completed:
            by_group.setdefault(group, []).append(i)
    found = []
    # A program that sends in batches does so in all its groups.
    for group, parts in by_group.items() if is_shared or is_sure else ():
        done = index.completed_seq(group)
        last = {entries[i].p2p_seq: entries[i].record_id for i in parts}
        for i in parts:
            own, ends = entries[i].p2p_seq, last[entries[i].p2p_seq]
            is_status_past = done is not None and own is not None and done >= own
            if is_status_past or _is_gap_behind(ends, recorded) or (is_sure and is_active_only):
                found.append(i)
    return found


def _is_done_yet_open(entry: Collective, completed_seq: int | None) -> bool:
    """Whether the status counts a message as completed that its entry does not; the number must not be a collective's."""
    is_number = bool(entry.p2p_seq) and entry.p2p_seq == completed_seq != entry.seq
    return is_number and not entry.is_completed


def _is_gap_behind(record_id: int | None, recorded: set[int]) -> bool:
    """Whether the next record of the process is not in the dump, though later ones are."""
    return record_id is not None and record_id + 1 not in recorded and max(recorded) > record_id


def _is_part(entry: Collective, closing: Collective) -> bool:
    if entry.is_p2p and closing.is_p2p:
        return entry.p2p_seq == closing.p2p_seq
    return entry.seq == closing.seq


def _overtaken(entries: Sequence[Collective], states: Sequence[bool], closing: Sequence[int | None]) -> list[bool]:
    """By entry whether something that the process issued later has completed.

    A dump of active operations leaves out the completed ones: a later record that is not there has completed, for the ring
    loses the oldest first.
    """
    found = [False] * len(entries)
    newest = None if any(entry.is_completed for entry in entries) else _newest_in_order(entries)
    last_completed = max((i for i, is_completed in enumerate(states) if is_completed), default=-1)
    for i, entry in enumerate(entries):
        if last_completed > i and last_completed != closing[i]:
            found[i] = True
        elif newest is not None and entry.record_id is not None:
            found[i] = newest - entry.record_id > len(entries) - 1 - i
    return found


def _newest_in_order(entries: Sequence[Collective]) -> int | None:
    """The last record's number, if the numbers rise from entry to entry as a process counts them."""
    numbers = [entry.record_id for entry in entries if entry.record_id is not None]
    is_counted = len(numbers) == len(entries) and all(first < second for first, second in pairwise(numbers))
    return numbers[-1] if numbers and is_counted else None


def _by_depth(pending: Iterable[_Operation]) -> tuple[list[_Operation], list[_Operation]]:
    """The first few operations of every group and peer, first ones first, and the others."""
    depth: dict[tuple[int, int | None, str | None], int] = {}
    ranked = []
    for operation in pending:
        key = (operation.group, operation.peer, operation.entry.op if operation.entry.is_p2p else None)
        depth[key] = depth.get(key, 0) + 1
        ranked.append((depth[key], operation.order, operation))
    ranked.sort(key=lambda item: item[:2])
    return (
        [operation for place, _, operation in ranked if place <= _FIRST_PENDING],
        [operation for place, _, operation in ranked if place > _FIRST_PENDING],
    )


def _last(completed: Sequence[_Operation]) -> list[_Operation]:
    """The last collectives of every group, latest first."""
    count: dict[int, int] = {}
    found = []
    for operation in reversed(completed):
        if operation.entry.is_p2p or operation.entry.seq is None:
            continue
        count[operation.group] = count.get(operation.group, 0) + 1
        if count[operation.group] <= _LAST_COMPLETED:
            found.append((count[operation.group], -operation.order, operation))
    return [operation for *_, operation in sorted(found, key=lambda item: item[:2])]


class _Budget:
    """Bytes that are left of the digest; what does not fit any more ends what is taken."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._left = None if limit_bytes is None else limit_bytes - _ENVELOPE_BYTES

    def groups(self, tables: list[dict[str, Any]], needed: set[int]) -> list[dict[str, Any]]:
        """The groups; those without anything pending lose their members where there is no room for all."""
        if self._left is None:
            return tables
        sizes = [_size(table) for table in tables]
        for i in sorted(range(len(tables)), key=lambda i: (i in needed, -sizes[i])):
            if sum(sizes) <= self._left * 3 // 4:
                break
            tables[i] = {**tables[i], "ranks": None}
            sizes[i] = _size(tables[i])
        self._left -= sum(sizes)
        return tables

    def take(self, operations: Iterable[_Operation]) -> list[dict[str, Any]]:
        taken = []
        for operation in operations:
            table = operation.table()
            if self._left is not None:
                size = _size(table)
                if size > self._left:
                    self._left = 0
                    break
                self._left -= size
            taken.append(table)
        return taken


def _size(table: dict[str, Any]) -> int:
    return len(orjson.dumps(table)) + 1


def _order(table: dict[str, Any]) -> int:
    order: int = table["order"]
    return order

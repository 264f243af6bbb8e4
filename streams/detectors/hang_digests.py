"""A collective digest as the hang judge reads it: one rank's progress, its pending operations, its last completed ones.

Guarantees: a group is known by description, members and, among equals, by the order of making, never by a name or id; what a
digest does not say is None. A digest that breaks its own rules (an operation of a group that it does not list) loses
that part alone. Nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.detectors.hang_watchdog import is_watchdog, with_members

if TYPE_CHECKING:
    from schemas.steps import CollectiveDigest

__all__ = ["GroupKey", "Operation", "Progress", "RankView", "rank_view", "rank_views"]

_Profile = tuple[tuple[str, int], ...]
"""The groups of a process in the order of making: purpose and size of each."""


class GroupKey(NamedTuple):
    """What makes a group the same on two ranks.

    Attributes:
        desc: What the group is for; None if unknown.
        runs: Its members as runs (first, step, count); None if unknown.
        ordinal: Which of several groups with the same two.
    """

    desc: str | None
    runs: tuple[tuple[int, int, int], ...] | None
    ordinal: int = 0

    @property
    def size(self) -> int:
        """Members; 0 if they are not known."""
        return sum(count for _, _, count in self.runs) if self.runs else 0

    def members(self) -> tuple[int, ...]:
        """Global ranks, sorted; empty if they are not known."""
        if self.runs is None:
            return ()
        return tuple(first + step * i for first, step, count in self.runs for i in range(count))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank.

    Attributes:
        group: Where it belongs.
        op: Without backend and peers; None if only the group's progress tells of it.
        seq: Number of the collective; of a send or receive the number of collectives before it.
        p2p_seq: Number of the send or receive on this rank.
        peer: The other rank of a send or receive; None if unknown.
        order: Place in the rank's order of issue; -1 for one that its entries do not show.
        is_overtaken: Something that the rank issued later has completed, so nothing has to wait for this.
    """

    group: GroupKey
    op: str | None
    seq: int
    order: int
    is_p2p: bool = False
    p2p_seq: int | None = None
    peer: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    is_overtaken: bool = False

    @property
    def number(self) -> int | None:
        """The number that people look for in logs: of the kind that the operation is."""
        return self.p2p_seq if self.is_p2p else self.seq


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank got in a group; in one with sends and receives `enqueued` and `completed` mix the two kinds.

    Attributes:
        seen: Highest number of a collective among the rank's entries.
        peers: By peer, the sends to it and the receives from it that are pending.
    """

    enqueued: int | None = None
    completed: int | None = None
    seen: int | None = None
    is_p2p: bool = False
    pending: int = 0
    peers: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank.

    Attributes:
        pending: In order of issue, sends and receives among them.
        completed: The last collectives of each group, by group and number.
        pending_total: May be more than `pending` holds.
        is_watchdog: Lines of a log tell of it, and of few of its groups.
    """

    rank: int
    groups: Mapping[GroupKey, Progress]
    pending: tuple[Operation, ...]
    completed: Mapping[tuple[GroupKey, int], Operation]
    pending_total: int
    is_watchdog: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether the rank waits in no operation at all."""
        return not self.pending and self.pending_total == 0


def rank_views(records: Iterable[CollectiveDigest], rank_count: int | None = None) -> list[RankView]:
    """What the digests of a job say, which has `rank_count` ranks if that is known.

    Ranks that made the same groups in the same order gave them the same ids: where one of them knows the group of an id, so do
    the others, unless two of them contradict each other.
    """
    kept = with_members(records, rank_count)
    known: dict[tuple[_Profile, str], set[int]] = {}
    for record in kept:
        profile = _profile(record)
        for place, table in enumerate(record.groups):
            if not table.get("is_unnamed") and table.get("id") is not None:
                known.setdefault((profile, str(table["id"])), set()).add(place)
    interned: dict[GroupKey, GroupKey] = {}
    return [rank_view(_named(record, known), interned) for record in kept]


def _profile(record: CollectiveDigest) -> _Profile:
    return tuple(
        (str(table.get("desc")), sum(run[2] for run in table.get("ranks") or ()))
        for table in record.groups
        if not table.get("is_unnamed")
    )


def _named(record: CollectiveDigest, known: Mapping[tuple[_Profile, str], set[int]]) -> CollectiveDigest:
    """The digest with progress moved to the group that other ranks know its id to be of."""
    if not any(table.get("is_unnamed") and table.get("id") is not None for table in record.groups):
        return record
    profile = _profile(record)
    tables = [dict(table) for table in record.groups]
    for table in tables:
        places = known.get((profile, str(table.get("id"))), set()) if table.get("is_unnamed") else set()
        if len(places) == 1 and tables[place := next(iter(places))].get("id") is None:
            for name in ("id", "enqueued", "started", "completed"):
                tables[place][name] = table.pop(name, None)
    return record.model_copy(update={"groups": tuple(tables)})


def rank_view(record: CollectiveDigest, interned: dict[GroupKey, GroupKey] | None = None) -> RankView:
    """What a digest says.

    Args:
        record: As published.
        interned: Keys of groups that other ranks have named; equal ones are shared, which matters for large groups.
    """
    shared = interned if interned is not None else {}
    keys: list[GroupKey] = []
    groups: dict[GroupKey, Progress] = {}
    for table in record.groups:
        key = _key(table)
        key = shared.setdefault(key, key)
        keys.append(key)
        groups[key] = _progress(table)
    pending = [operation for table in record.pending if (operation := _operation(table, keys)) is not None]
    completed = [operation for table in record.completed if (operation := _operation(table, keys)) is not None]
    pending += _untold(groups, pending)
    pending.sort(key=lambda operation: operation.order)
    total = record.pending_total if record.pending_total is not None else len(record.pending)
    return RankView(
        rank=record.rank,
        groups=groups,
        pending=tuple(pending),
        completed={(operation.group, operation.seq): operation for operation in completed},
        pending_total=total,
        is_watchdog=is_watchdog(record),
    )


def _untold(groups: Mapping[GroupKey, Progress], pending: list[Operation]) -> list[Operation]:
    """Operations that only the progress of a group tells of: enqueued, not completed, and no entry left of them."""
    told = {operation.group for operation in pending}
    found = []
    for key, progress in groups.items():
        if key in told or progress.is_p2p or progress.pending or progress.enqueued is None:
            continue
        last = max(progress.completed or 0, progress.seen or 0)
        if progress.enqueued > last:
            found.append(Operation(key, None, last + 1, -1))
    return found


def _key(table: Mapping[str, Any]) -> GroupKey:
    runs = table.get("ranks")
    desc = table.get("desc")
    return GroupKey(
        desc if isinstance(desc, str) else None,
        None if runs is None else tuple((int(first), int(step), int(count)) for first, step, count in runs),
        int(table.get("ordinal") or 0),
    )


def _progress(table: Mapping[str, Any]) -> Progress:
    return Progress(
        enqueued=table.get("enqueued"),
        completed=table.get("completed"),
        seen=table.get("seen"),
        is_p2p=bool(table.get("is_p2p")),
        pending=int(table.get("pending") or 0),
        peers={int(peer): (int(sends), int(receives)) for peer, sends, receives in table.get("peers") or ()},
    )


def _operation(table: Mapping[str, Any], keys: list[GroupKey]) -> Operation | None:
    index, seq = table.get("group"), table.get("seq")
    if not isinstance(index, int) or not 0 <= index < len(keys):
        return None
    op = table.get("op")
    sizes = table.get("input_sizes")
    dtypes = table.get("dtypes")
    return Operation(
        group=keys[index],
        op=op,
        seq=seq if isinstance(seq, int) else 0,
        order=int(table.get("order") or 0),
        is_p2p=bool(table.get("is_p2p")),
        p2p_seq=table.get("p2p_seq"),
        peer=table.get("dst") if op == "send" else table.get("src"),
        input_sizes=None if sizes is None else tuple(tuple(int(size) for size in dimensions) for dimensions in sizes),
        dtypes=None if dtypes is None else tuple(str(dtype) for dtype in dtypes),
        is_overtaken=bool(table.get("overtaken")),
    )

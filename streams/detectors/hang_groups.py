"""The digests of all ranks joined by group: who issued which operation, and where each member stands to it.

Guarantees: a member stands to an operation as `pending`, `completed`, `missing` (it never issued it), `no_dump` or
`unknown`; entries decide before numbers, and in groups with sends and receives the numbers of a group's status decide
nothing, because they mix two counters. Not started is not told from started: without timing no recorder knows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from streams.detectors.hang_digests import GroupKey, Operation, RankView

__all__ = ["FREE_SIZES", "ONE_SIDED", "Groups", "Instance", "Standing", "Variant"]

Standing = Literal["pending", "completed", "missing", "no_dump", "unknown"]

ONE_SIDED: Final = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather"})
"""Operations that a member may finish before others have begun them: the root's data fits into a buffer, or the
member only sends. All others end together."""

FREE_SIZES: Final = frozenset(
    {
        "all_to_all",
        "alltoall_base",
        "all_to_all_single",
        "all_to_all_base",
        "all_to_allv",
        "alltoall",
        "alltoallv",
        "gather",
        "scatter",
        "_broadcast_oop",
        "_reduce_oop",
    }
)
"""Operations whose sizes may differ between members by right; an uneven all-gather or reduce-scatter is recorded as the
broadcasts or reductions that it is made of."""


class Instance(NamedTuple):
    """One collective of one group."""

    group: GroupKey
    seq: int


class Variant(NamedTuple):
    """What must be equal on all members of an instance."""

    op: str
    elements: tuple[int, ...] | None
    dtypes: tuple[str, ...] | None


class Groups:
    """All ranks of which there is a digest.

    Args:
        views: One per rank.
    """

    def __init__(self, views: Iterable[RankView]) -> None:
        known = sorted(views, key=lambda view: view.rank)
        self.pending: dict[Instance, dict[int, Operation]] = defaultdict(dict)
        """By instance, the ranks in whose dumps it is pending."""
        self.heads: dict[int, dict[GroupKey, Operation]] = {}
        """By rank and group, the first collective that is pending."""
        self.keys: set[GroupKey] = {key for view in known for key in view.groups}
        self.p2p_groups = _groups_with_messages(known, self.keys)
        """Groups of which the status mixes two counters, and tells nothing."""
        self.views: Mapping[int, RankView] = {view.rank: self._told(view) for view in known}
        self._members: dict[GroupKey, tuple[int, ...]] = {}
        for view in self.views.values():
            self._take_pending(view)

    def _told(self, view: RankView) -> RankView:
        """The rank without operations that only such a status would tell of."""
        pending = tuple(one for one in view.pending if one.op is not None or one.group not in self.p2p_groups)
        return view if len(pending) == len(view.pending) else replace(view, pending=pending)

    def _take_pending(self, view: RankView) -> None:
        heads: dict[GroupKey, Operation] = {}
        for operation in view.pending:
            if operation.is_p2p:
                continue
            self.pending[Instance(operation.group, operation.seq)][view.rank] = operation
            head = heads.get(operation.group)
            if head is None or operation.seq < head.seq:
                heads[operation.group] = operation
        self.heads[view.rank] = heads

    def members(self, key: GroupKey) -> tuple[int, ...]:
        """Global ranks of a group."""
        if key not in self._members:
            self._members[key] = key.members()
        return self._members[key]

    def standing(self, rank: int, instance: Instance) -> Standing:
        """Where a member stands to a collective of its group."""
        view = self.views.get(rank)
        if view is None:
            return "no_dump"
        if rank in self.pending.get(instance, {}):
            return "pending"
        key, seq = instance
        if (key, seq) in view.completed:
            return "completed"
        progress = view.groups.get(key)
        if progress is None:
            if view.is_watchdog:
                return "unknown"
            return "missing" if any(known.runs is not None for known in view.groups) else "unknown"
        mixes_kinds = key in self.p2p_groups
        enqueued = None if mixes_kinds else progress.enqueued
        if enqueued is None:
            if progress.seen is None:
                return "unknown" if mixes_kinds and not view.is_idle else "missing"
            return "completed" if progress.seen >= seq else "missing"
        if progress.completed is not None and progress.completed >= seq:
            return "completed"
        return "pending" if max(enqueued, progress.seen or 0) >= seq else "missing"

    def completed_seq(self, rank: int, key: GroupKey) -> int | None:
        """The last collective that a rank is known to have completed in a group."""
        view = self.views[rank]
        progress = view.groups.get(key)
        if progress is None:
            return None
        told = [seq for group, seq in view.completed if group == key]
        if key not in self.p2p_groups and progress.completed is not None:
            told.append(progress.completed)
        elif progress.seen is not None and key not in self.heads[rank]:
            told.append(progress.seen)
        return max(told, default=None)

    def variants(self, instance: Instance) -> dict[Variant, dict[int, Operation]]:
        """The members that issued an instance, by what they issued; entries that have no operation are left out."""
        found: dict[Variant, dict[int, Operation]] = {}
        issued = dict(self.pending.get(instance, {}))
        for rank in self.members(instance.group):
            view = self.views.get(rank)
            completed = view.completed.get((instance.group, instance.seq)) if view is not None else None
            if completed is not None:
                issued.setdefault(rank, completed)
        operations = [operation for operation in issued.values() if operation.op is not None]
        are_sizes_free = any(operation.op in FREE_SIZES for operation in operations)
        for rank, operation in sorted(issued.items()):
            if operation.op is not None:
                found.setdefault(_variant(operation, are_sizes_free), {})[rank] = operation
        return found


def _groups_with_messages(views: Iterable[RankView], keys: Iterable[GroupKey]) -> frozenset[GroupKey]:
    """Groups with sends and receives, and all others of the same purpose: their ranks may have none left to show."""
    shown = {key for view in views for key, progress in view.groups.items() if progress.is_p2p}
    purposes = {key.desc for key in shown if key.desc is not None}
    return frozenset(key for key in keys if key in shown or key.desc in purposes)


def _variant(operation: Operation, are_sizes_free: bool) -> Variant:
    elements = None
    if not are_sizes_free and operation.input_sizes is not None:
        elements = tuple(math.prod(dimensions) for dimensions in operation.input_sizes)
    return Variant(operation.op or "", elements, operation.dtypes)

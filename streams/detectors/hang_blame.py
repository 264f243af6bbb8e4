"""The reasons for which ranks are named, one after the other.

Guarantees: each reason is a fact that the digests show, and what it takes is said at its method. A reason that is only
likely (a completion that one single rank lacks, a member without a dump) counts only where no certain one explains the
hang. Deliberately without any timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from streams.detectors.hang_digests import GroupKey, Operation
from streams.detectors.hang_groups import FREE_SIZES, ONE_SIDED, Groups, Instance
from streams.detectors.hang_knots import closed_knots
from streams.detectors.hang_verdict import Cause, Side
from streams.detectors.hang_waits import Missing, Waits, first_operations

__all__ = ["Blame", "Nameless", "Suspect"]

_SURE_LAG: Final = 2
"""Completions that a device lacks before it is named for them: one may be the watchdog's period, or a ring that broke
while the last data went round."""

_WAITERS: Final = 2
"""Members that must wait for one without a dump before it is named."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that is named.

    Attributes:
        operation: What it is named for.
        sides: If the operation was issued differently.
    """

    rank: int
    cause: Cause
    operation: Operation
    sides: tuple[Side, ...] = ()


@dataclass(frozen=True, slots=True)
class Nameless:
    """A hang of which the cause is clear and the culprit is not."""

    cause: Cause
    operation: Operation
    sides: tuple[Side, ...] = ()


class Blame:
    """The evidence of one hang.

    Args:
        groups: All digests.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._furthest: dict[GroupKey, int] = {}
        self._sure, self._likely = self._broken_devices()
        self._waits = Waits(groups, self._sure)
        self._mismatch = self._first_mismatch()

    def suspects(self) -> dict[int, Suspect]:
        """Who is named, by rank; empty when nobody can be."""
        found = dict(self._sure)
        if self._mismatch is not None:
            for suspect in self._minority(self._mismatch):
                found.setdefault(suspect.rank, suspect)
        for suspect in self._never_entered():
            found.setdefault(suspect.rank, suspect)
        # What is only likely counts where nothing certain explains the hang. A rank without a dump could itself be
        # waiting for one that is named: its dump may just be lost.
        if not found and self._mismatch is None:
            found = self._likely
        if not found and self._mismatch is None:
            for suspect in self._silent() or self._stuck_in_a_knot() or self._out_of_order():
                found.setdefault(suspect.rank, suspect)
        return found

    def nameless_cause(self) -> Nameless | None:
        """Why nobody can be named though the job certainly hangs; None if even that is not certain."""
        if self._mismatch is not None:
            return Nameless("inconsistent", self._mismatch.operation, self._mismatch.sides)
        circle = next(self._circles(), None)
        return self._transport() or (Nameless("inconsistent", circle.operation, circle.sides) if circle else None)

    def waiting(self, culprits: Iterable[int]) -> tuple[int, ...]:
        """Ranks with a digest that wait for a culprit, through any number of others."""
        named = set(culprits)
        reaching = self._waits.reaching(named)
        found = {node for node in reaching if isinstance(node, int)}
        silent = {waiter for (rank, _), waiters in self._waits.no_dump.items() if rank in named for waiter in waiters}
        found |= {node for node in self._waits.reaching(silent) if isinstance(node, int)}
        if self._mismatch is not None and named & set(self._mismatch.ranks):
            sides = {rank for rank in self._mismatch.ranks if rank not in named}
            found |= {node for node in self._waits.reaching(sides) if isinstance(node, int)}
        return tuple(sorted((found & set(self._groups.views)) - named))

    # Devices.

    def _broken_devices(self) -> tuple[dict[int, Suspect], dict[int, Suspect]]:
        """Ranks that issued what peers completed and they do not, by how many operations.

        Only operations count that end together on all members: the root of a broadcast may be far ahead. With one
        operation the rank is likely only, and only as the single one of its group.
        """
        sure: dict[int, Suspect] = {}
        likely: dict[int, Suspect] = {}
        lags: dict[GroupKey, list[tuple[int, int]]] = {}
        for rank, heads in self._groups.heads.items():
            for key, head in heads.items():
                lag = self._lag(rank, key)
                if lag >= _SURE_LAG:
                    known = sure.get(rank)
                    if known is None or _place(head) < _place(known.operation):
                        sure[rank] = Suspect(rank, "hardware", head)
                elif lag:
                    lags.setdefault(key, []).append((rank, lag))
        for key, found in lags.items():
            if len(found) == 1:
                rank = found[0][0]
                head = self._groups.heads[rank][key]
                if not self._issued_differently(Instance(key, head.seq)):
                    likely.setdefault(rank, Suspect(rank, "hardware", head))
        return sure, likely

    def _lag(self, rank: int, key: GroupKey) -> int:
        if key not in self._furthest:
            told = (
                self._groups.completed_seq(member, key)
                for member in self._groups.members(key)
                if member in self._groups.views
            )
            self._furthest[key] = max((seq for seq in told if seq is not None), default=-1)
        furthest = self._furthest[key]  # the rank's own is behind what it still has pending
        own = [
            operation
            for operation in self._groups.views[rank].pending
            if operation.group == key and not operation.is_p2p and operation.seq <= furthest
        ]
        if any(operation.op is None for operation in own):
            return furthest - own[0].seq + 1 if furthest - own[0].seq + 1 >= _SURE_LAG else 0
        return len({operation.seq for operation in own if operation.op not in ONE_SIDED})

    def _issued_differently(self, instance: Instance) -> bool:
        return len(self._groups.variants(instance)) > 1

    # Operations that differ.

    def _first_mismatch(self) -> _Mismatch | None:
        """The first instance, of the smallest group, that its members issued differently and somebody is stuck in."""
        found: dict[GroupKey, _Mismatch] = {}
        for instance, pending in self._groups.pending.items():
            key = instance.group
            if key in found and found[key].operation.seq <= instance.seq:
                continue
            if not any(self._groups.heads[rank][key].seq == instance.seq for rank in pending):
                continue
            variants = self._groups.variants(instance)
            if len(variants) < 2:
                continue
            sides = tuple(sorted((Side.of(ranks) for ranks in variants.values()), key=lambda side: side.ranks))
            operation = min(pending.items())[1]
            found[key] = _Mismatch(operation, sides)
        pairs = self._pair_mismatches()
        return min([*found.values(), *pairs], key=lambda mismatch: _place(mismatch.operation), default=None)

    def _pair_mismatches(self) -> list[_Mismatch]:
        """Sends and receives that both sides wait in first, of different size or type."""
        found = []
        for rank, view in self._groups.views.items():
            for operation in first_operations(view):
                peer = self._groups.views.get(operation.peer) if operation.peer is not None else None
                if operation.op != "send" or peer is None or rank in self._sure or peer.rank in self._sure:
                    continue
                for other in first_operations(peer):
                    if _are_sides(rank, operation, other) and _content(other) != _content(operation):
                        sides = (Side.of({rank: operation}), Side.of({peer.rank: other}))
                        found.append(_Mismatch(operation, tuple(sorted(sides, key=lambda side: side.ranks))))
        return found

    def _minority(self, mismatch: _Mismatch) -> list[Suspect]:
        """All but the side that holds more than half of the group, if one does."""
        size = mismatch.operation.group.size
        if mismatch.operation.is_p2p or not any(2 * len(side.ranks) > size for side in mismatch.sides):
            return []
        return [
            Suspect(rank, "inconsistent", mismatch.operation, mismatch.sides)
            for side in mismatch.sides
            if 2 * len(side.ranks) <= size
            for rank in side.ranks
        ]

    # Operations that were never issued.

    def _never_entered(self) -> list[Suspect]:
        """Ranks that never issued what peers wait in, and that wait in nothing that could keep them from it."""
        free = self._free_kinds()
        found = []
        for rank, missing in self._waits.missing.items():
            if rank in self._sure:
                continue
            view = self._groups.views[rank]
            if view.is_idle or (
                len(view.pending) >= view.pending_total
                and all(operation.is_overtaken or _kind(operation) in free for operation in view.pending)
                and not any(self._is_met(rank, operation) for operation in view.pending)
                and any(self._went_on(rank, waiter.waiter, waiter.operation) for waiter in missing)
            ):
                found.append(Suspect(rank, "not_entered", self._innermost(missing)))
        return found

    def _innermost(self, missing: Iterable[Missing]) -> Operation:
        """Of what a rank never issued, that of the smallest group, and there what a waiter is stuck in first."""

        def place(one: Missing) -> tuple[int, bool, bool, int, int]:
            is_first = one.operation in first_operations(self._groups.views[one.waiter])
            operation = one.operation
            return operation.group.size or 1 << 30, operation.is_p2p, not is_first, operation.order, one.waiter

        return min(missing, key=place).operation

    def _is_met(self, rank: int, operation: Operation) -> bool:
        """Whether a send or receive hangs though its other side waits in it first: that is the transfer's own fault."""
        peer = self._groups.views.get(operation.peer) if operation.is_p2p and operation.peer is not None else None
        if peer is None:
            return False
        return any(_are_sides(rank, operation, other) for other in first_operations(peer))

    def _free_kinds(self) -> set[tuple[GroupKey | str | None, str | None]]:
        """Kinds of operation that nothing waits for: ranks went on and completed something later.

        One rank is enough for sends; of collectives two must have done so.
        """
        ranks: dict[tuple[GroupKey | str | None, str | None], set[int]] = {}
        for view in self._groups.views.values():
            for operation in view.pending:
                if operation.is_overtaken:
                    ranks.setdefault(_kind(operation), set()).add(view.rank)
        return {kind for kind, seen in ranks.items() if len(seen) >= (1 if kind[1] == "send" else _WAITERS)}

    def _went_on(self, rank: int, peer: int, operation: Operation) -> bool:
        """Whether a peer got past the same pending operations to the one that the rank never issued.

        Sends need no such proof: their end frees a buffer and nothing else.
        """
        kinds = {_kind(pending) for pending in self._groups.views[rank].pending if pending.op != "send"}
        passed = {_kind(pending) for pending in self._groups.views[peer].pending if pending.order < operation.order}
        return kinds <= passed

    # Ranks without a dump.

    def _silent(self) -> list[Suspect]:
        """Members without a dump, the only ones of a group of which two members wait for them first."""
        found: dict[int, Suspect] = {}
        waits = sorted(self._waits.no_dump.items(), key=lambda item: (item[0][1].size, item[0][0]))
        for (rank, key), waiters in waits:
            is_only = sum(member not in self._groups.views for member in self._groups.members(key)) == 1
            if rank not in found and is_only and len(waiters) >= _WAITERS:
                found[rank] = Suspect(rank, "not_entered", min(waiters.items())[1])
        return list(found.values())

    # Nobody to name, or a knot.

    def _stuck_in_a_knot(self) -> list[Suspect]:
        """In ranks that wait for each other in a circle, the one that would be free but for a send.

        Sends hold nobody up, so the circle is none for a rank that only a send ties into it.
        """
        found = []
        for knot in self._knots():
            free = [rank for rank in knot if rank in self._waits.missing and self._only_sends(rank)]
            if free and len(free) < len(knot):
                for rank in free:
                    found.append(Suspect(rank, "not_entered", self._innermost(self._waits.missing[rank])))
        return found

    def _out_of_order(self) -> list[Suspect]:
        """In a circle whose ranks are stuck in different collectives, those that most of the group is not stuck in."""
        if self._transport() is not None:
            return []
        return [suspect for circle in self._circles() for suspect in self._minority(circle)]

    def _only_sends(self, rank: int) -> bool:
        return all(operation.op == "send" for operation in self._groups.views[rank].pending)

    def _knots(self) -> list[tuple[int, ...]]:
        return closed_knots(self._waits.edges, self._waits.leads_out, set(self._groups.views))

    def _circles(self) -> Iterator[_Mismatch]:
        """Ranks that wait for each other in a circle: each is stuck in what the next one has not come to."""
        for knot in self._knots():
            stuck = {rank: first_operations(self._groups.views[rank])[-1] for rank in knot}
            sides: dict[tuple[GroupKey, int | None, int], dict[int, Operation]] = {}
            for rank, operation in stuck.items():
                own = rank if operation.is_p2p else -1
                sides.setdefault((operation.group, operation.number, own), {})[rank] = operation
            told = tuple(sorted((Side.of(ranks) for ranks in sides.values()), key=lambda side: side.ranks))
            if len(told) > 1:
                largest = max(sides.values(), key=lambda ranks: (len(ranks), -min(ranks)))
                yield _Mismatch(min(largest.items())[1], told)

    def _transport(self) -> Nameless | None:
        """An operation that all members issued alike, that each waits in first, and that none completes."""
        found = []
        for instance, pending in self._groups.pending.items():
            members = self._groups.members(instance.group)
            if len(members) > 1 and set(members) == set(pending) and self._is_first_of_all(pending):
                found.append(min(pending.items())[1])
        for rank, view in self._groups.views.items():
            for operation in first_operations(view):
                peer = self._groups.views.get(operation.peer) if operation.peer is not None else None
                if operation.op == "send" and peer is not None:
                    others = first_operations(peer)
                    if any(_are_sides(rank, operation, other) for other in others):
                        found.append(operation)
        operation_or_none = min(found, key=_place, default=None)
        return None if operation_or_none is None else Nameless("transport", operation_or_none)

    def _is_first_of_all(self, pending: Mapping[int, Operation]) -> bool:
        return all(operation in first_operations(self._groups.views[rank]) for rank, operation in pending.items())


@dataclass(frozen=True, slots=True)
class _Mismatch:
    operation: Operation
    sides: tuple[Side, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(rank for side in self.sides for rank in side.ranks)


def _are_sides(rank: int, operation: Operation, other: Operation) -> bool:
    """Whether an operation of a rank's peer is the other side of a send or receive of the rank."""
    kinds = {operation.op, other.op}
    return kinds == {"send", "recv"} and other.peer == rank and other.group == operation.group


def _kind(operation: Operation) -> tuple[GroupKey | str | None, str | None]:
    """Operations that a program uses in one way: of one purpose and name, wherever."""
    return operation.group.desc if operation.group.desc is not None else operation.group, operation.op


def _content(operation: Operation) -> tuple[int | None, tuple[str, ...] | None]:
    elements = None
    if operation.input_sizes is not None and operation.op not in FREE_SIZES:
        elements = 0
        for dimensions in operation.input_sizes:
            product = 1
            for size in dimensions:
                product *= size
            elements += product
    return elements, operation.dtypes


def _place(operation: Operation) -> tuple[int, bool, int]:
    return operation.group.size or 1 << 30, operation.is_p2p, operation.number or 0

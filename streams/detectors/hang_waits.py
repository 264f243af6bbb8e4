"""Who waits for whom: a graph over ranks and the operations they are stuck in.

A rank waits in each of its pending operations, and an operation waits for the members that never issued it and for those
whose device does not complete it. Where a rank's very first operation was issued by a member that still has an earlier one
to finish, the rank waits for that member too. Guarantees: sends and receives are matched in order per pair of ranks, never
by their numbers, which differ between stages by right; edges grow with ranks and operations, not with their product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streams.detectors.hang_digests import GroupKey, Operation, RankView
from streams.detectors.hang_groups import Groups, Instance

__all__ = ["Missing", "Node", "Waits", "first_operations"]

Node = int | tuple[str, Instance]
"""A rank, or an operation that ranks wait in."""


class Missing(NamedTuple):
    """A rank that never issued what another one waits in."""

    rank: int
    waiter: int
    operation: Operation
    """The waiter's."""


class Waits:
    """The graph of one hang.

    Args:
        groups: All digests.
        broken: Ranks whose device does not complete what it should.
    """

    def __init__(self, groups: Groups, broken: Iterable[int]) -> None:
        self.edges: dict[Node, set[Node]] = defaultdict(set)
        self.missing: dict[int, list[Missing]] = defaultdict(list)
        """By rank that never issued it: one waiter per operation, and every waiter of a send or receive."""
        self.no_dump: dict[tuple[int, GroupKey], dict[int, Operation]] = defaultdict(dict)
        """By member without a dump and group, the ranks whose first operation waits for it, the only such member."""
        self.leads_out: set[Node] = set()
        """Where the evidence ends: a member without a dump, or one whose standing is unknown."""
        self.send_waits: set[tuple[int, int]] = set()
        """Edges that only a send makes."""
        self._groups = groups
        self._broken = frozenset(broken)
        self._absent_of: dict[Instance, list[int]] = {}
        self._first = {rank: first_operations(view) for rank, view in groups.views.items()}
        for rank, view in sorted(groups.views.items()):
            self._collectives(rank, view)
            for operation, missing in self._pairs(rank, view):
                self._pair(rank, operation, missing)

    def reaching(self, targets: Iterable[Node]) -> set[Node]:
        """All nodes from which some target is reached, the targets among them."""
        backwards: dict[Node, list[Node]] = defaultdict(list)
        for node, followers in self.edges.items():
            for follower in followers:
                backwards[follower].append(node)
        found = set(targets)
        todo = list(found)
        while todo:
            for node in backwards[todo.pop()]:
                if node not in found:
                    found.add(node)
                    todo.append(node)
        return found

    def _collectives(self, rank: int, view: RankView) -> None:
        first = self._first[rank]
        for operation in self._groups.heads[rank].values():
            instance = Instance(operation.group, operation.seq)
            node: Node = ("op", instance)
            if node not in self.edges:
                self._instance(node, instance, rank, operation)
            self.edges[rank].add(node)
            if operation in first:
                behind: Node = ("first", instance)
                if behind not in self.edges:
                    self._behind(behind, instance)
                self.edges[rank].add(behind)
                self._only_absent(rank, instance, operation)
        for operation in view.pending:
            if operation.group.runs is None:
                self.leads_out.add(rank)

    def _instance(self, node: Node, instance: Instance, waiter: int, operation: Operation) -> None:
        followers = self.edges[node]
        for member in self._groups.members(instance.group):
            standing = self._groups.standing(member, instance)
            if standing == "missing" and member != waiter:
                followers.add(member)
                self.missing[member].append(Missing(member, waiter, operation))
            elif standing in {"no_dump", "unknown"}:
                self.leads_out.add(node)
            elif member in self._broken:
                followers.add(member)

    def _behind(self, node: Node, instance: Instance) -> None:
        followers = self.edges[node]
        for member, operation in self._groups.pending[instance].items():
            if self._has_earlier(member, operation):
                followers.add(member)

    def _has_earlier(self, rank: int, operation: Operation) -> bool:
        """Whether a rank has something to finish before an operation that it has issued."""
        firm = self._first[rank][-1] if self._first[rank] else None
        return firm is not None and not firm.is_overtaken and firm.order < operation.order

    def _only_absent(self, rank: int, instance: Instance, operation: Operation) -> None:
        if instance not in self._absent_of:
            members = self._groups.members(instance.group)
            self._absent_of[instance] = [member for member in members if member not in self._groups.views]
        absent = self._absent_of[instance]
        if len(absent) == 1:
            self._absent(absent[0], rank, operation)

    def _absent(self, absent: int, rank: int, operation: Operation) -> None:
        self.no_dump[absent, operation.group].setdefault(rank, operation)

    def _pairs(self, rank: int, view: RankView) -> Iterator[tuple[Operation, bool]]:
        """Each pending send and receive, and whether the other side has none that matches it."""
        counts: dict[tuple[GroupKey, int, bool], int] = defaultdict(int)
        for operation in view.pending:
            if not operation.is_p2p or operation.peer is None or operation.op not in {"send", "recv"}:
                continue
            is_send = operation.op == "send"
            place = counts[operation.group, operation.peer, is_send]
            counts[operation.group, operation.peer, is_send] += 1
            yield operation, place >= self._matching(rank, operation)

    def _matching(self, rank: int, operation: Operation) -> int:
        assert operation.peer is not None
        peer = self._groups.views.get(operation.peer)
        progress = peer.groups.get(operation.group) if peer is not None else None
        if progress is None:
            return 0
        sends, receives = progress.peers.get(rank, (0, 0))
        return receives if operation.op == "send" else sends

    def _pair(self, rank: int, operation: Operation, is_missing: bool) -> None:
        peer = operation.peer
        assert peer is not None
        if peer not in self._groups.views:
            self.leads_out.add(rank)
            if operation in self._first[rank]:
                self._absent(peer, rank, operation)
            return
        if is_missing:
            self.missing[peer].append(Missing(peer, rank, operation))
            self._edge(rank, peer, operation)
        elif peer in self._broken or (operation in self._first[rank] and self._is_behind(rank, peer, operation)):
            self._edge(rank, peer, operation)

    def _edge(self, rank: int, peer: int, operation: Operation) -> None:
        is_known = peer in self.edges[rank]
        self.edges[rank].add(peer)
        if operation.op != "send":
            self.send_waits.discard((rank, peer))
        elif not is_known:
            self.send_waits.add((rank, peer))

    def _is_behind(self, rank: int, peer: int, operation: Operation) -> bool:
        """Whether the peer has something earlier to finish than its side of a send or receive."""
        view = self._groups.views[peer]
        wanted = "recv" if operation.op == "send" else "send"
        for candidate in view.pending:
            is_pair = candidate.is_p2p and candidate.op == wanted and candidate.peer == rank
            if is_pair and candidate.group == operation.group:
                return self._has_earlier(peer, candidate)
        return False


def first_operations(view: RankView) -> tuple[Operation, ...]:
    """What a rank can be stuck in: its first pending operation, and the first one that nothing has overtaken."""
    if not view.pending:
        return ()
    firm = next((operation for operation in view.pending if not operation.is_overtaken), None)
    first = view.pending[0]
    return (first,) if firm is None or firm is first else (first, firm)

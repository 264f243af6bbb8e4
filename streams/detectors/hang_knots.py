"""Sets of ranks that wait for each other and for nobody outside.

Guarantees: a set is given only if the evidence about it ends within it; in order of the lowest rank. Linear in the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.detectors.hang_waits import Node

__all__ = ["closed_knots"]


def closed_knots(
    edges: Mapping[Node, Collection[Node]], leads_out: Collection[Node], ranks: Collection[int]
) -> list[tuple[int, ...]]:
    """The strongly connected sets of at least two ranks that nothing leads out of.

    Args:
        edges: Who waits for whom, operations among the nodes.
        leads_out: Nodes that also wait for something unknown.
        ranks: Ranks that are nodes.
    """
    component = _components(edges)

    def is_way_out(follower: Node, name: int) -> bool:
        # An operation that waits for nobody holds nobody up.
        is_dead_end = not isinstance(follower, int) and not edges.get(follower) and follower not in leads_out
        return component[follower] != name and not is_dead_end

    members: dict[int, list[Node]] = {}
    is_open: set[int] = set()
    for node, name in component.items():
        members.setdefault(name, []).append(node)
        if node in leads_out or any(is_way_out(follower, name) for follower in edges.get(node, ())):
            is_open.add(name)
    found = []
    for name, nodes in members.items():
        knot = tuple(sorted(node for node in nodes if isinstance(node, int) and node in ranks))
        if name not in is_open and len(knot) > 1:
            found.append(knot)
    return sorted(found)


def _components(edges: Mapping[Node, Collection[Node]]) -> dict[Node, int]:
    """Tarjan's components with a stack of its own: graphs here are deeper than Python's."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component: dict[Node, int] = {}
    path: list[Node] = []
    for root in list(edges):
        if root in index:
            continue
        work = [(root, iter(list(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        path.append(root)
        while work:
            node, followers = work[-1]
            for follower in followers:
                if follower not in index:
                    index[follower] = low[follower] = len(index)
                    path.append(follower)
                    work.append((follower, iter(list(edges.get(follower, ())))))
                    break
                if follower not in component:
                    low[node] = min(low[node], index[follower])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = path.pop()
                        component[member] = index[node]
                        if member == node:
                            break
    return component

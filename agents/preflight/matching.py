"""Disjoint pairs of all nodes, so that everyone is measured at once and each time with somebody else. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Pair", "least_used_matching", "neighbours", "pair_of"]

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


def pair_of(one: int, other: int) -> Pair:
    """The pair of two ranks, in whichever order they are named."""
    return (one, other) if one < other else (other, one)


def neighbours(nodes: Sequence[int], shift: int) -> Iterator[Pair]:
    """Pairs of nodes that stand beside each other, from the one at `shift` on and round the end.

    Of an odd number the one before that is in no pair.
    """
    turned = [*nodes[shift:], *nodes[:shift]]
    for one, other in zip(turned[::2], turned[1::2], strict=False):
        yield pair_of(one, other)


def least_used_matching(nodes: Sequence[int], used: Mapping[Pair, int]) -> tuple[Pair, ...]:
    """The pairs of a few nodes that were used least so far; of an odd number whoever was in most pairs is left over.

    Args:
        nodes: in ascending order; every way to pair them is tried, so eight are the most.
        used: how often each pair was used.
    """
    busy = {node: sum(count for pair, count in used.items() if node in pair) for node in nodes}
    rests = [[node for node in nodes if node != left] for left in nodes] if len(nodes) % 2 else [list(nodes)]
    options = ((pairs, rest) for rest in rests for pairs in _matchings(rest))
    best, _ = min(
        options,
        key=lambda option: (sum(used.get(pair, 0) for pair in option[0]), sum(busy[node] for node in option[1])),
    )
    return tuple(best)


def _matchings(nodes: Sequence[int]) -> Iterator[list[Pair]]:
    if not nodes:
        yield []
        return
    first, *others = nodes
    for other in others:
        for pairs in _matchings([node for node in others if node != other]):
            yield [(first, other), *pairs]

"""Collectives of many ranks joined by communicator: what a transfer takes, what is waiting, and the bandwidth that results.

A collective's time on a rank runs from that rank's arrival to the common end, so the shortest time among the members is the
transfer, from the last arrival on, and all beyond it is waiting. Guarantees: no clocks of different ranks are set
against each other; operations of which members recorded different sizes or types are left out and counted; with members
missing the transfer is an upper bound, and the figures say so. Deliberately not: who came last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, NamedTuple

from streams.profiles.bandwidth import bandwidth

__all__ = ["CollectiveFigures", "Communicator", "Share", "Span", "figures_of", "link_limit_gb_s", "rails_of", "span_of"]

Span = Literal["node", "rail", "mixed", "unknown"]
"""Where the members are: on one node, at the same place of their nodes, or otherwise."""

_EQUAL_ENDS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Operations that end for all members together; of others a member's time is no wait for the last one."""


class Communicator(NamedTuple):
    """A process group, equal on all its ranks.

    Attributes:
        desc: What it is for; with a name where its members are not known.
        ranks: Members in order; None if not known.
        size: How many.
    """

    desc: str | None
    ranks: tuple[int, ...] | None
    size: int


class Share(NamedTuple):
    """One rank's share of one collective.

    Attributes:
        communicator: Where.
        operation: One word for it.
        number: The same on all members, within the communicator.
        rank: Whose.
        size_bytes: Of the larger buffer.
        duration_us: From arrival to end.
    """

    communicator: Communicator
    operation: str
    number: int
    rank: int
    size_bytes: int
    duration_us: float


@dataclass(frozen=True, slots=True)
class CollectiveFigures:
    """One operation of one communicator in one range of sizes.

    Attributes:
        size_class: Sizes from 2**size_class bytes to less than twice that.
        count: Collectives.
        size_bytes: Median.
        transfer_us: Median over the collectives of the shortest time among members.
        algorithm_gb_s, bus_gb_s, tree_gb_s: Medians; see `Bandwidth`.
        wait_share: Waiting in all the members' time, 0..1; None of one whose members do not end together, or one rank's.
        ranks_seen: Members of which there is data.
    """

    communicator: Communicator
    span: Span
    operation: str
    size_class: int
    count: int
    size_bytes: int
    transfer_us: float
    algorithm_gb_s: float
    bus_gb_s: float
    tree_gb_s: float | None
    wait_share: float | None
    ranks_seen: int

    @property
    def is_complete(self) -> bool:
        """Whether all members are seen; else the last to arrive may be missing, and bandwidth is a lower bound."""
        return self.ranks_seen == self.communicator.size


def figures_of(shares: Iterable[Share], ranks_per_node: int) -> tuple[list[CollectiveFigures], int]:
    """Figures per communicator, operation and range of sizes, and how many collectives were left out.

    Args:
        shares: Of all ranks, in any order.
        ranks_per_node: Ranks are taken to be numbered node by node.

    Left out are collectives whose members recorded different sizes or operations, and such as have no bandwidth.
    """
    joined: dict[tuple[Communicator, int], list[Share]] = defaultdict(list)
    for share in shares:
        joined[share.communicator, share.number].append(share)
    kinds: dict[tuple[Communicator, str, int], list[list[Share]]] = defaultdict(list)
    left_out = 0
    for members in joined.values():
        first = members[0]
        is_alike = all(other.operation == first.operation and other.size_bytes == first.size_bytes for other in members)
        if is_alike and len({member.rank for member in members}) == len(members):
            kinds[first.communicator, first.operation, first.size_bytes.bit_length() - 1].append(members)
        else:
            left_out += 1
    found = []
    for (communicator, operation, size_class), collectives in kinds.items():
        figures = _figures(communicator, operation, size_class, collectives, ranks_per_node)
        if figures is None:
            left_out += len(collectives)
        else:
            found.append(figures)
    return sorted(found, key=_order), left_out


def _figures(
    communicator: Communicator,
    operation: str,
    size_class: int,
    collectives: Sequence[Sequence[Share]],
    ranks_per_node: int,
) -> CollectiveFigures | None:
    # One that fewer ranks recorded than another has a longer shortest time for that alone.
    seen = max(len(members) for members in collectives)
    full = [members for members in collectives if len(members) == seen]
    shortest = [min(member.duration_us for member in members) for members in full]
    all_rates = [
        bandwidth(operation, communicator.size, members[0].size_bytes, transfer_us)
        for members, transfer_us in zip(full, shortest, strict=True)
    ]
    rates = [rate for rate in all_rates if rate is not None]
    if not rates:
        return None
    trees = [rate.tree_gb_s for rate in rates if rate.tree_gb_s is not None]
    total_us = sum(member.duration_us for members in full for member in members)
    waiting_us = total_us - seen * sum(shortest)
    return CollectiveFigures(
        communicator=communicator,
        span=span_of(communicator.ranks, ranks_per_node),
        operation=operation,
        size_class=size_class,
        count=len(full),
        size_bytes=round(median(members[0].size_bytes for members in full)),
        transfer_us=median(shortest),
        algorithm_gb_s=median(rate.algorithm_gb_s for rate in rates),
        bus_gb_s=median(rate.bus_gb_s for rate in rates),
        tree_gb_s=median(trees) if trees else None,
        wait_share=waiting_us / total_us if operation in _EQUAL_ENDS and seen > 1 else None,
        ranks_seen=seen,
    )


def span_of(ranks: Sequence[int] | None, ranks_per_node: int) -> Span:
    """Where members are, if ranks are numbered node by node."""
    if not ranks:
        return "unknown"
    if len({rank // ranks_per_node for rank in ranks}) == 1:
        return "node"
    return "rail" if len({rank % ranks_per_node for rank in ranks}) == 1 else "mixed"


def rails_of(
    figures: Iterable[CollectiveFigures], ranks_per_node: int
) -> dict[tuple[str, int, int], Mapping[int, float]]:
    """Median bus bandwidth by rail, for each operation, size of communicator and range of sizes.

    A rail is what connects the GPUs at one place of all nodes; only communicators that lie within one tell of it.

    Returns:
        By (operation, members, size class): GB/s by place in the node.
    """
    rates: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in figures:
        if one.span == "rail" and one.communicator.ranks:
            key = (one.operation, one.communicator.size, one.size_class)
            rates[key][one.communicator.ranks[0] % ranks_per_node].append(one.bus_gb_s)
    return {
        key: {rail: median(found) for rail, found in sorted(by_rail.items())} for key, by_rail in sorted(rates.items())
    }


def link_limit_gb_s(
    figures: CollectiveFigures, ranks_per_node: int, gpu_link_gb_s: float | None, port_gb_s: float | None
) -> float | None:
    """The bus bandwidth that the links of a communicator carry, GB/s; None where that is not known.

    Args:
        figures: Of the communicator.
        ranks_per_node: Ranks are taken to be numbered node by node.
        gpu_link_gb_s: What a GPU's links to the others of its node carry each way (NVLink 4: 450).
        port_gb_s: What the network port of one GPU carries each way (400 Gbit/s: 50).

    Within a node it is the GPU's link, along a rail the port. Otherwise every ring crosses into the next node once, and the
    rings of all members on a node share their ports: the sum of those, and no more than the GPU's link.
    """
    if figures.span == "node":
        return gpu_link_gb_s
    if figures.span == "unknown" or port_gb_s is None or not figures.communicator.ranks:
        return None
    nodes = {rank // ranks_per_node for rank in figures.communicator.ranks}
    ports = port_gb_s * figures.communicator.size / len(nodes)
    return ports if gpu_link_gb_s is None else min(ports, gpu_link_gb_s)


def _order(figures: CollectiveFigures) -> tuple[int, str, tuple[int, ...], str, int]:
    one = figures.communicator
    return one.size, one.desc or "", one.ranks or (), figures.operation, figures.size_class

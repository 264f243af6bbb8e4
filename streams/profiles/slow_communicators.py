"""Communicators that move less than they should: against their peers, against earlier runs, and the rails against each other.

Observations, never a reason to take a node: tenants' own records are all that speaks here, and many causes look alike.
Guarantees: small collectives are not judged, because latency sets their time; nothing is judged against fewer than a
few others, and a run's medians are judged, never a single collective. Deliberately not: which link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from streams.profiles.communicators import CollectiveFigures, rails_of

__all__ = ["LEAST_SIZE_CLASS", "SHORT", "CollectiveObservation", "history_key", "observations", "with_figures"]

SHORT: Final = 0.8
"""Share of the usual bandwidth below which a communicator is told. A judgement: runs of nccl-tests on sound nodes differ
by a few percent, a lost link of eight or a halved rate by more than a fifth."""

LEAST_SIZE_CLASS: Final = 20
"""From 1 MiB on. A judgement: smaller transfers are set by latency."""

_LEAST_PEERS: Final = 3
_LEAST_HISTORY: Final = 5
_MOST_HISTORY: Final = 64
_ABOVE_LINK: Final = 1.05

History = Mapping[str, Sequence[float]]
"""By `history_key` the bus bandwidths of earlier runs, oldest first, GB/s."""


@dataclass(frozen=True, slots=True)
class CollectiveObservation:
    """What stands out.

    Attributes:
        kind: `slow_communicator` (among its peers), `below_history`, `slow_rail`, or `above_link`: more than the link can
            carry, so switches reduce on the way, or the recorded sizes are not what was moved.
        figures: Of the communicator; None for a rail.
        rail: Place in the node; None for a communicator.
        bus_gb_s: Its bus bandwidth.
        usual_gb_s: What it is held against.
    """

    kind: Literal["slow_communicator", "below_history", "slow_rail", "above_link"]
    figures: CollectiveFigures | None
    rail: int | None
    operation: str
    bus_gb_s: float
    usual_gb_s: float

    @property
    def share(self) -> float:
        """Of what is usual."""
        return self.bus_gb_s / self.usual_gb_s


def history_key(figures: CollectiveFigures) -> str:
    """What is comparable between runs of one fleet: operation, members, where they are, and size."""
    return f"{figures.operation}/{figures.communicator.size}/{figures.span}/{figures.size_class}"


def with_figures(history: History, figures: Iterable[CollectiveFigures]) -> dict[str, list[float]]:
    """The history with a run's figures in it; of each key the latest 64 are kept."""
    grown = {key: list(rates) for key, rates in history.items()}
    for one in figures:
        if one.is_complete:
            grown.setdefault(history_key(one), []).append(float(f"{one.bus_gb_s:.6g}"))
    return {key: rates[-_MOST_HISTORY:] for key, rates in sorted(grown.items())}


def observations(
    figures: Sequence[CollectiveFigures],
    ranks_per_node: int,
    history: History | None = None,
    limit_of: Callable[[CollectiveFigures], float | None] | None = None,
) -> list[CollectiveObservation]:
    """What stands out among the figures of one run.

    Args:
        figures: As `figures_of` gives them.
        ranks_per_node: As there.
        history: Of earlier runs.
        limit_of: The bus bandwidth that the links of a communicator carry, GB/s; None for an unknown one.
    """
    judged = [one for one in figures if one.size_class >= LEAST_SIZE_CLASS and one.communicator.size > 1]
    found = [*_among_peers(judged), *_among_rails(judged, ranks_per_node)]
    for one in judged:
        earlier = (history or {}).get(history_key(one), ())
        if one.is_complete and len(earlier) >= _LEAST_HISTORY and one.bus_gb_s < SHORT * median(earlier):
            found.append(_of("below_history", one, median(earlier)))
        limit = limit_of(one) if limit_of is not None else None
        if limit is not None and one.bus_gb_s > _ABOVE_LINK * limit:
            found.append(_of("above_link", one, limit))
    return found


def _among_peers(figures: Sequence[CollectiveFigures]) -> list[CollectiveObservation]:
    """Communicators of one purpose, size, place and range of sizes; each against the median of all the others."""
    alike: dict[tuple[str | None, str], list[CollectiveFigures]] = defaultdict(list)
    for one in figures:
        if one.is_complete:
            alike[one.communicator.desc, history_key(one)].append(one)
    found = []
    for peers in alike.values():
        for one in peers:
            others = [other.bus_gb_s for other in peers if other is not one]
            if len(others) >= _LEAST_PEERS and one.bus_gb_s < SHORT * median(others):
                found.append(_of("slow_communicator", one, median(others)))
    return found


def _among_rails(figures: Sequence[CollectiveFigures], ranks_per_node: int) -> list[CollectiveObservation]:
    found = []
    for (operation, _, _), rates in rails_of(figures, ranks_per_node).items():
        for rail, rate in rates.items():
            others = [other for place, other in rates.items() if place != rail]
            if len(others) >= _LEAST_PEERS and rate < SHORT * median(others):
                found.append(CollectiveObservation("slow_rail", None, rail, operation, rate, median(others)))
    return found


def _of(
    kind: Literal["slow_communicator", "below_history", "above_link"], one: CollectiveFigures, usual_gb_s: float
) -> CollectiveObservation:
    return CollectiveObservation(kind, one, None, one.operation, one.bus_gb_s, usual_gb_s)

"""Which of many nodes are slow, found by all-reduces of pairs that run at the same time. Pure: figures in, pairs out.

A ring all-reduce is as fast as its slowest member, so a pair at pace clears both of its nodes, and a slow pair accuses
both, or the way between them. Everyone is measured with several partners; who was never at pace is paired with nodes
that were, until enough of them bear witness. Guarantees: at most `most_rounds` rounds, 2 log2 n and at least 4; a node is
named only if no pair of it was ever at pace; a pair that stays slow between two nodes which are at pace with others is a
slow link and names nobody; a round in which most pairs of good nodes were slow says nothing; if more than a quarter of
all would be named, nobody is. The state is what was measured, and everything else follows from it.

Not done: links are not searched, only those are found that a round happened to use; where two thirds are slow the pace of
the rest is not known without `floor_gb_s`; two nodes have no third to compare with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from statistics import median
from typing import Any

from agents.preflight.matching import Pair, least_used_matching, neighbours, pair_of

__all__ = ["Bisection", "BisectionLimits", "BisectionVerdict", "Pair", "most_rounds"]

_SMALL = 8
"""Below so many nodes two slow ones can be in every pair of two rounds, so that a third one is needed to see the pace."""


@dataclass(frozen=True, slots=True)
class BisectionLimits:
    """When a pair is slow, and what it takes to name somebody.

    Attributes:
        slow_below: share of the pace of all below which a pair is slow (ratio); NVIDIA's resiliency extension calls a
            rank a straggler below 0.75 of the reference.
        confirmations: slow pairs that it takes to name a node or a link. Judgement: one measurement in a hundred that is
            off by chance names one of 64 good nodes once in many thousand runs.
        witnesses: different partners among them, each at pace with others, of a node.
        most_slow_share: share of all nodes beyond which nobody is named, since many slow nodes are a slow fabric, or two
            kinds of nodes (ratio); two may be named in any case.
        floor_gb_s: what a pair must reach whatever the others do (GB/s); None for no such figure.
    """

    slow_below: float = 0.75
    confirmations: int = 3
    witnesses: int = 2
    most_slow_share: float = 0.25
    floor_gb_s: float | None = None


@dataclass(frozen=True, slots=True)
class BisectionVerdict:
    """What the measurements come to, by rank.

    Attributes:
        slow: named.
        slow_links: pairs that stay slow while both are at pace with others.
        broken_links: pairs that gave no figure, likewise.
        at_pace: those that were at pace with somebody.
        unsettled: never at pace, and not enough witnesses to name them.
        unmeasured: those of which there is no figure at all.
        is_widespread: whether so many would be named that nobody is; they are unsettled then.
        pace_gb_s: the pace of all; None where nothing tells it.
        gb_s: the median figure of each node's pairs.
        rounds: how many were run.
    """

    slow: tuple[int, ...]
    slow_links: tuple[Pair, ...]
    broken_links: tuple[Pair, ...]
    at_pace: tuple[int, ...]
    unsettled: tuple[int, ...]
    unmeasured: tuple[int, ...]
    is_widespread: bool
    pace_gb_s: float | None
    gb_s: Mapping[int, float]
    rounds: int


def most_rounds(nodes: int) -> int:
    """How many rounds there are at most: 2 log2 n, and 4 where that is less."""
    return max(4, floor(2 * log2(nodes))) if nodes > 1 else 0


class Bisection:
    """Plans rounds and judges what they gave.

    Args:
        nodes: how many; ranks 0 to nodes - 1, near ones with near numbers, since partners are taken from nearby.
        limits: when somebody is named.
    """

    def __init__(self, nodes: int, limits: BisectionLimits | None = None) -> None:
        self.nodes = nodes
        self.limits = limits or BisectionLimits()
        self._rounds: list[dict[Pair, float | None]] = []
        self._away: set[int] = set()

    def next_round(self) -> tuple[Pair, ...]:
        """Disjoint pairs to measure at the same time; none when there is nothing more to ask."""
        here = [node for node in range(self.nodes) if node not in self._away]
        done = len(self._rounds)
        if len(here) < 2 or done >= most_rounds(self.nodes):
            return ()
        if self.nodes < _SMALL and done < min(3, self.nodes - 1):
            return least_used_matching(here, Counter(pair for measured in self._rounds for pair in measured))
        if self.nodes >= _SMALL and done < 2:
            return tuple(neighbours(here, done))
        evidence = _Evidence(self._rounds, self.limits)
        asked = self._asked(here, evidence)
        if not asked:
            return ()
        # The others work as they did in the first rounds, and show whether this round can be believed.
        taken = {node for pair in asked for node in pair}
        for pair in sorted(evidence.fast):
            if taken.isdisjoint(pair) and self._away.isdisjoint(pair):
                asked.append(pair)
                taken.update(pair)
        return tuple(sorted(asked))

    def record(self, figures: Mapping[Pair, float | None]) -> None:
        """Take a round's figures.

        Args:
            figures: bus bandwidth of each pair's slowest member (GB/s); None for a pair that gave none.
        """
        self._rounds.append(dict(figures))

    def leave(self, node: int) -> None:
        """A node is gone: it is in no further round."""
        self._away.add(node)

    def verdict(self) -> BisectionVerdict:
        """What is known by now."""
        evidence = _Evidence(self._rounds, self.limits)
        figures = evidence.figures
        measured = set(figures)
        good = evidence.good
        named = {node for node in measured - good if self._is_named(evidence.accused[node])}
        is_widespread = len(named) > max(2, floor(self.limits.most_slow_share * self.nodes))
        slow = set() if is_widespread else named
        return BisectionVerdict(
            slow=tuple(sorted(slow)),
            slow_links=self._confirmed(evidence.slow_between_good()),
            broken_links=self._confirmed(evidence.missed_between_good()),
            at_pace=tuple(sorted(good)),
            unsettled=tuple(sorted(measured - good - slow)),
            unmeasured=tuple(node for node in range(self.nodes) if node not in measured),
            is_widespread=is_widespread,
            pace_gb_s=evidence.pace_gb_s,
            gb_s={node: median(values) for node, values in sorted(figures.items())},
            rounds=len(self._rounds),
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        rounds = [[[*pair, figure] for pair, figure in sorted(measured.items())] for measured in self._rounds]
        return {"nodes": self.nodes, "away": sorted(self._away), "rounds": rounds}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self.nodes = snapshot["nodes"]
        self._away = set(snapshot["away"])
        self._rounds = [{(low, high): figure for low, high, figure in measured} for measured in snapshot["rounds"]]

    def _asked(self, here: Sequence[int], evidence: _Evidence) -> list[Pair]:
        """Pairs whose figures would decide something."""
        good = evidence.good
        free = sorted(good - self._away)
        asked: list[Pair] = []
        for node in here:
            if node in good or self._is_named(evidence.accused[node]) or evidence.is_given_up(node, self.limits):
                continue
            tried = evidence.partners[node]
            # A partner from nearby: the way to one far off may be narrower for reasons that are nobody's fault.
            partner = min(free, key=lambda other: (tried[other], abs(other - node), other), default=None)
            if partner is not None:
                free.remove(partner)
                asked.append(pair_of(node, partner))
        for doubts in (evidence.slow_between_good(), evidence.missed_between_good()):
            for pair, count in sorted(doubts.items()):
                if count < self.limits.confirmations and pair[0] in free and pair[1] in free:
                    asked.append(pair)
                    free = [node for node in free if node not in pair]
        return asked

    def _is_named(self, accusers: Sequence[int]) -> bool:
        return len(accusers) >= self.limits.confirmations and len(set(accusers)) >= self.limits.witnesses

    def _confirmed(self, counts: Mapping[Pair, int]) -> tuple[Pair, ...]:
        return tuple(sorted(pair for pair, count in counts.items() if count >= self.limits.confirmations))


class _Evidence:
    """What the rounds say of nodes and pairs."""

    def __init__(self, rounds: Sequence[Mapping[Pair, float | None]], limits: BisectionLimits) -> None:
        self.figures: dict[int, list[float]] = defaultdict(list)
        """Figures of each node's pairs."""
        self.partners: dict[int, Counter[int]] = defaultdict(Counter)
        """How often each node was with each other."""
        self.accused: dict[int, list[int]] = defaultdict(list)
        """Of a node that was never at pace, the good partners with which it was slow, once for each time."""
        for measured in rounds:
            for pair, figure in measured.items():
                for node, other in (pair, pair[::-1]):
                    self.partners[node][other] += 1
                    if figure is not None:
                        self.figures[node].append(figure)
        best = sorted((max(values) for values in self.figures.values() if values), reverse=True)
        self.pace_gb_s = _pace(best, limits)
        least = _least(self.pace_gb_s, limits)
        at_pace = [
            {pair for pair, figure in measured.items() if figure is not None and figure >= least} for measured in rounds
        ]
        self.fast: set[Pair] = set().union(*at_pace)
        self.good = {node for pair in self.fast for node in pair}
        self._slow: Counter[Pair] = Counter()
        self._missed: Counter[Pair] = Counter()
        for number, measured in enumerate(rounds):
            elsewhere = {
                node for other, fast in enumerate(at_pace) if other != number for pair in fast for node in pair
            }
            slow = {pair for pair, figure in measured.items() if figure is not None and figure < least}
            self._missed.update(pair for pair, figure in measured.items() if figure is None)
            if not _is_disturbed(at_pace[number], slow, elsewhere):
                self._slow.update(slow)
        for pair, count in self._slow.items():
            for node, other in (pair, pair[::-1]):
                if other in self.good and node not in self.good:
                    self.accused[node] += [other] * count

    def slow_between_good(self) -> dict[Pair, int]:
        """Pairs that were slow and never at pace, of nodes that were at pace with others, and how often."""
        return self._between_good(self._slow)

    def missed_between_good(self) -> dict[Pair, int]:
        """Pairs without a figure, likewise."""
        return self._between_good(self._missed)

    def is_given_up(self, node: int, limits: BisectionLimits) -> bool:
        """Whether a node gave no figure with so many that it is not asked again."""
        return not self.figures.get(node) and self.partners[node].total() >= limits.confirmations

    def _between_good(self, counts: Mapping[Pair, int]) -> dict[Pair, int]:
        return {pair: count for pair, count in counts.items() if pair not in self.fast and self.good.issuperset(pair)}


def _pace(best: Sequence[float], limits: BisectionLimits) -> float | None:
    """What a third of the nodes reach at their best: in two rounds one slow node holds up three, so a median may be slow.

    Args:
        best: figures in descending order (GB/s).
        limits: whether there is a floor.
    """
    # Two nodes have one figure, and it says nothing of itself.
    if len(best) < 3 and limits.floor_gb_s is None:
        return None
    return best[ceil(len(best) / 3) - 1] if best else None


def _least(pace_gb_s: float | None, limits: BisectionLimits) -> float:
    if pace_gb_s is None:
        return float("inf")
    return max(limits.slow_below * pace_gb_s, limits.floor_gb_s or 0.0)


def _is_disturbed(fast: Collection[Pair], slow: Collection[Pair], good: Collection[int]) -> bool:
    """Whether most pairs of nodes that are good by other rounds were slow in this one."""
    slow_controls = _within(slow, good)
    return slow_controls > 1 and slow_controls > _within(fast, good)


def _within(pairs: Iterable[Pair], nodes: Collection[int]) -> int:
    return sum(low in nodes and high in nodes for low, high in pairs)

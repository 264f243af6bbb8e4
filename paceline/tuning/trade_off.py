"""What each value comes to over all archives, which values no other one beats, and whether one can be recommended.

A wrong cordon costs more than a missed one: values are ordered by nodes that would be taken out wrongly first, then by faults
missed and places blamed though healthy together. What cannot be told apart, or rests on few faults, is said to be so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.evaluation.intervals import kaplan_meier, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.evaluation.intervals import KaplanMeier, Share
    from paceline.tuning.outcome import Labelled, Outcome

__all__ = ["LEAST_FAULTS", "Row", "Verdict", "judge_rows", "many"]

LEAST_FAULTS = 20
"""Labelled faults below which no value is recommended: of 20 found of 20 the 95 % interval still begins at 0.84. Judgement."""


@dataclass(frozen=True, slots=True)
class Row:
    """One value, or the policy that was in force, over all archives.

    Attributes:
        value: the value; null for what was in force where that was several.
        is_in_force: whether it is what was in force.
        outcomes: one per archive, in their order.
    """

    value: float | None
    is_in_force: bool
    outcomes: tuple[Outcome, ...]

    @property
    def labelled(self) -> tuple[Labelled, ...]:
        """What is known of the archives whose truth is."""
        return tuple(outcome.labelled for outcome in self.outcomes if outcome.labelled is not None)

    @property
    def commands(self) -> Counter[str]:
        """How often each command would have been given, as `kind target`."""
        return Counter(command for outcome in self.outcomes for command in outcome.commands)

    @property
    def by_kind(self) -> Counter[str]:
        """Commands by kind."""
        counts: Counter[str] = Counter()
        for outcome in self.outcomes:
            counts.update(outcome.by_kind)
        return counts

    @property
    def faults(self) -> int:
        """Labelled faults."""
        return sum(len(known.faults) for known in self.labelled)

    @property
    def found(self) -> frozenset[tuple[int, str]]:
        """Faults that were found, as (number of the archive, id)."""
        return frozenset((number, fault) for number, known in enumerate(self.labelled) for fault in known.found)

    @property
    def missed(self) -> int:
        """Faults that were not found."""
        return self.faults - len(self.found)

    @property
    def blamed(self) -> int:
        """How often somebody healthy was named."""
        return sum(len(known.blamed) for known in self.labelled)

    @property
    def wrong_nodes(self) -> int:
        """Nodes that would have been taken out wrongly."""
        return sum(len(known.wrong_nodes) for known in self.labelled)

    @property
    def recall(self) -> Share:
        """Share of labelled faults that were found."""
        return share(len(self.found), self.faults)

    @property
    def precision(self) -> Share:
        """Share of incidents that name the culprit among those that name somebody."""
        return share(sum(k.naming_right for k in self.labelled), sum(k.naming for k in self.labelled))

    @property
    def alert_s(self) -> KaplanMeier:
        """Times from onset to alert; a missed fault counts as not yet found at its end."""
        delays = [(s, f in k.found) for k in self.labelled for f, s in zip(k.faults, k.delays_s, strict=True)]
        return kaplan_meier([seconds for seconds, _ in delays], [is_found for _, is_found in delays])

    @property
    def cost(self) -> tuple[int, int, int]:
        """What values are ordered by, the least first."""
        return self.wrong_nodes, self.missed + self.blamed, self.missed

    def beats(self, other: Row) -> bool:
        """Whether it is nowhere worse than another row, and somewhere better."""
        ours, theirs = self._sides(), other._sides()
        return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))

    def _sides(self) -> tuple[int, int, int]:
        return self.wrong_nodes, self.blamed, self.missed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep says.

    Attributes:
        undominated: rows that no other one beats; empty without truth.
        quietest: the row that blames the fewest, of those the one that finds most; null without truth.
        best: the recommended row, or null.
        why: in one sentence, why that one, or why none.
    """

    undominated: tuple[Row, ...]
    quietest: Row | None
    best: Row | None
    why: str


def judge_rows(rows: Sequence[Row]) -> Verdict:
    """Hold values against each other.

    Args:
        rows: at least one, the one in force among them, all of the same archives.
    """
    if all(row.outcomes == rows[0].outcomes for row in rows):
        return Verdict((), None, None, "these archives cannot tell the values apart: all come to the same")
    if not rows[0].labelled:
        return Verdict(
            (), None, None, "no truth is given: these are counts, and nothing in them says which value is right"
        )
    in_force = next(row for row in rows if row.is_in_force)

    def distance(row: Row) -> tuple[bool, float]:
        # Among equals the one in force stays, else the nearest: a change wants a reason.
        if in_force.value is None or row.value is None:
            return not row.is_in_force, row.value or 0.0
        return not row.is_in_force, abs(row.value - in_force.value)

    undominated = tuple(row for row in rows if not any(other.beats(row) for other in rows))
    quietest = min(rows, key=lambda row: (row.blamed, row.wrong_nodes, row.missed, *distance(row)))
    best = min(rows, key=lambda row: (*row.cost, *distance(row)))
    if all(row.cost == best.cost for row in rows):
        why = "by the truth all values do equally well: they differ in what is said, not in what of it is right"
        return Verdict(undominated, quietest, None, why)
    told_apart = len(
        frozenset.union(*(row.found for row in rows)) - frozenset.intersection(*(row.found for row in rows))
    )
    sample = f"{many(best.faults, 'labelled fault')}, {told_apart} found by some values and missed by others"
    if best.faults < LEAST_FAULTS:
        why = f"no value is recommended: the sample is small ({sample}; {LEAST_FAULTS} faults are the least)"
        return Verdict(undominated, quietest, None, why)
    if best.is_in_force:
        return Verdict(undominated, quietest, best, f"no value does better than what was in force ({sample})")
    gained, lost = len(best.found - in_force.found), len(in_force.found - best.found)
    why = (
        f"against what was in force {gained} found more, {lost} found less, blamed though healthy "
        f"{best.blamed - in_force.blamed:+d}, nodes taken out wrongly {best.wrong_nodes - in_force.wrong_nodes:+d} ({sample})"
    )
    return Verdict(undominated, quietest, best, why)


def many(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

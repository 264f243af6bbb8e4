"""The verdict about a hang, as a record.

Guarantees: strict JSON types; ranks sorted. Nothing is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from streams.detectors.hang_digests import Operation

__all__ = ["Cause", "HangVerdict", "Side"]

Cause = Literal["not_entered", "hardware", "inconsistent", "transport", "insufficient"]


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that issued the same where all should have.

    Attributes:
        ranks: Global ranks, sorted.
        op, input_sizes, dtypes: What the lowest of them issued.
    """

    ranks: tuple[int, ...]
    op: str | None
    input_sizes: tuple[tuple[int, ...], ...] | None
    dtypes: tuple[str, ...] | None

    @classmethod
    def of(cls, operations: dict[int, Operation]) -> Side:
        """The side of some ranks, by rank what each issued; at least one."""
        first = operations[min(operations)]
        return cls(tuple(sorted(operations)), first.op, first.input_sizes, first.dtypes)

    def as_record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "ranks": list(self.ranks),
            "op": self.op,
            "input_sizes": None if self.input_sizes is None else [list(size) for size in self.input_sizes],
            "dtypes": None if self.dtypes is None else list(self.dtypes),
        }


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Who keeps a job from going on.

    Attributes:
        verdict: `hang`, `healthy` (nothing is pending) or `undecided`.
        cause: Of the first culprit; None if healthy.
        culprit_ranks: Empty when nobody can be named.
        waiting_ranks: Ranks with a digest that wait for a culprit, directly or through others.
        causes: By culprit.
        operation: The innermost operation that is stuck.
        ranks_without_dump: Members of known groups of which there is no dump.
        watchdog_ranks: Ranks of which only lines in a log tell.
        sides: If `inconsistent`, one per variant, by lowest rank.
    """

    verdict: Literal["hang", "healthy", "undecided"]
    cause: Cause | None
    culprit_ranks: tuple[int, ...] = ()
    waiting_ranks: tuple[int, ...] = ()
    causes: tuple[tuple[int, Cause], ...] = ()
    operation: Operation | None = None
    ranks_without_dump: tuple[int, ...] = ()
    sides: tuple[Side, ...] = ()
    watchdog_ranks: tuple[int, ...] = ()

    def as_record(self, unreadable: tuple[str, ...] = ()) -> dict[str, Any]:
        """The verdict as one JSON object.

        Args:
            unreadable: Names of files that were to be dumps and gave none.
        """
        operation = self.operation
        record: dict[str, Any] = {
            "kind": "hang_verdict",
            "verdict": self.verdict,
            "cause": self.cause,
            "culprit_ranks": list(self.culprit_ranks),
            "waiting_ranks": list(self.waiting_ranks),
            "group_desc": operation.group.desc if operation else None,
            "seq": operation.number if operation else None,
            "op": operation.op if operation else None,
            "ranks_without_dump": list(self.ranks_without_dump),
            "unreadable": list(unreadable),
        }
        if self.watchdog_ranks:
            record["watchdog_ranks"] = list(self.watchdog_ranks)
        if len({cause for _, cause in self.causes}) > 1:
            record["causes"] = {str(rank): cause for rank, cause in self.causes}
        if self.cause == "inconsistent":
            record["sides"] = [side.as_record() for side in self.sides]
        return record

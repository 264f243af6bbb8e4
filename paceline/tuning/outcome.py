"""What one value comes to on one archive: counts of what is said, and of a labelled archive what of it is right.

Plain figures that cross processes. What the engines say is folded as it comes; step results are not kept, so that memory
does not grow with the length of an archive but only with what is said about it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.simulation.truth import NODE_COMMANDS
from paceline.review.said import Said
from paceline.review.told import nodes_at_fault, side_figures
from paceline.verdict import is_named, judge
from schemas.findings import Finding
from schemas.remediation import Incident
from schemas.results import StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.truth import Truth
    from schemas.base import Record

__all__ = ["Labelled", "Listener", "Outcome"]


@dataclass(frozen=True, slots=True)
class Labelled:
    """What is known where the truth is.

    Attributes:
        faults: ids of the faults that a fair rule can find.
        found: those of them that were found: culprit, class and a right command.
        blamed: who was named though healthy, a line each.
        wrong_nodes: nodes in which nothing was wrong and that a command would have taken out.
        naming: incidents that name somebody.
        naming_right: those of them that name a culprit, or a place that may be named for it.
        delays_s: by fault of `faults`, seconds from onset to the incident that found it; of a missed one, to its end.
    """

    faults: tuple[str, ...]
    found: tuple[str, ...]
    blamed: tuple[str, ...]
    wrong_nodes: tuple[str, ...]
    naming: int
    naming_right: int
    delays_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One value on one archive.

    Attributes:
        of_rule: findings that the swept rule opened; of a value that belongs to no rule all.
        findings: findings that any rule opened.
        incidents: incidents.
        commands: each as `kind target`, sorted; one that is said again stands again.
        by_kind: how many commands of each kind.
        nodes_out: nodes that a command would have taken out.
        gpu_hours_lost: sum of what the incidents state.
        labelled: null where nobody knows what was wrong.
    """

    of_rule: int
    findings: int
    incidents: int
    commands: tuple[str, ...]
    by_kind: dict[str, int]
    nodes_out: tuple[str, ...]
    gpu_hours_lost: float
    labelled: Labelled | None


class Listener:
    """Folds what the engines say under one value.

    Args:
        rule: the swept rule; null for all.
        truths: what was wrong, or null where nobody knows.
    """

    def __init__(self, rule: str | None, truths: Sequence[Truth] | None) -> None:
        self._rule, self._truths = rule, truths
        self._said = Said("")
        self._opened: Counter[str] = Counter()
        self._named: dict[str, list[tuple[int, Incident]]] = defaultdict(list)

    def take(self, record: Record, settle_ns: int) -> None:
        """Take an output.

        Args:
            record: the output.
            settle_ns: how long findings settle under the policy in force: nothing is decided before.
        """
        if isinstance(record, StepResult):
            return
        if isinstance(record, Finding):
            self._opened[record.rule] += record.state == "open"
            if record.kind != "straggler":
                # Nobody is held to have been blamed by it, and of some kinds there are hundreds a second.
                return
        elif isinstance(record, Incident):
            told = self._named[record.incident_id]
            if not told or told[-1][1].culprit != record.culprit or told[-1][1].cause_class != record.cause_class:
                told.append((record.event_time_ns + settle_ns, record))
        self._said.take(record)

    def outcome(self) -> Outcome:
        """What it comes to."""
        figures = side_figures(self._said, None)
        commands = self._said.heard.commands.values()
        nodes_out = {c.target.node_id for c in commands if c.kind in NODE_COMMANDS and c.target.node_id is not None}
        return Outcome(
            of_rule=self._opened.total() if self._rule is None else self._opened[self._rule],
            findings=self._opened.total(),
            incidents=figures["incidents"],
            commands=tuple(sorted(f"{command.kind} {command.target.name()}" for command in commands)),
            by_kind=figures["commands"],
            nodes_out=tuple(sorted(nodes_out)),
            gpu_hours_lost=figures["gpu_hours_lost"],
            labelled=self._labelled(self._truths, nodes_out) if self._truths is not None else None,
        )

    def _labelled(self, truths: Sequence[Truth], nodes_out: set[str]) -> Labelled:
        heard = self._said.heard
        verdict = judge(truths, heard)
        found_by = {detail["truth_id"]: detail["incident_id"] for detail in verdict.details if detail["found"]}
        faults = [truth for truth in truths if truth.identifiable]
        culprits = [i.culprit for i in heard.incidents.values() if i.culprit is not None]
        return Labelled(
            faults=tuple(truth.truth_id for truth in faults),
            found=tuple(truth.truth_id for truth in faults if truth.truth_id in found_by),
            blamed=verdict.blamed_healthy,
            wrong_nodes=tuple(sorted(nodes_out - nodes_at_fault(truths))),
            naming=len(culprits),
            naming_right=sum(any(is_named(truth, culprit) for truth in truths) for culprit in culprits),
            delays_s=tuple(self._delay_s(truth, found_by.get(truth.truth_id)) for truth in faults),
        )

    def _delay_s(self, truth: Truth, incident_id: str | None) -> float:
        said = [
            at_ns
            for at_ns, incident in (self._named[incident_id] if incident_id is not None else ())
            if incident.cause_class == truth.cause_class and is_named(truth, incident.culprit)
        ]
        return round((min(said, default=truth.end_ns) - truth.onset_ns) / 1e9, 3)

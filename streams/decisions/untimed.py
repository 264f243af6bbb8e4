"""Incidents of nodes whose job sends no step timings: what their counters and their silence say. Never a command.

One incident a node, whoever speaks first: a code of one of its GPUs, a port that pauses, or a counter that is out. What
comes later about the same node joins it; a code that asks for a command takes an incident of counters over and goes on
under the GPU. It is over when the last finding of its kind is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.findings import Subject
from streams.core.untimed import UntimedJobs
from streams.decisions.explained import Explained
from streams.decisions.remedies import ADVICE

if TYPE_CHECKING:
    from schemas.findings import Finding
    from streams.core.roster import Roster
    from streams.decisions.incidents import IncidentBook, OpenIncident

__all__ = ["UNTIMED_KINDS", "UntimedNodes"]

UNTIMED_KINDS = frozenset({"device_peers"})
"""Kinds of findings that speak of a node whose job does not."""


class UntimedNodes:
    """Opens and closes these incidents in a book that holds those of everybody.

    Args:
        book: of the site.
    """

    def __init__(self, book: IncidentBook) -> None:
        self._book = book
        self._untimed = UntimedJobs()
        self._explained = Explained()

    def take(self, finding: Finding, roster: Roster) -> tuple[OpenIncident, str] | None:
        """Take a finding of `UNTIMED_KINDS`, and return the incident to publish with its state, if there is one."""
        if finding.state == "cleared":
            over = self._explained.leave(finding.finding_id)
            incident = self._book.on(over) if over is not None else None
            if over is None or incident is None or incident.commands:
                return None
            return self._book.close(over), "resolved"
        node_id, seats = finding.subject.node_id, self._untimed.on(finding.subject.node_id, roster)
        if seats is None or node_id is None:
            return None
        for known in self._book.open_ones():
            if known.culprit is not None and known.culprit.node_id == node_id:
                known.join(finding)
                if known.component in self._explained.components:
                    self._explained.join(finding.finding_id, known.component)
                return None
        component = f"node:{node_id}"
        said = finding.values.get("cause_class")
        cause_class = said if isinstance(said, str) and said in ADVICE else "compute"
        incident = self._book.open(
            component, cause_class, Subject(level="node", node_id=node_id, job_id=seats.job_id), finding
        )
        incident.job_id = seats.job_id
        incident.summary = finding.explanation
        incident.values = dict(finding.values)
        self._explained.join(finding.finding_id, component)
        return incident, "open"

    def hand_over(self, component: str, culprit: Subject) -> None:
        """A device is about to be named: an incident of its node's counters goes on under it."""
        known = f"node:{culprit.node_id}"
        incident = self._book.on(known)
        if incident is not None and known in self._explained.components and self._book.on(component) is None:
            incident.culprit = culprit
            self._book.rename(known, component)
            self._explained.rename(known, component)

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return self._explained.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._explained.restore(snapshot)

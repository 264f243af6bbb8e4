"""Incidents that blame nobody: a whole job, its partition, its workload, its storage, the facility. Advice, and never an act.

What is slow here is shared by all of a job, or of a place, so no node is at fault, and taking one out would mend nothing. A
finding about a job that has an incident already is its consequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.decisions.explained import Explained
from streams.decisions.remedies import remedy_for_class

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Finding
    from streams.decisions.incidents import IncidentBook
    from streams.decisions.orders import Orders

__all__ = ["JOB_LEVEL_CLASSES", "JobLevel"]

JOB_LEVEL_CLASSES = {
    "job_slowdown": "whole_job",
    "stage_imbalance": "partition",
    "length_imbalance": "workload",
    "expert_imbalance": "workload",
    "token_imbalance": "workload",
    "storage_slowdown": "storage",
    "nodes_silent": "facility",
}
"""Class of the incident by kind of finding."""


class JobLevel:
    """Opens and closes these incidents in a book that holds those of everybody.

    Args:
        book: the site's open incidents.
        orders: publishes them.
    """

    def __init__(self, book: IncidentBook, orders: Orders) -> None:
        self._book, self._orders = book, orders
        self._explained = Explained()

    def take(self, finding: Finding) -> list[Record]:
        """Take a finding of `JOB_LEVEL_CLASSES`, and return the incident that follows, if one does."""
        if finding.state == "cleared":
            over = self._explained.leave(finding.finding_id)
            return list(self._book.resolve(over, finding.event_time_ns)) if over is not None else []
        cause_class = JOB_LEVEL_CLASSES[finding.kind]
        component = f"{cause_class}:{finding.subject.job_id or finding.job_id or finding.site_id}"
        known = self._book.on(component)
        if known is None:
            for other in self._book.open_ones():
                if finding.job_id is not None and other.job_id == finding.job_id and other.is_published:
                    other.suppress(finding)
                    return []
            known = self._book.open(component, cause_class, None, finding)
            known.summary = finding.explanation
            self._explained.join(finding.finding_id, component)
            return self._orders.order(known, remedy_for_class(cause_class), finding.event_time_ns)
        known.join(finding)
        self._explained.join(finding.finding_id, component)
        return []

    def snapshot(self) -> dict[str, str]:
        """Plain data that `restore` takes."""
        return self._explained.snapshot()

    def restore(self, snapshot: dict[str, str]) -> None:
        """Replace the state by a snapshot's."""
        self._explained.restore(snapshot)

"""Device faults that would cost nodes, held for a moment: many nodes at once have one cause, and it is none of them.

A fault is given out when all sources are `GATHER_NS` past it; one that comes only when it has settled waits so much longer, as its
neighbours do. Then it is known how many nodes failed around it: from the limit
of the guard `common_mode` on they are a storm, which is one incident without a culprit and without an act, until nothing was
added to it for the guard's span. Held faults come in order of (event time, id), so that it makes no difference which was
read first. Plain data; no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.guard_limits import guard_limits, is_guard_on

if TYPE_CHECKING:
    from schemas.findings import Finding
    from schemas.fleet import Policy
    from streams.decisions.incidents import IncidentBook, OpenIncident

__all__ = ["GATHER_NS", "Released", "Storms"]

GATHER_NS = 5_000_000_000
"""How long a fault waits for others; a judgement: a rollout or a failing feed reaches many nodes within seconds."""


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a wait.

    Attributes:
        word: `alone` (a fault to be judged for itself), `opened` (a storm by its first fault) or `over` (a storm ended).
        at_ns: event time of it.
        finding: the fault; None for a storm that ended.
        incident: the storm's; None for a fault alone.
        reason: why it is a storm, with its numbers.
    """

    word: str
    at_ns: int
    finding: Finding | None = None
    incident: OpenIncident | None = None
    reason: str = ""


class Storms:
    """Holds the faults of one site, and its storm while there is one.

    Args:
        site_id: the site.
        book: its open incidents.
    """

    def __init__(self, site_id: str, book: IncidentBook) -> None:
        self._component = f"storm:{site_id}"
        self._book = book
        self._held: list[Finding] = []
        self._seen: dict[str, int] = {}
        self._last_ns = -1

    def add(self, finding: Finding) -> None:
        """Hold a fault of a node."""
        self._held.append(finding)
        node_id = finding.subject.node_id or ""
        self._seen[node_id] = max(finding.event_time_ns, self._seen.get(node_id, 0))

    def release(self, passed_ns: int, policy: Policy | None) -> list[Released]:
        """What can be said now, in order of time.

        Args:
            passed_ns: event time up to which all sources have told what they have.
            policy: limits of the guard.
        """
        limits, is_on = guard_limits(policy, "common_mode"), is_guard_on(policy, "common_mode")
        span_ns = round(limits["span_ns"])
        settle_ns = policy.settle_ns if policy is not None else 0
        due = [finding for finding in self._held if _due_ns(finding, settle_ns) <= passed_ns]
        self._held = [finding for finding in self._held if _due_ns(finding, settle_ns) > passed_ns]
        released: list[Released] = []
        for finding in sorted(due, key=lambda finding: (finding.event_time_ns, finding.finding_id)):
            at_ns = finding.event_time_ns + GATHER_NS
            released += self._ended(finding.event_time_ns, span_ns)
            nodes = self._nodes_around(finding, span_ns)
            storm = self._book.on(self._component)
            if storm is not None:
                storm.suppress(finding)
                self._last_ns = finding.event_time_ns
            elif is_on and nodes >= limits["count"]:
                self._last_ns = finding.event_time_ns
                released.append(self._opened(finding, nodes, at_ns))
            else:
                released.append(Released("alone", at_ns, finding))
        released += self._ended(passed_ns, span_ns)
        if due:
            oldest_ns = max(finding.event_time_ns for finding in due) - span_ns
            self._seen = {node: seen_ns for node, seen_ns in self._seen.items() if seen_ns > oldest_ns}
        return released

    def _nodes_around(self, finding: Finding, span_ns: int) -> int:
        first_ns, last_ns = finding.event_time_ns - span_ns, finding.event_time_ns + GATHER_NS
        around = {node for node, seen_ns in self._seen.items() if first_ns < seen_ns <= last_ns}
        return len(around | {finding.subject.node_id or ""})

    def _opened(self, finding: Finding, nodes: int, at_ns: int) -> Released:
        incident = self._book.open(self._component, "common_mode", None, finding)
        reason = f"{nodes} nodes fail within minutes of each other: one cause is behind them, and no node of them is at fault"
        incident.summary = f"{reason}; the first of them: {finding.explanation}"
        return Released("opened", at_ns, finding, incident, reason)

    def _ended(self, now_ns: int, span_ns: int) -> list[Released]:
        if self._book.on(self._component) is None or now_ns <= self._last_ns + span_ns:
            return []
        return [Released("over", self._last_ns + span_ns, incident=self._book.close(self._component))]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {"held": list(self._held), "seen": dict(sorted(self._seen.items())), "last_ns": self._last_ns}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._held, self._seen = list(snapshot["held"]), dict(snapshot["seen"])
        self._last_ns = snapshot["last_ns"]


def _due_ns(finding: Finding, settle_ns: int) -> int:
    """When all that happened until `GATHER_NS` after a fault has come: urgent faults at once, all others settle first."""
    return finding.event_time_ns + GATHER_NS + (0 if finding.urgent else settle_ns)

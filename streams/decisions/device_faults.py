"""Incidents of codes and uncorrectable errors: the failure table or the catalogue knows what answers them.

Where an act on the node would go out, a fault waits a moment to see whether many nodes fail with it (`storms`). Everywhere
else it is told at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.decisions.acts import COSTS_A_NODE, GIVES_BACK
from streams.decisions.remedies import Remedy, remedy_for_class, remedy_for_code
from streams.decisions.repeats import AppCodeRepeats
from streams.decisions.signs import is_observed_only
from streams.decisions.storms import Storms

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Finding
    from schemas.fleet import Policy
    from streams.core.roster import Roster
    from streams.decisions.consequences import Consequences
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.observations import DeviceNames
    from streams.decisions.orders import Orders
    from streams.decisions.untimed import UntimedNodes

__all__ = ["FAULT_KINDS", "SECOND_SIGNS", "DeviceFaults", "is_first_sign"]

FAULT_KINDS = frozenset({"xid", "sxid", "uncorrectable_ecc"})
"""Kinds of findings that say that a device is at fault."""

SECOND_SIGNS = frozenset({"row_remap_pending", "row_remap_exhausting", "row_remap_failure"})
"""Kinds of findings that ask for nothing alone, and bear out a high rate of corrected errors."""

_RECOVERABLE = frozenset({"gpu_lost", "gpu_memory", "row_remap_pending", "catalogue"})
"""Classes of faults after which the driver says which recovery a GPU needs, and when it needs none any more."""

_SIGN_NS = 24 * 3_600_000_000_000
"""A first sign that is older bears nothing out; a judgement, the catalogue's span for repeats."""

_WITHOUT_DEVICE_REASON = frozenset(
    {
        *("compute", "clock", "host", "data", "hang_rank", "hang_device", "gpu_stalled", "node_lost"),
        *("ecc_rate", "suspect_device"),
    }
)
"""Classes that a device's own word outranks."""


class DeviceFaults:
    """Opens incidents of device faults in a book that holds those of everybody.

    Args:
        site_id: the site.
        roster: jobs, nodes and policy.
        book: the site's open incidents.
        names: of devices.
        untimed: incidents of nodes' counters, which a code takes over.
        orders: gives the commands.
        journal: where it is said what made a storm.
        consequences: what was told of a device before it was known to be broken.
    """

    def __init__(
        self,
        site_id: str,
        roster: Roster,
        book: IncidentBook,
        names: DeviceNames,
        untimed: UntimedNodes,
        orders: Orders,
        journal: Journal,
        consequences: Consequences,
    ) -> None:
        self._roster, self._book, self._names, self._untimed = roster, book, names, untimed
        self._orders, self._journal, self._consequences = orders, journal, consequences
        self._storms = Storms(site_id, book)
        self._repeats = AppCodeRepeats()

    def take(self, finding: Finding) -> list[Record]:
        """Take a finding of `FAULT_KINDS`, and return what follows at once."""
        if _says_recovered(finding):
            return self._on_recovery(finding)
        remedy = _remedy_of(finding, self._roster.policy)
        culprit = self._names.culprit(finding.subject, self._roster)
        if self._repeats.take(finding, self._names.component(finding.subject), culprit.job_id) and remedy is None:
            remedy = remedy_for_class("suspect_device", self._roster.policy)
        if remedy is not None and self._waits_for_others(finding, remedy):
            self._storms.add(finding)
            return []
        return self._judge(finding, remedy, finding.event_time_ns)

    def decide(self, passed_ns: int) -> list[Record]:
        """Faults that have waited for others: each for itself, or all of a storm as one.

        Args:
            passed_ns: event time up to which all sources have told what they have.
        """
        outputs: list[Record] = []
        followed: list[Record]
        for released in self._storms.release(passed_ns, self._roster.policy):
            at_ns = released.at_ns
            if released.word == "over":
                assert released.incident is not None
                followed = [self._book.record(released.incident, "resolved", at_ns, "", None)]
            elif released.word == "opened":
                assert released.incident is not None
                holds = {"holds": [{"guard": "common_mode", "reason": released.reason}]}
                followed = [
                    self._journal.entry("held", released.incident.incident_id, at_ns, detail=holds),
                    *self._orders.order(released.incident, remedy_for_class("common_mode"), at_ns),
                ]
            else:
                assert released.finding is not None
                followed = self._judge(released.finding, _remedy_of(released.finding, self._roster.policy), at_ns)
            outputs += self._journal.decided(followed, at_ns)
        return outputs

    def _on_recovery(self, finding: Finding) -> list[Record]:
        """The driver asks for nothing any more: the incident is over, unless an act of it is out, which is verified."""
        component = self._names.component(finding.subject)
        incident = self._book.on(component)
        if incident is None or incident.cause_class not in _RECOVERABLE or self._orders.outcomes(incident):
            return []
        incident.join(finding)
        return list(self._book.resolve(component, finding.event_time_ns))

    def second_sign(self, finding: Finding) -> list[Record]:
        """Take a finding of `SECOND_SIGNS`: with a high rate of corrected errors on the same GPU it asks for what neither does."""
        incident = self._book.on(self._names.component(finding.subject))
        if finding.state != "open" or incident is None or not is_first_sign(incident, finding.event_time_ns):
            return []
        incident.join(finding)
        incident.cause_class = "ecc_rate_confirmed"
        incident.summary += f"; {finding.explanation}"
        return self._orders.order(incident, remedy_for_class(incident.cause_class), finding.event_time_ns)

    def _waits_for_others(self, finding: Finding, remedy: Remedy) -> bool:
        """Whether a fault is told of where somebody may take nodes out: then it is first seen how many fail at once."""
        node_id = finding.subject.node_id
        if node_id is None or finding.state != "open" or remedy.kind in GIVES_BACK:
            return False
        # What asks for less than a node, or for nothing, is one incident with the rest of a storm too.
        return self._orders.may_go_out(remedy.kind if remedy.kind in COSTS_A_NODE else "cordon_node", node_id)

    def _judge(self, finding: Finding, remedy: Remedy | None, at_ns: int) -> list[Record]:
        """Open an incident for a fault, or join the one that its part has, and order what answers it."""
        component = self._names.component(finding.subject)
        if remedy is not None:
            self._untimed.hand_over(component, self._names.culprit(finding.subject, self._roster))
        incident = self._book.on(component)
        if incident is None and remedy is None:
            return []
        opened = incident is None
        if incident is None:
            assert remedy is not None
            incident = self._book.open(
                component, remedy.cause_class, self._names.culprit(finding.subject, self._roster), finding
            )
            incident.summary = finding.explanation
            self._consequences.gather(incident)
        incident.join(finding)
        if remedy is None:
            return []
        incident.came_again(finding)
        outranks = remedy.kind == "cordon_node" and "cordon_node" not in incident.commands
        again = (
            remedy.kind in incident.commands and finding.event_time_ns > incident.commands[remedy.kind].expires_at_ns
        )
        if opened or outranks or again or incident.cause_class in _WITHOUT_DEVICE_REASON:
            incident.cause_class = remedy.cause_class
            incident.summary = finding.explanation
            return self._orders.order(incident, remedy, at_ns)
        return []

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {**self._storms.snapshot(), "repeats": self._repeats.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._storms.restore(snapshot)
        self._repeats.restore(snapshot.get("repeats", []))


def _says_recovered(finding: Finding) -> bool:
    """Whether it is the driver's line that a GPU needs no recovery any more (Xid 154, "None")."""
    if finding.kind != "xid" or is_observed_only(finding):
        return False
    return finding.values.get("code") == _RECOVERY and finding.values.get("recovery_action") == "none"


_RECOVERY = 154


def is_first_sign(incident: OpenIncident, at_ns: int) -> bool:
    """Whether an incident is a high rate of corrected errors that a second sign bears out at a time."""
    return incident.cause_class == "ecc_rate" and at_ns - incident.onset_ns <= _SIGN_NS


def _remedy_of(finding: Finding, policy: Policy | None) -> Remedy | None:
    """What the failure table or the catalogue has for a code or an uncorrectable error."""
    if finding.kind == "uncorrectable_ecc":
        return remedy_for_class("gpu_memory", policy) if finding.urgent else None
    if is_observed_only(finding):
        return None
    return remedy_for_code(finding.kind, int(str(finding.values.get("code"))), policy)

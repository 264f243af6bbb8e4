"""What a lost or broken device brings with it: its own link, its node that falls silent. Consequences of the one incident.

A GPU that fell off the bus is a kernel code, a PCIe error and a silent node, each found by its own rule. What is found of the
same device, or of the silence of its node, from a minute before the incident until ten minutes after belongs to it. It opens
and closes nothing, and asks for nothing. State is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Finding
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.observations import DeviceNames
    from streams.decisions.orders import Orders

__all__ = ["Consequences"]

_CAUSES = frozenset({"gpu_lost", "gpu_memory", "catalogue"})
"""Classes of a device that is broken, and takes what hangs on it along."""

_OF_DEVICE = frozenset(
    {
        *("pcie_link", "pcie_replay", "nvlink_errors", "sm_clock", "power_slowdown"),
        *("row_remap_pending", "row_remap_exhausting", "row_remap_failure"),
    }
)
_OF_NODE = frozenset({"node_silent"})

_BEFORE_NS = 60_000_000_000
_AFTER_NS = 600_000_000_000
_MOST = 16


@dataclass(frozen=True, slots=True)
class _Told:
    finding_id: str
    component: str
    is_of_node: bool
    at_ns: int


class Consequences:
    """Remembers what stands alone, and joins it to the incident that explains it.

    Args:
        book: the site's open incidents.
        names: of devices.
        orders: publishes what an incident has become.
        journal: where it is said what was suppressed.
    """

    def __init__(self, book: IncidentBook, names: DeviceNames, orders: Orders, journal: Journal) -> None:
        self._book, self._names, self._orders, self._journal = book, names, orders, journal
        self._told: dict[str, list[_Told]] = {}

    def take(self, finding: Finding) -> list[Record]:
        """Take a finding that led to nothing, and return the incident that it belongs to, if there is one."""
        node_id, is_of_node = finding.subject.node_id, finding.kind in _OF_NODE
        if node_id is None or finding.state != "open" or not (is_of_node or finding.kind in _OF_DEVICE):
            return []
        told = _Told(finding.finding_id, self._names.component(finding.subject), is_of_node, finding.event_time_ns)
        known = self._told.setdefault(node_id, [])
        known[:] = [one for one in known if one.at_ns > told.at_ns - _BEFORE_NS][-_MOST + 1 :]
        known.append(told)
        for incident in self._book.open_ones():
            if self._explains(incident, told) and finding.finding_id not in incident.findings:
                incident.suppress(finding)
                at_ns = max(finding.event_time_ns, incident.onset_ns)
                entry = self._journal.entry("suppressed", finding.finding_id, at_ns)
                return [entry, self._orders.transition(incident, at_ns)]
        return []

    def gather(self, incident: OpenIncident) -> None:
        """An incident was opened: what was told of its device just before is a consequence, or the first sign, of it."""
        node_id = incident.culprit.node_id if incident.culprit is not None else None
        for told in self._told.get(node_id or "", []):
            if self._explains(incident, told) and told.finding_id not in incident.suppressed:
                incident.suppressed.append(told.finding_id)

    def rename(self, known: str, better: str) -> None:
        """A component goes on under another name."""
        for node_id, told in self._told.items():
            self._told[node_id] = [
                _Told(one.finding_id, better, one.is_of_node, one.at_ns) if one.component == known else one
                for one in told
            ]

    @staticmethod
    def _explains(incident: OpenIncident, told: _Told) -> bool:
        if incident.cause_class not in _CAUSES or incident.culprit is None:
            return False
        if not incident.onset_ns - _BEFORE_NS <= told.at_ns <= incident.onset_ns + _AFTER_NS:
            return False
        place = f"node:{incident.culprit.node_id}" if told.is_of_node else incident.component
        return told.component == place

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            node_id: [[one.finding_id, one.component, one.is_of_node, one.at_ns] for one in told]
            for node_id, told in sorted(self._told.items())
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._told = {node_id: [_Told(*entry) for entry in told] for node_id, told in snapshot.items()}

"""What is known of the devices of each node: the evidence that is joined to a slow rank.

Names of one GPU (UUID, PCI address) are brought together from placements, nodes and findings, because the kernel knows
only the address and the trainer mostly only the UUID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.findings import Finding, Subject
    from streams.core.roster import Roster

__all__ = ["DeviceNames", "Observation", "Observations"]

_KEEP_NS = 600_000_000_000


@dataclass(slots=True)
class Observation:
    """One finding about a device, from its onset to its clearing (None while it stands)."""

    kind: str
    finding_id: str
    gpu: str | None
    onset_ns: int
    cleared_ns: int | None
    values: dict[str, Any]


class DeviceNames:
    """UUID by PCI address, per node."""

    def __init__(self) -> None:
        self._uuid_by_address: dict[tuple[str, str], str] = {}
        self._roster_version = -1
        self.newly: list[tuple[str, str, str]] = []
        """(node id, address, UUID) learnt since the reader last emptied it."""

    def learn(self, node_id: str | None, gpu_uuid: str | None, pci_bus_id: str | None) -> None:
        """Two names were seen together."""
        if node_id and gpu_uuid and pci_bus_id:
            if self._uuid_by_address.get((node_id, pci_bus_id)) != gpu_uuid:
                self.newly.append((node_id, pci_bus_id, gpu_uuid))
            self._uuid_by_address[(node_id, pci_bus_id)] = gpu_uuid

    def learn_roster(self, roster: Roster) -> None:
        """Take the names that placements and nodes give."""
        if roster.version == self._roster_version:
            return
        self._roster_version = roster.version
        for job in roster.jobs.values():
            for seat in job.seats.values():
                self.learn(seat.node_id, seat.gpu_uuid, seat.pci_bus_id)
        for node in roster.nodes.values():
            for gpu_uuid, pci_bus_id in zip(node.gpu_uuid, node.pci_bus_id, strict=False):
                self.learn(node.node_id, gpu_uuid, pci_bus_id)

    def gpu(self, node_id: str | None, gpu_uuid: str | None, pci_bus_id: str | None) -> str | None:
        """One name for a GPU: its UUID where that is known, else its address, else None."""
        if gpu_uuid is not None:
            return gpu_uuid
        if node_id is None or pci_bus_id is None:
            return pci_bus_id
        return self._uuid_by_address.get((node_id, pci_bus_id), pci_bus_id)

    def address(self, node_id: str | None, gpu_uuid: str | None) -> str | None:
        """The PCI address of a UUID, where it is known."""
        for (node, address), uuid in self._uuid_by_address.items():
            if node == node_id and uuid == gpu_uuid:
                return address
        return None

    def of(self, subject: Subject) -> str | None:
        """One name for the GPU of a subject."""
        return self.gpu(subject.node_id, subject.gpu_uuid, subject.pci_bus_id)

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [[node, address, uuid] for (node, address), uuid in sorted(self._uuid_by_address.items())]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._uuid_by_address = {(node, address): uuid for node, address, uuid in snapshot}


class Observations:
    """Device findings by node, for ten minutes after they were cleared."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[Observation]] = {}

    def take(self, finding: Finding, gpu: str | None) -> None:
        """Remember a device finding, or that it was cleared."""
        node_id = finding.subject.node_id
        if node_id is None:
            return
        known = self._by_node.setdefault(node_id, [])
        oldest_ns = finding.event_time_ns - _KEEP_NS
        known[:] = [o for o in known if o.cleared_ns is None or o.cleared_ns >= oldest_ns]
        if finding.state == "cleared":
            for observation in known:
                if observation.finding_id == finding.finding_id:
                    observation.cleared_ns = finding.event_time_ns
            return
        known.append(Observation(finding.kind, finding.finding_id, gpu, finding.onset_ns, None, dict(finding.values)))

    def around(self, node_id: str | None, start_ns: int, end_ns: int, kind: str) -> list[Observation]:
        """Observations of a kind on a node that overlap [start, end], oldest first."""
        if node_id is None:
            return []
        return sorted(
            (
                o
                for o in self._by_node.get(node_id, [])
                if o.kind == kind and o.onset_ns <= end_ns and (o.cleared_ns is None or o.cleared_ns >= start_ns)
            ),
            key=lambda o: (o.onset_ns, o.finding_id),
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            node: [[o.kind, o.finding_id, o.gpu, o.onset_ns, o.cleared_ns, o.values] for o in known]
            for node, known in sorted(self._by_node.items())
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._by_node = {node: [Observation(*entry) for entry in known] for node, known in snapshot.items()}

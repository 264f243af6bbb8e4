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
        self._learnt: dict[str, int] | None = None
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
        # Restored under the same reference records: names that findings gave since then stand.
        is_known = self._roster_version < 0 and self._learnt == roster.taken_up_to
        self._roster_version = roster.version
        if is_known:
            return
        self._learnt = dict(sorted(roster.taken_up_to.items()))
        for _, job in sorted(roster.jobs.items()):
            for seat in job.seats.values():
                self.learn(seat.node_id, seat.gpu_uuid, seat.pci_bus_id)
        for _, node in sorted(roster.nodes.items()):
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
        known = self._uuid_by_address.items()
        return min((address for (node, address), uuid in known if node == node_id and uuid == gpu_uuid), default=None)

    def of(self, subject: Subject) -> str | None:
        """One name for the GPU of a subject."""
        return self.gpu(subject.node_id, subject.gpu_uuid, subject.pci_bus_id)

    def component(self, subject: Subject) -> str:
        """What an incident is about: one device, else one node, else the rank or port itself."""
        gpu = self.of(subject)
        if subject.level == "switch":
            return f"nvswitch:{subject.node_id}/{subject.pci_bus_id}"
        if gpu is not None:
            return f"gpu:{subject.node_id}/{gpu}"
        if subject.level == "rank":
            return f"rank:{subject.job_id}/{subject.rank}"
        return f"node:{subject.node_id}" if subject.node_id is not None else subject.key()

    def culprit(self, subject: Subject, roster: Roster) -> Subject:
        """The subject with both names of its device and the rank that runs on it, as far as they are known."""
        if subject.level != "gpu":
            return subject
        gpu = self.of(subject)
        gpu_uuid = gpu if gpu is not None and gpu != subject.pci_bus_id else None
        pci_bus_id = subject.pci_bus_id or self.address(subject.node_id, gpu_uuid)
        seat = roster.rank_of(subject.node_id or "", gpu_uuid, pci_bus_id)
        return subject.model_copy(
            update={
                "gpu_uuid": gpu_uuid,
                "pci_bus_id": pci_bus_id,
                "job_id": seat[0] if seat is not None else None,
                "rank": seat[2] if seat is not None else None,
            }
        )

    def snapshot(self, with_version: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_version: whether it will be restored beside the same roster, whose count of changes then says what was learnt.
        """
        return {
            "names": [[node, address, uuid] for (node, address), uuid in sorted(self._uuid_by_address.items())],
            "learnt": dict(self._learnt) if self._learnt is not None else None,
            **({"version": self._roster_version} if with_version else {}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._uuid_by_address = {(node, address): uuid for node, address, uuid in snapshot["names"]}
        self._learnt = dict(snapshot["learnt"]) if snapshot["learnt"] is not None else None
        self._roster_version = snapshot.get("version", -1)


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

    def nodes_of(self, kind: str, start_ns: int, end_ns: int) -> list[str]:
        """The node of each device that began to show a kind of observation in [start, end], once per device."""
        return [
            node_id
            for node_id, known in sorted(self._by_node.items())
            for _ in {o.gpu for o in known if o.kind == kind and start_ns <= o.onset_ns <= end_ns}
        ]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            node: [[o.kind, o.finding_id, o.gpu, o.onset_ns, o.cleared_ns, o.values] for o in known]
            for node, known in sorted(self._by_node.items())
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._by_node = {node: [Observation(*entry) for entry in known] for node, known in snapshot.items()}

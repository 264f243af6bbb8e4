"""Incidents of jobs that hang: one from the suspicion to its end, with the culprit that the verdict and other evidence name.

A suspicion opens an incident of the job with nobody to blame. A verdict that names a rank makes it that of the rank's
device, or node. Where that device has an incident of its own, or, if the dumps name nobody, exactly one device of the ranks
that are stuck has one, or one cable between them is in trouble, or one of their nodes fell silent, then that is the cause: the
hang joins it. A verdict rests on dumps of the tenant alone, so by itself it asks for looks and tests, and costs nobody a node.
Evidence from 60 s before the last progress on counts. State is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.findings import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.findings import Finding
    from streams.core.roster import JobRoster, Roster
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.network import NetworkJudge
    from streams.decisions.observations import DeviceNames

__all__ = ["HANG_KINDS", "HangIncidents", "HangOutcome"]

HANG_KINDS = frozenset({"hang_suspected", "hang", "hang_unplaced", "hang_undecided"})

_CLASSES = {
    "not_entered": "hang_rank",
    "hardware": "hang_device",
    "inconsistent": "hang_mismatch",
    "transport": "hang_network",
}
_OWN = frozenset({"hang", *_CLASSES.values()})
_TOLD = frozenset({"xid", "sxid", "uncorrectable_ecc", "node_silent"})
"""Kinds that are remembered for a node; those of links the network judge keeps."""

_LOOK_BACK_NS = 60_000_000_000
_KEEP_NS = 600_000_000_000
_MOST_TOLD = 32


@dataclass(frozen=True, slots=True)
class HangOutcome:
    """What is to be published of an incident.

    Attributes:
        incident: as it is now.
        cause_class: whose remedy is asked for; None for none.
        is_resolved: it is over.
    """

    incident: OpenIncident
    cause_class: str | None = None
    is_resolved: bool = False


@dataclass(slots=True)
class _Told:
    kind: str
    finding_id: str
    gpu: str | None
    onset_ns: int


class HangIncidents:
    """Follows the hangs of a site.

    Args:
        book: open incidents.
        names: names of devices.
        network: knows links in trouble.
    """

    def __init__(self, book: IncidentBook, names: DeviceNames, network: NetworkJudge) -> None:
        self._book = book
        self._names = names
        self._network = network
        self._incident_of: dict[str, str] = {}
        """By episode of a job, the id of its incident; components may go by another name later."""
        self._told: dict[str, list[_Told]] = {}

    def note(self, finding: Finding) -> None:
        """Remember what a node says of itself, for a hang that may follow or stand."""
        node_id = finding.subject.node_id
        if finding.kind not in _TOLD or node_id is None:
            return
        told = self._told.setdefault(node_id, [])
        if finding.state == "cleared":
            told[:] = [one for one in told if one.finding_id != finding.finding_id]
            return
        oldest_ns = finding.event_time_ns - _KEEP_NS
        told[:] = [one for one in told if one.onset_ns >= oldest_ns][-_MOST_TOLD + 1 :]
        told.append(_Told(finding.kind, finding.finding_id, self._names.of(finding.subject), finding.onset_ns))

    def take(self, finding: Finding, roster: Roster) -> list[HangOutcome]:
        """A suspicion, a verdict, or the end of one of them."""
        if finding.kind == "hang_suspected":
            return self._suspected(finding) if finding.state == "open" else self._over(finding)
        incident = self._find(self._incident_of.get(_episode(finding)))
        if incident is None or incident.cause_class not in _OWN:
            # Its suspicion is over, or explained by something else already.
            if incident is not None:
                incident.join(finding)
            return []
        if finding.state == "cleared":
            incident.cause_class, incident.culprit = "hang", None
            return []
        return self._verdict(finding, incident, roster)

    def _suspected(self, finding: Finding) -> list[HangOutcome]:
        component = f"job:{finding.job_id}/{finding.epoch}"
        incident = self._book.on(component)
        if incident is None:
            incident = self._book.open(component, "hang", None, finding)
        self._incident_of[_episode(finding)] = incident.incident_id
        incident.join(finding)
        incident.summary = f"job {finding.job_id}: {finding.explanation}"
        return [HangOutcome(incident, "hang")]

    def _over(self, finding: Finding) -> list[HangOutcome]:
        incident = self._find(self._incident_of.pop(_episode(finding), None))
        if incident is None or incident.cause_class not in _OWN:
            return []
        return [HangOutcome(self._book.close(incident.component), is_resolved=True)]

    def _verdict(self, finding: Finding, incident: OpenIncident, roster: Roster) -> list[HangOutcome]:
        incident.join(finding)
        incident.summary = f"job {finding.job_id}: {finding.explanation}"
        job = roster.job(finding.job_id or "", finding.epoch or 0)
        cause = str(finding.values.get("cause"))
        if finding.kind == "hang":
            return self._named(finding, incident, _CLASSES.get(cause, "hang"))
        nodes, gpus = self._places(_ranks(finding, job), job)
        known = [one for gpu in sorted(gpus) if (one := self._device_incident(gpu)) is not None]
        if len(known) == 1:
            return self._explained(finding, incident, known[0])
        located = self._network.locate(_as_slow(finding), finding.event_time_ns, roster)
        if located is not None:
            incident.culprit = located.culprit
            incident.findings.extend(i for i in located.because if i not in incident.findings)
            incident.summary = located.summary
            incident.cause_class = located.cause_class
            return self._moved(finding, incident, located.component)
        silent = [node for node in sorted(nodes) if self._around(finding, node, {"node_silent"})]
        if len(silent) == 1:
            incident.culprit = Subject(level="node", node_id=silent[0], job_id=finding.job_id)
            incident.findings.extend(one.finding_id for one in self._around(finding, silent[0], {"node_silent"}))
            incident.summary += f"; {silent[0]} is silent"
            incident.cause_class = "hang_rank"
            return [HangOutcome(incident, "hang_rank")]
        incident.cause_class = _CLASSES.get(cause, "hang") if finding.kind == "hang_unplaced" else "hang"
        return [HangOutcome(incident, incident.cause_class if incident.cause_class != "hang" else None)]

    def _named(self, finding: Finding, incident: OpenIncident, cause_class: str) -> list[HangOutcome]:
        subject = finding.subject
        if subject.level == "rank":
            component = self._names.component(subject)
            known = self._book.on(component)
            if known is not None and known is not incident:
                return self._explained(finding, incident, known)
            incident.culprit = self._device(subject)
            because = [
                one
                for one in self._around(finding, subject.node_id, _TOLD)
                if one.gpu is None or one.gpu == self._names.of(subject)
            ]
            incident.findings.extend(one.finding_id for one in because if one.finding_id not in incident.findings)
            if because:
                incident.summary += "; " + ", ".join(sorted({one.kind for one in because})) + " there"
            incident.cause_class = cause_class
            return self._moved(finding, incident, component)
        incident.culprit, incident.cause_class = subject, cause_class
        return [HangOutcome(incident, cause_class)]

    def _moved(self, finding: Finding, incident: OpenIncident, component: str) -> list[HangOutcome]:
        """The incident is a component's from now on, so that what else is said of that joins it."""
        known = self._book.on(component)
        if known is not None and known is not incident:
            return self._explained(finding, incident, known)
        self._book.rename(incident.component, component)
        return [HangOutcome(incident, incident.cause_class)]

    def _explained(self, finding: Finding, incident: OpenIncident, known: OpenIncident) -> list[HangOutcome]:
        """Another incident is the cause: the hang is its consequence, and ends as one of its own."""
        for finding_id in incident.findings:
            if finding_id not in known.findings and finding_id not in known.suppressed:
                known.suppressed.append(finding_id)
        self._incident_of[_episode(finding)] = known.incident_id
        known.job_id = known.job_id or incident.job_id
        known.summary += f"; job {finding.job_id} hangs for it"
        self._book.close(incident.component)
        incident.summary += f"; explained by incident {known.incident_id}"
        return [HangOutcome(incident, is_resolved=True), HangOutcome(known)]

    def _find(self, incident_id: str | None) -> OpenIncident | None:
        return next((one for one in self._book.open_ones() if one.incident_id == incident_id), None)

    def _device(self, subject: Subject) -> Subject:
        """The device under the rank where it is known, else the node, else the rank itself."""
        gpu = self._names.of(subject)
        if gpu is not None:
            pci_bus_id = subject.pci_bus_id or self._names.address(subject.node_id, gpu)
            return subject.model_copy(update={"level": "gpu", "pci_bus_id": pci_bus_id})
        if subject.node_id is not None:
            return subject.model_copy(update={"level": "node"})
        return subject

    def _device_incident(self, component: str) -> OpenIncident | None:
        incident = self._book.on(component)
        return incident if incident is not None and incident.cause_class not in _OWN else None

    def _places(self, ranks: Iterable[int], job: JobRoster) -> tuple[set[str], set[str]]:
        """Nodes and devices' components of ranks."""
        seats = [seat for rank in ranks if (seat := job.seats.get(rank)) is not None]
        devices = {
            f"gpu:{seat.node_id}/{gpu}"
            for seat in seats
            if (gpu := self._names.gpu(seat.node_id, seat.gpu_uuid, seat.pci_bus_id)) is not None
        }
        return {seat.node_id for seat in seats}, devices

    def _around(self, finding: Finding, node_id: str | None, kinds: frozenset[str] | set[str]) -> list[_Told]:
        start_ns = finding.onset_ns - _LOOK_BACK_NS
        told = self._told.get(node_id, []) if node_id is not None else []
        return [one for one in told if one.kind in kinds and start_ns <= one.onset_ns <= finding.event_time_ns]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "incidents": dict(sorted(self._incident_of.items())),
            "told": {
                node: [[one.kind, one.finding_id, one.gpu, one.onset_ns] for one in told]
                for node, told in sorted(self._told.items())
            },
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._incident_of = dict(snapshot["incidents"])
        self._told = {node: [_Told(*entry) for entry in told] for node, told in snapshot["told"].items()}


def _episode(finding: Finding) -> str:
    return f"{finding.job_id}/{finding.epoch}/{finding.onset_ns}"


def _ranks(finding: Finding, job: JobRoster) -> list[int]:
    """Ranks of the stuck operation's group where that is told, else all of the job."""
    told = finding.values.get("stuck_ranks")
    return [rank for rank in told if isinstance(rank, int)] if isinstance(told, list) and told else sorted(job.seats)


def _as_slow(finding: Finding) -> Finding:
    """A verdict in the form in which slow transfers are told."""
    told = finding.values.get("stuck_ranks")
    ranks = ",".join(map(str, told)) if isinstance(told, list) else ""
    return finding.model_copy(update={"values": {"slow_ranks": [ranks]}})

"""Whether a subject that was named is a place of the truth: same level, same device, by the records' own names.

A rank and the GPU under it are one place. A group of ranks is the place whose ranks it lists. A node is not its GPU: where
naming the node is good enough, the truth says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.simulation.benchmark.labels import Place
    from schemas.findings import Subject

__all__ = ["describe", "identity", "is_named", "nodes_of"]

_DEVICES = frozenset({"gpu", "rank"})
_PORTS = frozenset({"port", "link"})


def is_named(place: Place, subject: Subject) -> bool:
    """Whether the subject is this place."""
    if place.level in _DEVICES:
        return subject.level in _DEVICES and _same_device(place, subject)
    if subject.level == "rank_group":
        same_job = place.job_id is None or place.job_id == subject.job_id
        return same_job and place.ranks is not None and set(place.ranks) == set(subject.ranks or ())
    if place.level == "node":
        return subject.level == "node" and subject.node_id == place.node_id
    if place.level == "port":
        return subject.level in _PORTS and _same_port(place, subject)
    if place.level in {"switch", "rail"}:
        return subject.level == "switch" and subject.switch_id in {place.switch_id, place.id}
    if place.level in {"rack", "zone"}:
        return subject.level in {"zone", "facility"} and subject.zone in {place.zone, place.rack, place.id} - {None}
    if place.level == "stage":
        return subject.level == "stage" and (subject.job_id, subject.stage) == (place.job_id, place.stage)
    return place.level == "job" and subject.level == "job" and subject.job_id == place.job_id


def _same_device(place: Place, subject: Subject) -> bool:
    if place.node_id and subject.node_id:
        if place.gpu_uuid and subject.gpu_uuid:
            return (place.node_id, place.gpu_uuid) == (subject.node_id, subject.gpu_uuid)
        if place.pci_bus_id and subject.pci_bus_id:
            return (place.node_id, place.pci_bus_id) == (subject.node_id, subject.pci_bus_id)
    return place.rank is not None and (place.job_id, place.rank) == (subject.job_id, subject.rank)


def _same_port(place: Place, subject: Subject) -> bool:
    if place.switch_id is not None or subject.switch_id is not None:
        return (place.switch_id, place.port) == (subject.switch_id, subject.port)
    return (place.node_id, place.device) == (subject.node_id, subject.device) and (
        place.port is None or subject.port is None or place.port == subject.port
    )


def identity(subject: Subject) -> tuple[str, ...]:
    """What stays the same while a culprit is told again with more of its names."""
    level = "gpu" if subject.level in _DEVICES and (subject.gpu_uuid or subject.pci_bus_id) else subject.level
    if level == "gpu":
        return (level, subject.node_id or "", subject.gpu_uuid or subject.pci_bus_id or "")
    return (
        level,
        subject.job_id or "" if level in {"rank", "rank_group", "stage", "job"} else "",
        str(subject.rank) if level == "rank" else "",
        ",".join(map(str, subject.ranks or ())),
        str(subject.stage),
        (subject.node_id or "") if level not in {"rank", "rank_group", "stage", "job"} else "",
        subject.device or "",
        subject.port or "",
        subject.switch_id or "",
        subject.zone or "",
    )


def nodes_of(places: tuple[Place, ...]) -> frozenset[str]:
    """Nodes that these places are on."""
    return frozenset(place.node_id for place in places if place.node_id is not None)


def describe(subject: Subject | None) -> str:
    """A subject in a few words, as the truth's ids are written."""
    if subject is None:
        return "nobody"
    gpu = subject.gpu_uuid or subject.pci_bus_id
    ranks = "" if subject.rank is None else f" (rank {subject.rank})"
    match subject.level:
        case "gpu":
            return f"gpu {subject.node_id}/{gpu}{ranks}"
        case "rank":
            return f"rank {subject.job_id}/{subject.rank}" + (f" on {subject.node_id}/{gpu}" if subject.node_id else "")
        case "rank_group":
            members = ",".join(map(str, subject.ranks or ()))
            return f"ranks {subject.job_id}/{members}"
        case "node":
            return f"node {subject.node_id}"
        case "port" | "link":
            return f"port {subject.switch_id or subject.node_id}/{subject.device or ''}/{subject.port}"
        case "switch":
            return f"switch {subject.switch_id or subject.node_id}"
        case "stage":
            return f"stage {subject.job_id}/{subject.stage}"
        case "job":
            return f"job {subject.job_id}"
        case "zone":
            return f"zone {subject.zone}"
    return subject.key()

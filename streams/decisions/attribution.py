"""Which cause a slow rank has: its node's device evidence joined to the parts of its own time.

The straggler finding says *that* a rank is slow, never why. Evidence of its node, around the same time, says why: the
device's before the host's. Without any, the class is `compute`: a slow device that shows no reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.findings import Subject

if TYPE_CHECKING:
    from streams.decisions.observations import DeviceNames, Observation, Observations

__all__ = ["DEVICE_KINDS", "KIND_OF_CAUSE", "Attribution", "attribute"]

_DEVICE_CAUSES = (
    ("thermal_violation", "thermal", "thermal violation"),
    ("power_slowdown", "power", "hardware slowdown or power brake"),
    ("pcie_link", "pcie", "narrow PCIe link"),
    ("nvlink_errors", "nvlink", "NVLink errors"),
    ("sm_clock", "clock", "low SM clock"),
)
"""Kinds of observations that explain a slow device, the most telling first: a low clock has another cause as a rule."""

KIND_OF_CAUSE = {cause_class: kind for kind, cause_class, _ in _DEVICE_CAUSES}
"""Kind of the observations that a class rests on."""

DEVICE_KINDS = frozenset(kind for kind, _, _ in _DEVICE_CAUSES)
"""Kinds that are kept as evidence for slow ranks."""

_LOOK_BACK_NS = 60_000_000_000
_HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Attribution:
    """A class, the culprit as finely as it can be named, and the observations that say so."""

    cause_class: str
    culprit: Subject
    because: tuple[str, ...]
    summary: str


def attribute(
    subject: Subject,
    values: dict[str, Any],
    onset_ns: int,
    until_ns: int,
    observations: Observations,
    names: DeviceNames,
) -> Attribution:
    """The cause of a straggler.

    Args:
        subject: the slow rank, group or node.
        values: the finding's figures, among them the excess of each part of own time.
        onset_ns: when it became slow.
        until_ns: until when a cause may have begun: the decision, or earlier.
        observations: what is known of devices.
        names: names of GPUs.
    """
    gpu = names.of(subject)
    start_ns = onset_ns - _LOOK_BACK_NS
    for kind, cause_class, words in _DEVICE_CAUSES:
        seen = observations.around(subject.node_id, start_ns, until_ns, kind)
        matching = [o for o in seen if gpu is None or o.gpu == gpu]
        if len({o.gpu for o in matching}) == 1:
            return _device(cause_class, words, subject, matching, names)
        if matching and gpu is None:
            # Several GPUs of the node show it and the rank's device is unknown: the node is as fine as it gets.
            return Attribution(
                cause_class,
                Subject(level="node", node_id=subject.node_id, job_id=subject.job_id),
                tuple(o.finding_id for o in matching),
                f"{words} on several GPUs of {subject.node_id}",
            )
    excess = values.get("excess_us") or 0
    host, data = values.get("host_excess_us") or 0, values.get("data_excess_us") or 0
    if excess > 0 and host + data > _HOST_SHARE * excess:
        part = "host" if host >= data else "data"
        return Attribution(part, _device_subject(subject, gpu, names), (), f"{part} time explains most of the excess")
    return Attribution("compute", _device_subject(subject, gpu, names), (), "the device shows no reason")


def _device(
    cause_class: str, words: str, subject: Subject, matching: list[Observation], names: DeviceNames
) -> Attribution:
    gpu = matching[0].gpu
    return Attribution(
        cause_class,
        _device_subject(subject, gpu, names),
        tuple(o.finding_id for o in matching),
        f"{words} on the same GPU",
    )


def _device_subject(subject: Subject, gpu: str | None, names: DeviceNames) -> Subject:
    """The device under a rank where it is known, else the node, else the rank itself."""
    if gpu is not None:
        is_address = not gpu.upper().startswith(("GPU-", "MIG-"))
        return Subject(
            level="gpu",
            job_id=subject.job_id,
            rank=subject.rank,
            node_id=subject.node_id,
            gpu_uuid=None if is_address else gpu,
            pci_bus_id=gpu if is_address else (subject.pci_bus_id or names.address(subject.node_id, gpu)),
        )
    if subject.node_id is not None:
        return Subject(level="node", job_id=subject.job_id, rank=subject.rank, node_id=subject.node_id)
    return subject

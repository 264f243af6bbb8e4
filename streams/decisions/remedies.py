"""Which act answers which cause: the shipped failure table, then the catalogue's word for a code.

The mildest sufficient act. An act that costs a node needs two kinds of evidence from two trust classes (kernel and NVML
data of its agent; step timings of its tenant), or a code that the catalogue calls fatal. Codes of the application never
cost anyone a node, and alone do not even restart a job: a code does not show that the job ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas import catalog
from schemas.remediation import CommandKind

__all__ = ["ADVICE", "Remedy", "remedy_for_class", "remedy_for_code"]

_HOUR_NS = 3_600_000_000_000
_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Remedy:
    """One act.

    Attributes:
        cause_class: the class of the incident that it answers.
        kind: kind of command, or None when there is only advice.
        when: at once, or after the next checkpoint.
        term_ns: how long after the deciding record the command stays valid.
        taint: Kubernetes taint that goes with it.
    """

    cause_class: str
    kind: CommandKind | None
    level: Literal["gpu", "node", "port", "switch", "job"] = "node"
    when: Literal["now", "after_checkpoint"] = "now"
    term_ns: int = _HOUR_NS
    taint: str | None = None


_BY_CLASS = {
    remedy.cause_class: remedy
    for remedy in (
        Remedy(
            "thermal",
            "drain_node",
            when="after_checkpoint",
            term_ns=6 * _HOUR_NS,
            taint="nvidia.com/gpu-throttled:NoSchedule",
        ),
        Remedy("clock", "run_preflight"),
        Remedy("power", None),
        Remedy("pcie", "cordon_node", when="after_checkpoint", term_ns=24 * _HOUR_NS),
        Remedy("nvlink", "run_preflight"),
        Remedy("nic", "network_action", level="port", term_ns=_HOUR_NS),
        Remedy("link", "network_action", level="port", term_ns=_HOUR_NS),
        Remedy("switch", "network_action", level="switch", term_ns=_HOUR_NS),
        Remedy("cooling", None),
        Remedy("shared_place", None),
        Remedy("host", "collect_evidence"),
        Remedy("data", "collect_evidence"),
        Remedy("compute", "collect_evidence"),
        Remedy("hang", "collect_evidence", level="job"),
        Remedy("hang_rank", "collect_evidence"),
        Remedy("hang_device", "run_preflight"),
        Remedy("hang_mismatch", None),
        Remedy("hang_network", None),
        Remedy("gpu_lost", "cordon_node", term_ns=10 * _MINUTE_NS),
        Remedy("gpu_memory", "cordon_node", term_ns=10 * _MINUTE_NS),
        Remedy("row_remap_pending", "drain_node", when="after_checkpoint", term_ns=24 * _HOUR_NS),
        Remedy("pause_storm", "network_action", level="port", term_ns=10 * _MINUTE_NS),
        Remedy("pause_storm_unlocalised", None),
        Remedy("common_mode", None),
    )
}

ADVICE = {
    "thermal": "The GPU slows itself for heat and holds the job back. Move the rank to a spare at the next checkpoint; check "
    "airflow, fan duty and the thermal interface before it returns.",
    "clock": "The GPU runs below its peers without a thermal reason. Run the pre-flight GEMM test and compare clocks under load.",
    "power": "The GPU is braked or slowed for power. Check the power supplies, the PDU and their feeds, and the node's power "
    "limits; the GPU itself is not at fault until those are sound.",
    "pcie": "The GPU's PCIe link has lost lanes or speed and slows what it sends and receives. Reseat the card and its riser "
    "at the next checkpoint, and run the pre-flight bandwidth test before the next job.",
    "nvlink": "The GPU's NVLinks report errors. Run the pre-flight all-reduce test within the node; a repeat is a matter of the "
    "board, the bridge or the switch tray.",
    "nic": "The NIC runs below its speed. Check its PCIe link, transceiver and cable, and the speed that the switch's port has "
    "agreed to; the ranks that wait for it are not at fault.",
    "link": "The cable loses what passes it. Clean or change transceiver and cable; check forward error correction, and that "
    "adaptive routing and the subnet manager lead around it.",
    "switch": "Links of several nodes to one switch lose or hold up traffic. Check the switch: buffers, ECN marking thresholds, "
    "adaptive routing, subnet manager, uplinks. No node is at fault.",
    "cooling": "Several GPUs of one place slow themselves for heat: look at cooling, doors, fans and inlet temperature of the "
    "place. Draining nodes would move the heat, not the cause.",
    "shared_place": "Ranks of one place became slow together. Look at what they share: power feed, cooling, firmware, a rollout. "
    "No node of them is at fault on its own.",
    "host": "The rank's host part is slow, the GPU is not. Look for CPU contention, interrupts, garbage collection and NUMA "
    "placement on the node.",
    "data": "The rank waits for its data. Look at the loader's workers, the local disk and the storage path of the node.",
    "compute": "The rank computes longer than its peers and the device shows no reason. Collect clocks, power and a profile.",
    "hang": "The job makes no progress. Have the flight recorders of all its ranks dumped and the dumps kept; nobody is at fault until "
    "they are read.",
    "hang_rank": "The others wait in what this rank never came to. Look at its process: stack (py-spy), data loader, file system, "
    "garbage collection; the device is not at fault. Then restart the job.",
    "hang_device": "The rank issued what its device does not complete, though its peers' did. Look at the kernel log of the node, run "
    "the pre-flight test before the node takes part again, and restart the job.",
    "hang_mismatch": "Ranks called different operations, sizes or types where all should have called one: a matter of the code or of "
    "its data. No node is at fault.",
    "hang_network": "All members issued the same operation and it ends nowhere. Look at NICs, links and switches between them; no rank "
    "is at fault by what the dumps say.",
    "gpu_lost": "The GPU has fallen off the bus. Take the node out, restart from the last checkpoint on a spare, reboot; a repeat "
    "is a hardware replacement.",
    "gpu_memory": "Uncorrectable memory errors. Take the node out, reset the GPU, check row remapping before it returns.",
    "row_remap_pending": "A row waits to be remapped. Let the job reach its checkpoint, then reset the GPU.",
    "pause_storm": "The port transmits pause and stops its leaf. Act on this port, not on the nodes that wait: check the host's "
    "PCIe and receive buffers, the switch's PFC watchdog, ECN marking threshold, XOFF and DCQCN settings.",
    "pause_storm_unlocalised": "Ports receive pause and no transmitter is known. Look at the leaf switch's per-port transmit and "
    "receive pause counters; do not act on the nodes that receive.",
    "gpu_stalled": "A GPU of the node stands still while its job's other GPUs wait for it. Look at the process on it and at the "
    "kernel's codes of that time; restart the job without the node if the process is gone.",
    "node_lost": "The node's agent has fallen silent while its job runs. See whether the machine answers (console, BMC, network) "
    "before the job is restarted without it; an agent that died alone is no fault of the node.",
    "common_mode": "Many nodes fail alike within minutes. Look for what they share: a rollout of driver or firmware, a power feed, "
    "cooling, the subnet manager. No node of them is at fault on its own; stop the rollout first.",
    "catalogue": "The code's catalogue entry asks for this act.",
}

_XID_CLASS = {79: "gpu_lost", 48: "gpu_memory", 63: "row_remap_pending"}

_CATALOGUE_ACTS: dict[
    str, tuple[CommandKind, Literal["gpu", "node", "job"], Literal["now", "after_checkpoint"], int]
] = {
    "cordon_node_now": ("cordon_node", "node", "now", 10 * _MINUTE_NS),
    "drain_after_checkpoint": ("drain_node", "node", "after_checkpoint", 24 * _HOUR_NS),
    "reset_gpu": ("reset_gpu", "gpu", "now", _HOUR_NS),
    "reboot_node": ("reboot_node", "node", "now", _HOUR_NS),
    "replace_hardware": ("replace_hardware", "gpu", "now", 24 * _HOUR_NS),
    "restart_job": ("restart_job", "job", "now", 10 * _MINUTE_NS),
}
"""Catalogue names of acts; `none` and `observe` are no command."""


def remedy_for_class(cause_class: str) -> Remedy:
    """The failure table's act for a class.

    Raises:
        KeyError: the class is not in the table.
    """
    return _BY_CLASS[cause_class]


def remedy_for_code(source: str, code: int) -> Remedy | None:
    """The act for a kernel code: the failure table first, then the catalogue; None when there is nothing to do.

    Args:
        source: `xid` or `sxid`.
        code: the code; one that is not in the catalogue has no act.
    """
    if source == "xid" and code in _XID_CLASS:
        return _BY_CLASS[_XID_CLASS[code]]
    entry = catalog.xid(code) if source == "xid" else catalog.sxid(code)
    if entry is None or entry.severity in {"app", "info"}:
        return None
    act = _CATALOGUE_ACTS.get(entry.suggested_action)
    if act is None:
        return None
    kind, level, when, term_ns = act
    if entry.severity != "fatal" and level != "job":
        # One kind of evidence, and not a fatal one, costs nobody a node or a GPU.
        return None
    return Remedy("catalogue", kind, level, when, term_ns)

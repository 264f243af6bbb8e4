"""What people are told to do, by class of incident; and the numbers and switch commands that belong to a pause storm.

Text only: nothing here or elsewhere runs it. Every class of the failure table has a text. Addresses come from outside, and
one that is not plainly an address is left out of a command line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.findings import Subject
    from streams.decisions.incidents import OpenIncident
    from streams.decisions.remedies import Remedy

__all__ = ["ADVICE", "advice_of", "storm_advice"]

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
    "ecc_rate": "The GPU corrects memory errors at a high rate. Watch it: a pending row remap, an uncorrectable error or a slow rank of "
    "the same GPU is the second sign after which it is taken out at a checkpoint; alone it costs nobody anything.",
    "ecc_rate_confirmed": "A high rate of corrected memory errors and a second sign of the same GPU. Let the job reach its checkpoint, then "
    "reset the GPU so that its rows are remapped, and run the pre-flight memory test before it returns.",
    "suspect_device": "A fault of the application came again on this GPU under another job, and on no other GPU of those jobs. Run the "
    "pre-flight test on it; if that passes, look for what the jobs share: image, driver, input.",
    "whole_job": "All ranks compute longer than before, so none of them is at fault. Look at what changed for the whole job: power cap, "
    "heat of the hall, code, library, model, batch.",
    "partition": "One stage of the pipeline has more work than the others, and they wait for it. Move layers between stages, or give the "
    "heavy one fewer; no node is slow.",
    "workload": "Ranks get unequal work: lengths of sequences, tokens, or experts that are hot. Balance the batches by cost, pack "
    "sequences, or change the router's capacity and loss; no node is slow.",
    "storage": "All ranks wait for their data: look at the file system or object store that serves the job, its metadata servers and "
    "quota, and at how far the loaders read ahead; no node is slow.",
    "facility": "Several nodes fell silent at once. Look at what they share: a rollout, a collector, a switch of the management network, "
    "a power feed. No node of them is at fault on its own.",
}
"""By class of incident."""


def advice_of(remedy: Remedy, incident: OpenIncident) -> str:
    """What people are told with a remedy for an incident; empty where the site has switched its row off."""
    if remedy.cause_class != "pause_storm" or not remedy.advice:
        return remedy.advice
    return f"{remedy.advice} {storm_advice(incident.culprit, incident.values, len(incident.suppressed))}"


_PORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,63}", re.ASCII)

_DETECT_MS, _RESTORE_MS = 200, 400
"""SONiC's own example for its watchdog; a port that is stopped for 200 ms has lost every timeout of a collective."""


def storm_advice(culprit: Subject | None, values: Mapping[str, Any], victims: int) -> str:
    """What to look at and to set where one port stops others, with what was seen.

    Args:
        culprit: the port that transmits pause; of a host or of a switch.
        values: `pause_frames_per_s` as far as it is known.
        victims: how many ports are stopped.
    """
    rate = values.get("pause_frames_per_s")
    seen = f"{rate:.0f} pause frames/s, " if isinstance(rate, int | float) else ""
    ports = f"{victims} port{'s' if victims != 1 else ''} stopped"
    port = culprit.port if culprit is not None and culprit.switch_id is not None else None
    name = port if port is not None and _PORT.fullmatch(port) else "PORT"
    return (
        f"Seen: {seen}{ports}. In this order: "
        "(1) ECN marking threshold: marking must begin before pause does, or senders slow down too late; "
        "SONiC: `show ecn`, `ecnconfig -p PROFILE -gmin BYTES -gmax BYTES`. "
        "(2) XOFF: with too little headroom below it pause comes early, with too much it comes too late to save a frame; "
        "SONiC: `show priority-group watermark headroom`, `show pfc counters`. "
        f"(3) PFC watchdog: detect {_DETECT_MS} ms, restore {_RESTORE_MS} ms; "
        f"SONiC: `show pfcwd stats`, `config pfcwd start --action drop {name} {_DETECT_MS} --restoration-time {_RESTORE_MS}`. "
        "(4) DCQCN on the senders: CNPs handled must grow while the port is congested; where they stand still, notification is off or "
        "the packets are not ECN-capable."
    )

"""Kernel lines that the driver prints for simulated faults, as `/dev/kmsg` records and as the events made of them.

Wording follows public driver source and logs. One lost GPU prints several lines: the Xid itself, a second line without a
code (which is no event), a change of recovery action, and channel teardowns on GPUs that did nothing wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.events import KernelEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.faults import PlacedFault
    from agents.simulation.fleet import Fleet
    from agents.simulation.look_alikes import PlacedLookAlike
    from agents.simulation.noise import Noise

__all__ = ["UNKNOWN_XID", "KernelLine", "kernel_event", "kernel_lines"]

UNKNOWN_XID = 221
"""A code that no public catalogue has."""

_SEVERITY = {43: "app", 45: "app", 79: "fatal", 154: "degraded"}
_ERROR_PRIORITY = 3


@dataclass(frozen=True)
class KernelLine:
    """One line of a node's kernel log, `at_ns` since the start of the run; `code` is null for a line that is no event."""

    node: int
    at_ns: int
    gpu: int
    code: int | None
    text: str
    pid: int | None = None
    process: str | None = None
    unknown_process: bool = False
    recovery_action: str | None = None
    caused_by_xid: int | None = None


def kernel_lines(
    fleet: Fleet, noise: Noise, faults: Sequence[PlacedFault], look_alikes: dict[str, PlacedLookAlike]
) -> list[KernelLine]:
    """All kernel lines of a run, by time."""
    lines: list[KernelLine] = []
    for fault in faults:
        if fault.kind == "xid79":
            lines += _loss(fleet, noise, fault)
    crashed = look_alikes.get("application_xid")
    if crashed is not None:
        pid = _pid(noise, crashed.node, 99)
        lines.append(
            KernelLine(crashed.node, crashed.at_ns, crashed.gpu, 43, "Ch 00000018", pid=pid, process="python3")
        )
    unknown = look_alikes.get("unknown_xid")
    if unknown is not None:
        text = "Unit 0x4 status 0x00000001 info 0x0003"
        lines.append(KernelLine(unknown.node, unknown.at_ns, unknown.gpu, UNKNOWN_XID, text))
    return sorted(lines, key=lambda line: line.at_ns)


def _loss(fleet: Fleet, noise: Noise, fault: PlacedFault) -> list[KernelLine]:
    node, gpu, at_ns = fault.node, fault.gpu, fault.onset_ns
    lines = [
        KernelLine(node, at_ns, gpu, 79, "GPU has fallen off the bus.", unknown_process=True),
        KernelLine(
            node, at_ns + 41_000, gpu, None, f"NVRM: GPU {fleet.pci_bus_ids[gpu]}.0: GPU has fallen off the bus."
        ),
        KernelLine(
            node,
            at_ns + 83_000_000,
            gpu,
            154,
            "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            recovery_action="node_reboot",
        ),
    ]
    others = [other for other in range(fleet.scenario.gpus_per_node) if other != gpu]
    for index, other in enumerate(others[: 1 + noise.pick("teardowns", 3, fault.fault_id)]):
        lines.append(
            KernelLine(
                node,
                at_ns + 1_200_000_000 + index * 7_300_000,
                other,
                45,
                f"Ch {8 + index:08x}",
                pid=_pid(noise, node, other),
                process="python3",
            )
        )
    return lines


def _pid(noise: Noise, node: int, slot: int) -> int:
    return 20_000 + noise.pick("pid", 900_000, node * 100 + slot)


def kernel_event(
    fleet: Fleet, noise: Noise, line: KernelLine, number: int, event_time_ns: int, session: str
) -> KernelEvent:
    """The event that an agent makes of a line.

    Args:
        fleet: names and addresses.
        noise: gives the node's uptime and the number of its first line.
        line: a line with a code.
        number: how many lines the node's log of this run had before it.
        event_time_ns: the node's own time of the line.
        session: the agent's session.
    """
    assert line.code is not None
    node_id = fleet.node_ids[line.node]
    sequence = 2_000 + noise.pick("kmsg-sequence", 6_000, node_id) + number
    uptime_us = round(noise.between("uptime-days", 3.0, 90.0, node_id) * 86_400e6) + line.at_ns // 1000
    owner = ""
    if line.unknown_process:
        owner = "pid='<unknown>', name=<unknown>, "
    elif line.pid is not None:
        owner = f"pid={line.pid}, name={line.process}, "
    message = f"NVRM: Xid (PCI:{fleet.pci_bus_ids[line.gpu]}): {line.code}, {owner}{line.text}"
    return KernelEvent(
        node_id=node_id,
        agent_session=session,
        boot_id=fleet.boot_id(line.node, noise),
        kmsg_seq=sequence,
        event_time_ns=event_time_ns,
        source="xid",
        code=line.code,
        severity=_SEVERITY.get(line.code, "unknown"),
        pci_bus_id=fleet.pci_bus_ids[line.gpu],
        gpu_uuid=fleet.gpu_uuids[line.node][line.gpu],
        pid=line.pid,
        process=line.process,
        recovery_action=line.recovery_action,
        caused_by_xid=line.caused_by_xid,
        text=line.text,
        raw=f"{_ERROR_PRIORITY},{sequence},{uptime_us},-;{message}",
    )

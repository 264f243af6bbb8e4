"""Kernel events that come with faults and look-alikes: a few lines each, worded as drivers word them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents.simulation.benchmark.drafts import Draft
from schemas.events import KernelEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.drafts import Clocks
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.noise import Noise

__all__ = ["kernel_drafts"]

_XIDS = {
    "gpu_memory_error": (48, "fatal", "DBE (double bit error) ECC Error Detected"),
    "gpu_execution_error": (13, "app", "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Illegal Instruction"),
    "cuda_error": (31, "app", "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_2 faulted @ 0x7f10_00000000"),
    "nvlink_error": (74, "degraded", "NVLink: fatal error detected on link 3"),
}


def kernel_drafts(
    case: BenchmarkCase,
    inventory: Inventory,
    faults: Sequence[PlacedFault],
    onsets_us: dict[str, float],
    clocks: Clocks,
    noise: Noise,
) -> Iterator[Draft]:
    """Kernel events of a run.

    Args:
        case: for its look-alikes.
        inventory: names and addresses.
        faults: those placed.
        onsets_us: by truth id, when each one begins; those that have begun so far.
        clocks: stamp the events.
        noise: gives the first line's number.
    """
    for fault in faults:
        onset_us = onsets_us.get(fault.truth_id)
        if onset_us is None or fault.machine < 0:
            continue
        at_us = onset_us + 1e5
        if fault.kind in _XIDS:
            code, severity, text = _XIDS[fault.kind]
            yield _xid(inventory, clocks, noise, (fault.machine, fault.gpu), at_us, (code, severity, text))
        elif fault.kind == "link_loss" and fault.plan.counters_visible:
            yield _nic(inventory, clocks, noise, (fault.machine, fault.gpu), at_us + 40e6, "link_down", "Link down")
            yield _nic(inventory, clocks, noise, (fault.machine, fault.gpu), at_us + 42e6, "link_up", "Link up")
        elif fault.kind == "pcie_downgrade":
            yield _aer(inventory, clocks, noise, (fault.machine, fault.gpu), at_us)
    if "application_xid" in case.look_alikes and "application-xid" in onsets_us:
        machine = noise.pick("application-xid", case.fleet.nodes)
        line = (43, "app", "Ch 00000018")
        yield _xid(inventory, clocks, noise, (machine, 0), onsets_us["application-xid"], line, process="python3")


def _event(
    inventory: Inventory, clocks: Clocks, noise: Noise, machine: int, at_us: float, fields: dict[str, Any]
) -> Draft:
    hardware = inventory.machines[machine]
    at_ns = round(at_us * 1000)
    number = 2_000 + noise.pick("kmsg-sequence", 6_000, hardware.node_id) + at_ns // 1_000_000_000
    record = KernelEvent(
        node_id=hardware.node_id,
        agent_session=hardware.session,
        boot_id=hardware.boot_id,
        kmsg_seq=number,
        event_time_ns=clocks.stamp(machine, at_ns),
        **fields,
    )
    return Draft(at_ns + 1_000_000, "", "kernel-events", record, {})


def _xid(
    inventory: Inventory,
    clocks: Clocks,
    noise: Noise,
    place: tuple[int, int],
    at_us: float,
    line: tuple[int, str, str],
    process: str | None = None,
) -> Draft:
    machine, gpu = place
    code, severity, text = line
    bus = inventory.pci_bus_ids[gpu]
    pid = 20_000 + noise.pick("pid", 900_000, machine * 100 + gpu)
    fields = {
        "source": "xid",
        "code": code,
        "severity": severity,
        "pci_bus_id": bus,
        "gpu_uuid": inventory.machines[machine].gpu_uuids[gpu],
        "pid": pid,
        "process": process or "python3",
        "text": text,
        "raw": f"NVRM: Xid (PCI:{bus}): {code}, pid={pid}, name={process or 'python3'}, {text}",
    }
    return _event(inventory, clocks, noise, machine, at_us, fields)


def _nic(
    inventory: Inventory, clocks: Clocks, noise: Noise, place: tuple[int, int], at_us: float, condition: str, text: str
) -> Draft:
    machine, nic = place
    bus = f"0000:{int(inventory.pci_bus_ids[nic].split(':')[1], 16) - 1:02x}:00"
    fields = {
        "source": "nic",
        "severity": "degraded" if condition == "link_down" else "info",
        "pci_bus_id": bus,
        "condition": condition,
        "driver": "mlx5_core",
        "interface": f"ens{nic}np0",
        "text": text,
        "raw": f"mlx5_core {bus}.0 ens{nic}np0: {text}",
    }
    return _event(inventory, clocks, noise, machine, at_us, fields)


def _aer(inventory: Inventory, clocks: Clocks, noise: Noise, place: tuple[int, int], at_us: float) -> Draft:
    machine, gpu = place
    bus = inventory.pci_bus_ids[gpu]
    text = "PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    fields = {
        "source": "aer",
        "severity": "info",
        "pci_bus_id": bus,
        "gpu_uuid": inventory.machines[machine].gpu_uuids[gpu],
        "condition": "bus_error",
        "driver": "nvidia",
        "text": text,
        "raw": f"nvidia {bus}.0: {text}",
    }
    return _event(inventory, clocks, noise, machine, at_us, fields)

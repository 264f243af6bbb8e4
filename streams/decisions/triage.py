"""What a person looks at first: command lines for a finding or an incident, filled with its own addresses.

Text only: nothing here or elsewhere runs them. A line whose address is not known is left out, and so is one whose address
is not plainly one (letters, digits, `._:@+-`), because names that come from outside end in somebody's shell. All lines
read; none changes anything. docs/runbooks.md says what to look for in their output.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from schemas.findings import BLAMELESS_KINDS, Finding

if TYPE_CHECKING:
    from schemas.findings import Subject
    from schemas.remediation import Incident

__all__ = ["triage"]

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,252}", re.ASCII)
_PCI = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?", re.ASCII)

_THERMAL = ("dcgm", "clocks", "kernel")
_DEVICE_CODE = ("kernel", "link", "gpu", "dcgm")
_MEMORY = ("kernel", "memory", "gpu")
_HOST = ("load", "pressure", "dcgm")
_PAUSE = ("pause", "switch", "port")

_STEPS: dict[str, tuple[str, ...]] = {
    # kinds of findings
    "straggler": ("dcgm", "clocks", "load", "kernel", "link"),
    "thermal_violation": _THERMAL,
    "sm_clock": ("dcgm", "clocks", "link"),
    "xid": _DEVICE_CODE,
    "sxid": ("kernel", "fabric_manager", "link"),
    "uncorrectable_ecc": _MEMORY,
    "pfc_pause": _PAUSE,
    "pfc_pause_transmit": (*_PAUSE, "link"),
    # classes of incidents
    "thermal": _THERMAL,
    "clock": ("dcgm", "clocks", "link"),
    "power": ("dcgm", "clocks", "kernel"),
    "pcie": ("link", "kernel", "clocks"),
    "nvlink": ("nvlink", "kernel"),
    "nic": ("cable", "port", "switch"),
    "link": ("cable", "port", "switch"),
    "switch": ("switch", "ports"),
    "cooling": (),
    "common_mode": (),
    "shared_place": (),
    "host": _HOST,
    "data": ("load", "pressure", "disks"),
    "compute": ("dcgm", "clocks", "link", "load"),
    "hang": (),
    "hang_rank": ("load", "pressure", "kernel"),
    "hang_device": ("kernel", "gpu", "link", "dcgm"),
    "hang_mismatch": (),
    "hang_network": (),
    "gpu_lost": ("kernel", "link", "gpu"),
    "gpu_stalled": ("kernel", "gpu", "load"),
    "node_lost": ("load", "kernel"),
    "gpu_memory": _MEMORY,
    "row_remap_pending": _MEMORY,
    "ecc_rate": _MEMORY,
    "ecc_rate_confirmed": _MEMORY,
    "suspect_device": _DEVICE_CODE,
    "whole_job": (),
    "partition": (),
    "workload": (),
    "storage": (),
    "facility": (),
    "catalogue": _DEVICE_CODE,
    "pause_storm": (*_PAUSE, "link"),
}
"""Looks by kind of finding or class of incident, in order."""

_STEPS_BY_LEVEL: dict[str, tuple[str, ...]] = {
    "gpu": ("kernel", "clocks", "link"),
    "rank": ("dcgm", "clocks", "load", "kernel"),
    "node": ("kernel", "load"),
    "port": _PAUSE,
    "link": _PAUSE,
    "switch": ("switch", "kernel"),
}
"""Looks for kinds that have none of their own, by what the finding is about."""


def triage(statement: Finding | Incident) -> list[str]:
    """Command lines to look at the subject of a finding, or at the culprit of an incident; each can be pasted as it is.

    Empty where nobody is to blame, and where no address is known. A kind without looks of its own gets those of the
    level of its subject.
    """
    if isinstance(statement, Finding):
        kind, subject = statement.kind, statement.subject
    elif statement.culprit is not None:
        kind, subject = statement.cause_class, statement.culprit
    else:
        return []
    if kind in BLAMELESS_KINDS:
        return []
    lines: list[str] = []
    for look in _STEPS.get(kind, _STEPS_BY_LEVEL.get(subject.level, ())):
        lines += [line for line in _LOOKS[look](subject) if line not in lines]
    return lines


def _plain(name: str | None) -> str | None:
    """A name that is safe and whole in a command line, else None."""
    return name if name is not None and _PLAIN.fullmatch(name) else None


def _on(host: str | None, command: str) -> list[str]:
    """The command on a host, or nothing when the host is not known."""
    name = _plain(host)
    return [f"ssh {name} {shlex.quote(command)}"] if name is not None else []


def _pci(subject: Subject) -> str | None:
    """The subject's PCI address with its function, as lspci wants it."""
    address = subject.pci_bus_id
    if address is None or not _PCI.fullmatch(address):
        return None
    return address if "." in address else f"{address}.0"


def _dcgm(subject: Subject) -> list[str]:
    # SM clock 100, power 155, power violation 240, thermal violation 241: DCGM's field ids.
    return _on(subject.node_id, "dcgmi dmon -e 100,155,240,241 -d 1000 -c 10")


def _clocks(subject: Subject) -> list[str]:
    device = _plain(subject.gpu_uuid) or _pci(subject)
    chosen = f" -i {device}" if device is not None else ""
    return _on(subject.node_id, f"nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER{chosen}")


def _kernel(subject: Subject) -> list[str]:
    lines = _on(subject.node_id, "dmesg -T | grep NVRM | tail -n 50")
    address = _pci(subject)
    if address is not None:
        # The driver writes the address without its function.
        lines += _on(subject.node_id, f"dmesg -T | grep -i {address.rpartition('.')[0]} | tail -n 50")
    return lines


def _link(subject: Subject) -> list[str]:
    address = _pci(subject)
    if address is None:
        return []
    return _on(subject.node_id, f"lspci -vvv -s {address} | grep LnkSta")


def _gpu(subject: Subject) -> list[str]:
    # A GPU that fell off the bus is missing here, or named with an error.
    return _on(subject.node_id, "nvidia-smi -L")


def _memory(subject: Subject) -> list[str]:
    device = _plain(subject.gpu_uuid) or _pci(subject)
    chosen = f" -i {device}" if device is not None else ""
    return _on(subject.node_id, f"nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT{chosen}")


def _fabric_manager(subject: Subject) -> list[str]:
    return _on(subject.node_id, "journalctl -u nvidia-fabricmanager --since -1h | tail -n 50")


def _load(subject: Subject) -> list[str]:
    return _on(subject.node_id, "uptime; ps -eo pid,psr,pcpu,comm --sort=-pcpu | head -n 25")


def _pressure(subject: Subject) -> list[str]:
    return _on(subject.node_id, "grep . /proc/pressure/*")


def _disks(subject: Subject) -> list[str]:
    return _on(subject.node_id, "iostat -x 1 3")


def _at_nic(subject: Subject, looks: str) -> list[str]:
    """Commands about a NIC's interface, which they call `$dev`."""
    device = _plain(subject.device)
    if subject.switch_id is not None or device is None:
        return []
    # An RDMA device has its network interface beside it in sysfs; any other name is the interface itself.
    interface = f"$(ls /sys/class/infiniband/{device}/device/net 2>/dev/null || echo {device})"
    return _on(subject.node_id, f"for dev in {interface}; do {looks}; done")


def _pause(subject: Subject) -> list[str]:
    return _at_nic(subject, "ethtool -S $dev | grep pause")


def _cable(subject: Subject) -> list[str]:
    return _at_nic(
        subject, "ethtool $dev | grep -E 'Speed|Link detected'; ethtool -S $dev | grep -E 'err|crc|discard|sequence'"
    )


def _ports(subject: Subject) -> list[str]:
    return _on(subject.switch_id, "show interfaces counters")


def _nvlink(subject: Subject) -> list[str]:
    device = _plain(subject.gpu_uuid) or _pci(subject)
    chosen = f" -i {device}" if device is not None else ""
    return _on(subject.node_id, f"nvidia-smi nvlink -e{chosen}")


def _switch(subject: Subject) -> list[str]:
    return _on(subject.switch_id, "show pfc counters")


def _port(subject: Subject) -> list[str]:
    port = _plain(subject.port)
    if subject.switch_id is None or port is None:
        return []
    return _on(subject.switch_id, f"show interfaces counters | grep -w {port}")


_LOOKS = {
    "dcgm": _dcgm,
    "clocks": _clocks,
    "kernel": _kernel,
    "link": _link,
    "gpu": _gpu,
    "memory": _memory,
    "fabric_manager": _fabric_manager,
    "load": _load,
    "pressure": _pressure,
    "disks": _disks,
    "nvlink": _nvlink,
    "cable": _cable,
    "ports": _ports,
    "pause": _pause,
    "switch": _switch,
    "port": _port,
}

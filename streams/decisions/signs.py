"""What an incident rests on: kinds of findings, by who can have written the records under them.

Kernel and NVML data are the word of the node's agent, step timings and dumps that of the tenant. A rule that is not known to
read the agent's records counts as the tenant's, who is trusted least. It holds no finding back and judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas import catalog

if TYPE_CHECKING:
    from schemas.findings import Finding

__all__ = ["Signs", "class_of", "is_observed_only"]

_AGENT_RULES = frozenset(
    {
        *("xid", "uncorrectable_ecc", "row_remap", "thermal_violation", "power", "sm_clock", "device_peers"),
        *("pcie_link", "nvlink_errors", "nic_pcie_link", "port_speed", "port_loss", "port_errors"),
        *("pfc_pause", "congestion", "congestion_own", "node_silence"),
    }
)
"""Rules over records that agents write."""


def class_of(rule: str) -> str:
    """Who can have written the records under a rule's findings: `agent` or `tenant`."""
    return "agent" if rule in _AGENT_RULES else "tenant"


def is_observed_only(finding: Finding) -> bool:
    """Whether a kernel code is on record and no more: a process may have written its line, or the node's own state masks it."""
    return not finding.values.get("trusted") or bool(finding.values.get("masked"))


_ONCE = frozenset({"xid", "sxid", "uncorrectable_ecc"})
"""Kinds that are told once, and are not cleared."""


@dataclass(slots=True)
class Signs:
    """The evidence of one incident.

    Attributes:
        by: who said it, by kind of finding.
        is_fatal: whether a trusted code is among them after which the catalogue trusts the part no more.
        last_ns: when what happens once was last told, by kind; what stands until it is cleared has no such time.
        fatal_ns: the same of a fatal code.
    """

    by: dict[str, str] = field(default_factory=dict)
    is_fatal: bool = False
    last_ns: dict[str, int] = field(default_factory=dict)
    fatal_ns: int = -1

    @property
    def kinds(self) -> set[str]:
        """Kinds of findings."""
        return set(self.by)

    @property
    def classes(self) -> set[str]:
        """Who said it."""
        return set(self.by.values())

    def take(self, finding: Finding) -> None:
        """A finding is evidence."""
        if finding.state != "open" or finding.values.get("masked"):
            return
        self.by[finding.kind] = class_of(finding.rule)
        if finding.kind in _ONCE:
            self.last_ns[finding.kind] = max(finding.event_time_ns, self.last_ns.get(finding.kind, -1))
        if finding.kind not in {"xid", "sxid"} or not finding.values.get("trusted"):
            return
        code = finding.values.get("code")
        if not isinstance(code, int) or isinstance(code, bool):
            return
        entry = catalog.xid(code) if finding.kind == "xid" else catalog.sxid(code)
        if entry is not None and entry.severity == "fatal":
            self.is_fatal, self.fatal_ns = True, max(finding.event_time_ns, self.fatal_ns)

    def since(self, oldest_ns: int) -> Signs:
        """What of it is not older than a time."""
        by = {kind: who for kind, who in self.by.items() if self.last_ns.get(kind, oldest_ns) >= oldest_ns}
        is_fatal = self.is_fatal and (self.fatal_ns < 0 or self.fatal_ns >= oldest_ns)
        return Signs(by, is_fatal, self.last_ns, self.fatal_ns)

    def observe(self, kind: str) -> None:
        """What an agent says of a device was joined to the incident as its cause."""
        self.by[kind] = "agent"

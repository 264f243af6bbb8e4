"""Xid and SXid codes, read by the catalogue.

Fatal codes are critical and urgent, degraded ones are warnings; all others, unknown codes and lines
that a user process may have written are observed only. So is what a node says in maintenance, right after a new boot, and
of an earlier boot: `masked` says which. Equal codes of one device within a minute are one episode: the first opens it, and
nothing more is said until it has been quiet for the minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas import catalog
from schemas.findings import Subject
from streams.core.edges import EdgeState
from streams.core.keyed import Keyed, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.events import KernelEvent, NodeStatus
    from schemas.findings import Evidence, Finding
    from streams.core.roster import Roster

__all__ = ["XidCodes", "XidThresholds"]

RULE = "xid"

_MASKS = {"earlier_boot": "of an earlier boot", "maintenance": "in maintenance", "boot": "right after a boot"}

_SEVERITY = {"fatal": "critical", "degraded": "warning", "app": "info", "info": "info"}


@dataclass(frozen=True, slots=True)
class XidThresholds:
    """Thresholds of the rule. Judgements.

    Attributes:
        boot_ns: lines up to so long after the first start of a boot are the driver's, that finds what it finds.
        maintenance_ns: how long a maintenance masks that no start has ended.
    """

    boot_ns: int = 60_000_000_000
    maintenance_ns: int = 3_600_000_000_000


_EARLIER = "before-"
"""How agents name a line of an earlier boot: the node was started anew since, and is not what it was."""


@dataclass(slots=True)
class _Node:
    """What a node said of itself: its boot, when that was first heard of, and since when it is in maintenance."""

    boot_id: str | None = None
    booted_ns: int | None = None
    maintenance_ns: int | None = None


class _Episode(SubjectState):
    __slots__ = ("edge", "lines")

    def __init__(self) -> None:
        self.edge = EdgeState()
        self.lines = 0


class XidCodes:
    """Reads the kernel events of many nodes against the catalogues."""

    def __init__(self, site_id: str, defaults: XidThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or XidThresholds(), RULE)
        self._nodes: dict[str, _Node] = {}
        self._episodes: Keyed[_Episode] = Keyed(_Episode)

    def on_status(self, status: NodeStatus) -> None:
        """Take what a node says of itself; nothing follows from it."""
        node = self._nodes.setdefault(status.node_id, _Node())
        if status.state == "maintenance":
            node.maintenance_ns = status.event_time_ns
        elif status.state == "start":
            node.maintenance_ns = None
        if status.boot_id is not None and status.boot_id != node.boot_id:
            # The first boot that is heard of is no new one: it may have begun long ago.
            node.booted_ns = status.event_time_ns if node.boot_id is not None else None
            node.boot_id = status.boot_id

    def on_event(self, event: KernelEvent, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one kernel event; events of a node come in its own order."""
        if event.source not in {"xid", "sxid"} or event.code is None:
            return
        device = event.gpu_uuid or event.pci_bus_id or "unknown"
        masked = self._masked(event, roster)
        episode = self._episodes[
            f"{event.node_id}/{device}/{event.source}/{event.code}/{event.trusted}" + (f"/{masked}" if masked else "")
        ]
        now_ns = event.event_time_ns
        # A quiet minute ends an episode without a word: that a code did not come again clears nothing.
        if episode.edge.update(now_ns, holds=False) == "cleared":
            episode.edge.close()
        opened = episode.edge.update(now_ns, holds=True) == "open"
        episode.lines = event.repeat_count if opened else episode.lines + event.repeat_count
        if not opened:
            return
        entry = catalog.xid(event.code) if event.source == "xid" else catalog.sxid(event.code)
        severity = _SEVERITY.get(entry.severity, "info") if entry is not None else "info"
        if not event.trusted or masked:
            severity = "info"
        yield self._rule.finding(
            event.source,
            self._subject(event),
            state="open",
            severity=severity,
            event_time_ns=now_ns,
            onset_ns=now_ns,
            urgent=severity == "critical",
            explanation=self._explanation(event, entry.name if entry is not None else None)
            + (f", {_MASKS[masked]}: observed only" if masked else ""),
            values={
                "code": event.code,
                "name": entry.name if entry is not None else None,
                "catalogue_severity": entry.severity if entry is not None else "unknown",
                "suggested_action": entry.suggested_action if entry is not None else "observe",
                "trusted": event.trusted,
                **({"masked": masked} if masked else {}),
                "inferred": event.inferred,
                "recovery_action": event.recovery_action,
                "caused_by_xid": event.caused_by_xid,
                "link": event.link,
                "raw": event.raw[:300],
            },
            evidence=evidence,
        )

    def _masked(self, event: KernelEvent, roster: Roster) -> str | None:
        """Why a line says nothing that may be acted on, in a word."""
        if event.boot_id.startswith(_EARLIER):
            return "earlier_boot"
        node = self._nodes.get(event.node_id)
        if node is None:
            return None
        limits, now_ns = self._limits.of(roster.policy), event.event_time_ns
        since_ns = node.maintenance_ns
        if since_ns is not None and since_ns <= now_ns <= since_ns + limits.maintenance_ns:
            return "maintenance"
        booted_ns = node.booted_ns
        if booted_ns is not None and event.boot_id == node.boot_id and now_ns <= booted_ns + limits.boot_ns:
            return "boot"
        return None

    @staticmethod
    def _subject(event: KernelEvent) -> Subject:
        if event.source == "sxid":
            return Subject(level="switch", node_id=event.node_id, pci_bus_id=event.pci_bus_id, link=event.link)
        if event.gpu_uuid is None and event.pci_bus_id is None:
            return Subject(level="node", node_id=event.node_id)
        return Subject(level="gpu", node_id=event.node_id, gpu_uuid=event.gpu_uuid, pci_bus_id=event.pci_bus_id)

    @staticmethod
    def _explanation(event: KernelEvent, name: str | None) -> str:
        label = "Xid" if event.source == "xid" else "SXid"
        known = f" ({name})" if name else " (not in the catalogue: observed only)"
        origin = "" if event.trusted else ", from a line that a user process may have written"
        return f"{label} {event.code}{known}{origin}"

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        nodes = {
            name: [node.boot_id, node.booted_ns, node.maintenance_ns] for name, node in sorted(self._nodes.items())
        }
        return {"episodes": self._episodes.snapshot(), "nodes": nodes}

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        told: dict[str, Any] = snapshot
        # Before nodes were remembered a snapshot was that of the episodes.
        self._episodes.restore(told.get("episodes", told))
        self._nodes = {name: _Node(*fields) for name, fields in told.get("nodes", {}).items()}

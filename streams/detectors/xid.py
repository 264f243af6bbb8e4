"""Xid and SXid codes, read by the catalogue.

Fatal codes are critical and urgent, degraded ones are warnings; all others, unknown codes and lines
that a user process may have written are observed only. Equal codes of one device within
a minute are one episode: the first opens it, and nothing more is said until it has been quiet for the minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas import catalog
from schemas.findings import Subject
from streams.core.edges import EdgeState
from streams.core.keyed import Keyed, SubjectState
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.events import KernelEvent
    from schemas.findings import Evidence, Finding
    from streams.core.roster import Roster

__all__ = ["XidCodes"]

RULE = "xid"

_SEVERITY = {"fatal": "critical", "degraded": "warning", "app": "info", "info": "info"}


class _Episode(SubjectState):
    __slots__ = ("edge", "lines")

    def __init__(self) -> None:
        self.edge = EdgeState()
        self.lines = 0


class XidCodes:
    """Reads the kernel events of many nodes against the catalogues."""

    def __init__(self, site_id: str) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._episodes: Keyed[_Episode] = Keyed(_Episode)

    def on_event(self, event: KernelEvent, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:  # noqa: ARG002
        """Findings of one kernel event; events of a node come in its own order."""
        if event.source not in {"xid", "sxid"} or event.code is None:
            return
        device = event.gpu_uuid or event.pci_bus_id or "unknown"
        episode = self._episodes[f"{event.node_id}/{device}/{event.source}/{event.code}/{event.trusted}"]
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
        if not event.trusted:
            severity = "info"
        yield self._rule.finding(
            event.source,
            self._subject(event),
            state="open",
            severity=severity,
            event_time_ns=now_ns,
            onset_ns=now_ns,
            urgent=severity == "critical",
            explanation=self._explanation(event, entry.name if entry is not None else None),
            values={
                "code": event.code,
                "name": entry.name if entry is not None else None,
                "catalogue_severity": entry.severity if entry is not None else "unknown",
                "suggested_action": entry.suggested_action if entry is not None else "observe",
                "trusted": event.trusted,
                "inferred": event.inferred,
                "recovery_action": event.recovery_action,
                "caused_by_xid": event.caused_by_xid,
                "link": event.link,
                "raw": event.raw[:300],
            },
            evidence=evidence,
        )

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
        return self._episodes.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._episodes.restore(snapshot)

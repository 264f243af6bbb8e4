"""Who stops the fabric: pause findings of many ports judged by direction, never by who has most.

A NIC that transmits pause and receives little is a source; ports that receive pause are its victims. A switch's own
counters say the same from the other side: what its port *receives* is what the NIC transmits. Findings within the
tolerance belong together, and those about the two ends of one cable at any time: a switch may be read far more seldom
than its hosts. Without a transmitter the storm is unlocalised: nobody is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.findings import Subject
from streams.decisions.explained import Explained

if TYPE_CHECKING:
    from schemas.findings import Finding

__all__ = ["PauseJudge", "PauseVerdict"]

UNLOCALISED = "pause:unlocalised"


@dataclass(frozen=True, slots=True)
class PauseVerdict:
    """One source of pause, or an unlocalised storm (culprit null)."""

    component: str
    cause_class: str
    culprit: Subject | None
    finding: Finding
    victims: tuple[str, ...]
    summary: str
    frames_per_s: float | None
    because: tuple[str, ...] = ()

    @property
    def at_ns(self) -> int:
        """Event time of the finding that decided."""
        return self.finding.event_time_ns

    @property
    def values(self) -> dict[str, Any]:
        """Figures of the incident."""
        return {"pause_frames_per_s": self.frames_per_s}


class PauseJudge:
    """Remembers the pause findings that stand, and judges each when its tolerance has passed.

    Args:
        tolerance_ns: findings of several ports within this span belong together.
    """

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._standing: dict[str, Finding] = {}
        self._due: dict[str, int] = {}
        self._sources = Explained()
        self._ended: list[tuple[str, int, int]] = []
        self._resolved: list[tuple[str, int]] = []

    def take(self, finding: Finding) -> None:
        """A pause finding opened or was cleared."""
        if finding.state == "open":
            self._standing[finding.finding_id] = finding
            self._due[finding.finding_id] = finding.event_time_ns + self._tolerance_ns
            return
        known = self._standing.pop(finding.finding_id, None)
        self._due.pop(finding.finding_id, None)
        if known is not None and known.subject.node_id is not None and self._is_received(known):
            self._ended.append((known.subject.node_id, known.onset_ns, finding.event_time_ns))
            del self._ended[:-256]
        component = self._sources.leave(finding.finding_id)
        if component is not None:
            self._resolved.append((component, finding.event_time_ns))

    def decide(self, now_ns: int) -> list[PauseVerdict]:
        """Verdicts on findings whose tolerance has passed, in order of time."""
        due = sorted(
            (self._standing[name] for name, at in self._due.items() if at <= now_ns),
            key=lambda f: (f.event_time_ns, f.finding_id),
        )
        for finding in due:
            del self._due[finding.finding_id]
        # Sources first: a victim's finding may have come a moment earlier than its source's.
        verdicts = []
        for finding in due:
            verdict = self._source(finding)
            if verdict is not None:
                self._sources.join(finding.finding_id, verdict.component)
                verdicts.append(verdict)
        for finding in due:
            if not self._is_received(finding) or self._sources:
                continue
            if any(self._source(self._standing[name]) for name in self._due):
                # A source is known and not due yet: its verdict names the port.
                self._due[finding.finding_id] = max(self._due.values())
            else:
                self._sources.join(finding.finding_id, UNLOCALISED)
                victims = self._victims()
                verdicts.append(
                    PauseVerdict(
                        UNLOCALISED,
                        "pause_storm_unlocalised",
                        None,
                        finding,
                        victims,
                        "ports receive pause and no transmitter is known",
                        None,
                    )
                )
        return verdicts

    @property
    def is_standing(self) -> bool:
        """Whether a storm stands, with or without a known source: it explains slow transfers."""
        return bool(self._sources)

    def take_resolved(self) -> list[tuple[str, int]]:
        """Components whose last source has stopped since the last call, with the time."""
        resolved, self._resolved = self._resolved, []
        return resolved

    def is_victim(self, node_id: str | None, at_ns: int) -> bool:
        """Whether a node received pause around a time: then its slowness may be the fabric's."""
        if node_id is None:
            return False
        standing = any(
            f.subject.node_id == node_id and self._is_received(f) and f.onset_ns <= at_ns + self._tolerance_ns
            for f in self._standing.values()
        )
        over = any(
            node == node_id and onset <= at_ns + self._tolerance_ns and at_ns <= end + self._tolerance_ns
            for node, onset, end in self._ended
        )
        return standing or over

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes; standing findings are passed through as records."""
        return {
            "standing": [self._standing[name] for name in sorted(self._standing)],
            "due": dict(sorted(self._due.items())),
            "sources": self._sources.snapshot(),
            "ended": [list(entry) for entry in self._ended],
            "resolved": [list(entry) for entry in self._resolved],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._standing = {finding.finding_id: finding for finding in snapshot["standing"]}
        self._due = dict(snapshot["due"])
        self._sources.restore(snapshot["sources"])
        self._ended = [(node, onset, end) for node, onset, end in snapshot["ended"]]
        self._resolved = [(component, at) for component, at in snapshot["resolved"]]

    @staticmethod
    def _is_received(finding: Finding) -> bool:
        """Whether a host's port is stopped by this: received at the NIC, or transmitted to it by the switch."""
        from_host = finding.subject.switch_id is None
        return finding.kind == ("pfc_pause" if from_host else "pfc_pause_transmit")

    def _victims(self) -> tuple[str, ...]:
        """Findings of stopped ports; a link is counted once, from its host's end where the host reports."""
        received = [f for f in self._standing.values() if self._is_received(f)]
        of_hosts = [f for f in received if f.subject.switch_id is None]
        return tuple(sorted(f.finding_id for f in of_hosts or received))

    def _source(self, finding: Finding) -> PauseVerdict | None:
        if self._is_received(finding):
            return None
        subject = finding.subject
        from_host = subject.switch_id is None
        sent, got = ("tx", "rx") if from_host else ("rx", "tx")
        rate = _number(finding, f"{sent}_pause_frames_per_s")
        opposite = _number(finding, f"{got}_pause_frames_per_s") or 0.0
        if opposite > _number(finding, "limit_frames_per_s", 100.0):  # type: ignore[operator]
            # It is stopped itself and passes the pause on: a link of the chain, not its head.
            return None
        if not from_host and self._seen_by_host(finding):
            return None
        victims = self._victims()
        who = f"{subject.node_id or subject.switch_id} {subject.device or ''} port {subject.port}"
        return PauseVerdict(
            f"port:{_cable(finding)}",
            "pause_storm",
            Subject(
                level="port",
                node_id=subject.node_id,
                switch_id=subject.switch_id,
                device=subject.device,
                port=subject.port,
            ),
            finding,
            victims,
            f"{who} transmits {rate or 0:.0f} pause frames/s and receives {opposite:.0f}/s; {len(victims)} ports are stopped",
            rate,
        )

    def _seen_by_host(self, finding: Finding) -> bool:
        """Whether a host reports the same source from its own side: of the same cable, or within the tolerance."""
        return any(
            other.subject.switch_id is None
            and other.kind == "pfc_pause_transmit"
            and (_cable(other) == _cable(finding) or abs(other.onset_ns - finding.onset_ns) <= 2 * self._tolerance_ns)
            for other in self._standing.values()
        )


def _cable(finding: Finding) -> str:
    """A name of the port's cable, alike from both of its ends: the host's port, where a switch knows its peer."""
    subject, peer = finding.subject, finding.values.get("peer")
    if subject.switch_id is not None and isinstance(peer, str) and peer:
        return peer
    return f"{subject.node_id or subject.switch_id}/{subject.device}/{subject.port}"


def _number(finding: Finding, name: str, default: float | None = None) -> float | None:
    value = finding.values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

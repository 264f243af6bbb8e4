"""A record that waits until its time has settled: with its place, that time, and what tells it from all others.

The name is the same when the record is read again after a restart, so that what was taken is not taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.findings import Evidence, Finding

if TYPE_CHECKING:
    from schemas.remediation import ActionResult, Approval
    from streams.core.position import Position

__all__ = ["Held", "edge_of", "held_of", "hold_answer", "hold_finding"]


@dataclass(frozen=True, slots=True)
class Held:
    """A record that waits.

    Attributes:
        record: it.
        source: where it stands, if that is known.
        at_ns: the time at which it counts.
        signature: of an approval, why its signature does not count; None for one that holds.
    """

    record: Finding | ActionResult | Approval
    source: Evidence | None
    at_ns: int
    signature: str | None = None

    @property
    def edge(self) -> str:
        """What tells it from all others."""
        if isinstance(self.record, Finding):
            return edge_of(self.record)
        if self.source is None:
            return f"{self.record.record}:{self.record.command_id}:{self.record.event_time_ns}"
        return f"{self.source.topic}:{self.source.offset}"

    def plain(self) -> list[Any]:
        """Plain data that `held_of` takes."""
        source = self.source
        place = [source.topic, source.partition, source.offset] if source is not None else None
        return [self.record, place, self.at_ns, self.signature]


def held_of(plain: list[Any]) -> Held:
    """What was held, of the plain data that it made."""
    record, place, at_ns, signature = plain
    source = Evidence(topic=place[0], partition=place[1], offset=place[2]) if place is not None else None
    return Held(record, source, at_ns, signature)


def edge_of(finding: Finding) -> str:
    """A finding's opening and its clearing are two statements under one id."""
    return f"{finding.finding_id}:{finding.state}"


def hold_finding(finding: Finding, source: Evidence | None) -> Held:
    """A finding counts at its event time."""
    return Held(finding, source, finding.event_time_ns)


def hold_answer(record: ActionResult | Approval, position: Position | None, signature: str | None = None) -> Held:
    """What answers a command does not count before the brokers had it, so that it never comes before that command."""
    append_ns = position.append_ms * 1_000_000 if position is not None else 0
    source = position.evidence() if position is not None else None
    return Held(record, source, max(record.event_time_ns, append_ns), signature)

"""Findings: one detector's statement about one subject, with evidence; and the marks that order them.

The kinds in `BLAMELESS_KINDS` blame no rank, node or device: they say that something is slow, missing or not decidable.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import DeviceKey, EventTimeNs, Identifier, Record

__all__ = ["BLAMELESS_KINDS", "Evidence", "Finding", "ProgressMark", "Subject"]

Level = Literal["rank", "gpu", "node", "port", "link", "switch", "rank_group", "stage", "job", "zone", "facility"]

BLAMELESS_KINDS = frozenset(
    {
        "job_slowdown",
        "network_slowdown",
        "stage_imbalance",
        "length_imbalance",
        "expert_imbalance",
        "token_imbalance",
        "storage_slowdown",
        "missing_ranks",
        "insufficient",
        "low_mfu",
        "impossible_mfu",
        "barrier_wait",
        "changed_ranks",
        "scattered_pauses",
        "hang_suspected",
        "hang_unplaced",
        "hang_undecided",
    }
)


class Subject(Record):
    """What a finding is about. `level` says which of the fields names it; the others say where it is."""

    level: Level
    job_id: str | None = None
    rank: int | None = None
    ranks: tuple[int, ...] | None = None
    stage: int | None = None
    node_id: str | None = None
    gpu_uuid: DeviceKey | None = None
    pci_bus_id: DeviceKey | None = None
    device: str | None = None
    port: str | None = None
    priority: int | None = None
    switch_id: str | None = None
    link: int | None = None
    zone: str | None = None

    def key(self) -> str:
        """A text that is equal exactly for equal subjects."""
        parts = (
            self.level,
            self.job_id,
            self.rank,
            ",".join(map(str, self.ranks)) if self.ranks is not None else None,
            self.stage,
            self.node_id,
            self.gpu_uuid or self.pci_bus_id,
            self.device,
            self.port,
            self.priority,
            self.switch_id,
            self.link,
            self.zone,
        )
        return "/".join("" if part is None else str(part) for part in parts)


class Evidence(Record):
    """The place of a record that a statement rests on."""

    topic: str
    partition: int
    offset: int


class Finding(Record):
    """One detector's statement about one subject.

    `slowdown` is the subject's own time over its peers' (1.8 is 80 % slower); null where a rule has no such number.
    `values` holds the figures that decided, units in their names, so that a person can recompute the verdict.
    """

    record: Literal["finding"] = "finding"
    finding_id: Identifier
    site_id: Identifier
    rule: Identifier
    rule_version: int = 1
    kind: Identifier
    severity: Literal["info", "warning", "critical"]
    state: Literal["open", "cleared"]
    job_id: str | None = None
    epoch: int | None = None
    step: int | None = None
    subject: Subject
    event_time_ns: EventTimeNs
    onset_ns: EventTimeNs
    slowdown: float | None = None
    urgent: bool = False
    values: dict[str, int | float | str | bool | list[int] | list[float] | list[str] | None] = Field(
        default_factory=dict
    )
    explanation: str = ""
    evidence: tuple[Evidence, ...] = ()


class ProgressMark(Record):
    """A promise of one detector partition: no finding with an event time at or below `mark_ns` will follow."""

    record: Literal["progress_mark"] = "progress_mark"
    site_id: Identifier
    role: Literal["telemetry", "jobs"]
    partition: int
    mark_ns: EventTimeNs

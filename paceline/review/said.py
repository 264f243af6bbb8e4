"""What one side said: findings, incidents and commands of a recording, of a replay, or of another replay's output file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.verdict import Heard
from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, Policy
from schemas.remediation import Command, Incident
from schemas.results import StepResult
from streams.core.position import event_time_of

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["Said"]


@dataclass(slots=True)
class Said:
    """A side of a comparison.

    Attributes:
        name: what it is called.
        heard: what it said; of an incident its last word.
        policy: the policy that was in force last; null for the defaults.
        first_ns: event time of the first record that it knows of.
        last_ns: of the last.
        gpus: world size by job, as far as it knows.
    """

    name: str
    heard: Heard = field(default_factory=Heard)
    policy: Policy | None = None
    first_ns: int | None = None
    last_ns: int = 0
    gpus: dict[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it said nothing at all."""
        heard = self.heard
        return not (heard.findings or heard.incidents or heard.commands)

    def take(self, record: Record) -> None:
        """Take an output, and of an input its time."""
        self.saw(record)
        if isinstance(record, Finding | Incident | Command | StepResult):
            self.heard.take(record)

    def saw(self, record: Record) -> None:
        """Note an input: how far this side reaches, its jobs and its policy."""
        if isinstance(record, Job):
            self.gpus[record.job_id] = record.world_size
        elif isinstance(record, Policy):
            self.policy = record
        at_ns = None if isinstance(record, ProgressMark) else event_time_of(record)
        if at_ns is not None:
            self.first_ns = at_ns if self.first_ns is None else min(self.first_ns, at_ns)
            self.last_ns = max(self.last_ns, at_ns)

"""How a finding is made: its id from what it says, its numbers rounded, its fields filled the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.base import deterministic_id, round_significant
from schemas.findings import Finding, Subject

if TYPE_CHECKING:
    from schemas.findings import Evidence
    from streams.core.step_join import ClosedStep

__all__ = ["Rule", "id_of_finding"]


def id_of_finding(rule: str, version: int, kind: str, subject: Subject, onset_ns: int) -> str:
    """The id of what a rule finds; an opening and its clearing share it."""
    return deterministic_id("find", rule, version, kind, subject.key(), onset_ns)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of one site: what its findings have in common.

    Attributes:
        name: the rule's name in policy and docs.
        version: raised when the same input may give another finding.
        site_id: the site whose records are read.
    """

    name: str
    version: int
    site_id: str

    def finding(
        self,
        kind: str,
        subject: Subject,
        *,
        state: str,
        severity: str,
        event_time_ns: int,
        onset_ns: int,
        explanation: str,
        values: dict[str, Any] | None = None,
        evidence: Evidence | None = None,
        **fields: Any,
    ) -> Finding:
        """A finding of this rule.

        Its id depends on rule, version, kind, subject and onset, so an opening and its clearing share it.
        """
        return Finding(
            finding_id=id_of_finding(self.name, self.version, kind, subject, onset_ns),
            site_id=self.site_id,
            rule=self.name,
            rule_version=self.version,
            kind=kind,
            severity=severity,
            state=state,
            subject=subject,
            event_time_ns=event_time_ns,
            onset_ns=onset_ns,
            values={name: rounded(value) for name, value in (values or {}).items()},
            explanation=explanation,
            evidence=(evidence,) if evidence is not None else (),
            **{name: rounded(value) for name, value in fields.items()},
        )

    def of_step(
        self,
        kind: str,
        step: ClosedStep,
        *,
        state: str,
        severity: str,
        onset_ns: int,
        explanation: str,
        values: dict[str, Any] | None = None,
        evidence: Evidence | None = None,
        subject: Subject | None = None,
    ) -> Finding:
        """A finding that a closed step led to, about its job unless another subject is given."""
        return self.finding(
            kind,
            subject or Subject(level="job", job_id=step.job_id),
            state=state,
            severity=severity,
            event_time_ns=step.event_time_ns,
            onset_ns=onset_ns,
            explanation=explanation,
            values=values,
            evidence=evidence,
            job_id=step.job_id,
            epoch=step.epoch,
            step=step.step,
        )


def rounded(value: Any) -> Any:
    """Floats to 6 significant digits, also inside lists; all else as it is."""
    if isinstance(value, float):
        return round_significant(value)
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value

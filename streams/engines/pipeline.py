"""The three roles wired together in one process: what replay, tests and the demo's offline check run.

The same engines that the Faust roles feed, one per role and partition, connected as the topics connect them. Outputs come
in order of event time: they are held until every partition has passed them, so that they do not depend on the order of
arrival within the lateness bound.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, Node, Policy, RankPlacement
from schemas.remediation import Command, Decision, Incident
from schemas.results import JobPerformance, StepResult
from schemas.topics import topic_of
from streams.core.policy_file import check_policy
from streams.core.position import MAX_AHEAD_NS, ahead_of_append_ns
from streams.core.roster import Roster
from streams.core.settle import SettledOrder
from streams.core.step_join import StepJoinConfig
from streams.engines.decisions import DEFAULT_SETTLE_NS, EVIDENCE_NS, DecisionsEngine
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.core.position import Position
    from streams.core.step_join import ClosedStep

__all__ = ["Pipeline"]

_REFERENCE = frozenset({Job, RankPlacement, Node, Policy})


@cache
def _role_of(family: type[Record]) -> str:
    """Asked of every record, so remembered by type."""
    return topic_of(family).role


class Pipeline:
    """All engines of one site.

    Args:
        site_id: the site whose records are read.
        policy: the policy to start from; one that comes later in the input replaces it.
    """

    def __init__(self, site_id: str, policy: Policy | None = None) -> None:
        self._site_id = site_id
        self._roster = Roster()
        self._roster.policy = policy
        self._telemetry: dict[int, TelemetryEngine] = {}
        self._jobs: dict[int, JobsEngine] = {}
        self._decisions = DecisionsEngine(site_id, self._roster)
        self._ordered: SettledOrder[Record] = SettledOrder(settle_ns=0)
        self._order_span()
        self.counts: Counter[str] = Counter()
        self.refusal: str | None = None
        """Why the last record was refused, if it was."""

    def on_record(self, record: Record, position: Position) -> list[Record]:
        """Take one record, and return what is now settled, in order of event time."""
        self.refusal = None
        role = _role_of(type(record))
        at_ns = record.__dict__.get("event_time_ns")
        # Nearly every record arrives after it happened, and needs no further look.
        is_past = at_ns is not None and at_ns <= position.append_ms * 1_000_000
        if not is_past and ahead_of_append_ns(record, position) > MAX_AHEAD_NS:
            self.counts["refused_future"] += 1
            self.refusal = f"event time is more than {MAX_AHEAD_NS // 10**9} s ahead of the append time"
            if role != "telemetry":
                return []
            self._publish(self._telemetry_of(position.partition).on_refused(record, position))
            return self._released()
        engine: TelemetryEngine | JobsEngine
        if role == "telemetry":
            engine = self._telemetry.get(position.partition) or self._telemetry_of(position.partition)
        elif type(record) in _REFERENCE:
            self._on_reference(record)
            return []
        elif role == "jobs":
            engine = self._jobs.get(position.partition) or self._jobs_of(position.partition)
        else:
            # Recorded outputs are compared with, not read again.
            self.counts["outputs_in_archive"] += 1
            return self._released()
        outputs = engine.on_record(record, position)
        if engine.has_late:
            self.counts["late"] += len(engine.take_late())
        if outputs:
            self._publish(outputs)
        elif not self._is_respanned:
            # Nothing settles but by what is published: nearly every record ends here.
            return []
        return self._released()

    def _on_reference(self, record: Record) -> None:
        if isinstance(record, Policy):
            try:
                check_policy(record)
            except ValueError as error:
                self.counts["refused_policy"] += 1
                self.refusal = str(error)
                return
        self._roster.take(record)
        self._order_span()

    def on_whole_step(self, step: ClosedStep) -> list[Record]:
        """Take a step that is joined already, past the join, and return what is now settled; see `JobsEngine`."""
        self._publish(self._jobs_of(0).on_whole_step(step))
        return self._released()

    def _released(self) -> list[Record]:
        self._is_respanned = False
        return self._ordered.release()

    def flush(self) -> list[Record]:
        """Close what is open: the input has ended."""
        for partition in sorted(self._telemetry):
            self._publish(self._telemetry[partition].flush())
        for partition in sorted(self._jobs):
            self._publish(self._jobs[partition].flush())
        for record in self._decisions.flush():
            self._hold(record)
        self.counts["repeats"] = sum(engine.repeats for engine in self._telemetry.values()) + sum(
            engine.repeats for engine in self._jobs.values()
        )
        return self._ordered.release(everything=True)

    def cut(self) -> list[Record]:
        """Give out what was decided and is held for its order: the input stops here, and what it is of went on.

        Nothing is closed, and no finding is taken that had not settled: workers had not got further either.
        """
        return self._ordered.release(everything=True)

    @property
    def has_judged(self) -> bool:
        """Whether any record came that rules read; without one, that nothing was found says nothing."""
        return bool(self._telemetry or self._jobs)

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes: all that follows from the input so far, and what of it waits or is held."""
        return {
            "roster": self._roster.snapshot(),
            "telemetry": [[number, engine.snapshot(with_waiting=True)] for number, engine in self._telemetry.items()],
            "jobs": [[number, engine.snapshot(with_waiting=True)] for number, engine in self._jobs.items()],
            "decisions": self._decisions.snapshot(with_held=True),
            "ordered": self._ordered.snapshot(),
            "counts": dict(self.counts),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's: what comes next is answered as if nothing had been between."""
        self._roster.restore(snapshot["roster"])
        self._telemetry, self._jobs = {}, {}
        for number, state in snapshot["telemetry"]:
            self._telemetry_of(number).restore(state, {})
        for number, state in snapshot["jobs"]:
            self._jobs_of(number).restore(state, {})
        self._decisions.restore(snapshot["decisions"], {})
        self._ordered.restore(snapshot["ordered"])
        self._order_span()
        self.counts = Counter(snapshot["counts"])
        self.refusal = None

    def _telemetry_of(self, partition: int) -> TelemetryEngine:
        engine = self._telemetry.get(partition)
        if engine is None:
            engine = self._telemetry[partition] = TelemetryEngine(self._site_id, partition, self._roster)
        return engine

    def _jobs_of(self, partition: int) -> JobsEngine:
        engine = self._jobs.get(partition)
        if engine is None:
            engine = self._jobs[partition] = JobsEngine(self._site_id, partition, self._roster)
        return engine

    def _order_span(self) -> None:
        """Hold outputs until nothing older can follow: late input, then the settling and evidence of decisions."""
        policy = self._roster.policy
        settle_ns = policy.settle_ns if policy is not None else DEFAULT_SETTLE_NS
        self._ordered.settle_ns = StepJoinConfig().lateness_ns + settle_ns + EVIDENCE_NS
        self._is_respanned = True

    def _publish(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, ProgressMark):
                self._ordered.mark(f"{record.role}-{record.partition}", record.mark_ns)
            else:
                self._hold(record)
            if isinstance(record, ProgressMark | Finding):
                for decided in self._decisions.on_record(record):
                    self._hold(decided)

    def _hold(self, record: Record) -> None:
        """Hold an output until its time has settled; the identity orders what shares a time."""
        if isinstance(record, Decision):
            return
        self._ordered.add(_time_of(record), f"{topic_of(record).family}/{_identity(record)}", record)


def _time_of(record: Record) -> int:
    if isinstance(record, Command):
        return record.decided_at_ns
    if isinstance(record, JobPerformance):
        return record.window_end_ns
    assert isinstance(record, Finding | Incident | StepResult)
    return record.event_time_ns


def _identity(record: Record) -> str:
    if isinstance(record, Finding):
        return f"{record.finding_id}:{record.state}"
    if isinstance(record, Command):
        return record.command_id
    if isinstance(record, Incident):
        # All that a transition changes: two of one incident are held at once, and only a true repeat may be dropped.
        return f"{record.incident_id}:{len(record.findings):02d}:{record.state}:{record.cause_class}:{record.summary}"
    if isinstance(record, JobPerformance):
        return f"{record.job_id}/{record.epoch}/{record.group}"
    assert isinstance(record, StepResult)
    return f"{record.job_id}/{record.epoch}/{record.step:012d}"

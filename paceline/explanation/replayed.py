"""A finding made again: an archive through the engines up to it, with the figures that the rule had on the way.

Guarantees: the same finding as `paceline replay` gives, since the same engines run. Nothing is kept of jobs but their
last 64 steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.explanation.step_history import StepHistory
from paceline.rare_collection import rare_collection
from schemas.archive import NotAnArchiveError
from schemas.findings import Finding
from schemas.results import StepResult
from schemas.topics import topic_of
from streams.engines.jobs import JobsEngine
from streams.engines.pipeline import Pipeline
from streams.replay import Problems, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.archive import ArchiveLine, BadLine
    from schemas.base import Record
    from schemas.fleet import Policy
    from streams.core.roster import JobRoster, Roster
    from streams.core.step_join import ClosedStep
    from streams.detectors.workload_fit import Explained

__all__ = ["Remade", "find_again"]

_FINDINGS = topic_of(Finding).name


@dataclass(slots=True)
class Remade:
    """What a replay up to a finding brought.

    Attributes:
        finding: as it opened; null when the engines did not make it.
        history: of its job, up to its step; null for findings of devices.
        roster: what was registered when it was made.
        recorded: the finding as the archive itself holds it, if it does.
        known: ids of other findings, to say what there is.
        problems: lines on the way that could not be used: the figures may be without them.
    """

    finding: Finding | None = None
    history: StepHistory | None = None
    roster: Roster | None = None
    recorded: Finding | None = None
    known: dict[str, Finding] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


class _Watch:
    """Looks at every output for the finding that is sought."""

    def __init__(self, finding_id: str) -> None:
        self.remade = Remade()
        self._finding_id = finding_id
        self._histories: dict[tuple[str, int], StepHistory] = {}

    def on_step(self, step: ClosedStep, roster: Roster, explained: Explained | None, outputs: list[Record]) -> None:
        if self.remade.finding is not None:
            return  # steps that were closed together with the finding's: the history ends at its step
        history = self._histories.setdefault((step.job_id, step.epoch), StepHistory())
        result = next((record for record in outputs if isinstance(record, StepResult)), None)
        history.take(step, result, roster.job(step.job_id, step.epoch), roster.policy, explained)
        if self.on_outputs(outputs, roster):
            self.remade.history = history

    def on_outputs(self, outputs: list[Record], roster: Roster) -> bool:
        for record in outputs:
            if not isinstance(record, Finding) or record.state != "open" or self.remade.finding is not None:
                continue
            self.remade.known.setdefault(record.finding_id, record)
            if record.finding_id == self._finding_id:
                self.remade.finding, self.remade.roster = record, roster
                return True
        return False


class _WatchedJobs(JobsEngine):
    def __init__(self, site_id: str, partition: int, roster: Roster, watch: _Watch) -> None:
        super().__init__(site_id, partition, roster)
        self._watch = watch

    def _judge(self, state: Any, step: ClosedStep, roster: JobRoster) -> list[Record]:
        outputs = super()._judge(state, step, roster)
        self._watch.on_step(step, self._roster, state.straggler.explained, outputs)
        return outputs


class _WatchedPipeline(Pipeline):
    def __init__(self, site_id: str, policy: Policy | None, watch: _Watch) -> None:
        super().__init__(site_id, policy)
        self._watch = watch

    @property
    def roster(self) -> Roster:
        """What was registered so far."""
        return self._roster

    def _jobs_of(self, partition: int) -> JobsEngine:
        if partition not in self._jobs:
            self._jobs[partition] = _WatchedJobs(self._site_id, partition, self._roster, self._watch)
        return self._jobs[partition]

    def _publish(self, records: list[Record]) -> None:
        self._watch.on_outputs(records, self._roster)
        super()._publish(records)


@rare_collection()
def find_again(
    lines: Iterable[ArchiveLine | BadLine], finding_id: str, site_id: str, policy: Policy | None = None
) -> Remade:
    """Replay until the finding opens, or to the end.

    Args:
        lines: the archive.
        finding_id: which finding.
        site_id: the site that findings are of.
        policy: thresholds and switches to start from.

    Raises:
        NotAnArchiveError: the archive is damaged, and the finding is not in what could be read.
    """
    watch = _Watch(finding_id)
    pipeline = _WatchedPipeline(site_id, policy, watch)
    records = decoded(lines, watch.remade.problems)
    damage: NotAnArchiveError | None = None
    while watch.remade.finding is None:
        try:
            found = next(records, None)
        except NotAnArchiveError as error:
            # What could be read is judged to its end before the damage is told.
            damage, found = error, None
        if found is None:
            pipeline.flush()
            break
        number, record, position = found
        if position.topic == _FINDINGS:
            _note_recorded(watch.remade, record, finding_id)
            continue
        pipeline.on_record(record, position)
        watch.remade.problems.note_refusal(number, position, pipeline.refusal)
    if damage is not None and watch.remade.finding is None and watch.remade.recorded is None:
        raise damage
    if watch.remade.roster is None:
        watch.remade.roster = pipeline.roster
    return watch.remade


def _note_recorded(remade: Remade, record: Record, finding_id: str) -> None:
    if isinstance(record, Finding) and record.state == "open":
        remade.known.setdefault(record.finding_id, record)
        if record.finding_id == finding_id and remade.recorded is None:
            remade.recorded = record

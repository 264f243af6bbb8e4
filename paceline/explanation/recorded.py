"""A finding that was only recorded: its step put together again from the records at the place that it cites.

For findings read from a topic, or from an archive without the records before them. What the rule knew of earlier steps
is not there: the noise is the finding's own figure, and earlier steps are judged with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.explanation.step_history import KeptStep, StepHistory
from schemas.steps import StepTiming
from streams.core.peers import log_ratio_to_peers
from streams.core.step_join import StepJoin
from streams.core.thresholds import thresholds_for
from streams.detectors.pace_charts import StragglerThresholds
from streams.detectors.work_peers import work_peers
from streams.detectors.workload_fit import WorkloadFit
from streams.replay import Problems, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.archive import ArchiveLine, BadLine
    from schemas.findings import Finding
    from streams.core.roster import Roster

__all__ = ["history_around"]


def history_around(lines: Iterable[ArchiveLine | BadLine], finding: Finding, roster: Roster) -> StepHistory | None:
    """Steps up to the finding's, of the records that are there.

    Args:
        lines: records of the finding's partition of step timings, some of them before the cited place.
        finding: of a job's step.
        roster: who sits where, and the policy.

    Returns:
        None where no record of the finding's step is among them.
    """
    if finding.job_id is None or finding.step is None:
        return None
    its = (finding.job_id, finding.epoch or 0)
    job = roster.job(*its)
    limits = thresholds_for(StragglerThresholds(), roster.policy, "straggler")
    told = finding.values.get("noise_scale")
    noise_scale = float(told) if isinstance(told, int | float) else limits.min_scale
    limit = limits.limit(noise_scale)
    join = StepJoin()
    for _, record, position in decoded(lines, Problems()):
        if isinstance(record, StepTiming) and (record.job_id, record.epoch) == its and record.step <= finding.step:
            join.add(record, position.offset)
    history = StepHistory(limits=limits)
    fit = WorkloadFit()
    for step in join.close(finding.event_time_ns, job.expected, job.members, True):
        peers = work_peers(step, job)
        explained = fit.on_step(step, peers)
        work = explained.factor if explained is not None else np.ones(len(step.rank))
        log_ratio = log_ratio_to_peers(step.own_us / work, peers)
        history.kept.append(KeptStep(step, None, work, log_ratio, np.full(len(step.rank), np.nan), noise_scale, limit))
    return history if history.kept and history.kept[-1].step.step == finding.step else None

"""Stragglers: ranks whose *own* time is longer than that of peers who do the same work. Never who waits most.

Peers are ranks of the same stage, part and role (docs/rules.md). Each step gives every rank the logarithm of its own
time over the leave-one-out median of its peers, what its tokens and lengths explain taken out of both (`workload_fit`).
Three charts decide, all over recorded steps, whatever their numbers:

- *fast*: at least 4 of the last 5 steps are above 6 noise scales and 3 %. For fixed-length work, whose noise is below
  one per cent, this names a rank that is 5 % slow within 5 steps.
- *slow*: the running mean of at least 10 steps is above 6 of its standard errors and 3 %, in at least 60 % of the last
  16 steps in that direction. For work of varying length.
- *burst*: at least 8 of the last 50 steps are such hits. For a rank that is slow now and then; a pause in 40 steps is not.

The noise scale is the job's own: the median over ranks of the running mean change from step to step (a rank that is
steadily slow does not raise it), never below 0.5 %. A heavy stage has no slow member, so nobody of it is named. Ranks of
one tensor group that are slow alike, or a whole node, are reported as the group or the node: which member holds the
others back cannot be seen in times that include waiting inside the step.
State is 40 bytes a rank, in arrays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.findings import Subject
from streams.core.limits import LimitsInForce
from streams.core.peers import log_ratio_to_peers
from streams.core.rank_marks import marked
from streams.core.statement import Rule
from streams.detectors.pace_charts import PaceCharts, StragglerThresholds
from streams.detectors.slow_units import Leaning, slow_units, subject_of
from streams.detectors.work_peers import held_up, work_peers
from streams.detectors.workload_fit import COVARIATES, WorkloadFit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep
    from streams.detectors.workload_fit import Explained

__all__ = ["Straggler", "StragglerThresholds"]

RULE = "straggler"

_TIMES = 64
"""Recorded steps whose times are known: as many as the charts' bits."""
_GAP_STEPS = 5
"""A hit after so many steps without one is of another burst, or the first of a pause."""


@dataclass(slots=True)
class _Standing:
    """An open straggler."""

    onset_ns: int
    quiet: int
    subject: dict[str, Any]
    chart: str
    """Which chart opened it."""
    has_paused: bool
    """Whether it has kept pace for some steps."""
    comes_and_goes: bool


class Straggler:
    """Follows the ranks of one epoch of one job."""

    def __init__(self, site_id: str, defaults: StragglerThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._defaults = defaults or StragglerThresholds()
        self._limits = LimitsInForce(self._defaults, RULE)
        self._charts = PaceCharts.empty(np.array([], dtype=np.int64))
        self._fit = WorkloadFit()
        self._open: dict[str, _Standing] = {}
        self._candidates: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """For how many steps a suspect has waited for the others of its node or group."""
        self._times: deque[int] = deque(maxlen=_TIMES)
        self._insufficient_ns: int | None = None
        self._recorded = 0
        self.noise_scale = 0.0
        """Noise of own time against peers at the last step (natural logarithm), what their work explains included."""
        self.explained: Explained | None = None
        """What the last step's work explains; None where it explains nothing."""
        self.pauses: NDArray[np.int64] = np.array([], dtype=np.int64)
        """Positions in the last step of ranks with a hit after some steps without, that do not stand as stragglers."""

    @property
    def named(self) -> frozenset[int]:
        """Ranks that stand as stragglers after the last step."""
        return frozenset(rank for standing in self._open.values() for rank in standing.subject["ranks"])

    def on_step(
        self, step: ClosedStep, roster: JobRoster, policy: Policy | None, evidence: Evidence | None = None
    ) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order."""
        limits = self._limits.of(policy)
        self._charts = charts = self._charts.admit(step.rank)
        at = charts.places(step.rank)
        peers = work_peers(step, roster)
        self.explained = self._fit.on_step(step, peers)
        own_us = step.own_us if self.explained is None else step.own_us / self.explained.factor
        log_ratio = log_ratio_to_peers(own_us, peers)
        self._recorded += 1
        self._times.append(step.event_time_ns)
        scale, hit = charts.fold(at, log_ratio, limits)
        self.noise_scale = float(np.hypot(scale, self._fit.spread))
        suspects: dict[int, str] = {}
        for chart, slow in charts.suspects(at, log_ratio, scale, limits).items():
            for rank in step.rank[slow].tolist():
                suspects.setdefault(rank, chart)
        for rank in held_up(step, set(suspects), roster):
            del suspects[rank]
        hitting = set(step.rank[hit].tolist())
        self._note_candidates(step, hitting)
        yield from self._state(step, roster, suspects, hitting, log_ratio, scale, limits, evidence)
        self.pauses = hit
        if hit.size:
            self.pauses = hit[(charts.hits[at][hit] & np.uint64((1 << _GAP_STEPS) - 1)) == 1]
        if self.pauses.size and self._open:
            self.pauses = self.pauses[~marked(step.rank, self.named)[self.pauses]]
        yield from self._insufficient(step, hitting, set(suspects), log_ratio, evidence)

    def _note_candidates(self, step: ClosedStep, hitting: set[int]) -> None:
        """When the present run of hits of each rank began; a run ends after three recorded steps without one."""
        charts = self._charts
        for rank in hitting:
            self._candidates.setdefault(rank, step.event_time_ns)
        for rank in list(self._candidates):
            if not charts.hits_of(rank, 3) and not any(rank in s.subject["ranks"] for s in self._open.values()):
                del self._candidates[rank]

    def _state(
        self,
        step: ClosedStep,
        roster: JobRoster,
        suspects: dict[int, str],
        hitting: set[int],
        log_ratio: NDArray[np.float64],
        scale: float,
        limits: StragglerThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        for key in sorted(self._open):
            standing = self._open[key]
            members = set(standing.subject["ranks"])
            if members & (hitting | suspects.keys()):
                standing.quiet = 0
                if standing.has_paused and not standing.comes_and_goes:
                    back = max(self._charts.hits_of(rank, _GAP_STEPS) for rank in members)
                    standing.comes_and_goes = back > _GAP_STEPS // 2
            elif not members.isdisjoint(step.present):
                standing.quiet += 1
                standing.has_paused |= standing.quiet >= _GAP_STEPS
            if self._is_over(standing, members, limits):
                del self._open[key]
                self._charts.forget_hits(members)
                subject = Subject.model_validate(standing.subject["named"])
                yield self._finding(step, roster, subject, members, "cleared", standing, log_ratio, scale, evidence)
        standing_ranks = {rank for standing in self._open.values() for rank in standing.subject["ranks"]}
        unnamed = suspects.keys() - standing_ranks
        may_wait = {rank for rank in unnamed if self._held.get(rank, 0) < limits.gather_steps}
        leaning = self._leaning(step, scale, limits) if unnamed else Leaning()
        units = slow_units(step, roster, unnamed, log_ratio, leaning, may_wait)
        waiting = unnamed.difference(*units)
        self._held = {rank: self._held.get(rank, 0) + 1 for rank in sorted(waiting)}
        for members in units:
            slow = [rank for rank in sorted(members) if rank in suspects]
            chart = min((suspects[rank] for rank in slow), key=("fast", "slow", "burst").index)
            onset_ns = min(self._onset_ns(rank, chart, step, limits) for rank in slow)
            key = ",".join(map(str, sorted(members)))
            subject = subject_of(step, roster, members)
            # The name it was opened under: by the time it is cleared ranks may be missing and seats have changed.
            named = subject.model_dump(exclude_none=True)
            whom = {"ranks": sorted(members), "named": named}
            self._open[key] = standing = _Standing(onset_ns, 0, whom, chart, False, chart == "burst")
            yield self._finding(step, roster, subject, members, "open", standing, log_ratio, scale, evidence)

    def _leaning(self, step: ClosedStep, scale: float, limits: StragglerThresholds) -> Leaning:
        """Who else takes longer, as far as the noise lets it be told."""
        lean = self._charts.leaning(self._charts.places(step.rank), scale, limits)
        return Leaning(*(frozenset(step.rank[ranks].tolist()) for ranks in lean)) if lean is not None else Leaning()

    def _is_over(self, standing: _Standing, members: set[int], limits: StragglerThresholds) -> bool:
        """Whether an open straggler has kept pace for long enough.

        One that was slow in some of its last steps, and in less than half of those up to its last slow one, may be slow now and
        then: it is given until they are too few.
        """
        if standing.comes_and_goes:
            return standing.quiet >= max(limits.burst_quiet_steps, limits.quiet_steps)
        if standing.quiet < limits.quiet_steps:
            return False
        charts, steps = self._charts, limits.burst_steps
        return all(charts.hits_of(r, steps) < limits.burst_hits or charts.hit_share(r, steps) > 0.5 for r in members)

    def _onset_ns(self, rank: int, chart: str, step: ClosedStep, limits: StragglerThresholds) -> int:
        """Since when a rank has been slow: the present run of slow steps, or the first burst that counted."""
        if chart == "burst":
            ago = self._charts.first_hit(rank, limits.burst_steps)
            return self._times[-1 - min(ago, len(self._times) - 1)]
        return self._candidates.get(rank, step.event_time_ns)

    def _finding(
        self,
        step: ClosedStep,
        roster: JobRoster,
        subject: Subject,
        members: set[int],
        state: str,
        standing: _Standing,
        log_ratio: NDArray[np.float64],
        scale: float,
        evidence: Evidence | None,
    ) -> Finding:
        positions = np.flatnonzero(marked(step.rank, members)).tolist()
        lead = max(positions, key=lambda p: (np.nan_to_num(log_ratio[p]), -p)) if positions else None
        own = step.own_us
        values: dict[str, Any] = {
            "noise_scale": scale,
            "recorded_steps": self._recorded,
            "ranks": len(step.rank),
            "chart": standing.chart,
        }
        slowdown = None
        if lead is not None and not np.isnan(log_ratio[lead]):
            slowdown = float(np.exp(log_ratio[lead]))
            row = int(np.searchsorted(self._charts.rank, step.rank[lead]))
            values["mean_slowdown"] = float(np.exp(self._charts.mean[row]))
            values["own_us"] = int(own[lead])
            values["peer_median_us"] = round(float(own[lead]) / slowdown)
            values["excess_us"] = values["own_us"] - values["peer_median_us"]
            if self.explained is not None:
                values["work_factor"] = float(self.explained.factor[lead])
                values.update(
                    (f"{name}_slope", slope) for name, slope in zip(COVARIATES, self.explained.slopes, strict=True)
                )
            for name in ("compute_us", "host_us", "data_us", "wait_us"):
                figure = step.columns[name][lead]
                if not np.isnan(figure):
                    values[name] = int(figure)
            values.update(self._parts_excess(step, roster, lead))
        if step.step_time_us is not None:
            values["step_time_us"] = step.step_time_us
        word = "is slower than its peers" if state == "open" else "keeps pace again"
        who = f"rank {min(members)}" if len(members) == 1 else f"ranks {', '.join(map(str, sorted(members)))}"
        return self._rule.finding(
            "straggler",
            subject,
            state=state,
            severity="warning",
            event_time_ns=step.event_time_ns,
            onset_ns=standing.onset_ns,
            explanation=f"{who} {word}" + (f" by a factor of {slowdown:.3g}" if slowdown and state == "open" else ""),
            values=values,
            evidence=evidence,
            job_id=step.job_id,
            epoch=step.epoch,
            step=step.step,
            slowdown=slowdown,
        )

    def _parts_excess(self, step: ClosedStep, roster: JobRoster, lead: int) -> dict[str, int]:
        """By how much each part of own time exceeds the peers' median of it: says where the time goes."""
        for group in work_peers(step, roster):
            if lead in group:
                others = group[group != lead]
                break
        else:
            return {}
        excess, explained = {}, self.explained
        for part in ("compute_us", "host_us", "data_us"):
            column = step.columns[part]
            if not np.isnan(column[lead]) and not np.isnan(column[others]).all():
                # More work takes more compute time, hardly more of the rest.
                usual, factor = column[others], 1.0
                if part == "compute_us" and explained is not None:
                    usual, factor = usual / explained.factor[others], explained.factor[lead]
                excess[f"{part.removesuffix('_us')}_excess_us"] = int(column[lead] - factor * np.nanmedian(usual))
        return excess

    def _insufficient(
        self,
        step: ClosedStep,
        hitting: set[int],
        suspects: set[int],
        log_ratio: NDArray[np.float64],
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        """Says once that something looks slow and that too few steps are recorded to name anybody."""
        enough = self._recorded >= self._defaults.fast_steps
        if self._insufficient_ns is None:
            if enough or not hitting or suspects:
                return
            self._insufficient_ns = step.event_time_ns
            state = "open"
        elif enough:
            state = "cleared"
        else:
            return
        onset_ns = self._insufficient_ns
        if state == "cleared":
            self._insufficient_ns = None
        yield self._rule.of_step(
            "insufficient",
            step,
            state=state,
            severity="info",
            onset_ns=onset_ns,
            explanation="some ranks took longer than their peers, but too few steps are recorded to name anybody"
            if state == "open"
            else "enough steps are recorded to judge",
            values={
                "recorded_steps": self._recorded,
                "needed_steps": self._defaults.fast_steps,
                "largest_slowdown": float(np.exp(np.nanmax(log_ratio))) if not np.isnan(log_ratio).all() else None,
            },
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "charts": self._charts.snapshot(),
            "fit": self._fit.snapshot(),
            "open": {
                key: [s.onset_ns, s.quiet, s.subject, s.chart, s.has_paused, s.comes_and_goes]
                for key, s in sorted(self._open.items())
            },
            "candidates": dict(sorted(self._candidates.items())),
            "held": dict(sorted(self._held.items())),
            "times": list(self._times),
            "insufficient_ns": self._insufficient_ns,
            "recorded": self._recorded,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._charts = PaceCharts.restored(snapshot["charts"])
        if "fit" in snapshot:  # a snapshot of before work was taken into account
            self._fit.restore(snapshot["fit"])
        self._open = {key: _Standing(*standing) for key, standing in snapshot["open"].items()}
        self._candidates = {int(rank): at for rank, at in snapshot["candidates"].items()}
        self._held = {int(rank): steps for rank, steps in snapshot.get("held", {}).items()}
        self._times = deque(snapshot["times"], maxlen=_TIMES)
        self._insufficient_ns = snapshot["insufficient_ns"]
        self._recorded = snapshot["recorded"]

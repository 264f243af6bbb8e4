"""Figures of many cases: shares with intervals, times to detect with misses censored, rates with upper bounds, cost.

Shares are over truths and alerts, not over cases, as the benchmark defines them. A figure without anything to count is
null, never 0 or 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.evaluation.intervals import Share, kaplan_meier, paired_bootstrap, rate_upper, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.evaluation.intervals import KaplanMeier
    from paceline.evaluation.outcome import CaseOutcome, TruthOutcome

__all__ = ["BUDGETS", "Metrics", "compare_recall", "confusion", "measure"]

BUDGETS = (0.01, 0.1, 1.0)
"""False remediations per 1,000 GPU-days at which a detector's recall and time to detect are read."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one detector over one set of cases.

    Attributes:
        cases, right: how many, and share of them with nothing wrong.
        precision: matched over all naming alerts.
        recall: matched over truths that count.
        exactness, class_accuracy, action_accuracy: shares of the matched.
        honesty: share of truths that cannot be placed during which nobody was blamed falsely.
        said_unlocalised: share of those answered with a job-level statement.
        seconds, steps: time to detect; misses censored at the end.
        mean_seconds: mean over the detected alone.
        mean_heard_s: mean time to the first finding, or the alert where that came first, over those of which either came.
        false_findings: findings that warned and named a place of no truth.
        lag_s: median time from the evidence to the alert, of the detected.
        gpu_days: watched.
        false_remediations, wrong_node_cordons, victim_cordons: counts; `*_per_1000` rates per 1,000 GPU-days, with the
            one-sided 95 % upper bound.
        missed_loss: GPU-hours lost until the alert over those of an oracle that knows one step after the onset.
        cpu_s_per_million: processor seconds per million rank-steps.
        peak_rss_mib: greatest memory of a process that ran a case, generator included.
    """

    cases: int
    right: Share
    precision: Share
    recall: Share
    exactness: Share
    class_accuracy: Share
    action_accuracy: Share
    honesty: Share
    said_unlocalised: Share
    seconds: KaplanMeier
    steps: KaplanMeier
    mean_seconds: float | None
    mean_heard_s: float | None
    false_findings: int
    lag_s: float | None
    gpu_days: float
    rank_steps: int
    false_alerts: int
    job_level_warnings: int
    false_remediations: int
    wrong_node_cordons: int
    victim_cordons: int
    false_remediations_per_1000: float | None
    false_remediations_upper: float | None
    wrong_node_upper: float | None
    missed_loss: float | None
    cpu_s_per_million: float | None
    peak_rss_mib: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data; of survival curves their quantiles."""
        plain = asdict(self)
        for name, curve in (("seconds", self.seconds), ("steps", self.steps)):
            plain[name] = {
                "p50": curve.quantile(0.5),
                "p95": curve.quantile(0.95),
                "max_detected": curve.times[-1] if curve.times else None,
                "detected": curve.detected,
                "censored": curve.censored,
            }
        return plain


def measure(outcomes: Sequence[CaseOutcome]) -> Metrics:
    """Figures over cases of one detector."""
    truths = [truth for outcome in outcomes for truth in outcome.truths]
    counted = [truth for truth in truths if truth.counts]
    matched = [truth for truth in truths if truth.matched]
    hidden = [truth for truth in truths if not truth.identifiable]
    naming = sum(outcome.naming_alerts for outcome in outcomes)
    false = sum(outcome.false_alerts for outcome in outcomes)
    gpu_days = sum(outcome.gpu_days for outcome in outcomes)
    rank_steps = sum(outcome.rank_steps for outcome in outcomes)
    remediations = sum(outcome.false_remediations for outcome in outcomes)
    wrong_nodes = sum(outcome.wrong_node_cordons for outcome in outcomes)
    detected = [truth.seconds for truth in counted if truth.matched]
    heard = [first for truth in counted if (first := _first_heard_s(truth)) is not None]
    oracle = sum(truth.oracle_gpu_hours for truth in counted)
    cpu_s = sum(outcome.cost.cpu_s for outcome in outcomes)
    return Metrics(
        cases=len(outcomes),
        right=share(sum(outcome.is_right for outcome in outcomes), len(outcomes)),
        precision=share(max(0, naming - false), naming),
        recall=share(sum(truth.matched for truth in counted), len(counted)),
        exactness=share(sum(truth.exact for truth in matched), len(matched)),
        class_accuracy=share(sum(truth.class_right for truth in matched), len(matched)),
        action_accuracy=share(sum(truth.action_right for truth in matched), len(matched)),
        honesty=share(sum(not truth.falsely_blamed for truth in hidden), len(hidden)),
        said_unlocalised=share(sum(bool(truth.unlocalised) for truth in hidden), len(hidden)),
        seconds=kaplan_meier([t.seconds for t in counted], [t.matched for t in counted]),
        steps=kaplan_meier([float(t.steps) for t in counted], [t.matched for t in counted]),
        mean_seconds=sum(detected) / len(detected) if detected else None,
        mean_heard_s=sum(heard) / len(heard) if heard else None,
        false_findings=sum(outcome.false_findings for outcome in outcomes),
        lag_s=median([t.lag_s for t in counted if t.matched]) if detected else None,
        gpu_days=gpu_days,
        rank_steps=rank_steps,
        false_alerts=false,
        job_level_warnings=sum(outcome.job_level_warnings for outcome in outcomes),
        false_remediations=remediations,
        wrong_node_cordons=wrong_nodes,
        victim_cordons=sum(outcome.victim_cordons for outcome in outcomes),
        false_remediations_per_1000=remediations / gpu_days * 1000 if gpu_days else None,
        false_remediations_upper=rate_upper(remediations, gpu_days / 1000),
        wrong_node_upper=rate_upper(wrong_nodes, gpu_days / 1000),
        missed_loss=sum(truth.lost_gpu_hours for truth in counted) / oracle if oracle else None,
        cpu_s_per_million=cpu_s / rank_steps * 1e6 if rank_steps else None,
        peak_rss_mib=max((outcome.cost.peak_rss_bytes for outcome in outcomes), default=0) / 2**20,
    )


def _first_heard_s(truth: TruthOutcome) -> float | None:
    times = [truth.heard_s] if truth.heard_s is not None else []
    return min([*times, truth.seconds] if truth.matched else times, default=None)


def _by_truth(outcomes: Sequence[CaseOutcome]) -> dict[tuple[str, int, str], TruthOutcome]:
    return {
        (outcome.case_id, outcome.seed, truth.truth_id): truth
        for outcome in outcomes
        for truth in outcome.truths
        if truth.counts
    }


def compare_recall(first: Sequence[CaseOutcome], second: Sequence[CaseOutcome]) -> tuple[float, float, float] | None:
    """Difference of recall of two detectors on the same truths, with its paired-bootstrap 95 % interval."""
    one, other = _by_truth(first), _by_truth(second)
    both = sorted(one.keys() & other.keys())
    return paired_bootstrap([float(one[key].matched) for key in both], [float(other[key].matched) for key in both])


def confusion(outcomes: Sequence[CaseOutcome]) -> dict[str, Counter[str]]:
    """By class of the truth, how often each word of the detector answered it; `-` for none."""
    table: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for truth in outcome.truths:
            table.setdefault(truth.cause_class, Counter())[truth.said_cause or "-"] += 1
    return dict(sorted(table.items()))

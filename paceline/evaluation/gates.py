"""What must hold for a suite: bars of the benchmark, each with its figure, so that a reader sees by how much.

A gate without anything to judge is open: it neither holds nor fails, and says so. Bars that come from papers are of other
data: see `CAVEAT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.evaluation.metrics import Metrics
    from paceline.evaluation.outcome import CaseOutcome

__all__ = ["CAVEAT", "PLAIN_SEVERITY", "Gate", "gates_of"]

CAVEAT = (
    "These cases are generated. Suites named after papers follow the papers' protocols as published; their labelled data was "
    "never released, so figures are comparable in protocol and are not results on the same data."
)

PLAIN_SEVERITY = 0.20
"""Severity from which every case must be right."""

MINDER = {"precision": 0.904, "recall": 0.883, "p50_s": 30.0}
GREYHOUND = {"episodes": 12, "mean_s": 10.56}
GREYHOUND_DETECTION = {"fnr": 0.023}


@dataclass(frozen=True, slots=True)
class Gate:
    """One bar: whether it holds (null: nothing to judge), and the figure."""

    name: str
    holds: bool | None
    figure: str

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return {"gate": self.name, "holds": self.holds, "figure": self.figure}


def gates_of(suite: str, outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    """The gates of a suite for the engine's outcomes; the common ones for a suite without gates of its own."""
    return _GATES.get(suite, _common)(outcomes, metrics)


def _count(name: str, outcomes: Sequence[CaseOutcome]) -> Gate:
    right = sum(outcome.is_right for outcome in outcomes)
    return Gate(name, right == len(outcomes) if outcomes else None, f"{right} of {len(outcomes)}")


def _no_wrong_node(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> Gate:
    count = metrics.wrong_node_cordons
    bound = f"{metrics.wrong_node_upper:.3g}" if metrics.wrong_node_upper is not None else "-"
    figure = f"{count} in {metrics.gpu_days:.4g} GPU-days (95 % bound {bound} per 1,000)"
    return Gate("no wrong-node cordon", count == 0 if outcomes else None, figure)


def _common(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    return [_no_wrong_node(outcomes, metrics)]


def _ci(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    plain = [o for o in outcomes if o.severity is not None and o.severity >= PLAIN_SEVERITY - 1e-9]
    silent = [o for o in outcomes if not o.asks_for_anything]
    return [
        _count(f"every case of d >= {PLAIN_SEVERITY:.0%} right", plain),
        _no_wrong_node(outcomes, metrics),
        _count("look-alikes silent", silent),
    ]


def _minder(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    p50 = metrics.seconds.quantile(0.5)
    precision, recall = metrics.precision.low, metrics.recall.low
    return [
        Gate("precision, lower 95 % bound > 0.904", _above(precision, MINDER["precision"]), _figure(precision)),
        Gate("recall, lower 95 % bound > 0.883", _above(recall, MINDER["recall"]), _figure(recall)),
        Gate(
            "onset to alert p50 <= 30 s",
            (p50 is not None and p50 <= MINDER["p50_s"]) if metrics.recall.total else None,
            _figure(p50, " s"),
        ),
        *_common(outcomes, metrics),
    ]


def _greyhound(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    """Twelve episodes a seed. The reaction is the first finding that is an answer; incident and command come later."""
    hits, total = metrics.recall.hits, metrics.recall.total
    alarms = metrics.false_alerts + metrics.false_findings
    mean_s = metrics.mean_heard_s
    figure = f"{_figure(mean_s, ' s')} to the first finding, {_figure(metrics.mean_seconds, ' s')} to the incident"
    return [
        Gate("12 of 12 episodes", hits == total if total else None, f"{hits} of {total}"),
        Gate("no false alarm, findings counted too", alarms == 0 if outcomes else None, f"{alarms}"),
        Gate(
            "mean reaction < 10.56 s",
            (mean_s is not None and mean_s < GREYHOUND["mean_s"]) if total else None,
            figure,
        ),
        *_common(outcomes, metrics),
    ]


def _greyhound_detection(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    healthy = [o for o in outcomes if not o.asks_for_anything]
    alarmed = sum(not o.is_right for o in healthy)
    slow = [o for o in outcomes if any(truth.counts for truth in o.truths)]
    missed = sum(any(truth.counts and not truth.matched for truth in o.truths) for o in slow)
    fnr = missed / len(slow) if slow else None
    return [
        Gate("no healthy job alarmed", alarmed == 0 if healthy else None, f"{alarmed} of {len(healthy)}"),
        Gate(
            "slow jobs missed <= 2.3 %",
            fnr <= GREYHOUND_DETECTION["fnr"] if fnr is not None else None,
            f"{missed} of {len(slow)}",
        ),
        *_common(outcomes, metrics),
    ]


def _resihp(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    steps = sum(outcome.steps for outcome in outcomes)
    alarms = metrics.false_alerts + metrics.job_level_warnings
    rate = alarms / steps * 10_000 if steps else None
    holds = rate <= 0.3 if rate is not None else None
    return [Gate("false alarms <= 0.3 per 10,000 steps", holds, _figure(rate)), *_common(outcomes, metrics)]


def _soak(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    bound = metrics.false_remediations_upper
    count = metrics.false_remediations
    figure = f"{count} in {metrics.gpu_days:.4g} GPU-days (95 % bound {_figure(bound)} per 1,000)"
    return [
        Gate("no false remediation", count == 0 if outcomes else None, figure),
        *_common(outcomes, metrics),
        _count("fault-free runs silent", [o for o in outcomes if not o.asks_for_anything]),
    ]


def _barrier(outcomes: Sequence[CaseOutcome], metrics: Metrics) -> list[Gate]:
    return [_count("every case right", outcomes), *_common(outcomes, metrics)]


def _above(value: float | None, bar: float) -> bool | None:
    return value > bar if value is not None else None


def _figure(value: float | None, unit: str = "") -> str:
    return f"{value:.4g}{unit}" if value is not None else "-"


_GATES: dict[str, Callable[[Sequence[CaseOutcome], Metrics], list[Gate]]] = {
    "ci": _ci,
    "minder": _minder,
    "greyhound": _greyhound,
    "greyhound_slow": _greyhound,
    "greyhound_detection": _greyhound_detection,
    "resihp": _resihp,
    "soak": _soak,
    "barrier": _barrier,
}

"""Tables and explanations for people: figures by seeds, cases by scenario, gates, and what was wrong with each case."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from paceline.evaluation.case_run import WITHOUT
from paceline.evaluation.gates import CAVEAT
from paceline.evaluation.metrics import BUDGETS, compare_recall, confusion, measure
from streams.core.step_join import StepJoinConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.evaluation.gates import Gate
    from paceline.evaluation.intervals import KaplanMeier, Share
    from paceline.evaluation.metrics import Metrics
    from paceline.evaluation.outcome import CaseOutcome, TruthOutcome

__all__ = [
    "ablation_lines",
    "comparison_lines",
    "explain",
    "figure_lines",
    "gate_lines",
    "report_lines",
    "same_verdict_lines",
    "scenario_lines",
    "watched_line",
]


def report_lines(
    suite: str, by_detector: dict[str, list[CaseOutcome]], gates: Sequence[Gate], without: Sequence[str]
) -> Iterator[str]:
    """The whole report but for explanations.

    Args:
        suite: its name.
        by_detector: outcomes by detector, the engine's first.
        gates: of the engine.
        without: parts that the engine ran without.
    """
    engine = next(iter(by_detector))
    told = f" without {', '.join(without)}" if without else ""
    yield f"suite {suite}: {len(by_detector[engine])} cases{told}"
    yield CAVEAT
    yield ""
    yield from figure_lines(by_detector)
    yield watched_line(engine, by_detector[engine])
    yield ""
    yield from scenario_lines(by_detector[engine])
    yield from same_verdict_lines(by_detector[engine])
    table = confusion(by_detector[engine])
    if table:
        yield ""
        yield "class of the truth: what was said (- nothing)"
        for cause, answers in table.items():
            yield f"  {cause:18} " + ", ".join(f"{name} {count}" for name, count in answers.most_common())
    if len(by_detector) > 1:
        yield ""
        yield from comparison_lines(by_detector)
    lacking = [name for name in by_detector if name.startswith(WITHOUT)]
    if lacking:
        yield ""
        yield from ablation_lines({name: by_detector[name] for name in (engine, *lacking)})
    yield ""
    yield from gate_lines(gates)


_SEEDS = ((False, "tuning"), (True, "held out"))


def figure_lines(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    """Figures by detector, tuning and held-out seeds apart."""
    head = (
        "detector", "seeds", "cases", "right", "precision [95 %]", "recall [95 %]", "exact", "class", "action",
        "p50 s", "p95 s", "p50 st", "p95 st", "lag s", "false", "wrong node", "false act.", "honest", "loss", "cpu s/M", "MiB",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for detector, outcomes in by_detector.items():
        for is_held_out, name in _SEEDS:
            chosen = [outcome for outcome in outcomes if outcome.is_held_out is is_held_out]
            if chosen:
                rows.append(_row(detector, name, measure(chosen)))
    yield from _aligned(rows)
    yield "s, st: onset to alert in seconds (delivery in it) and in steps to its evidence; > n: misses censored, not reached by n; lag: evidence to alert"
    yield "honest: nobody blamed falsely while the truth cannot be placed; loss: GPU-hours lost over an oracle's"
    for detector, outcomes in list(by_detector.items())[:1]:
        # The plain rules ask for nothing.
        metrics = measure(outcomes)
        if metrics.false_remediations_upper is not None:
            upper = metrics.false_remediations_upper
            held = [f"{budget:g}" for budget in BUDGETS if upper <= budget]
            rate = metrics.false_remediations_per_1000
            yield (
                f"{detector}: false remediations {rate:.3g} per 1,000 GPU-days (95 % bound {upper:.3g}) over "
                f"{metrics.gpu_days:.4g} GPU-days; budgets shown to hold: {', '.join(held) or 'none'}"
            )


def watched_line(detector: str, outcomes: Sequence[CaseOutcome]) -> str:
    """How much one detector watched, and how rare a cordon of a wrong node can be called for it."""
    metrics = measure(outcomes)
    upper = metrics.wrong_node_upper
    bound = f" (95 % bound {upper:.3g} per 1,000 GPU-days)" if upper is not None else ""
    return (
        f"{detector}: watched {metrics.gpu_days:,.4g} GPU-days in {sum(outcome.steps for outcome in outcomes):,} steps, "
        f"{metrics.rank_steps:,} rank-steps, with {sum(outcome.cost.cpu_s for outcome in outcomes):,.0f} s of processor "
        f"time; wrong-node cordons {metrics.wrong_node_cordons}{bound}"
    )


def _row(detector: str, seeds: str, metrics: Metrics) -> tuple[str, ...]:
    return (
        detector,
        seeds,
        str(metrics.cases),
        f"{metrics.right.hits}",
        _interval(metrics.precision),
        _interval(metrics.recall),
        _percent(metrics.exactness),
        _percent(metrics.class_accuracy),
        _percent(metrics.action_accuracy),
        _quantile(metrics.seconds, 0.5),
        _quantile(metrics.seconds, 0.95),
        _quantile(metrics.steps, 0.5),
        _quantile(metrics.steps, 0.95),
        f"{metrics.lag_s:.3g}" if metrics.lag_s is not None else "-",
        str(metrics.false_alerts),
        str(metrics.wrong_node_cordons),
        str(metrics.false_remediations),
        _percent(metrics.honesty),
        f"{metrics.missed_loss:.3g}" if metrics.missed_loss is not None else "-",
        f"{metrics.cpu_s_per_million:.3g}" if metrics.cpu_s_per_million is not None else "-",
        f"{metrics.peak_rss_mib:.0f}",
    )


def _interval(value: Share) -> str:
    if value.value is None or value.low is None or value.high is None:
        return "-"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _percent(value: Share) -> str:
    return f"{value.value:.0%}" if value.value is not None else "-"


def _quantile(curve: KaplanMeier, q: float) -> str:
    value = curve.quantile(q)
    if value is not None:
        return f"{value:.3g}"
    return f"> {curve.times[-1]:.3g}" if curve.times else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def scenario_lines(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    """Cases by scenario and severity: how many are right, and why the others are not, most frequent first."""
    groups: dict[tuple[str, float | None, bool], list[CaseOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[(outcome.scenario, outcome.severity, outcome.is_held_out)].append(outcome)
    rows: list[tuple[str, ...]] = [
        ("scenario", "d", "seeds", "right", "missed", "false", "class", "action", "p50 s", "why not")
    ]
    for (scenario, severity, is_held_out), group in sorted(
        groups.items(), key=lambda item: (_natural(item[0][0]), item[0][1] or 0.0, item[0][2])
    ):
        counted = [truth for outcome in group for truth in outcome.truths if truth.counts]
        reasons: dict[str, int] = defaultdict(int)
        for outcome in group:
            for reason in {_kind_of_reason(reason) for reason in outcome.reasons}:
                reasons[reason] += 1
        why = "; ".join(
            f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        )
        rows.append(
            (
                scenario,
                f"{severity:.0%}" if severity is not None else "none",
                _SEEDS[is_held_out][1],
                f"{sum(outcome.is_right for outcome in group)}/{len(group)}",
                f"{sum(not truth.matched for truth in counted)}/{len(counted)}" if counted else "-",
                str(sum(outcome.false_alerts for outcome in group)),
                *_told(group),
                why,
            )
        )
    yield from _aligned(rows)


def same_verdict_lines(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    """Of a clean stream and its disturbed copies (scenario B12): which give the same verdict, and why another one does not.

    The same is promised of what is repeated, and of what comes in another order within the lateness bound.
    """
    of_clean = {
        outcome.seed: outcome for outcome in outcomes if outcome.scenario == "B12" and "/clean/" in outcome.case_id
    }
    for outcome in outcomes:
        clean = of_clean.get(outcome.seed)
        if outcome.scenario != "B12" or clean is None or outcome is clean:
            continue
        said = "the same verdict as the clean stream"
        if outcome.verdict_sha256 != clean.verdict_sha256:
            said = "ANOTHER verdict than the clean stream"
            if outcome.late:
                bound_s = StepJoinConfig().lateness_ns // 10**9
                said += f", with {outcome.late:,} of {outcome.records:,} records later than the bound of {bound_s} s"
            said += f"; names {'the same' if _named(outcome) == _named(clean) else 'OTHER'} culprits"
        yield f"{outcome.case_id} seed {outcome.seed}: {said}"


def _named(outcome: CaseOutcome) -> set[tuple[str, str]]:
    """Causes and culprits of its alerts, those about a whole job or nobody left out."""
    return {(alert["cause"], alert["who"]) for alert in outcome.alerts if alert["fate"] != "job-level"}


def _told(group: Sequence[CaseOutcome]) -> tuple[str, str, str]:
    """Of the matched truths: how many by the right class and with the right action, and the median time to the alert."""
    matched = [truth for outcome in group for truth in outcome.truths if truth.matched and not truth.advisory]
    if not matched:
        return "-", "-", "-"
    return (
        f"{sum(truth.class_right for truth in matched)}/{len(matched)}",
        f"{sum(truth.action_right for truth in matched)}/{len(matched)}",
        f"{sorted(truth.seconds for truth in matched)[len(matched) // 2]:.0f}",
    )


def _natural(scenario: str) -> tuple[str, int, str]:
    letters = scenario.rstrip("0123456789")
    digits = scenario[len(letters) :]
    return letters, int(digits) if digits else 0, scenario


def _kind_of_reason(reason: str) -> str:
    """A reason without names, so that equal ones can be counted: "false alert host: node n3" is "false alert host: node"."""
    head, _, tail = reason.partition(": ")
    if tail:
        return f"{head}: {tail.split(' ', 1)[0]}"
    words = reason.split(" ")
    return " ".join(words[:2]) if words[0] == "forbidden" else " ".join(w for w in words if not w.startswith("T0"))


def comparison_lines(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    """Recall of the engine minus that of each plain rule, on the same truths."""
    engine = next(iter(by_detector))
    yield f"recall of {engine} minus that of (paired bootstrap over truths, 95 %)"
    for name, outcomes in by_detector.items():
        difference = compare_recall(by_detector[engine], outcomes) if name != engine else None
        if difference is not None:
            mean, low, high = difference
            yield f"  {name:10} {mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def ablation_lines(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    """What each part is worth: figures without it on the same cases, shares with 95 % intervals, recall lost in pairs."""
    whole, *_ = by_detector
    rows: list[tuple[str, ...]] = [
        ("engine", "right", "precision [95 %]", "recall [95 %]", "recall lost [95 %]", "class right [95 %]", "false alerts",
         "false acts", "wrong node"),
    ]  # fmt: skip
    for name, outcomes in by_detector.items():
        metrics = measure(outcomes)
        lost = compare_recall(by_detector[whole], outcomes) if name != whole else None
        rows.append(
            (
                name,
                f"{metrics.right.hits}/{metrics.cases}",
                _interval(metrics.precision),
                _interval(metrics.recall),
                f"{lost[0]:+.3f} [{lost[1]:+.3f}, {lost[2]:+.3f}]" if lost is not None else "-",
                _interval(metrics.class_accuracy),
                str(metrics.false_alerts),
                str(metrics.false_remediations),
                str(metrics.wrong_node_cordons),
            )
        )
    yield "what each part is worth"
    yield from _aligned(rows)


def gate_lines(gates: Sequence[Gate]) -> Iterator[str]:
    """One line per gate."""
    words = {True: "holds", False: "FAILED", None: "open"}
    for gate in gates:
        yield f"gate {words[gate.holds]:6} {gate.name}: {gate.figure}"


def explain(outcome: CaseOutcome) -> Iterator[str]:
    """One case in full: what is true, what was said, what became of it, and which findings there were."""
    mark = "right" if outcome.is_right else "WRONG"
    tags = " ".join(f"{name}={value}" for name, value in outcome.tags.items())
    yield f"{mark} {outcome.detector} {outcome.case_id} seed {outcome.seed}: {outcome.ranks} ranks, {outcome.steps} steps {tags}"
    if outcome.expect:
        yield f"  expected: {outcome.expect}"
    for reason in outcome.reasons:
        yield f"  wrong: {reason}"
    if not outcome.truths:
        yield "  truth: nothing is wrong"
    for truth in outcome.truths:
        yield from _explain_truth(truth)
    if not outcome.alerts:
        yield "  alerts: none"
    for alert in outcome.alerts:
        since = f" {alert['after_onset_s']:+.1f} s" if alert["after_onset_s"] is not None else ""
        step = f" step {alert['step']}" if alert["step"] is not None else ""
        on = f" -> {alert['truth_id']}" if alert["truth_id"] else ""
        note = f" ({alert['note']})" if alert["note"] else ""
        yield f"  alert [{alert['fate']}{on}]{since}{step} {alert['cause']}: {alert['who']}: {alert['summary']}{note}"
    for command in outcome.commands:
        verdict = "allowed" if command["allowed"] else "FORBIDDEN, wrong node" if command["wrong_node"] else "FORBIDDEN"
        yield f"  command [{verdict}] {command['kind']} {command['target']}"
    for line in outcome.other_findings:
        yield f"  other finding {line}"


def _explain_truth(truth: TruthOutcome) -> Iterator[str]:
    what = [] if truth.identifiable else ["cannot be placed"]
    what += ["advisory"] if truth.advisory else []
    what += [] if truth.counts else ["not counted for recall"]
    yield (
        f"  truth {truth.truth_id} {truth.cause_class} d={truth.severity:.3g} S={truth.impact_s:.3g} "
        f"steps {truth.onset_step}-{truth.end_step}: {', '.join(truth.culprits[:4])}"
        + (f" and {len(truth.culprits) - 4} more" if len(truth.culprits) > 4 else "")
        + (f" [{', '.join(what)}]" if what else "")
    )
    if truth.acceptable:
        yield f"    also right: {', '.join(truth.acceptable[:6])}"
    if truth.matched:
        exact = "exact" if truth.exact else "acceptable place"
        right = "class right" if truth.class_right else "CLASS WRONG"
        action = (
            "action right"
            if truth.action_right
            else f"action {', '.join(truth.actions) or 'none'}, right is {truth.right_action}"
        )
        yield f"    found after {truth.seconds:.1f} s, {truth.steps} steps: {truth.said} ({exact}, {right}, {action})"
    else:
        said = f"; job-level: {', '.join(sorted(set(truth.unlocalised)))}" if truth.unlocalised else ""
        yield f"    {'MISSED' if truth.counts else 'not named'}{said}"
    for line in truth.seen:
        yield f"    seen {line}"

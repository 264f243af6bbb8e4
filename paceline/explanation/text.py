"""An explanation for people: plain lines, figures with units, in the order in which one would recompute them."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline.explanation.formulas import formula_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.explanation.model import CitedRecord, Explanation, Impact, JobStepRow, PeerComparison, Persistence

__all__ = ["explanation_lines"]

_MOST_PEERS = 64
_MOST_STEPS = 16
_MOST_COLUMNS = 6


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Lines of an explanation."""
    finding = explanation.finding
    subject = finding.subject.model_dump(exclude_none=True)
    yield f"{finding.finding_id}  {finding.kind} ({finding.severity}), rule {finding.rule} version {finding.rule_version}"
    yield f"  {finding.explanation}"
    yield f"  about   {' '.join(f'{name}={value}' for name, value in subject.items())}"
    where = (
        f", step {finding.step} of job {finding.job_id}, epoch {finding.epoch or 0}" if finding.step is not None else ""
    )
    yield f"  said    {_time(finding.event_time_ns)}{where}"
    yield f"  onset   {_time(finding.onset_ns)}, {(finding.event_time_ns - finding.onset_ns) / 1e9:.1f} s before"
    yield f"  here    {'made again by the engines' if explanation.origin == 'recomputed' else 'as recorded'}"
    yield ""
    yield "rule"
    yield from (f"  {line}" for line in explanation.formula)
    yield ""
    yield f"thresholds (policy in force: {explanation.policy})"
    if not explanation.thresholds:
        yield "  none"
    for threshold in explanation.thresholds:
        set_by = (
            threshold.set_by if threshold.set_by == "default" else f"{threshold.set_by}; default {threshold.default:g}"
        )
        yield f"  {threshold.name:20} {threshold.value:<12g} {set_by}" + (
            f": {threshold.source}" if threshold.source else ""
        )
    yield ""
    yield "figures of the finding"
    for name, value in finding.values.items():
        yield f"  {name:28} {_short(value)}"
    if explanation.comparison is not None:
        yield from _comparison(explanation.comparison, explanation)
    if explanation.persistence is not None:
        yield from _persistence(explanation.persistence)
    if explanation.job_steps:
        yield from _job_steps(explanation.job_steps)
    if explanation.impact is not None:
        yield from _impact(explanation.impact)
    yield ""
    yield "records it rests on"
    yield from _evidence(explanation.evidence, formula_of(finding.rule).columns, finding.values)
    for cited in finding.evidence:
        if not any(
            c.is_cited and (c.topic, c.partition, c.offset) == (cited.topic, cited.partition, cited.offset)
            for c in explanation.evidence
        ):
            yield f"  {cited.topic} {cited.partition}@{cited.offset}"
    for note in explanation.notes:
        yield f"note: {note}"


def _comparison(comparison: PeerComparison, explanation: Explanation) -> Iterator[str]:
    key = " ".join(f"{name}={value if value is not None else '-'}" for name, value in comparison.key.items())
    yield ""
    yield f"peers in step {explanation.finding.step}: {len(comparison.rows)} ranks of {key}"
    is_uneven = any(row.work != 1.0 for row in comparison.rows)
    yield from _table(
        ("rank", "node", "own, us", *(["work"] if is_uneven else []), "waiting, us", ""),
        [
            (
                row.rank,
                row.node_id,
                row.own_us,
                *([f"{row.work:.6f}"] if is_uneven else []),
                row.wait_us,
                "<- judged" if row.is_subject else "",
            )
            for row in _around(comparison.rows, comparison.rank)
        ],
    )
    if len(comparison.rows) > _MOST_PEERS:
        yield f"  and {len(comparison.rows) - _MOST_PEERS} more: --json has all"
    yield f"  own of rank {comparison.rank}                 {comparison.own_us} us"
    if is_uneven:
        yield f"  work of rank {comparison.rank}                {comparison.work:.6f}, own / work {comparison.own_us / comparison.work:.1f} us"
    yield f"  median of the others            {comparison.peer_median_us:.1f} us, MAD {comparison.peer_mad_us:.1f} us"
    yield f"  ratio                           {comparison.ratio:.6f}"
    yield f"  e = ln(ratio)                   {comparison.log_ratio:.6f}"
    yield f"  noise                           {comparison.noise_scale:.6f}{_of_changes(comparison)}"
    is_above = "above" if comparison.log_ratio > comparison.limit else "not above"
    yield f"  limit                           {comparison.limit:.6f}: e is {is_above} it"


def _of_changes(comparison: PeerComparison) -> str:
    if not comparison.changes:
        return ""
    middle = statistics.median(comparison.changes.values())
    return f" = median running change of {len(comparison.changes)} ranks {middle:.6f} / 1.128, at least min_scale"


def _around(rows: Sequence[Any], rank: int) -> list[Any]:
    """All rows, or of many the judged ones, the longest and the first."""
    if len(rows) <= _MOST_PEERS:
        return list(rows)
    first = sorted(rows, key=lambda row: (not row.is_subject, row.rank != rank, -(row.own_us or 0)))[:_MOST_PEERS]
    return sorted(first, key=lambda row: row.rank)


def _persistence(persistence: Persistence) -> Iterator[str]:
    yield ""
    yield f"persistence: chart {persistence.chart}, {persistence.rule}; here {persistence.hits} of {persistence.of_steps}"
    rows = persistence.rows
    if len(rows) > _MOST_STEPS:
        rows = tuple(row for row in rows[:-1] if row.is_hit)[-(_MOST_STEPS - 1) :] + rows[-1:]
        yield f"  steps with a hit, {len(rows)} of them; --json has all"
    yield from _table(
        ("step", "own, us", "peers' median, us", "e", "noise", "limit", "hit", "mean e", "first record"),
        [
            (
                row.step,
                row.own_us,
                round(row.peer_median_us, 1) if row.peer_median_us is not None else None,
                _figure(row.log_ratio),
                _figure(row.noise_scale),
                _figure(row.limit),
                "yes" if row.is_hit else "no",
                _figure(row.running_mean),
                f"@{row.first_offset}",
            )
            for row in rows
        ],
    )


def _job_steps(rows: Sequence[JobStepRow]) -> Iterator[str]:
    yield ""
    yield f"the job's last {len(rows)} recorded steps"
    names = sorted({name for row in rows for name in row.transfer_us or {}})
    yield from _table(
        (
            "step",
            "phase",
            "ranks",
            "step, us",
            "own median",
            "own longest",
            "rank",
            "wait p50",
            "wait p99",
            "MFU",
            *names,
        ),
        [
            (
                row.step,
                row.phase,
                f"{row.ranks_reported}/{row.ranks_expected}",
                row.step_time_us,
                row.own_median_us,
                row.own_max_us,
                row.own_max_rank,
                _figure(row.wait_share_p50, 4),
                _figure(row.wait_share_p99, 4),
                _figure(row.mfu, 4),
                *((row.transfer_us or {}).get(name) for name in names),
            )
            for row in rows
        ],
    )


def _impact(impact: Impact) -> Iterator[str]:
    yield ""
    yield "without the culprit (estimate)"
    yield f"  gain    {impact.arithmetic}"
    yield f"  step    {impact.step_ms:.1f} ms -> {impact.step_without_ms:.1f} ms: {impact.gain_ms:.1f} ms shorter"
    if impact.share_of_excess is not None:
        yield f"  share   {100 * impact.share_of_excess:.1f} % of the own time that slow ranks have beyond their peers"
    if impact.mfu_percent is not None and impact.mfu_points is not None:
        yield (
            f"  MFU     {impact.mfu_percent:.2f} % -> {impact.mfu_without_percent:.2f} %: {impact.mfu_points:.2f} points"
        )
    else:
        yield "  MFU     unknown: the job's model, tokens or part are not registered"
    if impact.gpu_hours_lost_per_hour is not None:
        yield (
            f"  cost    {impact.gpus} GPUs x {impact.gain_ms:.1f} / {impact.step_ms:.1f} = "
            f"{impact.gpu_hours_lost_per_hour:.4g} GPU-hours an hour, {impact.gpu_hours_lost:.4g} since the onset"
        )
    if impact.money_lost_per_hour is not None:
        yield (
            f"  money   {impact.money_lost_per_hour:.2f} an hour at {impact.price_per_gpu_hour:g} a GPU-hour "
            f"({impact.price_source})"
        )
    else:
        yield "  money   no price known: --price-per-gpu-hour"


def _evidence(evidence: Sequence[CitedRecord], columns: Sequence[str], values: dict[str, Any]) -> Iterator[str]:
    if not evidence:
        return
    shown = _shown_columns(evidence, columns, values)
    for cited in evidence:
        figures = " ".join(f"{name}={_short(cited.values[name])}" for name in shown if name in cited.values)
        mark = "*" if cited.is_cited else " "
        when = _time(cited.event_time_ns) if cited.event_time_ns is not None else "-"
        yield f" {mark}{cited.topic} {cited.partition}@{cited.offset} {when} {cited.publisher or ''} {figures}".rstrip()
    yield (
        "  * cited; the others are the records of the same source before it"
        if not all(cited.is_cited for cited in evidence)
        else "  * cited"
    )


def _shown_columns(evidence: Sequence[CitedRecord], columns: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Columns that the rule reads; else those that changed; of records without columns, their fields."""
    known: dict[str, list[Any]] = {}
    for cited in evidence:
        for name, value in cited.values.items():
            known.setdefault(name, []).append(value)
    chosen = [name for name in columns if name in known]
    counter = values.get("counter")
    chosen += [name for name in known if name not in chosen and (name in values or name == counter)]
    if not chosen:
        changed = [
            name for name, told in known.items() if len(evidence) > 1 and any(entry != told[0] for entry in told)
        ]
        chosen = changed or list(known)
    return chosen[: max(_MOST_COLUMNS, len(columns))]


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    cells = [list(head), *([("-" if value is None else str(value)) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield ("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _figure(value: float | None, digits: int = 6) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _time(at_ns: int) -> str:
    whole, rest = divmod(at_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1_000_000:03d} UTC"

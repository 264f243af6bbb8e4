"""A sweep for people and for programs: a table by value, the trade-off in words, and lines of JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from paceline.tuning.trade_off import many

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from paceline.evaluation.intervals import Share
    from paceline.tuning.outcome import Outcome
    from paceline.tuning.trade_off import Row, Verdict
    from paceline.tuning.tunable import Tunable

__all__ = ["Told", "records", "table_lines"]

_MOST_NAMED = 10
"""Commands that are named for a value; all stand in the lines of JSON."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that is told of a sweep.

    Attributes:
        tunable: what was swept.
        archives: their names.
        values_in_force: its values while something was judged.
        rows: by value, rising; what was in force first where that was several.
        verdict: what holds of them.
    """

    tunable: Tunable
    archives: tuple[str, ...]
    values_in_force: tuple[float, ...]
    rows: tuple[Row, ...]
    verdict: Verdict

    def label(self, row: Row) -> str:
        """A row's value as a policy file has it."""
        if row.value is not None:
            return self.tunable.written(row.value)
        return "/".join(self.tunable.written(value) for value in self.values_in_force) or "in force"

    def plain(self, row: Row | None) -> bool | int | float | str | None:
        """A row's value as JSON has it; null for no row, and a text where several values were in force."""
        if row is None:
            return None
        return self.tunable.plain(row.value) if row.value is not None else self.label(row)

    @property
    def in_force(self) -> Row:
        """What the others are held against."""
        return next(row for row in self.rows if row.is_in_force)


def table_lines(told: Told) -> Iterator[str]:
    """The table, what each value changes, and the trade-off."""
    has_truth = bool(told.rows[0].labelled)
    of = f", {len(told.rows[0].labelled)} with truth" if has_truth else ""
    yield f"{told.tunable.name} on {many(len(told.archives), 'archive')}{of}; * is what was in force"
    yield ""
    head = [
        "",
        "value",
        "of rule" if told.tunable.rule is not None else "findings",
        "incidents",
        "nodes out",
        "GPU-h stated",
    ]
    if has_truth:
        head += ["wrong nodes", "found", "missed", "blamed", "p50 s", "p95 s", "recall [95 %]", "precision [95 %]"]
    rows = [tuple(head), *(tuple(_cells(told, row, has_truth)) for row in told.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    yield ""
    yield from _change_lines(told)
    yield from _verdict_lines(told)


def _cells(told: Told, row: Row, has_truth: bool) -> Iterator[str]:
    yield "*" if row.is_in_force else ""
    yield told.label(row)
    yield str(sum(outcome.of_rule for outcome in row.outcomes))
    yield str(sum(outcome.incidents for outcome in row.outcomes))
    yield str(sum(len(outcome.nodes_out) for outcome in row.outcomes))
    yield f"{sum(outcome.gpu_hours_lost for outcome in row.outcomes):.4g}"
    if has_truth:
        yield from (str(row.wrong_nodes), str(len(row.found)), str(row.missed), str(row.blamed))
        yield from (_seconds(row.alert_s.quantile(0.5)), _seconds(row.alert_s.quantile(0.95)))
        yield from (_share(row.recall), _share(row.precision))


def _change_lines(told: Told) -> Iterator[str]:
    was = told.in_force.commands
    yield f"commands: {_kinds(told.in_force)} in force"
    for row in told.rows:
        more, fewer = row.commands - was, was - row.commands
        if more or fewer:
            yield f"  {told.label(row)}: {_kinds(row)}; {more.total()} more, {fewer.total()} fewer"
            yield from _named("+", more)
            yield from _named("-", fewer)
    if all(row.commands == was for row in told.rows):
        yield "  no value changes one"


def _kinds(row: Row) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(row.by_kind.items())) or "none"


def _named(sign: str, commands: Counter[str]) -> Iterator[str]:
    for command, count in sorted(commands.items())[:_MOST_NAMED]:
        yield f"    {sign} {command}" + (f" ({count} times)" if count > 1 else "")
    if len(commands) > _MOST_NAMED:
        yield f"    {sign} and {len(commands) - _MOST_NAMED} others"


def _verdict_lines(told: Told) -> Iterator[str]:
    verdict = told.verdict
    if verdict.undominated:
        yield f"not dominated (fewer wrong, more found): {', '.join(told.label(row) for row in verdict.undominated)}"
    if (row := verdict.quietest) is not None:
        yield (
            f"woken for nothing the least: {told.label(row)}, with {row.blamed} blamed though healthy and {row.missed} missed"
        )
    if verdict.best is not None:
        yield f"best: {told.label(verdict.best)}: {verdict.why}"
    else:
        yield verdict.why


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(of: Share) -> str:
    if of.value is None or of.low is None or of.high is None:
        return "-"
    return f"{of.value:.2f} [{of.low:.2f}, {of.high:.2f}]"


def records(told: Told) -> Iterator[dict[str, Any]]:
    """A record per value, then one of the trade-off."""
    was = told.in_force.commands
    for row in told.rows:
        yield {
            "record": "value",
            "threshold": told.tunable.name,
            "value": told.plain(row),
            "in_force": row.is_in_force,
            **_figures(row),
            "commands_more": sorted((row.commands - was).elements()),
            "commands_fewer": sorted((was - row.commands).elements()),
            "archives": [
                {"archive": name, **_archive_figures(outcome)}
                for name, outcome in zip(told.archives, row.outcomes, strict=True)
            ],
        }
    verdict = told.verdict
    yield {
        "record": "trade_off",
        "threshold": told.tunable.name,
        "values_in_force": [told.tunable.plain(value) for value in told.values_in_force],
        "labelled_archives": len(told.rows[0].labelled),
        "labelled_faults": told.rows[0].faults,
        "not_dominated": [told.plain(row) for row in verdict.undominated],
        "least_blamed": told.plain(verdict.quietest),
        "best": told.plain(verdict.best),
        "is_in_force_best": verdict.best is not None and verdict.best.is_in_force,
        "why": verdict.why,
    }


def _figures(row: Row) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "findings_of_rule": sum(outcome.of_rule for outcome in row.outcomes),
        "findings": sum(outcome.findings for outcome in row.outcomes),
        "incidents": sum(outcome.incidents for outcome in row.outcomes),
        "commands": dict(sorted(row.by_kind.items())),
        "nodes_out": sum(len(outcome.nodes_out) for outcome in row.outcomes),
        "gpu_hours_lost": round(sum(outcome.gpu_hours_lost for outcome in row.outcomes), 6),
    }
    if row.labelled:
        figures |= {
            "found": len(row.found),
            "missed": row.missed,
            "blamed": row.blamed,
            "wrong_nodes": row.wrong_nodes,
            "recall": asdict(row.recall),
            "precision": asdict(row.precision),
            "alert_s": {"p50": row.alert_s.quantile(0.5), "p95": row.alert_s.quantile(0.95)},
        }
    return figures


def _archive_figures(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if name != "by_kind"}

"""All deciders over many seeds and scales, and the table of what each loses against doing nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.evaluation.acts.deciders import AlwaysRestarting, CountingCodes, DoingNothing, Engine, EngineWithoutGuards
from paceline.evaluation.acts.faults import Plan, faults_of, model, shape_of
from paceline.evaluation.acts.simulation import simulate
from paceline.evaluation.gates import Gate
from paceline.evaluation.intervals import paired_bootstrap, rate_upper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paceline.evaluation.acts.faults import Fault
    from paceline.evaluation.acts.simulation import Decider, Ledger

__all__ = ["SCALES", "Run", "acts_gates", "acts_lines", "acts_records", "run_seed"]

SCALES = {
    "as published": (1.0, 1.0, 1.0),
    "arrival / 2": (0.5, 1.0, 1.0),
    "arrival x 2": (2.0, 1.0, 1.0),
    "severity / 2": (1.0, 0.5, 1.0),
    "severity x 2": (1.0, 2.0, 1.0),
    "people 8 times as fast": (1.0, 1.0, 0.125),
}
"""Factors on arrival, severity and the time until people act, by name."""

_DECIDERS: dict[str, Callable[[], Decider]] = {
    DoingNothing.name: DoingNothing,
    AlwaysRestarting.name: AlwaysRestarting,
    CountingCodes.name: CountingCodes,
    EngineWithoutGuards.name: EngineWithoutGuards,
    Engine.name: Engine,
}
_NOTHING, _ENGINE = DoingNothing.name, Engine.name
_LENGTHS_H = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Run:
    """One seed at one scale, all deciders.

    Attributes:
        scale: its name.
        seed: of the run.
        lost: GPU-hours by decider.
        by_way: the same by way.
        acts: carried out, by decider and kind.
        wrong: nodes taken out wrongly, by decider.
        wrong_resets: nodes reset wrongly, by decider.
        vain: acts on what had just healed, by decider.
        by_people: nodes that people took out, by decider.
        saved: GPU-hours by which the engine lost less than doing nothing, by row, one entry a fault.
    """

    scale: str
    seed: int
    lost: dict[str, float]
    by_way: dict[str, dict[str, float]]
    acts: dict[str, dict[str, int]]
    wrong: dict[str, list[str]]
    wrong_resets: dict[str, int]
    vain: dict[str, int]
    by_people: dict[str, int]
    saved: dict[str, list[float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, rounded to tenths of GPU-hours."""
        return {
            "record": "acts",
            "scale": self.scale,
            "seed": self.seed,
            "gpu_days": shape_of().gpu_days,
            "gpu_hours_lost": {name: round(lost, 1) for name, lost in self.lost.items()},
            "by_way": {n: {way: round(lost, 1) for way, lost in ways.items()} for n, ways in self.by_way.items()},
            "acts": self.acts,
            "wrong": self.wrong,
            "wrong_resets": self.wrong_resets,
            "vain": self.vain,
            "by_people": self.by_people,
            "saved_by_fault": {row: [round(saved, 1) for saved in by] for row, by in self.saved.items()},
        }


def run_seed(scale: str, seed: int) -> Run:
    """All deciders on the faults of one seed at one scale."""
    arrival, severity, people = SCALES[scale]
    faults = faults_of(Plan(seed, arrival, severity))
    costs = {name: cost * people if name.startswith("person") else cost for name, cost in model()["costs"].items()}
    ledgers = {
        name: simulate(faults, make(), seed, costs)
        for name, make in _DECIDERS.items()
        # What guards are worth is told once.
        if name != EngineWithoutGuards.name or scale == next(iter(SCALES))
    }
    return Run(
        scale,
        seed,
        {name: ledger.total for name, ledger in ledgers.items()},
        {name: dict(sorted(ledger.by_way.items())) for name, ledger in ledgers.items()},
        {name: dict(sorted(ledger.acts.items())) for name, ledger in ledgers.items()},
        {name: ledger.wrong for name, ledger in ledgers.items()},
        {name: len(ledger.wrong_resets) for name, ledger in ledgers.items()},
        {name: ledger.vain for name, ledger in ledgers.items()},
        {name: ledger.by_people for name, ledger in ledgers.items()},
        _saved(faults, ledgers[_NOTHING], ledgers[_ENGINE]),
    )


def _saved(faults: Iterable[Fault], nothing: Ledger, engine: Ledger) -> dict[str, list[float]]:
    saved: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        if fault.row == "look-alike" and not (nothing.by_fault.get(fault.name) or engine.by_fault.get(fault.name)):
            continue
        saved[_row(fault)].append(nothing.by_fault.get(fault.name, 0.0) - engine.by_fault.get(fault.name, 0.0))
    if engine.by_fault.get("nobody"):
        saved["look-alike"].append(-engine.by_fault["nobody"])
    return dict(sorted(saved.items()))


def _row(fault: Fault) -> str:
    if fault.row != "fail_slow, device":
        return fault.row
    short_h, long_h = _LENGTHS_H
    length = f"< {short_h:g} h" if fault.lasts_h < short_h else f"> {long_h:g} h" if fault.lasts_h > long_h else ""
    return f"{fault.row}, {length or f'{short_h:g} to {long_h:g} h'}"


def acts_gates(runs: Sequence[Run]) -> list[Gate]:
    """No node may be taken out wrongly, at any scale; the bound is that of the published rates, whose seeds all share."""
    wrong = [told for run in runs for told in run.wrong[_ENGINE]]
    published = [run for run in runs if run.scale == next(iter(SCALES))]
    gpu_days = len(published) * shape_of().gpu_days
    bound = rate_upper(sum(len(run.wrong[_ENGINE]) for run in published), gpu_days / 1000)
    figure = (
        f"{len(wrong)} at all scales; as published 95 % bound {bound:.3g} per 1,000 over {gpu_days:,.0f} GPU-days"
        if bound is not None
        else "nothing ran"
    )
    return [Gate("no node is taken out wrongly", not wrong if runs else None, figure)]


def acts_records(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """One record a run, then the gates."""
    for run in runs:
        yield run.as_dict()
    yield {"record": "gates", "suite": "acts", "gates": [gate.as_dict() for gate in acts_gates(runs)]}


def acts_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Tables in Markdown, as docs/benchmarks.md has them."""
    per_run = shape_of().gpu_days / 1000
    yield "GPU-hours per 1,000 GPU-days, mean over seeds; saved: against doing nothing, paired over seeds [95 %].\n"
    yield "| scale | decider | lost | saved | acts | nodes out wrongly | resets wrongly | in vain | by people |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for scale in dict.fromkeys(run.scale for run in runs):
        of = [run for run in runs if run.scale == scale]
        for name in of[0].lost:
            lost = [run.lost[name] / per_run for run in of]
            told = paired_bootstrap([run.lost[_NOTHING] / per_run for run in of], lost) if name != _NOTHING else None
            saved = f"{told[0]:+,.0f} [{told[1]:+,.0f}, {told[2]:+,.0f}]" if told is not None else "-"
            counts = (
                sum(sum(run.acts[name].values()) for run in of),
                sum(len(run.wrong[name]) for run in of),
                sum(run.wrong_resets[name] for run in of),
                sum(run.vain[name] for run in of),
                sum(run.by_people[name] for run in of),
            )
            yield f"| {scale} | {name} | {sum(lost) / len(of):,.0f} | {saved} | {' | '.join(map(str, counts))} |"
    yield ""
    yield from _row_lines([run for run in runs if run.scale == next(iter(SCALES))])
    for gate in acts_gates(runs):
        yield f"\n- {gate.name}: {'holds' if gate.holds else 'FAILED' if gate.holds is False else 'open'} ({gate.figure})"


def _row_lines(runs: Sequence[Run]) -> Iterator[str]:
    if not runs:
        return
    yield f"By fault, {_ENGINE} against doing nothing, as published:\n"
    yield "| fault | faults | better | same | worse | saved, GPU-h each | worst | best |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in sorted({row for run in runs for row in run.saved}):
        saved = [value for run in runs for value in run.saved.get(row, ())]
        better, worse = sum(value > 0.05 for value in saved), sum(value < -0.05 for value in saved)
        figures = f"{sum(saved) / len(saved):+,.0f} | {min(saved):+,.0f} | {max(saved):+,.0f}"
        yield f"| {row} | {len(saved)} | {better} | {len(saved) - better - worse} | {worse} | {figures} |"

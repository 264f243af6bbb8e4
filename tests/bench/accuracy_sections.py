"""Accuracy sections of docs/benchmarks.md, from what `paceline evaluate --out FILE` wrote.

    .venv/bin/python tests/bench/accuracy_sections.py ci FILE "paceline evaluate --suite ci --out FILE"

Measures nothing itself: figures are made from the cases in the file, as the command makes them, and laid out as Markdown.
Sections: ci, baselines, ablation, soak. More files of one section are read as one.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from report import Table, keep

from paceline.evaluation.case_run import ENGINE, WITHOUT
from paceline.evaluation.gates import CAVEAT, gates_of
from paceline.evaluation.metrics import compare_recall, measure
from paceline.evaluation.outcome import CaseOutcome, Cost, TruthOutcome
from paceline.evaluation.report import same_verdict_lines, watched_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paceline.evaluation.intervals import KaplanMeier, Share

_SEEDS = ((False, "tuning"), (True, "held out"))
_FIGURES = (
    "cases", "right", "precision [95 %]", "recall [95 %]", "class right", "onset to alert, s: p50", "p95", "false alerts",
    "false acts", "wrong node",
)  # fmt: skip


def main() -> None:
    """Write one section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", choices=sorted(_SECTIONS))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--command", required=True, help="what made the files")
    parser.add_argument("--print-only", action="store_true", help="leave docs/benchmarks.md as it is")
    asked = parser.parse_args()
    by_detector = _read(asked.files)
    parts = [*_SECTIONS[asked.section](by_detector), f"`{asked.command}`, {datetime.now(UTC):%Y-%m-%d}. {CAVEAT}"]
    text = "\n\n".join(parts)
    print(text)
    if not asked.print_only:
        keep(f"accuracy_{asked.section}", text)


def _read(files: Iterable[Path]) -> dict[str, list[CaseOutcome]]:
    by_detector: dict[str, list[CaseOutcome]] = defaultdict(list)
    for path in files:
        for line in path.read_bytes().splitlines():
            record: dict[str, Any] = orjson.loads(line)
            if record.pop("record") != "case":
                continue
            del record["right"]
            record["truths"] = tuple(TruthOutcome(**truth) for truth in record["truths"])
            record["cost"] = Cost(**record["cost"])
            by_detector[record["detector"]].append(CaseOutcome(**record))
    if ENGINE not in by_detector:
        sys.exit(f"no cases of {ENGINE} in {', '.join(map(str, files))}")
    return by_detector


def _ci(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    cases = by_detector[ENGINE]
    yield "## Labelled cases: rows A and B"
    yield (
        f"{len({case.case_id for case in cases})} cases of 64 to 512 ranks, severities 3 to 100 %, each with one tuning and "
        "one held-out seed, those of 512 ranks with one of the two by turns; the ten seeds of each kind take turns over rows "
        "and shapes. That is what five minutes on two cores allow; all ten of each with `--seeds 10 --held-out` "
        "(`make evaluate`)."
    )
    yield _figures({ENGINE: cases})
    yield _gates("ci", cases)
    wrong = sorted(
        {f"{case.case_id} seed {case.seed}: {'; '.join(case.reasons[:2])}" for case in cases if case.reasons}
    )
    yield "\n".join(["Not right:", "", *(f"- {line}" for line in wrong)]) if wrong else "All cases are right."
    same = [f"- {line}" for line in same_verdict_lines(cases)]
    if same:
        yield (
            "Scenario B12, one slow GPU: everything ten times, and all of each minute in reverse. The same verdict is "
            "promised within the lateness bound, and most of a reversed minute is later ([semantics](semantics.md#replay))."
        )
        yield "\n".join(same)


def _baselines(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    yield "## Plain and published rules on the same cases"
    yield (
        "All get the same joined steps; none is its authors' code or model. B0 highest wait, B1 longest compute, B2 three "
        "sigma and robust z over all ranks, B3 last arriver, B4 relative score below 0.75, B5 step time above its window, "
        "B5-bocd change points verified over ten steps, B6 Minder-like, B7 Mahalanobis, B8 Aegis-like, B10 an oracle that "
        "knows each truth one step after its onset. B6 and B7 wait four minutes by their own rule, B8 ten, which most of these "
        "cases are shorter than. Device counters, on which part of the cases rests, are the engine's alone."
    )
    yield _figures(by_detector, by_seeds=False)
    yield _differences(by_detector, "recall of the engine minus the rule's, paired over truths")


def _ablation(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    cases = by_detector[ENGINE]
    yield "## What each part of the engine is worth"
    yield (
        f"The engine without one part at a time, on the same records of {len(cases)} cases below 128 ranks with a severity next "
        "to 20 % (suite `ablation`, tuning seeds in turn). Without: `peer_key`, everybody is everybody's peer; `persistence`, one "
        "slow step or reading is enough; `covariates`, no tokens and lengths; `wait_edges`, no waits and no times in "
        "communicators; `device_evidence`, steps alone."
    )
    order = {name: by_detector[name] for name in by_detector if name == ENGINE or name.startswith(WITHOUT)}
    yield _figures(order, by_seeds=False)
    yield _differences(order, "recall lost without the part, paired over truths")


def _soak(by_detector: dict[str, list[CaseOutcome]]) -> Iterator[str]:
    cases = by_detector[ENGINE]
    whole = [case for case in cases if "whole-steps" in case.case_id]
    told = [case for case in cases if "whole-steps" not in case.case_id]
    yield "## Fault-free soak"
    yield (
        "Nothing is wrong in these runs: closed-form pipeline, steps of 10 s, jobs of 16,384 ranks in eight stages and of 4,096 "
        "in one, ten seeds; noise, loader tails, garbage collection and checkpoints as in all cases. Whole steps go past the "
        "join to all rules of steps and to decisions; in them nothing is late, lost or repeated, and there are no device "
        "counters, so nothing is said here of hangs and of rules of devices."
        + (
            " The shorter runs have every message, with frames every 30 to 60 s, look-alikes, loss and duplicates."
            if told
            else ""
        )
    )
    for name, part in (("whole steps", whole), ("every message", told)):
        if part:
            right = sum(case.is_right for case in part)
            yield f"- {name}: {right} of {len(part)} runs silent; {watched_line('the engine', part)}"
    yield _gates("soak", cases)


def _figures(by_detector: dict[str, list[CaseOutcome]], *, by_seeds: bool = True) -> str:
    table = Table("", ("detector", *(("seeds",) if by_seeds else ()), *_FIGURES))
    for name, cases in by_detector.items():
        for is_held_out, seeds in _SEEDS if by_seeds else ((None, ""),):
            part = [case for case in cases if is_held_out is None or case.is_held_out is is_held_out]
            if part:
                table.rows.append((name, *((seeds,) if by_seeds else ()), *_figure_cells(part)))
    return table.markdown()


def _figure_cells(cases: Sequence[CaseOutcome]) -> tuple[str, ...]:
    metrics = measure(cases)
    return (
        str(metrics.cases),
        str(metrics.right.hits),
        _interval(metrics.precision),
        _interval(metrics.recall),
        _interval(metrics.class_accuracy),
        _quantile(metrics.seconds, 0.5),
        _quantile(metrics.seconds, 0.95),
        str(metrics.false_alerts),
        str(metrics.false_remediations),
        str(metrics.wrong_node_cordons),
    )


def _differences(by_detector: dict[str, list[CaseOutcome]], caption: str) -> str:
    table = Table("", ("detector", f"{caption} [95 %]"))
    for name, cases in by_detector.items():
        lost = compare_recall(by_detector[ENGINE], cases) if name != ENGINE else None
        if lost is not None:
            table.rows.append((name, f"{lost[0]:+.3f} [{lost[1]:+.3f}, {lost[2]:+.3f}]"))
    return table.markdown()


def _gates(suite: str, cases: Sequence[CaseOutcome]) -> str:
    words = {True: "holds", False: "fails", None: "open"}
    gates = gates_of(suite, cases, measure(cases))
    return "\n".join(f"- {gate.name}: {words[gate.holds]} ({gate.figure})" for gate in gates)


def _interval(share: Share) -> str:
    if share.value is None or share.low is None or share.high is None:
        return "-"
    return f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"


def _quantile(curve: KaplanMeier, q: float) -> str:
    value = curve.quantile(q)
    if value is not None:
        return f"{value:.3g}"
    return f"> {curve.times[-1]:.3g}" if curve.times else "-"


_SECTIONS: dict[str, Callable[[dict[str, list[CaseOutcome]]], Iterator[str]]] = {
    "ci": _ci,
    "baselines": _baselines,
    "ablation": _ablation,
    "soak": _soak,
}


if __name__ == "__main__":
    main()

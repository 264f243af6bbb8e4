"""`paceline evaluate`: labelled cases through the engine, and what holds of what it said.

The table or, with `--json`, NDJSON is on stdout; progress is on stderr. Cases run in processes of their own when asked to;
what comes out does not depend on how many.
"""

from __future__ import annotations

import fnmatch
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import typer

from agents.simulation.benchmark import HELD_OUT_SEEDS, SUITES, TUNING_SEEDS, cases
from agents.simulation.errors import ScenarioError
from paceline.evaluation.ablation import PARTS
from paceline.evaluation.case_run import ENGINE, run_case
from paceline.evaluation.gates import CAVEAT, gates_of
from paceline.evaluation.metrics import measure
from paceline.evaluation.report import explain, report_lines
from paceline.recording_file import is_recording
from paceline.spawned import results_in_order, usable_cores
from paceline.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agents.simulation.benchmark import BenchmarkCase
    from paceline.evaluation.gates import Gate
    from paceline.evaluation.outcome import CaseOutcome

__all__ = ["EvaluateOptions", "OptionError", "evaluate_command"]


ACTS = "acts"
"""The suite that holds acts against their cost: no labelled cases, but fleets that fail at published rates."""


class OptionError(Exception):
    """An option that cannot be followed; the text says which and what there is."""


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What was asked for; see the options of the command.

    Attributes:
        suite: one of the catalogue's.
        seeds: how many of the ten tuning seeds; null for all. In suite `ci` null is each case with one tuning and one
            held-out seed, of 256 ranks and more with one of the two by turns; in `ablation` with one tuning seed. The
            ten seeds take turns over rows and shapes.
        held_out: whether as many held-out seeds run too.
        only_held_out: whether tuning seeds are left out.
        pattern: glob or part of case ids; null for all.
        limit: how many (case, seed) pairs at most.
        largest_ranks: leaves out larger cases.
        jobs: processes; null for as many as there are cores.
        baselines: whether the plain rules run too.
        without: parts taken away from the engine.
        ablation: whether the engine also runs without each part on the same cases.
    """

    suite: str = "ci"
    seeds: int | None = None
    held_out: bool = False
    only_held_out: bool = False
    pattern: str | None = None
    limit: int | None = None
    largest_ranks: int | None = None
    jobs: int | None = None
    baselines: bool = False
    without: tuple[str, ...] = ()
    ablation: bool = False


def evaluate_command(options: EvaluateOptions, as_json: bool, verbose: bool, out: Path | None) -> int:
    """Evaluate; 0 when all gates hold, 1 when one failed, 2 when it could not run, 130 on Ctrl-C."""
    try:
        _check(options, out)
        if options.suite == ACTS:
            return _evaluate_acts(options, as_json, out)
        by_detector = _run(options)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        return 130
    except (OptionError, ScenarioError) as error:
        return _refuse(str(error))
    except BrokenProcessPool:
        return _refuse("a process that ran a case has died (out of memory?); fewer --jobs or --largest-ranks may help")
    engine = by_detector[ENGINE]
    gates = gates_of(options.suite, engine, measure(engine))
    lines = list(_records(options, by_detector, [gate.as_dict() for gate in gates]))
    if out is not None:
        try:
            write_whole(out, *lines)
        except OSError as error:
            return _refuse(f"--out: {out}: {error.strerror}")
    if as_json:
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.flush()
    else:
        _print_report(options, by_detector, gates, verbose)
    return 1 if any(gate.holds is False for gate in gates) else 0


def _evaluate_acts(options: EvaluateOptions, as_json: bool, out: Path | None) -> int:
    """Acts against their cost; loaded when asked for."""
    from paceline.evaluation.acts.command import ACTS_SEEDS, acts_runs, acts_told

    jobs = options.jobs or usable_cores()
    runs = acts_runs(options.seeds or ACTS_SEEDS, jobs, lambda line: typer.echo(line, err=True))
    lines, records, holds = acts_told(runs)
    told = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
    if out is not None:
        try:
            write_whole(out, told)
        except OSError as error:
            return _refuse(f"--out: {out}: {error.strerror}")
    print(told.decode() if as_json else "\n".join(lines))
    return 0 if holds else 1


def _run(options: EvaluateOptions) -> dict[str, list[CaseOutcome]]:
    chosen = _chosen(options)
    if not chosen:
        raise OptionError(f"no case of suite {options.suite} fits; --case takes a glob or a part of a case id")
    by_detector: dict[str, list[CaseOutcome]] = {}
    for number, outcomes in enumerate(_outcomes(chosen, options), start=1):
        for outcome in outcomes:
            by_detector.setdefault(outcome.detector, []).append(outcome)
        _say_progress(number, len(chosen), outcomes[0])
    return by_detector


def _print_report(
    options: EvaluateOptions, by_detector: dict[str, list[CaseOutcome]], gates: Sequence[Gate], verbose: bool
) -> None:
    for outcome in by_detector[ENGINE] if verbose else ():
        if not outcome.is_right:
            print("\n".join(explain(outcome)), end="\n\n")
    for line in report_lines(options.suite, by_detector, gates, options.without):
        print(line)


def _refuse(text: str) -> int:
    typer.echo(f"paceline: {text}", err=True)
    return 2


def _check(options: EvaluateOptions, out: Path | None) -> None:
    """Refuse what cannot be run, before anything is.

    Raises:
        OptionError: an option is out of its range; the text says which.
    """
    if options.suite not in {*SUITES, ACTS}:
        raise OptionError(f"no suite {options.suite!r}; there are {', '.join(SUITES)}, {ACTS}")
    if options.suite == ACTS and options != EvaluateOptions(ACTS, options.seeds, jobs=options.jobs):
        raise OptionError(f"suite {ACTS} takes --seeds, --jobs, --json and --out alone")
    unknown = sorted(set(options.without) - set(PARTS))
    if unknown:
        raise OptionError(f"--without knows {', '.join(PARTS)}; not {', '.join(unknown)}")
    if options.seeds is not None and not 1 <= options.seeds <= len(TUNING_SEEDS):
        raise OptionError(f"--seeds is 1 to {len(TUNING_SEEDS)}, not {options.seeds}")
    for name in ("jobs", "limit", "largest_ranks"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} is at least 1, not {value}")
    if out is not None and not out.parent.is_dir():
        raise OptionError(f"--out: {out.parent} is no directory")
    if out is not None and out.is_dir():
        raise OptionError(f"--out: {out} is a directory: name a file")
    if out is not None and is_recording(out):
        raise OptionError(f"--out: {out} is there already, and was recorded: name another file")


def _chosen(options: EvaluateOptions) -> list[tuple[BenchmarkCase, int]]:
    in_turn = options.suite in {"ci", "ablation"} and options.seeds is None
    both = options.held_out or (options.suite == "ci" and in_turn)
    tuning = () if options.only_held_out else TUNING_SEEDS[: options.seeds]
    held_out = HELD_OUT_SEEDS[: options.seeds] if options.only_held_out or both else ()
    limit = options.limit if options.pattern is None else None
    pairs: list[tuple[BenchmarkCase, int]] = []
    kinds = [seeds for seeds in ((tuning, held_out) if in_turn else (tuning + held_out,)) if seeds]
    for part, seeds in enumerate(kinds):
        pairs += cases(
            options.suite,
            seeds,
            limit=None if limit is None else -(-limit // len(kinds)),
            largest_ranks=options.largest_ranks,
            in_turn=in_turn,
            large=(part, len(kinds)),
        )
    if options.pattern is not None:
        pairs = [pair for pair in pairs if _fits(pair[0].case_id, options.pattern)]
    return pairs[: options.limit]


def _fits(case_id: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(case_id, pattern) if set("*?[") & set(pattern) else pattern in case_id


def _outcomes(chosen: Sequence[tuple[BenchmarkCase, int]], options: EvaluateOptions) -> Iterator[list[CaseOutcome]]:
    """Outcomes of each pair, in the order of the pairs."""
    without = frozenset(options.without)
    calls = [(case, seed, options.baselines, without, options.ablation) for case, seed in chosen]
    yield from results_in_order(run_case, calls, min(options.jobs or usable_cores(), len(chosen)))


def _say_progress(number: int, total: int, outcome: CaseOutcome) -> None:
    mark = "right" if outcome.is_right else "wrong: " + "; ".join(outcome.reasons[:3])
    typer.echo(f"{number}/{total} {outcome.case_id} seed {outcome.seed}: {mark}", err=True)


def _records(
    options: EvaluateOptions, by_detector: dict[str, list[CaseOutcome]], gates: list[dict[str, Any]]
) -> Iterator[bytes]:
    """One line per case and detector, then metrics by detector and seeds, then the gates."""
    for outcomes in by_detector.values():
        for outcome in outcomes:
            yield orjson.dumps(outcome.as_dict(), option=orjson.OPT_APPEND_NEWLINE)
    for detector, outcomes in by_detector.items():
        for is_held_out, seeds in ((False, "tuning"), (True, "held_out")):
            chosen = [outcome for outcome in outcomes if outcome.is_held_out is is_held_out]
            if chosen:
                figures = measure(chosen).as_dict()
                head = {"record": "metrics", "suite": options.suite, "detector": detector, "seeds": seeds}
                yield orjson.dumps({**head, **figures}, option=orjson.OPT_APPEND_NEWLINE)
    told = {
        "record": "gates",
        "suite": options.suite,
        "without": list(options.without),
        "caveat": CAVEAT,
        "gates": gates,
    }
    yield orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)

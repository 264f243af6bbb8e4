"""`paceline tune`: recorded incidents under other values of one threshold or switch, and what each would have cost.

There is no producer in what this imports, so nothing can be commanded from here. What comes out does not depend on how many
processes it takes.
"""

from __future__ import annotations

import math
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import typer

from paceline.one_line import one_line
from paceline.progress_bar import ProgressBar
from paceline.replay_command import UsageError, loaded_policy, report_problems
from paceline.replay_source import ArchiveSource, ReplaySpan
from paceline.review.nothing_judged import nothing_judged
from paceline.review.truth_file import NoTruthError, of_another_run, truths_of
from paceline.spawned import usable_cores
from paceline.tuning.sweep import Incidents, sweep, times_read
from paceline.tuning.told import Told, records, table_lines
from paceline.tuning.trade_off import Row, judge_rows
from paceline.tuning.tunable import Tunable, TunableError
from paceline.whole_file import write_whole
from schemas.archive import NotAnArchiveError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.tuning.sweep import Swept

__all__ = ["TuneOptions", "tune_command"]

_ENDINGS = (".jsonl.zst", ".jsonl", ".zst")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What is swept, and what is told; see the options of the command.

    Attributes:
        archives: recordings, in the order in which they are told.
        threshold: name of what is swept.
        values: text of its values; null where a range is given.
        range_text: text of a range; null where values are given.
        policy_file: what is taken for in force, in place of what was recorded; null for what was recorded.
        truth_files: what was really wrong, in the order of the archives; empty for the files that lie beside them.
        processes: how many at once; null for one per core.
        is_readable: read around what is damaged.
        as_json: lines of JSON on stdout in place of the table.
        output: file for those lines.
    """

    archives: tuple[Path, ...]
    threshold: str
    values: str | None = None
    range_text: str | None = None
    policy_file: Path | None = None
    truth_files: tuple[Path, ...] = ()
    processes: int | None = None
    is_readable: bool = False
    as_json: bool = False
    output: Path | None = None


def tune_command(options: TuneOptions) -> int:
    """Sweep, and tell it.

    Returns:
        0 when all of it could be read; 2 when something could not be used; 130 when it was interrupted.
    """
    try:
        tunable = Tunable.named(options.threshold)
        values = _values(options, tunable)
        archives = _archives(options)
        processes = options.processes or usable_cores()
        total = sum(archive.path.stat().st_size for archive in archives)
        with ProgressBar("replaying", total * times_read(len(archives), len(values), processes)) as bar:
            swept = sweep(archives, tunable, values, processes, bar.reach)
    except KeyboardInterrupt:
        typer.echo("paceline: interrupted", err=True)
        return 130
    except (NotAnArchiveError, NoTruthError, TunableError, UsageError) as error:
        return _refuse(str(error))
    except BrokenProcessPool:
        return _refuse("a process that read an archive has died (out of memory?); fewer --processes or values may help")
    for archive, one in zip(archives, swept, strict=True):
        if not one.has_judged:
            status = _problems(archive, one)
            if one.damage is not None:
                return status
            whole = ReplaySpan()
            return _refuse(
                str(nothing_judged(archive.path, ArchiveSource(archive.path, whole, archive.is_readable), whole))
            )
        if one.stranger is not None:
            return _refuse(of_another_run(archive.path, one.stranger))
    told = _told(archives, tunable, values, swept)
    lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records(told))
    if options.output is not None:
        try:
            write_whole(options.output, lines)
        except OSError as error:
            return _refuse(f"{options.output}: {error.strerror}")
    if options.as_json:
        sys.stdout.buffer.write(lines)
    else:
        for line in table_lines(told):
            print(one_line(line))
    sys.stdout.flush()
    return max(_problems(archive, one) for archive, one in zip(archives, swept, strict=True))


def _refuse(text: str) -> int:
    typer.echo(f"paceline: {text}", err=True)
    return 2


def _values(options: TuneOptions, tunable: Tunable) -> tuple[float, ...]:
    """The values asked for, held against all that can be known before an archive is read.

    Raises:
        TunableError: a value is none.
        UsageError: options do not go together.
    """
    if options.processes is not None and options.processes < 1:
        raise UsageError(f"--processes is at least 1, not {options.processes}")
    if options.output is not None and not options.output.parent.is_dir():
        raise UsageError(f"--output: {options.output.parent} is no directory")
    # A device or a pipe is written to; a file may be what somebody recorded.
    if options.output is not None and (options.output.is_file() or options.output.is_dir()):
        raise UsageError(f"--output: {options.output} is there already")
    if options.values is not None and options.range_text is None:
        return tunable.values(options.values)
    if options.range_text is not None and options.values is None:
        return tunable.values_of_range(options.range_text)
    raise UsageError("give the values either with --values 0.05,0.1,0.2 or with --range 0.05:0.5:10")


def _archives(options: TuneOptions) -> list[Incidents]:
    """Archives with their policy and truth; damage is found before anything is replayed.

    Raises:
        NotAnArchiveError: one cannot be used.
        NoTruthError: a truth cannot be read.
        UsageError: a policy cannot be used, or there are not as many truths as archives.
    """
    if options.truth_files and len(options.truth_files) != len(options.archives):
        raise UsageError(
            f"{len(options.truth_files)} times --truth for {len(options.archives)} archives: give one for each, in their order"
        )
    _must_differ(options.archives)
    truths: Sequence[Path | None] = options.truth_files or [_truth_beside(path) for path in options.archives]
    archives = []
    for path, truth in zip(options.archives, truths, strict=True):
        if str(path).startswith("kafka:"):
            raise UsageError("only archives are swept; paceline record makes one of a range on Kafka")
        site_id = ArchiveSource(path, ReplaySpan(), options.is_readable).site_id or "replay"
        archives.append(
            Incidents(
                path,
                site_id,
                loaded_policy(options.policy_file, site_id),
                options.policy_file is not None,
                tuple(truths_of(truth)) if truth is not None else None,
                options.is_readable,
            )
        )
    return archives


def _must_differ(paths: Sequence[Path]) -> None:
    """What is counted twice looks like more than was seen: intervals narrow, and few faults pass for enough."""
    given: set[Path] = set()
    for path in paths:
        if (real := path.resolve()) in given:
            raise UsageError(f"{path} is given twice")
        given.add(real)


def _truth_beside(path: Path) -> Path | None:
    """`run.truth.jsonl` for `run.jsonl.zst`, where there is such a file."""
    if not path.name:
        return None
    stem = next((path.name.removesuffix(ending) for ending in _ENDINGS if path.name.endswith(ending)), path.name)
    beside = path.with_name(f"{stem}.truth.jsonl")
    return beside if beside.is_file() else None


def _told(archives: Sequence[Incidents], tunable: Tunable, values: Sequence[float], swept: Sequence[Swept]) -> Told:
    in_force = tuple(sorted({value for one in swept for value in one.values_in_force}))
    was = Row(in_force[0] if len(in_force) == 1 else None, True, tuple(one.in_force for one in swept))
    # A value that was in force all the time comes to the same; it does not where limits by part held over it.
    rows = [
        Row(value, in_force == (value,) and outcomes == was.outcomes, outcomes)
        for turn, value in enumerate(values)
        for outcomes in (tuple(one.outcomes[turn] for one in swept),)
    ]
    if not any(row.is_in_force for row in rows):
        rows.append(was)
        rows.sort(key=lambda row: -math.inf if row.value is None else row.value)
    return Told(tunable, tuple(str(archive.path) for archive in archives), in_force, tuple(rows), judge_rows(rows))


def _problems(archive: Incidents, swept: Swept) -> int:
    if any(swept.problems.counts.values()) or swept.damage is not None:
        typer.echo(f"{archive.path}:", err=True)
    return report_problems(swept.problems, swept.damage)

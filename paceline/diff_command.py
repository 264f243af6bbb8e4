"""`paceline diff A B` and `paceline replay --what-if`: two sides by id, with what they cost and whom they would have taken out.

A side is an archive with recorded outputs, the output of a replay, or an archive of inputs alone, which is replayed first.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import typer

from paceline.progress_bar import ProgressBar
from paceline.rare_collection import rare_collection
from paceline.replay_command import UsageError, loaded_policy, report_problems, time_of, usable_site
from paceline.replay_source import OUTPUTS, ReplaySpan, open_source
from paceline.review.difference import compare
from paceline.review.nothing_judged import NothingJudgedError, nothing_judged
from paceline.review.said import Said
from paceline.review.told import differs, tell
from paceline.review.truth_file import Described, NoTruthError, of_another_run, stranger_of, truths_of
from schemas.archive import ArchiveLine, NotAnArchiveError
from schemas.codec import decode_value
from schemas.errors import SchemaError
from schemas.fleet import Policy
from schemas.results import StepResult
from schemas.topics import topic_named, topic_of
from streams.engines.pipeline import Pipeline
from streams.recording.bounds import BoundError
from streams.recording.kafka_range import RangeError
from streams.replay import Problems, decoded, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agents.simulation.truth import Truth
    from paceline.replay_command import ReplayOptions
    from schemas.archive import BadLine
    from schemas.base import Record

__all__ = ["diff_command", "what_if_command"]

_STEPS = topic_of(StepResult).name


def diff_command(a: str, b: str, as_json: bool, truth_file: Path | None, site_id: str | None) -> int:
    """Compare; 0 when both say the same, 1 when they differ, 2 when one, or a line of one, cannot be used."""
    try:
        truths = truths_of(truth_file) if truth_file is not None else None
        (left, left_status), (right, right_status) = _loaded(a, "A", site_id), _loaded(b, "B", site_id)
        for name, side, status in ((a, left, left_status), (b, right, right_status)):
            if not status:
                _must_be_of(name, truths, Described(jobs=set(side.gpus)))
    except (BoundError, RangeError, NotAnArchiveError, NoTruthError, NothingJudgedError, UsageError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    differences = compare(left, right)
    tell(left, right, differences, as_json, truths)
    return max(left_status, right_status, 1 if differs(differences) else 0)


def what_if_command(options: ReplayOptions, truth_file: Path | None) -> int:
    """Replay once under the recorded policies and once under the given one, and compare; statuses as of a diff."""
    if options.policy_file is None:
        typer.echo("paceline: --what-if asks about a policy: give --policy FILE", err=True)
        return 2
    try:
        truths = truths_of(truth_file) if truth_file is not None else None
        span = ReplaySpan.parse(options.start, options.end, options.warm_up)
        with closing(open_source(options.source, span, options.is_readable)) as source:
            site_id = usable_site(options.site_id if options.site_id is not None else source.site_id or "replay")
            other = loaded_policy(options.policy_file, site_id)
            assert other is not None
            problems, described = Problems(), Described()
            engines = Pipeline(site_id), Pipeline(site_id, other)
            with ProgressBar("replaying twice", source.total) as bar:
                was, would = _both(source.lines(bar.reach), engines, problems, described, other, span.shown_from_ns)
            if not engines[0].has_judged:
                report_problems(problems, None)
                raise nothing_judged(options.source, source, span)
        if not problems.counts["bad_lines"]:  # else what tells of a job may be among them
            _must_be_of(options.source, truths, described)
    except (BoundError, RangeError, NotAnArchiveError, NoTruthError, NothingJudgedError, UsageError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    status = report_problems(problems, None)
    differences = compare(was, would)
    tell(was, would, differences, options.as_json, truths)
    return max(status, 1 if differs(differences) else 0)


def _must_be_of(name: str, truths: Sequence[Truth] | None, described: Described) -> None:
    """Hold a truth against what a source describes: of another run, all that was said would be wrong by it.

    Raises:
        NoTruthError: it is of another run.
    """
    if (stranger := stranger_of(truths or (), described)) is not None:
        raise NoTruthError(of_another_run(name, stranger))


@rare_collection()
def _both(
    lines: Iterator[ArchiveLine | BadLine],
    engines: tuple[Pipeline, Pipeline],
    problems: Problems,
    described: Described,
    other: Policy,
    shown_from_ns: int,
) -> tuple[Said, Said]:
    """What was said under the recorded policies, and what would have been under another; each line is decoded once."""
    was, would = Said("as it was"), Said(f"under {other.policy_version}")
    pipelines = tuple(zip(engines, (was, would), strict=True))

    def take(said: Said, outputs: list[Record]) -> None:
        for output in outputs:
            if time_of(output) >= shown_from_ns:
                said.take(output)

    for number, record, position in decoded(lines, problems):
        described.take(record)
        for pipeline, said in pipelines:
            if said is would and isinstance(record, Policy):
                continue
            said.saw(record)
            take(said, pipeline.on_record(record, position))
            if said is was:
                problems.note_refusal(number, position, pipeline.refusal)
    for pipeline, said in pipelines:
        take(said, pipeline.flush())
    problems.counts.update(engines[0].counts)
    would.policy = other
    return was, would


@rare_collection()
def _loaded(text: str, name: str, site_id: str | None) -> tuple[Said, int]:
    """A side by its file, and 2 if lines of it could not be used, else 0.

    Raises:
        NotAnArchiveError: it cannot be read.
        UsageError: there is nothing in it to compare.
    """
    said, inputs, problems = Said(f"{name} ({text})"), 0, Problems()
    with closing(open_source(text, ReplaySpan(), has_outputs=True)) as source:
        for line in source.lines(lambda _: None):
            if not isinstance(line, ArchiveLine):
                raise UsageError(f"{text}: line {line.number}: {line.reason}")
            inputs += _take(said, line, problems)
        recorded_site = source.site_id
    if not said.is_empty or said.heard.steps:
        return said, report_problems(problems, None)
    if not inputs:
        report_problems(problems, None)
        raise UsageError(f"{text}: there are neither findings, incidents and commands in it nor inputs to replay")
    typer.echo(f"{text}: no outputs in it; it is replayed", err=True)
    problems = Problems()
    site_id = usable_site(site_id if site_id is not None else recorded_site or "replay")
    pipeline = Pipeline(site_id)
    with closing(open_source(text, ReplaySpan())) as source:
        with ProgressBar(f"replaying {name}", source.total) as bar:
            for record in replay(source.lines(bar.reach), site_id, problems, pipeline=pipeline):
                said.take(record)
        if not pipeline.has_judged:
            report_problems(problems, None)
            raise nothing_judged(text, source, ReplaySpan())
    return said, report_problems(problems, None)


def _take(said: Said, line: ArchiveLine, problems: Problems) -> int:
    """Take a line; 1 for an input. Frames and steps are passed over undecoded."""
    try:
        topic = topic_named(line.topic)
    except SchemaError as error:
        problems.note(f"{said.name}: line {line.number}: {error}")
        return 0
    if topic.name not in OUTPUTS and topic.name != _STEPS and topic.family not in {"policy", "jobs"}:
        at_ns = line.value.get("event_time_ns") if isinstance(line.value, dict) else None
        if isinstance(at_ns, int):
            said.first_ns = at_ns if said.first_ns is None else min(said.first_ns, at_ns)
            said.last_ns = max(said.last_ns, at_ns)
        return 1
    try:
        said.take(decode_value(line.topic, line.value))
    except SchemaError as error:
        problems.note(f"{said.name}: line {line.number}: {line.topic}: {error}")
    return 0

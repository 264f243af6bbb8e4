"""`paceline replay`: an archive or a range of Kafka through the pure engines; what comes out goes to a person or a file.

There is no producer in what this imports, so nothing can be commanded from here.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import typer

from paceline.one_line import one_line
from paceline.progress_bar import ProgressBar
from paceline.rare_collection import rare_collection
from paceline.replay_checkpoint import CHECKPOINT_EVERY_S, CheckpointPace, code_sum
from paceline.replay_output import OtherReplayError, ReplayOutput
from paceline.replay_resumption import Resumption
from paceline.replay_source import OUTPUTS, KafkaSource, ReplaySpan, open_source, paced
from paceline.review.nothing_judged import NothingJudgedError, nothing_judged
from paceline.review.said import Said
from paceline.whole_file import write_whole
from schemas.archive import ArchiveLine, NotAnArchiveError
from schemas.codec import decode_value, encode
from schemas.errors import SchemaError
from schemas.remediation import Command
from streams.core.policy_file import load_policy
from streams.core.position import event_time_of
from streams.engines.pipeline import Pipeline
from streams.recording.bounds import BoundError
from streams.recording.kafka_range import RangeError, Span
from streams.replay import Problems, Summary, ndjson_line, replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.replay_source import ArchiveSource
    from schemas.archive import BadLine
    from schemas.base import Record
    from schemas.fleet import Policy

__all__ = [
    "ReplayOptions",
    "UsageError",
    "loaded_policy",
    "replay_command",
    "report_problems",
    "time_of",
    "usable_site",
]


class UsageError(Exception):
    """Options that do not go together or cannot be used; the text says which."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed, and what is told.

    Attributes:
        source: a file, or `kafka://host:port`.
        site_id: the site that findings are of; null takes the recording's own.
        policy_file: TOML of thresholds; null for the defaults.
        start: text of the beginning.
        end: text of the end.
        warm_up: span that is read before the start.
        rate: of its seconds a second; null for as fast as the machine.
        is_readable: read around what is damaged.
        is_compared: hold what comes out against what was recorded; then the end of the source is the end of nothing.
        as_json: outputs as NDJSON on stdout.
        has_summary: a summary as well.
        output: file for the outputs.
        is_resumed: go on with that file.
        checkpoint_every_s: seconds between two checkpoints beside that file.
    """

    source: str
    site_id: str | None = None
    policy_file: Path | None = None
    start: str | None = None
    end: str | None = None
    warm_up: str = "10m"
    rate: float | None = None
    is_readable: bool = False
    is_compared: bool = False
    as_json: bool = False
    has_summary: bool = False
    output: Path | None = None
    is_resumed: bool = False
    checkpoint_every_s: float = CHECKPOINT_EVERY_S


def replay_command(options: ReplayOptions) -> int:
    """Replay; without an option it is a summary.

    Returns:
        0 when all of it could be read; 1 when it was compared and differs; 2 when something could not be used; 130 when
        it was interrupted.
    """
    try:
        return _replay(options)
    except KeyboardInterrupt:
        goes_on = f"; --output {options.output} --resume goes on" if options.output is not None else ""
        typer.echo(f"paceline: interrupted{goes_on}", err=True)
        return 130
    except BrokenPipeError:
        raise  # who read it went away: no error of a file
    except (BoundError, RangeError, NotAnArchiveError, UsageError, OtherReplayError, NothingJudgedError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except FileExistsError:
        typer.echo(f"paceline: {options.output} is there already; --resume goes on with it", err=True)
        return 2
    except OSError as error:
        typer.echo(
            f"paceline: {error.filename or options.output or options.source}: {error.strerror or error}", err=True
        )
        return 2


@rare_collection()
def _replay(options: ReplayOptions) -> int:
    if options.is_resumed and options.output is None:
        raise UsageError("--resume goes on with a file: name it with --output")
    if options.rate is not None and not 0 < options.rate < 1e6:
        raise UsageError(f"--rate {options.rate:g} is not positive")
    span = ReplaySpan.parse(options.start, options.end, options.warm_up)
    problems, told = Problems(), Summary()
    recorded, replayed = Said("the recording"), Said("the replay")
    damage: NotAnArchiveError | None = None
    with closing(_opened(options, span)) as source:
        site_id = usable_site(options.site_id if options.site_id is not None else source.site_id or "replay")
        policy = loaded_policy(options.policy_file, site_id)
        pipeline = Pipeline(site_id, policy)
        resumption: Resumption | None = None
        is_quiet = options.is_compared and options.output is None
        with (
            ReplayOutput(options.output, options.is_resumed, options.as_json and not is_quiet) as output,
            ProgressBar("replaying", source.total) as bar,
        ):
            _keep_range(options, source)
            # A comparison needs what was recorded from its first line on.
            if options.output is not None and not options.is_compared:
                of = _decisive(options, span, source, site_id, policy)
                pace = CheckpointPace(options.checkpoint_every_s)
                resumption = Resumption(options.output, of, source, output, pipeline, problems, pace)
                if options.is_resumed:
                    resumption.go_on()
                    told.take_all(output.records() if options.has_summary else ())
                else:
                    resumption.remove()
            lines: Iterator[ArchiveLine | BadLine] = source.lines(bar.reach)
            lines = _noting(lines, recorded, span) if options.is_compared else lines
            lines = paced(lines, options.rate) if options.rate is not None else lines
            try:
                between = resumption.look if resumption is not None else None
                for record in replay(
                    lines, site_id, problems, is_cut=options.is_compared, pipeline=pipeline, between=between
                ):
                    if time_of(record) >= span.shown_from_ns:
                        told.take(record)
                        if options.is_compared:
                            replayed.take(record)
                        output.write(ndjson_line(record))
            except NotAnArchiveError as error:
                damage = error
            output.end()
        if resumption is not None:
            resumption.remove()
        for note in source.notes:
            typer.echo(note, err=True)
        if not pipeline.has_judged:
            return _nothing_judged(options, source, span, problems, damage)
    if options.has_summary or not (options.as_json or options.is_compared or options.output):
        _print_summary(told, sys.stderr if options.as_json else sys.stdout)
    sys.stdout.flush()
    status = report_problems(problems, str(damage) if damage is not None else None)
    if not options.is_compared:
        return status
    return max(status, _compare(recorded, replayed, options.as_json))


def _nothing_judged(
    options: ReplayOptions,
    source: ArchiveSource | KafkaSource,
    span: ReplaySpan,
    problems: Problems,
    damage: NotAnArchiveError | None,
) -> int:
    """Tell why: the damage where there is one, else what the source holds instead.

    Raises:
        NothingJudgedError: it is not damaged.
    """
    status = report_problems(problems, str(damage) if damage is not None else None)
    if damage is None:
        raise nothing_judged(options.source, source, span)
    return status


def _decisive(
    options: ReplayOptions,
    span: ReplaySpan,
    source: ArchiveSource | KafkaSource,
    site_id: str,
    policy: Policy | None,
) -> dict[str, Any]:
    """All that decides what a replay says, by the names that people have for it."""
    return {
        "code": code_sum(),
        "source": source.identity,
        "range": span.plain,
        "site": site_id,
        "policy": encode(policy).decode() if policy is not None else None,
        "reading of damage": options.is_readable,
    }


def _opened(options: ReplayOptions, span: ReplaySpan) -> ArchiveSource | KafkaSource:
    fixed = None
    if options.is_resumed and options.output is not None and options.source.startswith("kafka://"):
        kept = _range_file(options.output)
        if kept.exists():
            try:
                spans = orjson.loads(kept.read_bytes())
                fixed = {(topic, number): Span(*span) for topic, number, *span in spans}
            except (orjson.JSONDecodeError, ValueError, TypeError):
                raise UsageError(f"{kept} is damaged: begin again with another --output") from None
    return open_source(options.source, span, options.is_readable, options.is_compared, fixed)


def _keep_range(options: ReplayOptions, source: ArchiveSource | KafkaSource) -> None:
    """Note which range is replayed into a file, since its end would be another one when the replay goes on."""
    if options.output is None or not isinstance(source, KafkaSource):
        return
    spans = [
        [topic, number, span.first, span.end, span.is_cut] for (topic, number), span in sorted(source.spans.items())
    ]
    write_whole(_range_file(options.output), orjson.dumps(spans))


def _range_file(output: Path) -> Path:
    return output.with_name(output.name + ".range.json")


def usable_site(site_id: str) -> str:
    """The site, held against what a record takes.

    Raises:
        UsageError: it is none.
    """
    if not 1 <= len(site_id) <= 253:
        raise UsageError("--site is a name of 1 to 253 characters")
    return site_id


def loaded_policy(policy_file: Path | None, site_id: str) -> Policy | None:
    """The policy of a file.

    Raises:
        UsageError: it cannot be read or names what there is not.
    """
    try:
        return load_policy(policy_file, site_id) if policy_file is not None else None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _noting(
    lines: Iterator[ArchiveLine | BadLine], recorded: Said, span: ReplaySpan
) -> Iterator[ArchiveLine | BadLine]:
    """The lines as they pass, with what was recorded of outputs noted."""
    for line in lines:
        if isinstance(line, ArchiveLine) and (line.topic in OUTPUTS or line.topic.endswith(("policy.v1", "jobs.v1"))):
            try:
                record = decode_value(line.topic, line.value)
            except SchemaError:
                # It is named where it is replayed.
                pass
            else:
                if line.topic not in OUTPUTS or span.shown_from_ns <= time_of(record) < span.shown_to_ns:
                    recorded.take(record)
        yield line


def _compare(recorded: Said, replayed: Said, as_json: bool) -> int:
    from paceline.review.difference import compare
    from paceline.review.told import differs, tell

    if recorded.is_empty:
        typer.echo("paceline: there is nothing recorded to compare with: no findings, incidents or commands", err=True)
        return 2
    replayed.policy, replayed.gpus = recorded.policy, recorded.gpus
    replayed.first_ns = recorded.first_ns = min(
        (at for at in (recorded.first_ns, replayed.first_ns) if at is not None), default=None
    )
    differences = compare(recorded, replayed)
    tell(recorded, replayed, differences, as_json, None)
    return 1 if differs(differences) else 0


def time_of(record: Record) -> int:
    """When a record happened, in nanoseconds since the epoch: of a command when it was decided; 0 where it says nothing."""
    return record.decided_at_ns if isinstance(record, Command) else (event_time_of(record) or 0)


def report_problems(problems: Problems, damage: str | None) -> int:
    """Name on stderr what could not be used, and give the status."""
    counts = " ".join(f"{name}={count}" for name, count in sorted(problems.counts.items()) if count)
    for reason in problems.bad_lines:
        typer.echo(one_line(f"unusable: {reason}"), err=True)
    if counts:
        typer.echo(counts, err=True)
    if damage is not None:
        typer.echo(f"paceline: {damage}", err=True)
        return 2
    return 2 if problems.counts["bad_lines"] else 0


def _print_summary(told: Summary, stream: Any) -> None:
    def say(text: str) -> None:
        print(one_line(text), file=stream)

    seconds = (told.last_ns - told.first_ns) / 1e9 if told.first_ns is not None else 0.0
    say(f"{told.steps} steps over {seconds:.0f} s")
    say(f"findings: {sum(told.findings.values())}")
    for (kind, severity), count in sorted(told.findings.items()):
        say(f"  {count:5d}  {kind} ({severity})")
    say(f"incidents: {len(told.incidents)}")
    for incident in sorted(told.incidents.values(), key=lambda i: (i.onset_ns, i.incident_id)):
        who = incident.culprit.key().strip("/") if incident.culprit is not None else "nobody to blame"
        say(f"         {incident.cause_class}: {who}: {incident.summary}")
    say(f"commands: {len(told.commands)}")
    for command in sorted(told.commands, key=lambda c: (c.kind, c.target.name(), c.decided_at_ns)):
        say(f"         {command.kind} {command.when.replace('_', ' ')}: {command.target.name()}: {command.reason}")
    if not any(command.kind in {"cordon_node", "drain_node"} for command in told.commands):
        say("nobody would have been cordoned or drained")

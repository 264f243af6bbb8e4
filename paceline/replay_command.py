"""`paceline replay`: an archive through the pure engines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from schemas.archive import NotAnArchiveError, read_archive
from streams.core.policy_file import load_policy
from streams.replay import Problems, Summary, ndjson_line, replay

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["replay_command"]


def replay_command(archive: Path, as_json: bool, summary: bool, site_id: str, policy_file: Path | None) -> int:
    """Replay; 0 when all of it could be read, 2 when not. Without an option it is a summary."""
    if not 1 <= len(site_id) <= 253:
        typer.echo("paceline: --site is a name of 1 to 253 characters", err=True)
        return 2
    try:
        policy = load_policy(policy_file, site_id) if policy_file is not None else None
    except ValueError as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    problems, told = Problems(), Summary()
    damaged: str | None = None
    try:
        for record in replay(read_archive(archive), site_id, problems, policy):
            told.take(record)
            if as_json:
                sys.stdout.buffer.write(ndjson_line(record))
    except NotAnArchiveError as error:
        damaged = str(error)
    except BrokenPipeError:
        return 0
    if summary or not as_json:
        _print_summary(told, sys.stderr if as_json else sys.stdout)
    sys.stdout.flush()
    return _report(problems, damaged)


def _report(problems: Problems, damaged: str | None) -> int:
    counts = " ".join(f"{name}={count}" for name, count in sorted(problems.counts.items()) if count)
    for reason in problems.bad_lines:
        typer.echo(f"unusable: {reason}", err=True)
    if counts:
        typer.echo(counts, err=True)
    if damaged is not None:
        typer.echo(f"paceline: {damaged}", err=True)
        return 2
    return 2 if problems.counts["bad_lines"] else 0


def _print_summary(told: Summary, stream: object) -> None:
    def say(text: str) -> None:
        print(text, file=stream)  # type: ignore[call-overload]

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

"""`paceline collect NAME`: what a single reading of one source gives here, or why it gives nothing.

The source is read in this process with the agent's settings; nothing is published. A source that shows changes only, as
a kernel log, shows what is there now.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
import typer

from agents.clock import SystemClock
from agents.collectors.base import CollectorError, Readings
from agents.identity import AgentIdentity
from agents.settings import SettingsError, load
from agents.source_registry import SourceNameError, chosen, known_sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agents.collectors.base import Collector

__all__ = ["collect_command", "read_within"]

_TIMEOUT_S = 30.0


def collect_command(name: str | None, config: Path | None, as_json: bool, timeout_s: float = _TIMEOUT_S) -> int:
    """Read a source once and print what it gave; without a name, print which sources there are.

    Returns:
        0, also when it is here and has no news; 1 when it is not here or cannot be read; 2 for a source or settings that there are not.
    """
    if name is None:
        _print_names(as_json)
        return 0
    try:
        settings = load(config, None, os.environ)
        found = chosen((name,))
    except (SettingsError, SourceNameError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    if len(found) != 1 or found[0].name != name:
        typer.echo(f"paceline: {name} is no source by itself; `paceline collect` lists them", err=True)
        return 2
    clock = SystemClock()
    identity = AgentIdentity.of_this_run(settings.node_id or None, clock.time_ns())
    try:
        readings = read_within(found[0].collector_class.from_settings(settings, identity), clock.time_ns(), timeout_s)
    except CollectorError as error:
        typer.echo(f"paceline: {name}: {error}", err=True)
        return 1
    rows = 0
    for kind, row in _rows(readings):
        _print_row(kind, row, as_json)
        rows += 1
    if not rows:
        typer.echo(f"paceline: {name}: can be read here, and has nothing to say now", err=True)
    return 0


def read_within(collector: Collector, now_ns: int, timeout_s: float) -> Readings:
    """One reading, in a thread: a driver that hangs must not hold the command.

    Args:
        collector: the source.
        now_ns: wall time, which decides what is due.
        timeout_s: how long to wait.

    Raises:
        CollectorError: it is not here, cannot be read, or does not answer in time.
    """
    answers: list[Readings | Exception] = []

    def read() -> None:
        try:
            reason = collector.is_supported()
            answers.append(CollectorError(reason) if reason is not None else collector.collect(now_ns))
        except Exception as error:  # noqa: BLE001 - told below, whatever it is
            answers.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        raise CollectorError(f"no answer within {timeout_s:g} s: its driver or service hangs")
    answer = answers[0]
    if isinstance(answer, Readings):
        return answer
    if isinstance(answer, CollectorError):
        raise answer
    raise CollectorError(f"{type(answer).__name__}: {answer}")


def _rows(readings: Readings) -> Iterator[tuple[str, dict[str, Any]]]:
    if readings.driver_version is not None:
        yield "driver", {"driver_version": readings.driver_version}
    for gpu in readings.gpus or ():
        yield "gpu", dict(gpu)
    for port in readings.ports or ():
        yield str(port.get("kind", "port")), {name: value for name, value in port.items() if name != "kind"}
    if readings.host is not None:
        yield "host", dict(readings.host)
    for dump in readings.dumps:
        yield "dump", asdict(dump)
    for record in (*readings.events, *readings.records):
        fields = record.model_dump(mode="json", exclude_none=True)
        yield str(fields.pop("record", type(record).__name__)), fields


def _print_row(kind: str, row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(orjson.dumps({"kind": kind, **row}, default=str) + b"\n")
        return
    typer.echo(kind)
    for name, value in row.items():
        for inner, shown in value.items() if isinstance(value, dict) else ((None, value),):
            if shown is not None:
                typer.echo(f"  {name if inner is None else f'{name}.{inner}'}: {shown}")


def _print_names(as_json: bool) -> None:
    for source in known_sources():
        if as_json:
            shown = {"name": source.name, "only_if_named": source.only_if_named, "summary": source.summary}
            sys.stdout.buffer.write(orjson.dumps(shown) + b"\n")
        else:
            typer.echo(f"{source.name:22}{source.summary}{' (only if named)' if source.only_if_named else ''}")

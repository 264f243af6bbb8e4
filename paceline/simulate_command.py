"""`paceline simulate`: a labelled synthetic fleet as an archive, or published to brokers in real time until stopped.

A published fleet plays its scenario again and again. Each round is as after a restart of all agents and jobs: new sessions
and epochs and later kernel lines, so that nothing of it is taken for a repeat of the last. It registers no policy and starts no worker.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agents.publisher import KafkaPublisher, PublisherSettings
from agents.simulation.delivery import deliver
from agents.simulation.errors import ScenarioError
from agents.simulation.fleet_run import simulate
from agents.simulation.player import play
from agents.simulation.scenario import default_scenario
from agents.simulation.truth import truth, truth_lines
from paceline.recording_file import ARCHIVE_STARTS, is_foreign, is_recording
from paceline.stop_signals import stop_on_signals
from schemas.archive import ArchiveWriter
from schemas.events import KernelEvent
from schemas.fleet import Job

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from agents.simulation.scenario import Scenario
    from schemas.base import Record

__all__ = ["in_round", "simulate_command"]

_START_NS = 1_767_225_600_000_000_000
"""2026-01-01: where a simulated archive's time begins, so that equal arguments give equal bytes."""

_LINES_A_SECOND = 10_000
"""Numbers of kernel lines between rounds, for each second between their beginnings: far more than one simulates."""


class _PlaceError(Exception):
    """Something cannot be written where it was asked for; the text says why."""


def simulate_command(
    output: Path | None,
    bootstrap_servers: str | None,
    duration_s: float,
    nodes: int,
    seed: int,
    scenario_name: str,
    truth_file: Path | None,
) -> int:
    """Write the archive or publish the fleet, and write the truth where asked.

    Returns:
        0; 1 when brokers did not take all records; 2 when the scenario cannot be met, or where to is not said.
    """
    try:
        _must_be_free(output, truth_file, scenario_name)
        scenario = default_scenario(nodes=nodes, duration_s=duration_s, seed=seed, scenario=scenario_name)
        if output is not None and bootstrap_servers is None:
            return _write(output, scenario, truth_file)
        if bootstrap_servers is not None and output is None:
            return _publish(bootstrap_servers, scenario, truth_file)
    except (ScenarioError, _PlaceError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {error.filename or output}: {error.strerror or error}", err=True)
        return 2
    typer.echo("paceline: give either --output FILE or --bootstrap HOST:PORT", err=True)
    return 2


def _must_be_free(output: Path | None, truth_file: Path | None, scenario_name: str) -> None:
    """Hold where to against what else is named, before minutes are spent: a plain archive or a truth may be replaced, all else not.

    Raises:
        OSError: what is there cannot be read.
        _PlaceError: something would be written over, or where to is in no directory.
    """
    written = [path for path in (output, truth_file) if path is not None]
    for path in written:
        if not path.parent.is_dir():
            raise _PlaceError(f"{path}: {path.parent} is no directory")
        if path.resolve() == Path(scenario_name).resolve():
            raise _PlaceError(f"{path} is the scenario: name another file")
        if is_recording(path):
            raise _PlaceError(f"{path} is there already, and was recorded: name another file")
    for place, what, starts in ((output, "archive", ARCHIVE_STARTS), (truth_file, "truth", (b'{"truth_id"',))):
        if place is not None and is_foreign(place, *starts):
            raise _PlaceError(f"{place} is there already, and is no {what}: name another file")
    if len(written) == 2 and written[0].resolve() == written[1].resolve():
        raise _PlaceError(f"--output and --truth-file are both {output}")


def _write(output: Path, scenario: Scenario, truth_file: Path | None) -> int:
    with ArchiveWriter.open(output, partitions=4) as archive:
        for arrival_ns, record in deliver(simulate(scenario, _START_NS), seed=scenario.seed):
            archive.write(record, arrival_ns)
    if truth_file is not None:
        truth_file.write_bytes(b"".join(truth_lines(truth(scenario, _START_NS))))
    typer.echo(f"{archive.lines} records in {output}", err=True)
    return 0


def _publish(bootstrap_servers: str, scenario: Scenario, truth_file: Path | None) -> int:
    """Play rounds until SIGTERM or SIGINT."""
    stopped = stop_on_signals()
    publisher = KafkaPublisher(PublisherSettings(bootstrap_servers, client_id="paceline-simulate"))
    rounds = 0
    try:
        while not stopped.is_set():
            rounds += 1
            _play_round(scenario, publisher, stopped, truth_file)
    finally:
        left = publisher.flush(10.0)
        publisher.close()
    given_up = left + publisher.dropped
    typer.echo(f"{sum(publisher.delivered.values())} records in {rounds} rounds, {given_up} given up", err=True)
    return 1 if given_up else 0


def _play_round(
    scenario: Scenario, publisher: KafkaPublisher, stopped: threading.Event, truth_file: Path | None
) -> None:
    start_ns = time.time_ns()
    if truth_file is not None:
        with truth_file.open("ab") as lines:
            lines.writelines(truth_lines(truth(scenario, start_ns)))
    running: dict[str, Job] = {}
    play(
        _noted(in_round(deliver(simulate(scenario, start_ns), seed=scenario.seed), start_ns), running),
        publisher,
        stopped,
    )
    # A job of which nobody says that it ended would be waited for.
    for job in running.values():
        ended = {"state": "ended", "version": job.version + 1, "effective_from_ns": time.time_ns()}
        publisher.publish(job.model_copy(update=ended))


def in_round(events: Iterator[tuple[int, Record]], start_ns: int) -> Iterator[tuple[int, Record]]:
    """Records of a simulated run as those of the round that starts at a time: sessions, epochs and kernel lines of its own.

    A run depends on its seed alone, so that without this a second one repeats the first, number by number. Nodes are not
    booted anew between rounds: what a kernel says right after a boot is not acted on.
    """
    epoch = start_ns // 1_000_000_000
    for due_ns, record in events:
        update: dict[str, str | int] = {}
        session = getattr(record, "agent_session", None)
        if session is not None:
            update["agent_session"] = f"{session}-{epoch}"
        if isinstance(record, KernelEvent):
            update["kmsg_seq"] = record.kmsg_seq + epoch * _LINES_A_SECOND
        if hasattr(record, "epoch"):
            update["epoch"] = epoch
        yield due_ns, record.model_copy(update=update) if update else record


def _noted(events: Iterator[tuple[int, Record]], running: dict[str, Job]) -> Iterator[tuple[int, Record]]:
    """The events as they pass by, with the jobs that run noted."""
    for due_ns, record in events:
        if isinstance(record, Job):
            if record.state == "running":
                running[record.job_id] = record
            else:
                running.pop(record.job_id, None)
        yield due_ns, record

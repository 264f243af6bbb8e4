"""The `paceline` command. Each command imports what it needs when it runs, so that `decode` starts in a moment.

Machine-readable output is on stdout, all else on stderr. Exit: 0 fine, 1 a bad answer where that is the question, 2 bad
usage or input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from paceline.broker_commands import broker_app
from paceline.import_commands import import_app
from paceline.registry_commands import jobs_app, nodes_app, topics_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="paceline",
    help="Finds the GPU that sets the pace of a synchronous training job, says why, and what it costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(broker_app, name="broker")
app.add_typer(import_app, name="import")
app.add_typer(jobs_app, name="jobs")
app.add_typer(nodes_app, name="nodes")
app.add_typer(topics_app, name="topics")


@app.command()
def demo(
    duration: Annotated[float, typer.Option(help="Seconds that the fleet runs with faults.")] = 60.0,
    nodes: Annotated[int, typer.Option(help="Nodes of 8 GPUs.")] = 8,
    seed: Annotated[int, typer.Option(help="Draws where faults are, and the noise.")] = 0,
    scenario: Annotated[
        str, typer.Option(help="mixed, healthy, thermal, xid79, pause-storm, cpu-contention, or a TOML file.")
    ] = "mixed",
    broker: Annotated[str, typer.Option(help="embedded or apache.")] = "embedded",
    bootstrap: Annotated[Optional[str], typer.Option(help="Use brokers that run already.")] = None,  # noqa: UP045
    json: Annotated[bool, typer.Option("--json", help="Last line on stdout is one JSON object.")] = False,
    truth_file: Annotated[Optional[Path], typer.Option(help="Write the injected truth here.")] = None,  # noqa: UP045
) -> None:
    """A simulated fleet with injected faults through a local broker and the workers."""
    from paceline.demo_command import demo_command

    raise typer.Exit(demo_command(duration, nodes, seed, scenario, broker, bootstrap, json, truth_file))


@app.command()
def worker(
    role: Annotated[str, typer.Option(help="telemetry, jobs, decisions or all.")] = "all",
    bootstrap: Annotated[
        str, typer.Option(help="host:port of the brokers.", envvar="PACELINE_BOOTSTRAP_SERVERS")
    ] = "localhost:9092",
    site: Annotated[str, typer.Option(help="The site whose records are read.", envvar="PACELINE_SITE")] = "default",
    instance_id: Annotated[Optional[str], typer.Option(help="Static group membership.")] = None,  # noqa: UP045
    metrics_port: Annotated[Optional[int], typer.Option(help="Serve Prometheus metrics; 0 takes a free port.")] = None,  # noqa: UP045
    snapshot_every: Annotated[float, typer.Option(help="Seconds between snapshots of a partition's state.")] = 10.0,
    session_timeout: Annotated[float, typer.Option(help="Seconds until a dead worker's partitions move on.")] = 15.0,
    announce: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """The Faust processors of one role, or of all three in processes of their own."""
    from paceline.worker_command import worker_command

    raise typer.Exit(
        worker_command(role, bootstrap, site, instance_id, metrics_port, announce, snapshot_every, session_timeout)
    )


@app.command()
def agent(
    config: Annotated[Optional[Path], typer.Option(help="TOML file.")] = None,  # noqa: UP045
    bootstrap: Annotated[Optional[str], typer.Option(help="host:port of the brokers.")] = None,  # noqa: UP045
    node_id: Annotated[Optional[str], typer.Option(help="This node's name; the host name by default.")] = None,  # noqa: UP045
) -> None:
    """The node agent: reads this node's sources and publishes them."""
    from paceline.agent_command import agent_command

    raise typer.Exit(agent_command(config, bootstrap, node_id))


@app.command()
def decode(
    kind: Annotated[str, typer.Argument(help="kernel-log, dcgm, fabric, pcie or steps.")],
    file: Annotated[str, typer.Argument(help="The file; - is standard input.")],
    json: Annotated[bool, typer.Option("--json", help="NDJSON, which is what comes out anyway.")] = True,  # noqa: ARG001
) -> None:
    """One file of raw telemetry to records, as NDJSON."""
    raise typer.Exit(_decode(kind, file))


def _decode(kind: str, file: str) -> int:
    from agents.decode import driver

    if kind not in driver.DECODERS:
        typer.echo(f"paceline: no kind {kind!r}; there are {', '.join(sorted(driver.DECODERS))}", err=True)
        return 2
    return driver.run(kind, file, sys.stdout.buffer, sys.stderr)


@app.command()
def replay(
    archive: Annotated[Path, typer.Argument(help="An archive: .jsonl or .jsonl.zst.")],
    json: Annotated[bool, typer.Option("--json", help="Every output as NDJSON {topic, value}.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Whom it would have had cordoned.")] = False,
    site: Annotated[str, typer.Option(help="The site that findings are of.")] = "replay",
    policy: Annotated[Optional[Path], typer.Option(help="TOML file of thresholds and switches.")] = None,  # noqa: UP045
) -> None:
    """Step results, findings, incidents and commands of an archive; nothing can be commanded from here."""
    from paceline.replay_command import replay_command

    raise typer.Exit(replay_command(archive, json, summary, site, policy))


@app.command()
def simulate(
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Archive to write.")] = None,  # noqa: UP045
    bootstrap: Annotated[Optional[str], typer.Option(help="Publish to these brokers until stopped instead.")] = None,  # noqa: UP045
    duration: Annotated[float, typer.Option(help="Seconds of the fleet's time; published, of one round.")] = 60.0,
    nodes: Annotated[int, typer.Option(help="Nodes of 8 GPUs.")] = 8,
    seed: Annotated[int, typer.Option(help="Draws where faults are, and the noise.")] = 0,
    scenario: Annotated[str, typer.Option(help="Name or TOML file.")] = "mixed",
    truth_file: Annotated[Optional[Path], typer.Option(help="Write the injected truth here.")] = None,  # noqa: UP045
) -> None:
    """A labelled synthetic fleet as an archive, or published to brokers in real time."""
    from paceline.simulate_command import simulate_command

    raise typer.Exit(simulate_command(output, bootstrap, duration, nodes, seed, scenario, truth_file))


@app.command()
def doctor(
    bootstrap: Annotated[
        str | None, typer.Option(help="Also look at these brokers.", envvar="PACELINE_BOOTSTRAP_SERVERS")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="NDJSON.")] = False,
) -> None:
    """What here is missing or wrong."""
    from paceline.doctor_command import doctor_command

    raise typer.Exit(doctor_command(bootstrap, json))


def main() -> None:
    """Entry point of the command."""
    if (status := _decoded_at_once(sys.argv[1:])) is not None:
        sys.exit(status)
    app()


def _decoded_at_once(arguments: list[str]) -> int | None:
    """The status of a plain `decode KIND FILE`; None for all else.

    Typer checks arguments with pydantic, whose import alone takes longer than most files.
    """
    plain = [argument for argument in arguments[1:] if argument != "--json"]
    is_plain = len(plain) == 2 and not any(argument.startswith("-") and argument != "-" for argument in plain)
    if arguments[:1] != ["decode"] or not is_plain:
        return None
    try:
        return _decode(*plain)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    main()

"""The `paceline` command. Each command imports what it needs when it runs, so that `decode` starts in a moment.

Machine-readable output is on stdout, all else on stderr. Exit: 0 fine, 1 a bad answer where that is the question, 2 bad
usage or input, or an output that cannot be written, 70 a failure of its own, 141 when who read stdout went away before
the answer was out.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from paceline.act_command import act_app
from paceline.approve_command import approve
from paceline.broker_commands import broker_app
from paceline.brokers_option import Bootstrap
from paceline.diagnose_commands import diagnose_app
from paceline.import_commands import import_app
from paceline.incidents_command import incidents
from paceline.keys_command import keys_app
from paceline.policy_command import policy_app
from paceline.preflight_command import preflight
from paceline.registry_commands import jobs_app, nodes_app, topics_app
from paceline.review_commands import Readable, archive, diff, export, record, replay, report, tune
from paceline.standard_streams import StdoutError, watch_standard_streams

__all__ = ["app", "main"]

_FAILED = 70
"""A failure of ours, as sysexits.h has it. Python's own 1 would say that a job hangs, or that a node is not fit; after 2
systemd starts no agent again."""

_UNUSABLE = 2
"""As for every file that cannot be written; no answer of a command."""

_READER_GONE = 141
"""128 and SIGPIPE, as a shell tells it."""


class _Commands(TyperGroup):
    """Typer ends with 1, a bad answer, when who reads stdout goes away."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(_READER_GONE) from None


app = typer.Typer(
    cls=_Commands,
    name="paceline",
    help="Finds the GPU that sets the pace of a synchronous training job, says why, and what it costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(act_app, name="act")
app.add_typer(broker_app, name="broker")
app.add_typer(diagnose_app, name="diagnose")
app.add_typer(import_app, name="import")
app.add_typer(jobs_app, name="jobs")
app.add_typer(keys_app, name="keys")
app.add_typer(policy_app, name="policy")
app.add_typer(nodes_app, name="nodes")
app.add_typer(topics_app, name="topics")
app.command()(incidents)
app.command()(approve)
for review_command in (record, archive, replay, diff, tune, report, export):
    app.command()(review_command)
app.command()(preflight)


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
    bootstrap: Bootstrap = "localhost:9092",
    site: Annotated[str, typer.Option(help="The site whose records are read.", envvar="PACELINE_SITE")] = "default",
    instance_id: Annotated[Optional[str], typer.Option(help="Static group membership.")] = None,  # noqa: UP045
    metrics_port: Annotated[Optional[int], typer.Option(help="Serve Prometheus metrics; 0 takes a free port.")] = None,  # noqa: UP045
    snapshot_every: Annotated[float, typer.Option(help="Seconds between snapshots of a partition's state.")] = 10.0,
    session_timeout: Annotated[float, typer.Option(help="Seconds until a dead worker's partitions move on.")] = 15.0,
    signing_key: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Key that signs commands; read by role decisions alone.", envvar="PACELINE_SIGNING_KEY"),
    ] = None,
    keyring: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Ring by which approvals are checked, in role decisions.", envvar="PACELINE_KEYRING"),
    ] = None,
    announce: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """The Faust processors of one role, or of all three in processes of their own."""
    from paceline.worker_command import worker_command

    raise typer.Exit(
        worker_command(
            role,
            bootstrap,
            site,
            instance_id,
            metrics_port,
            announce,
            snapshot_every,
            session_timeout,
            signing_key,
            keyring,
        )
    )


@app.command()
def agent(
    config: Annotated[Optional[Path], typer.Option(help="TOML file.")] = None,  # noqa: UP045
    bootstrap: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--bootstrap", "--bootstrap-servers", help="host:port of the brokers."),
    ] = None,
    node_id: Annotated[Optional[str], typer.Option(help="This node's name; the host name by default.")] = None,  # noqa: UP045
    sources: Annotated[Optional[str], typer.Option(help="Sources, comma separated; auto for all.")] = None,  # noqa: UP045
    disable: Annotated[Optional[str], typer.Option(help="Sources to leave out, comma separated.")] = None,  # noqa: UP045
    metrics_port: Annotated[Optional[int], typer.Option(help="Serve Prometheus metrics; 0 for none.")] = None,  # noqa: UP045
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings that hold and where each came from, and end.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the settings hold.")] = False,
) -> None:
    """The node agent: reads this node's sources and publishes them."""
    from paceline.agent_command import agent_command

    flags = {
        "bootstrap_servers": bootstrap,
        "node_id": node_id,
        "sources": sources,
        "disable": disable,
        "metrics_port": metrics_port,
    }
    raise typer.Exit(agent_command(config, flags, print_config, check))


@app.command()
def collect(
    name: Annotated[Optional[str], typer.Argument(help="The source; without one, all names are listed.")] = None,  # noqa: UP045
    config: Annotated[Optional[Path], typer.Option(help="The agent's TOML file.")] = None,  # noqa: UP045
    json: Annotated[bool, typer.Option("--json", help="NDJSON, a line per GPU, port or record.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the source.")] = 30.0,
) -> None:
    """One reading of one source of this node; status 1 when there is none."""
    from paceline.collect_command import collect_command

    raise typer.Exit(collect_command(name, config, json, timeout))


@app.command()
def decode(
    kind: Annotated[str, typer.Argument(help="kernel-log, dcgm, fabric, pcie, steps, flight-recorder or kineto.")],
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
def explain(
    finding_id: Annotated[str, typer.Argument(help="As in the finding's record: find-...")],
    archive: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="An archive, or a folder of archives: .jsonl or .jsonl.zst."),
    ] = None,
    bootstrap: Annotated[Optional[str], typer.Option(help="Read the topics of these brokers instead.")] = None,  # noqa: UP045
    price_per_gpu_hour: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="What a GPU costs an hour; the job's or the policy's price by default."),
    ] = None,
    policy: Annotated[Optional[Path], typer.Option(help="TOML file of thresholds and switches.")] = None,  # noqa: UP045
    readable: Readable = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """How a finding came about: peers, numbers and the rule, to be recomputed by hand; status 2 for an unknown id."""
    from paceline.explain_command import explain_command

    raise typer.Exit(explain_command(finding_id, archive, bootstrap, price_per_gpu_hour, policy, readable, json))


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
    config: Annotated[Optional[Path], typer.Option(help="An agent's TOML file: what it needs is needed here.")] = None,  # noqa: UP045
    job: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Instead: this job's recorder and time-outs, as its ranks here told the agent."),
    ] = None,
    socket: Annotated[Optional[str], typer.Option(help="Instead: those of every job; the agent's socket.")] = None,  # noqa: UP045
    env_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Instead: those of a file of variables, as /proc/PID/environ."),
    ] = None,
    environment: Annotated[bool, typer.Option("--environment", help="Instead: those of this environment.")] = False,
) -> None:
    """What here is missing or wrong."""
    if job is not None or socket is not None or env_file is not None or environment:
        from paceline.doctor_job import doctor_job_command

        raise typer.Exit(doctor_job_command(job, socket, env_file, environment, json, config))
    from paceline.doctor_command import doctor_command

    raise typer.Exit(doctor_command(bootstrap, json, config))


@app.command()
def evaluate(
    suite: Annotated[
        str,
        typer.Option(
            help="ci, ablation, minder, greyhound, greyhound_slow, greyhound_detection, what_if, resihp, soak, barrier or acts."
        ),
    ] = "ci",
    seeds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            help="How many of the ten tuning seeds. Without it all; of ci each case with one of each kind, in turn."
        ),
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="As many held-out seeds too, in rows of their own.")
    ] = False,
    only_held_out: Annotated[bool, typer.Option("--only-held-out", help="Held-out seeds alone.")] = False,
    case: Annotated[Optional[str], typer.Option(help="Only cases whose id has this part, or fits this glob.")] = None,  # noqa: UP045
    limit: Annotated[Optional[int], typer.Option(help="At most so many cases, spread over the suite.")] = None,  # noqa: UP045
    largest_ranks: Annotated[Optional[int], typer.Option(help="Leave larger cases out.")] = None,  # noqa: UP045
    jobs: Annotated[Optional[int], typer.Option(help="Processes; without it one per core.")] = None,  # noqa: UP045
    baselines: Annotated[bool, typer.Option("--baselines", help="Run the plain rules on the same cases.")] = False,
    without: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="peer_key, persistence, covariates, wait_edges or device_evidence; may be repeated."),
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Run the engine without each of these parts too, on the same cases.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="NDJSON: a line per case, then metrics and gates.")] = False,
    out: Annotated[Optional[Path], typer.Option(help="Also write the NDJSON here.")] = None,  # noqa: UP045
    verbose: Annotated[bool, typer.Option("--verbose", help="Explain every case that is wrong.")] = False,
) -> None:
    """What the engine says of labelled cases, held against the truth; status 1 when a gate failed."""
    from paceline.evaluate_command import EvaluateOptions, evaluate_command

    options = EvaluateOptions(
        suite,
        seeds,
        held_out,
        only_held_out,
        case,
        limit,
        largest_ranks,
        jobs,
        baselines,
        tuple(without or ()),
        ablation,
    )
    raise typer.Exit(evaluate_command(options, json, verbose, out))


def main() -> None:
    """Entry point of the command."""
    watch_standard_streams()
    try:
        try:
            if (status := _decoded_at_once(sys.argv[1:])) is not None:
                sys.exit(status)
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _leave(_READER_GONE)
    except StdoutError as error:
        print(f"paceline: stdout: {error}", file=sys.stderr)
        _leave(_UNUSABLE)
    except Exception:  # noqa: BLE001 - told in full, with a status that is no answer
        traceback.print_exc()
        _leave(_FAILED)


def _leave(status: int) -> None:
    """End where stdout may take nothing more: Python would write what is left of it, and complain with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)


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

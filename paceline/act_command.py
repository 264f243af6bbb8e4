"""`paceline act`: an actuator in this process, until it is told to stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from paceline.brokers_option import Bootstrap
from paceline.stop_signals import stop_on_signals

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from agents.actuators.actuator import ActuatorSettings
    from agents.actuators.hands import Hands

__all__ = ["act_app"]

act_app = typer.Typer(help="Carry out signed commands, each at most once.", no_args_is_help=True)

_Site = Annotated[str, typer.Option(help="The site whose commands are taken.", envvar="PACELINE_SITE")]
_Ring = Annotated[Path, typer.Option(help="The ring of trusted keys: paceline keys.", envvar="PACELINE_KEYRING")]
_State = Annotated[
    Path, typer.Option(help="Where the memory of commands is kept; it must outlive this process.", show_default=False)
]
_Id = Annotated[str, typer.Option(help="This actuator's name; one of a name runs at a time.")]
_PerHour = Annotated[int, typer.Option(min=0, help="Acts within an hour that take a node, GPU or job from somebody.")]
_Only = Annotated[list[str], typer.Option("--only", help="Touch only targets of this shell pattern; may be repeated.")]
_Never = Annotated[list[str], typer.Option("--never", help="Never touch targets of it; may be repeated.")]
_Announce = Annotated[bool, typer.Option(hidden=True)]


@act_app.command("dry-run")
def dry_run(
    keyring: _Ring,
    state_dir: _State,
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "dry-run",
    announce: _Announce = False,
) -> None:
    """Say what would be done, as NDJSON, of commands in any mode; nothing is touched and no result is published."""
    from agents.actuators.actuator import ActuatorSettings
    from agents.actuators.dry_run import DryRunHands
    from agents.actuators.limits import LocalLimits

    settings = ActuatorSettings(
        actuator_id, site, LocalLimits(costly_per_hour=10**9), frozenset({"observe", "approve", "auto"})
    )
    raise typer.Exit(_run(bootstrap, settings, DryRunHands(_say), keyring, state_dir, announce, is_spoken=True))


@act_app.command("slurm")
def slurm(
    keyring: _Ring,
    state_dir: _State,
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "slurm",
    costly_per_hour: _PerHour = 4,
    only: _Only = [],  # noqa: B006 (typer reads it, nobody changes it)
    never: _Never = [],  # noqa: B006
    scontrol: Annotated[str, typer.Option(help="Slurm's program.")] = "scontrol",
    short_names: Annotated[
        bool, typer.Option("--short-names", help="Slurm knows nodes by what stands before the first dot.")
    ] = False,
    announce: _Announce = False,
) -> None:
    """Drain, resume and reboot Slurm's nodes, and requeue its jobs."""
    from agents.actuators.scontrol import Scontrol
    from agents.actuators.slurm import SlurmHands

    settings = _settings(actuator_id, site, costly_per_hour, only, never)
    program = Scontrol(scontrol)
    hands = SlurmHands(program, short_names)
    # A request of an actuator that was killed is waited for, before the next one looks whether it took effect.
    raise typer.Exit(_run(bootstrap, settings, hands, keyring, state_dir, announce, on_lock=program.hand_down))


@act_app.command("kubernetes")
def kubernetes(
    keyring: _Ring,
    state_dir: _State,
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "kubernetes",
    costly_per_hour: _PerHour = 4,
    only: _Only = [],  # noqa: B006
    never: _Never = [],  # noqa: B006
    kubeconfig: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="How the API server is reached; without it as the service account of this pod."),
    ] = None,
    context: Annotated[Optional[str], typer.Option(help="Of the kubeconfig; its current one without it.")] = None,  # noqa: UP045
    short_names: Annotated[
        bool, typer.Option("--short-names", help="Kubernetes knows nodes by what stands before the first dot.")
    ] = False,
    node_names: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="JSON object: names of nodes in Kubernetes by node id, where they differ."),
    ] = None,
    drain_wait_s: Annotated[
        float, typer.Option(min=0, max=600, help="Seconds for which evictions that budgets forbid are asked again.")
    ] = 60.0,
    announce: _Announce = False,
) -> None:
    """Cordon, taint, drain and give back nodes of Kubernetes."""
    try:
        from agents.actuators.kube_api import KubeApi, KubeSettingsError
        from agents.actuators.kubernetes import KubernetesHands, KubernetesSettings, read_node_names
    except ImportError as error:
        typer.echo(f"paceline: {error}: install paceline[kubernetes]", err=True)
        raise typer.Exit(2) from None
    try:
        names = read_node_names(node_names.read_bytes()) if node_names is not None else {}
    except (OSError, ValueError) as error:
        typer.echo(f"paceline: {node_names}: {error}", err=True)
        raise typer.Exit(2) from None
    try:
        api = KubeApi.opened(str(kubeconfig) if kubeconfig is not None else None, context)
    except KubeSettingsError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    stopped = stop_on_signals()
    hands = KubernetesHands(api, KubernetesSettings(names, short_names, drain_wait_s), time.time_ns, stopped.wait)
    settings = _settings(actuator_id, site, costly_per_hour, only, never)
    raise typer.Exit(_run(bootstrap, settings, hands, keyring, state_dir, announce, stopped=stopped))


@act_app.command("job")
def job(
    keyring: _Ring,
    state_dir: _State,
    controller: Annotated[Path, typer.Option(help="The spool: a directory for each job that has a controller.")],
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "job",
    costly_per_hour: _PerHour = 4,
    only: _Only = [],  # noqa: B006
    never: _Never = [],  # noqa: B006
    kinds: Annotated[
        str, typer.Option(help="Kinds of commands, comma separated; cordon_node too can be a job's business.")
    ] = "restart_job,swap_spare,drain_node,collect_evidence,uncordon_node",
    take_s: Annotated[float, typer.Option(min=0, max=60, help="Seconds until a controller has taken an order.")] = 10.0,
    answer_s: Annotated[
        float, typer.Option(min=0, max=600, help="Seconds until it is done; what takes longer is told as under way.")
    ] = 300.0,
    announce: _Announce = False,
) -> None:
    """Restart jobs, move their ranks to spares and ask for dumps, through the controllers of the jobs."""
    from agents.actuators.job_controller import JOB_KINDS, JobControllerHands, Patience
    from agents.actuators.job_spool import JobSpool

    wanted = _kinds(kinds)
    if not wanted <= JOB_KINDS or not controller.is_dir():
        unknown = sorted(wanted - JOB_KINDS)
        told = f"no kind {unknown[0]!r}; there are {', '.join(sorted(JOB_KINDS))}" if unknown else f"no {controller}"
        typer.echo(f"paceline: {told}", err=True)
        raise typer.Exit(2)
    stopped = stop_on_signals()
    hands = JobControllerHands(JobSpool(controller), wanted, stopped.wait, Patience(take_s, answer_s))
    settings = _settings(actuator_id, site, costly_per_hour, only, never)
    raise typer.Exit(_run(bootstrap, settings, hands, keyring, state_dir, announce, stopped=stopped))


@act_app.command("preflight")
def preflight(
    keyring: _Ring,
    state_dir: _State,
    program: Annotated[
        Path, typer.Option(help="Gets a node's name, and passes on what paceline preflight --json says there.")
    ],
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "preflight",
    only: _Only = [],  # noqa: B006
    never: _Never = [],  # noqa: B006
    limit_s: Annotated[float, typer.Option(min=1, max=600, help="Seconds after which the program is ended.")] = 300.0,
    announce: _Announce = False,
) -> None:
    """Have nodes checked by a program of your own, and say whether they are fit."""
    import os

    from agents.actuators.preflight_program import PreflightHands

    if not (program.is_file() and os.access(program, os.X_OK)):
        typer.echo(f"paceline: {program} is no program that can be run", err=True)
        raise typer.Exit(2)
    stopped = stop_on_signals()
    hands = PreflightHands(program.absolute(), limit_s, stopped.wait)
    settings = _settings(actuator_id, site, 0, only, never)
    raise typer.Exit(_run(bootstrap, settings, hands, keyring, state_dir, announce, stopped=stopped))


@act_app.command("webhook")
def webhook(
    keyring: _Ring,
    state_dir: _State,
    url: Annotated[str, typer.Option(help="The receiver: https, or http on this machine.")],
    secret_file: Annotated[Path, typer.Option(help="Holds what requests are signed with; whsec_... or any text.")],
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    actuator_id: _Id = "webhook",
    costly_per_hour: _PerHour = 4,
    only: _Only = [],  # noqa: B006
    never: _Never = [],  # noqa: B006
    kinds: Annotated[Optional[str], typer.Option(help="Kinds of commands, comma separated; all without it.")] = None,  # noqa: UP045
    template: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="JSON of the body, with $kind, $target, ... in its texts: docs/actions.md."),
    ] = None,
    ca_file: Annotated[Optional[Path], typer.Option(help="Certificates to trust instead of the system's.")] = None,  # noqa: UP045
    announce: _Announce = False,
) -> None:
    """Hand commands to a receiver of your own as signed CloudEvents over HTTPS."""
    import json

    from agents.actuators.webhook import WebhookHands, WebhookSettings, WebhookSettingsError
    from schemas.key_files import KeyFileError, read_secret
    from schemas.remediation import COMMAND_KINDS

    try:
        hands = WebhookHands(
            WebhookSettings(
                url,
                WebhookSettings.secret_of(read_secret(secret_file)),
                _kinds(kinds) if kinds is not None else frozenset(COMMAND_KINDS),
                json.loads(template.read_text(encoding="utf-8")) if template is not None else None,
                ca_file=str(ca_file) if ca_file is not None else None,
            ),
            time.time,
        )
    except (WebhookSettingsError, KeyFileError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    except (OSError, ValueError) as error:
        typer.echo(f"paceline: {template}: {error}", err=True)
        raise typer.Exit(2) from None
    settings = _settings(actuator_id, site, costly_per_hour, only, never)
    raise typer.Exit(_run(bootstrap, settings, hands, keyring, state_dir, announce))


def _settings(actuator_id: str, site: str, costly_per_hour: int, only: list[str], never: list[str]) -> ActuatorSettings:
    from agents.actuators.actuator import ActuatorSettings
    from agents.actuators.limits import LocalLimits

    return ActuatorSettings(actuator_id, site, LocalLimits(costly_per_hour, tuple(only), tuple(never)))


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.replace(" ", "").split(","))


def _run(
    bootstrap_servers: str,
    settings: ActuatorSettings,
    hands: Hands,
    keyring: Path,
    state_dir: Path,
    announce: bool,
    is_spoken: bool = False,
    on_lock: Callable[[int], object] = lambda _: None,
    stopped: threading.Event | None = None,
) -> int:
    """Run until told to stop; 2 when a setting does not hold, 1 when it cannot go on."""
    from confluent_kafka import KafkaException

    from agents.actuators.actuator import Actuator
    from agents.actuators.memory import ActuatorMemory, ActuatorMemoryError
    from agents.actuators.permission import Permission
    from agents.actuators.policy_feed import PolicyFeed, PolicyFeedError
    from agents.actuators.service import KafkaOutlet, SpokenOutlet, run_actuator
    from agents.publisher_settings import PublisherSettings
    from paceline.agent_command import log_to_stderr
    from schemas.key_files import KeyFileError
    from schemas.keyring_file import KeyringFile

    log_to_stderr()
    stopped = stopped if stopped is not None else stop_on_signals()
    client = {"bootstrap.servers": bootstrap_servers, "client.id": f"paceline-act-{settings.actuator_id}"}
    try:
        ring = KeyringFile(keyring)
        memory = ActuatorMemory(state_dir / f"{settings.actuator_id}.sqlite", settings.actuator_id, time.time_ns())
        on_lock(memory.lock)
        feed = PolicyFeed(client, Permission(settings.site_id))
    except (KeyFileError, ActuatorMemoryError, PolicyFeedError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    actuator = Actuator(settings, hands, memory, feed.refusal, ring.current, time.time_ns, stopped.wait)
    publisher = PublisherSettings(bootstrap_servers, client_id=client["client.id"], linger_ms=5)
    outlet = SpokenOutlet(_say, memory) if is_spoken else KafkaOutlet(publisher.producer_config(), memory)
    try:
        run_actuator(
            client,
            settings.actuator_id,
            actuator,
            outlet,
            feed,
            stopped,
            (lambda: _say('{"ready":"act"}')) if announce else (lambda: None),
        )
    except (ActuatorMemoryError, KafkaException) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 1
    finally:
        feed.close()
        memory.close()
    return 0


def _say(line: str) -> None:
    print(line, flush=True)

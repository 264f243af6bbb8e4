"""`paceline worker`: one role in this process, or all three in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from paceline.stop_signals import stop_on_signals

__all__ = ["worker_command"]

_NO_BROKERS = 70
"""As a worker that crashed: who watches over it tries again."""


def worker_command(
    role: str,
    bootstrap_servers: str,
    site_id: str,
    instance_id: str | None,
    metrics_port: int | None,
    announce: bool,
    snapshot_every_s: float,
    session_timeout_s: float,
    signing_key: Path | None = None,
    keyring: Path | None = None,
) -> int:
    """Run until told to stop; 2 when a setting does not hold, 70 when no broker answers."""
    if snapshot_every_s <= 0 or session_timeout_s < 6:
        typer.echo(
            "paceline: --snapshot-every is above 0 and --session-timeout at least 6 (a broker's minimum)", err=True
        )
        return 2
    from streams.faust_roles.settings import ROLES, WorkerSettings

    if role == "all":
        return _all(bootstrap_servers, site_id, metrics_port, snapshot_every_s, session_timeout_s, signing_key, keyring)
    for known in ROLES:
        if role == known:
            from aiokafka.errors import KafkaConnectionError

            from schemas.key_files import KeyFileError, load_keyring, load_private_key
            from streams.faust_roles.worker import run_worker

            settings = WorkerSettings(
                known,
                bootstrap_servers,
                site_id,
                instance_id,
                metrics_port,
                snapshot_every_s=snapshot_every_s,
                session_timeout_s=session_timeout_s,
                signing_key=signing_key,
                keyring=keyring,
            )
            try:
                if known == "decisions" and signing_key is not None:
                    # Said before the brokers are waited for.
                    load_private_key(signing_key)
                if known == "decisions" and keyring is not None:
                    load_keyring(keyring)
                return run_worker(settings, announce)
            except KafkaConnectionError:
                typer.echo(f"paceline: no broker of {bootstrap_servers} answers", err=True)
                return _NO_BROKERS
            except KeyFileError as error:
                typer.echo(f"paceline: {error}", err=True)
                return 2
            except OSError as error:
                typer.echo(f"paceline: metrics port {metrics_port}: {error.strerror}", err=True)
                return 2
    typer.echo(f"paceline: no role {role!r}; there are {', '.join(ROLES)} and all", err=True)
    return 2


def _all(
    bootstrap_servers: str,
    site_id: str,
    metrics_port: int | None,
    snapshot_every_s: float,
    session_timeout_s: float,
    signing_key: Path | None,
    keyring: Path | None,
) -> int:
    """Three processes: a rebalance among the workers of one role must not stop another."""
    from paceline.processes import ChildFailedError, Children
    from streams.faust_roles.settings import ROLES

    stopped = stop_on_signals()
    with Children() as children:
        for index, role in enumerate(ROLES):
            arguments = ["paceline", "worker", "--role", role, "--bootstrap", bootstrap_servers, "--site", site_id]
            arguments += ["--snapshot-every", str(snapshot_every_s), "--session-timeout", str(session_timeout_s)]
            if signing_key is not None and role == "decisions":
                arguments += ["--signing-key", str(signing_key)]
            if keyring is not None and role == "decisions":
                arguments += ["--keyring", str(keyring)]
            if metrics_port is not None:
                arguments += ["--metrics-port", str(metrics_port + index if metrics_port else 0)]
            children.start(f"worker {role}", [*arguments, "--announce"])
        try:
            while not stopped.wait(1.0):
                children.check()
        except ChildFailedError as error:
            print(f"paceline: {error}", file=sys.stderr)
            return 1
    return 0

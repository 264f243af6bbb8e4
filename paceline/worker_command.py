"""`paceline worker`: one role in this process, or all three in processes of their own."""

from __future__ import annotations

import signal
import sys
import threading

import typer

__all__ = ["worker_command"]


def worker_command(
    role: str, bootstrap_servers: str, site_id: str, instance_id: str | None, metrics_port: int | None, announce: bool
) -> int:
    """Run until told to stop."""
    from streams.faust_roles.settings import ROLES, WorkerSettings

    if role == "all":
        return _all(bootstrap_servers, site_id, metrics_port)
    for known in ROLES:
        if role == known:
            from streams.faust_roles.worker import run_worker

            settings = WorkerSettings(known, bootstrap_servers, site_id, instance_id, metrics_port)
            return run_worker(settings, announce)
    typer.echo(f"paceline: no role {role!r}; there are {', '.join(ROLES)} and all", err=True)
    return 2


def _all(bootstrap_servers: str, site_id: str, metrics_port: int | None) -> int:
    """Three processes: a rebalance among the workers of one role must not stop another."""
    from paceline.processes import ChildFailedError, Children
    from streams.faust_roles.settings import ROLES

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with Children() as children:
        for index, role in enumerate(ROLES):
            arguments = ["paceline", "worker", "--role", role, "--bootstrap", bootstrap_servers, "--site", site_id]
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

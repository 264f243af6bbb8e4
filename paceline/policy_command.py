"""`paceline policy`: publishes a site's policy, and keeps the sign of life without which actuators do nothing.

The clock is read here, for when a policy comes into force and for heartbeats.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.brokers_option import Bootstrap
from paceline.stop_signals import stop_on_signals

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from agents.publisher import KafkaPublisher
    from schemas.base import Record
    from schemas.fleet import Policy

__all__ = ["policy_app"]

policy_app = typer.Typer(help="A site's policy on its topic.", no_args_is_help=True)

_Site = Annotated[str, typer.Option(help="The site, where the file names none.", envvar="PACELINE_SITE")]
_File = Annotated[Path, typer.Argument(help="TOML file: docs/policy.md.")]
_DAY_S = 24 * 3600.0


@policy_app.command("put")
def put(file: _File, bootstrap: Bootstrap = "localhost:9092", site: _Site = "default") -> None:
    """Publish a policy once; it is in force once it is read."""
    policy, trouble = _read(file, site)
    if policy is None:
        _end_with(trouble)
        return
    publisher = _publisher(bootstrap)
    try:
        _end_with(_send(publisher, policy))
    finally:
        publisher.close()
    typer.echo(_published(policy), err=True)


@policy_app.command("keep")
def keep(
    file: _File,
    bootstrap: Bootstrap = "localhost:9092",
    site: _Site = "default",
    every: Annotated[float, typer.Option(min=1, max=30, help="Seconds between heartbeats.")] = 10.0,
) -> None:
    """Publish a policy, again whenever its file changes and daily, and heartbeats between; runs until stopped."""
    policy, trouble = _read(file, site)
    if policy is None:
        _end_with(trouble)
        return
    thrown_elsewhere = partial(_thrown_elsewhere, bootstrap, policy.site_id, file)
    if not policy.kill_switch:
        _end_with(thrown_elsewhere())
    stopped = stop_on_signals()
    publisher = _publisher(bootstrap)
    try:
        _keep(publisher, file, site, policy, every, stopped, thrown_elsewhere)
    finally:
        publisher.close()


def _keep(
    publisher: KafkaPublisher,
    file: Path,
    site: str,
    policy: Policy,
    every_s: float,
    stopped: threading.Event,
    thrown_elsewhere: Callable[[], str | None],
) -> None:
    from schemas.fleet import PolicyHeartbeat

    # The file is read at once again: it may have been changed since it was read for the start.
    written_ns: int | None = None
    said_s, told = float("-inf"), None
    while True:
        if _written_ns(file) != written_ns:
            written_ns = _written_ns(file)
            changed, wrong = _read(file, site)
            if changed is None:
                typer.echo(f"paceline: {wrong}; policy {policy.policy_version} stays in force", err=True)
            elif not _says_the_same(changed, policy):
                # What lifts the switch is that it is taken out of this file, not that something else in it was changed.
                is_asked = not (changed.kill_switch or policy.kill_switch)
                thrown = thrown_elsewhere() if is_asked else None
                if thrown is None:
                    policy, said_s = changed, float("-inf")
                else:
                    written_ns = None  # asked again at the next turn, or the change would be lost
                    if thrown != told:
                        typer.echo(f"paceline: {thrown}", err=True)
                told = thrown
        trouble = None
        if time.monotonic() - said_s > _DAY_S:
            trouble = _send(publisher, policy)
            if trouble is None:
                said_s = time.monotonic()
                typer.echo(_published(policy), err=True)
        if trouble is None:
            beat = PolicyHeartbeat(
                site_id=policy.site_id, policy_version=policy.policy_version, event_time_ns=time.time_ns()
            )
            trouble = _send(publisher, beat)
        # A policy that nobody has heard may have the kill switch thrown: without it there is no sign of life either.
        if trouble is not None:
            typer.echo(f"paceline: {trouble}", err=True)
        if stopped.wait(every_s):
            return


def _read(file: Path, site: str) -> tuple[Policy | None, str]:
    from streams.core.policy_file import load_policy
    from streams.core.position import MAX_AHEAD_NS

    try:
        policy = load_policy(file, site)
    except ValueError as error:
        return None, str(error)
    now_ns = time.time_ns()
    if policy.effective_from_ns == 0:
        policy = policy.model_copy(update={"effective_from_ns": now_ns})
    ahead_ns = policy.effective_from_ns - now_ns
    if ahead_ns > MAX_AHEAD_NS:
        text = f"{file}: effective_from_ns is {ahead_ns / 1e9:.0f} s ahead: a policy holds once it is read"
        return None, f"{text}, and this one would keep out those of today"
    return policy, ""


def _says_the_same(policy: Policy, known: Policy) -> bool:
    """Whether a file was written again and says what it said."""
    return policy.model_copy(update={"effective_from_ns": known.effective_from_ns}) == known


def _thrown_elsewhere(bootstrap_servers: str, site_id: str, file: Path) -> str | None:
    """Why a policy without a kill switch must not be published by itself: the last one has it thrown; or it cannot be seen."""
    from agents.actuators.permission import Permission
    from agents.actuators.policy_feed import PolicyFeed, PolicyFeedError

    try:
        feed = PolicyFeed({"bootstrap.servers": bootstrap_servers, "client.id": "paceline-policy"}, Permission(site_id))
    except PolicyFeedError as error:
        return str(error)
    try:
        refusal = feed.refusal(time.time_ns())
    finally:
        feed.close()
    if refusal is None or refusal.code != "kill_switch":
        return None
    return f"{refusal.text}, and {file} has not; lift it first: paceline policy put {file}"


def _published(policy: Policy) -> str:
    thrown = "; its kill switch is thrown, and nothing is done" if policy.kill_switch else ""
    return f"policy {policy.policy_version} of site {policy.site_id} published{thrown}"


def _written_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return -1


def _publisher(bootstrap_servers: str) -> KafkaPublisher:
    from agents.publisher import KafkaPublisher, PublisherSettings

    return KafkaPublisher(PublisherSettings(bootstrap_servers, client_id="paceline-policy", linger_ms=5))


def _send(publisher: KafkaPublisher, record: Record) -> str | None:
    """Publish a record; what kept it from arriving, else None."""
    dropped = publisher.dropped
    publisher.publish(record)
    if publisher.flush(10.0) or publisher.dropped != dropped:
        return "the brokers did not take it"
    return None


def _end_with(trouble: str | None) -> None:
    if trouble is not None:
        typer.echo(f"paceline: {trouble}", err=True)
        raise typer.Exit(2)

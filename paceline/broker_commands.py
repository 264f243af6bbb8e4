"""`paceline broker`: a local Kafka, embedded or Apache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

__all__ = ["broker_app"]

broker_app = typer.Typer(help="A local Kafka: embedded (in memory, bounded) or apache.", no_args_is_help=True)

_DataDir = Annotated[Optional[Path], typer.Option(help="Where its data and its record are kept.")]  # noqa: UP045


@broker_app.command()
def start(
    kind: Annotated[str, typer.Option(help="embedded or apache.")] = "embedded",
    data_dir: _DataDir = None,
    port: Annotated[int, typer.Option(help="Client port; 0 takes a free one.")] = 0,
    topics: Annotated[bool, typer.Option(help="Also make the topics.")] = True,
    partitions: Annotated[int, typer.Option(help="Partition count of every topic.")] = 4,
) -> None:
    """Start one in the foreground; Ctrl-C ends it."""
    from deploy.brokers.errors import BrokerError
    from deploy.brokers.foreground import run_foreground
    from deploy.topics import TopicSetupError, apply_topics

    def on_ready(broker: object) -> None:
        address = broker.bootstrap_servers  # type: ignore[attr-defined]
        if topics:
            apply_topics(address, partitions, 1, has_admin=broker.has_admin)  # type: ignore[attr-defined]
        typer.echo(f'{{"kind":"{kind}","bootstrap_servers":"{address}"}}')

    try:
        run_foreground(kind, data_dir=data_dir, port=port, on_ready=on_ready)
    except (BrokerError, TopicSetupError) as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None


@broker_app.command()
def stop(data_dir: Annotated[Path, typer.Option(help="The data directory it was started with.")]) -> None:
    """End the broker that runs on a data directory."""
    _on_record(data_dir, "stop_recorded", "no broker runs there")


@broker_app.command()
def wipe(data_dir: Annotated[Path, typer.Option(help="The data directory it was started with.")]) -> None:
    """End the broker that runs on a data directory, and remove its data."""
    _on_record(data_dir, "wipe", "nothing to remove")


def _on_record(data_dir: Path, action: str, nothing: str) -> None:
    from deploy.brokers import record
    from deploy.brokers.errors import BrokerError

    try:
        done = getattr(record, action)(data_dir)
    except BrokerError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo("done" if done else nothing, err=True)

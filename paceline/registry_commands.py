"""`paceline jobs`, `nodes` and `topics`: what is registered with the pipeline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.brokers_option import Bootstrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.base import Record

__all__ = ["jobs_app", "nodes_app", "topics_app"]

jobs_app = typer.Typer(help="Register jobs that run without the trainer hook.", no_args_is_help=True)
nodes_app = typer.Typer(help="Register where nodes stand.", no_args_is_help=True)
topics_app = typer.Typer(help="The pipeline's topics.", no_args_is_help=True)


@jobs_app.command("put")
def put(
    file: Annotated[Path, typer.Argument(help="TOML description: docs/job-file.md.")],
    bootstrap: Bootstrap = "localhost:9092",
) -> None:
    """Publish a job and the devices of its ranks."""
    from agents.importers.job_file import JobFileError, load_job_file

    try:
        records = load_job_file(file, time.time_ns())
    except JobFileError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    _publish(bootstrap, records)


@nodes_app.command("import")
def import_nodes(
    file: Annotated[Path, typer.Argument(help="CSV, or Slurm's topology.conf.")],
    bootstrap: Bootstrap = "localhost:9092",
) -> None:
    """Publish where nodes stand: rack, leaf, rail, zone."""
    from agents.importers.places import PlacesError, load_places

    try:
        records = load_places(file, time.time_ns())
    except PlacesError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    _publish(bootstrap, records)


@topics_app.command("apply")
def apply(
    bootstrap: Bootstrap = "localhost:9092",
    partitions: Annotated[int, typer.Option(help="Partition count of every topic; for ever.")] = 24,
    replication: Annotated[int, typer.Option(help="Replication factor.")] = 3,
) -> None:
    """Make the topics that are missing."""
    from deploy.topics import TopicSetupError, apply_topics

    try:
        made = apply_topics(bootstrap, partitions, replication)
    except TopicSetupError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    for name in made:
        typer.echo(name)
    typer.echo(f"{len(made)} topics made", err=True)


@topics_app.command("check")
def check(bootstrap: Bootstrap = "localhost:9092") -> None:
    """Say how the broker's topics differ from the table; status 1 when they do."""
    from deploy.topics import TopicSetupError, check_topics

    try:
        drift = check_topics(bootstrap)
    except TopicSetupError as error:
        typer.echo(f"paceline: {error}", err=True)
        raise typer.Exit(2) from None
    for difference in drift:
        typer.echo(f"{difference.topic}: {difference.what}")
    raise typer.Exit(1 if drift else 0)


def _publish(bootstrap_servers: str, records: Sequence[Record]) -> None:
    from agents.publisher import KafkaPublisher, PublisherSettings

    publisher = KafkaPublisher(PublisherSettings(bootstrap_servers, client_id="paceline-cli"))
    try:
        for record in records:
            publisher.publish(record)
        left = publisher.flush(20.0)
    finally:
        publisher.close()
    if left or publisher.dropped:
        typer.echo(
            f"paceline: {bootstrap_servers} did not take {left or publisher.dropped} of {len(records)} records",
            err=True,
        )
        raise typer.Exit(2)
    typer.echo(f"{len(records)} records published", err=True)

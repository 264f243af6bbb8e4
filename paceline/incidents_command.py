"""`paceline incidents`: what stands now, and what waits for a person. The clock is read here.

It reads three topics once, up to the ends that stand now, without a group; nothing is written.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from paceline.brokers_option import Bootstrap
from paceline.one_line import one_line

if TYPE_CHECKING:
    from paceline.review.standing import Standing

__all__ = ["incidents"]


def incidents(
    incident_id: Annotated[
        str | None, typer.Argument(help="This one alone, over or not; its first characters do.")
    ] = None,
    bootstrap: Bootstrap = "localhost:9092",
    site: Annotated[
        str | None, typer.Option(help="Only this site's; by default all on the topic.", envvar="PACELINE_SITE")
    ] = None,
    since: Annotated[str, typer.Option(help="How far back to read: 90m, 24h, 7d, or earliest.")] = "earliest",
    resolved: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only those with a command that waits for consent.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="NDJSON: an incident with its commands a line.")] = False,
) -> None:
    """Incidents that are not over: who, since when, what it costs, what was ordered, and what waits for consent."""
    from streams.recording.bounds import BoundError
    from streams.recording.kafka_range import RangeError

    try:
        standing, refused, sites = _read(bootstrap, since, site)
    except (BoundError, RangeError) as error:
        typer.echo(f"paceline: {str(error).replace('name offsets', 'leave out --since')}", err=True)
        raise typer.Exit(2) from None
    from paceline.review.standing import incident_lines

    now_ns = time.time_ns()
    of_waiting = {command.cause.incident_id for command in standing.waiting(now_ns)}
    shown = [
        incident
        for incident in standing.shown(with_resolved=resolved or incident_id is not None)
        if (incident_id is None or incident.incident_id.startswith(incident_id))
        and (not waiting or incident.incident_id in of_waiting)
    ]
    if site is not None and sites and site not in sites:
        # A wrong name would read as that all is well.
        there_are = one_line(", ".join(sorted(sites)))
        typer.echo(f"paceline: nothing there is of site {site}: is that its name? There are {there_are}", err=True)
    if refused:
        typer.echo(f"paceline: {refused} messages that are no records were passed over", err=True)
    if incident_id is not None and not shown:
        typer.echo(f"paceline: no incident {incident_id} in what the brokers hold", err=True)
        raise typer.Exit(2)
    for incident in shown:
        if json:
            sys.stdout.buffer.write(orjson.dumps(standing.as_dict(incident, now_ns)) + b"\n")
        else:
            print("\n".join(incident_lines(standing, incident, now_ns)), end="\n\n")
    sys.stdout.flush()
    if not json:
        count_open = sum(incident.state != "resolved" for incident in shown)
        typer.echo(f"{count_open} open, {len(standing.waiting(now_ns))} commands wait for consent", err=True)


def _read(bootstrap_servers: str, since: str, site: str | None) -> tuple[Standing, int, set[str]]:
    """What stands by the three topics, how many messages were no records, and of which sites there were any."""
    from paceline.review.standing import Standing
    from schemas.codec import decode
    from schemas.errors import SchemaError
    from schemas.topics import topic_named
    from streams.recording.bounds import Bound, parse_bound
    from streams.recording.kafka_range import KafkaRange

    topics = tuple(topic_named(family).name for family in ("incidents", "actions", "action-results"))
    begin = parse_bound(since if since == "earliest" else f"-{since.removeprefix('-')}", time.time_ns() // 1_000_000)
    standing, refused = Standing(), 0
    sites: set[str] = set()
    with closing(KafkaRange(bootstrap_servers, topics, (), begin, Bound())) as source:
        for taken in source.messages():
            if taken is None or taken.value is None:
                continue
            try:
                record = decode(taken.topic, taken.value)
            except SchemaError:
                refused += 1
                continue
            of_site = record.__dict__["site_id"]
            sites.add(of_site)
            if site is None or of_site == site:
                standing.take(record)
    return standing, refused, sites

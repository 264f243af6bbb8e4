"""Builds the Faust app of a role: topics as raw bytes, one agent a topic, engines by partition.

An app factory, not a module global: a process may build several, and tests build their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from typing import TYPE_CHECKING, Any

import faust

from schemas.keyring_file import KeyringFile
from schemas.topics import TOPICS, app_id, topic_named
from streams.core.roster import Roster
from streams.engines.decisions import DecisionsEngine
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine
from streams.faust_roles.boundary import Boundary
from streams.faust_roles.command_signer import CommandSigner
from streams.faust_roles.consent_check import ConsentCheck
from streams.faust_roles.metrics import WorkerMetrics
from streams.faust_roles.reference_feed import ReferenceFeed
from streams.faust_roles.snapshot_table import SnapshotSlots
from streams.faust_roles.state_keeper import StateKeeper
from streams.faust_roles.transport import SnapshotTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.faust_roles.settings import Role, WorkerSettings
    from streams.faust_roles.state_keeper import Engine

__all__ = ["INPUTS", "build_app"]

INPUTS: dict[Role, tuple[str, ...]] = {
    "telemetry": ("gpu-frames", "fabric-frames", "kernel-events", "node-status"),
    "jobs": ("step-timings", "collective-digests"),
    "decisions": ("findings", "action-results", "approvals"),
}
"""Topic families that each role reads as a group; all topics of a role share one partition count."""


def build_app(settings: WorkerSettings) -> faust.App:
    """The app of a role, ready to be run by a Faust worker.

    `app.on_ready` is an `asyncio.Event`-like hook list: callables there run once, when partitions were first assigned and
    the reference feed has caught up.

    Raises:
        KeyFileError: the signing key or the ring cannot be used.
    """
    # Faust makes a data directory whether its store needs one or not; this one goes with the process.
    directory = tempfile.TemporaryDirectory(prefix=f"{app_id(settings.role)}-")
    app = faust.App(
        app_id(settings.role),
        broker=f"kafka://{settings.bootstrap_servers.replace(',', ';kafka://')}",
        store="memory://",
        datadir=directory.name,
        # The Faust assignor, which keeps topics of one partition count together, is used only with tables or standbys.
        table_standby_replicas=1,
        topic_partitions=settings.partitions,
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=min(3.0, settings.session_timeout_s / 4),
        broker_rebalance_timeout=20.0,
        broker_request_timeout=max(30.0, settings.session_timeout_s * 2),
        broker_commit_interval=1.0,
        stream_wait_empty=True,
        producer_acks=-1,
        producer_linger=0.005,
        producer_max_batch_size=262_144,
        # Counted before compression. What came in must go out as a dead letter, however large it unpacks to; what goes
        # over the wire is bounded by the topic.
        producer_max_request_size=2**31 - 1,
        producer_compression_type="zstd",
        # An empty id would be an id: all workers of a role would fence one another out of the group.
        **({"consumer_group_instance_id": settings.instance_id} if settings.instance_id else {}),
        web_enabled=False,
        web_tables_enabled=False,
        key_serializer="raw",
        value_serializer="raw",
    )
    roster = Roster()
    metrics = WorkerMetrics(settings.role, roster)
    signer = _signer(settings)
    keeper = StateKeeper(
        _engine_factory(settings, roster, signer),
        SnapshotSlots(app.Table("snapshots", partitions=settings.partitions, key_type=bytes, value_type=bytes)),
        settings.snapshot_every_s,
        time.monotonic,
        metrics,
    )
    boundary = Boundary(keeper, _sender(app), metrics, signer, _consent_check(settings))
    app.paceline_directory = directory
    app.paceline_keeper = keeper
    _resume_from_snapshots(app, settings, keeper)
    app.paceline_metrics = metrics
    app.paceline_ready = []
    _add_reference_feed(app, settings, roster)
    for family in INPUTS[settings.role]:
        _add_agent(app, topic_named(family).name, boundary)

    async def drop_engines(_: Any, revoked: Any = None, **__: Any) -> None:
        # A partition that comes back may have been with another worker: its state is read from its snapshot anew.
        keeper.drop({tp.partition for tp in revoked or ()})
        metrics.forget({tp.partition for tp in revoked or ()})

    app.on_partitions_revoked.connect(drop_engines, weak=False)
    return app


def _resume_from_snapshots(app: faust.App, settings: WorkerSettings, keeper: StateKeeper) -> None:
    """Have partitions read from where their snapshots say.

    A partition with commits but without a snapshot has lost its state: it is read from its beginning.
    """
    inputs = {topic_named(family).name for family in INPUTS[settings.role]}

    def restart_points(assigned: set[Any]) -> dict[Any, int]:
        points = {}
        for tp in assigned:
            if tp.topic not in inputs:
                continue
            point = keeper.restart_offset(tp.partition, tp.topic)
            # Always sought, even without commits: what was fetched and thrown away in the meantime must come again.
            points[tp] = point if point is not None else 0
        return points

    app.paceline_restart_points = restart_points
    app.transport = SnapshotTransport(app.conf.broker_consumer, app, loop=app.loop)


def _signer(settings: WorkerSettings) -> CommandSigner | None:
    """Commands come from the decisions role alone, and so no other reads the key."""
    if settings.role != "decisions" or settings.signing_key is None:
        return None
    return CommandSigner.of_file(settings.signing_key)


def _consent_check(settings: WorkerSettings) -> ConsentCheck:
    ring = KeyringFile(settings.keyring) if settings.role == "decisions" and settings.keyring is not None else None
    return ConsentCheck(ring.current if ring is not None else None, time.time_ns)


def _engine_factory(settings: WorkerSettings, roster: Roster, signer: CommandSigner | None) -> Callable[[int], Engine]:
    site = settings.site_id
    if settings.role == "telemetry":
        return lambda partition: TelemetryEngine(site, partition, roster)
    if settings.role == "jobs":
        return lambda partition: JobsEngine(site, partition, roster)
    key_id = signer.key_id if signer is not None else None
    return lambda _: DecisionsEngine(site, roster, key_id)


def _sender(app: faust.App) -> Callable[..., Any]:
    topics = {topic.name: app.topic(topic.name, key_serializer="raw", value_serializer="raw") for topic in TOPICS}

    # What is sent together goes into its partitions in the order in which it was said, and is confirmed in any.
    in_order = asyncio.Lock()

    async def send(topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        async with in_order:
            confirmed = await topics[topic].send(key=key, value=value, headers=headers)
        await confirmed

    return send


def _add_agent(app: faust.App, topic: str, boundary: Boundary) -> None:
    source = app.topic(topic, key_serializer="raw", value_serializer="raw")

    async def feed(stream: Any) -> None:
        await app.paceline_feed.ready.wait()
        async for event in stream.events():
            await boundary.on_message(event.message)

    app.agent(source, name=f"paceline.{topic}")(feed)


def _add_reference_feed(app: faust.App, settings: WorkerSettings, roster: Roster) -> None:
    feed = ReferenceFeed(settings.bootstrap_servers, roster)
    app.paceline_feed = feed
    app.paceline_roster = roster

    async def announce_readiness() -> None:
        await feed.ready.wait()
        while not app.consumer.assignment():  # noqa: ASYNC110 (Faust tells of it by no event that waits for recovery)
            await asyncio.sleep(0.1)
        app.paceline_metrics.follow_ends(app.consumer.highwater)
        for announce in app.paceline_ready:
            with contextlib.suppress(OSError):
                announce()

    app.task(feed.run)
    app.task(announce_readiness)

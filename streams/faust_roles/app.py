"""Builds the Faust app of a role: topics as raw bytes, one agent a topic, engines by partition.

An app factory, not a module global: a process may build several, and tests build their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import faust

from schemas.topics import TOPICS, topic_named
from streams.core.roster import Roster
from streams.engines.decisions import DecisionsEngine
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine
from streams.faust_roles.boundary import Boundary
from streams.faust_roles.metrics import WorkerMetrics
from streams.faust_roles.reference_feed import ReferenceFeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.faust_roles.boundary import Engine
    from streams.faust_roles.settings import Role, WorkerSettings

__all__ = ["INPUTS", "build_app"]

INPUTS: dict[Role, tuple[str, ...]] = {
    "telemetry": ("gpu-frames", "fabric-frames", "kernel-events", "node-status"),
    "jobs": ("step-timings", "collective-digests"),
    "decisions": ("findings",),
}
"""Topic families that each role reads as a group; all topics of a role share one partition count."""


class _Engines:
    """Engines of the partitions that this worker has now."""

    def __init__(self, make: Callable[[int], Engine]) -> None:
        self._make = make
        self._by_partition: dict[int, Engine] = {}

    def of(self, partition: int) -> Engine:
        engine = self._by_partition.get(partition)
        if engine is None:
            engine = self._by_partition[partition] = self._make(partition)
        return engine

    def drop(self, partitions: set[int]) -> None:
        for partition in partitions:
            self._by_partition.pop(partition, None)


def build_app(settings: WorkerSettings) -> faust.App:
    """The app of a role, ready to be run by a Faust worker.

    `app.on_ready` is an `asyncio.Event`-like hook list: callables there run once, when partitions were first assigned and
    the reference feed has caught up.
    """
    app = faust.App(
        f"paceline-{settings.role}",
        broker=f"kafka://{settings.bootstrap_servers.replace(',', ';kafka://')}",
        store="memory://",
        # The Faust assignor, which keeps topics of one partition count together, is used only with tables or standbys.
        table_standby_replicas=1,
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
        producer_compression_type="zstd",
        consumer_group_instance_id=settings.instance_id or "",
        web_enabled=False,
        web_tables_enabled=False,
        key_serializer="raw",
        value_serializer="raw",
    )
    roster = Roster()
    metrics = WorkerMetrics(settings.role)
    engines = _Engines(_engine_factory(settings, roster))
    boundary = Boundary(engines.of, _sender(app), metrics)
    app.paceline_metrics = metrics
    app.paceline_ready = []
    _add_reference_feed(app, settings, roster)
    for family in INPUTS[settings.role]:
        _add_agent(app, topic_named(family).name, boundary)

    async def drop_engines(_: Any, revoked: Any = None, **__: Any) -> None:
        # The state of a partition that comes back is not what its committed offset says: it is built anew.
        engines.drop({tp.partition for tp in revoked or ()})

    app.on_partitions_revoked.connect(drop_engines, weak=False)
    return app


def _engine_factory(settings: WorkerSettings, roster: Roster) -> Callable[[int], Engine]:
    site = settings.site_id
    if settings.role == "telemetry":
        return lambda partition: TelemetryEngine(site, partition, roster)
    if settings.role == "jobs":
        return lambda partition: JobsEngine(site, partition, roster)
    return lambda _: DecisionsEngine(site, roster)


def _sender(app: faust.App) -> Callable[..., Any]:
    topics = {topic.name: app.topic(topic.name, key_serializer="raw", value_serializer="raw") for topic in TOPICS}

    async def send(topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
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
        for announce in app.paceline_ready:
            with contextlib.suppress(OSError):
                announce()

    app.task(feed.run)
    app.task(announce_readiness)

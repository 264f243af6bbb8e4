"""Runs one role's Faust app in this process until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from aiokafka.client import AIOKafkaClient

from schemas.topics import topic_named
from streams.faust_roles.app import INPUTS, build_app
from streams.faust_roles.watchdog import Watchdog

if TYPE_CHECKING:
    from streams.faust_roles.settings import WorkerSettings

__all__ = ["run_worker"]

_log = structlog.get_logger(__name__)


def run_worker(settings: WorkerSettings, announce: bool = False) -> int:
    """Run until SIGTERM or SIGINT; the exit status of the process.

    Args:
        settings: role, brokers, site.
        announce: write `{"ready": "<role>"}` to stdout once partitions are assigned, for a parent that waits.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return asyncio.run(_run(settings, announce))


async def _run(settings: WorkerSettings, announce: bool) -> int:
    settings = replace(settings, partitions=await _partitions(settings))
    app = build_app(settings)
    if announce:
        app.paceline_ready.append(lambda: print(f'{{"ready":"{settings.role}"}}', flush=True))  # noqa: T201
    if settings.metrics_port is not None:
        port = app.paceline_metrics.serve(settings.metrics_port)
        _log.info("metrics", port=port)
    app.finalize()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await app.start()
    Watchdog(app, settings).start()
    crashed = asyncio.create_task(app.wait_until_stopped())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({crashed, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if crashed.done() and not stopped.is_set():
        _log.critical("worker crashed", role=settings.role, error=str(app.crash_reason))
        # A crashed app may hang in its own shutdown; its offsets are not committed, the supervisor starts it anew.
        os._exit(1)
    try:
        await asyncio.wait_for(app.stop(), timeout=20.0)
    except TimeoutError:
        _log.error("worker did not stop in time", role=settings.role)
        os._exit(1)
    return 0


async def _partitions(settings: WorkerSettings) -> int:
    """Partition count of the role's topics; waits until they exist, since the workers make none."""
    topic = topic_named(INPUTS[settings.role][0]).name
    client = AIOKafkaClient(bootstrap_servers=settings.bootstrap_servers)
    await client.bootstrap()
    try:
        while True:
            await client.add_topic(topic)
            partitions = client.cluster.partitions_for_topic(topic)
            if partitions:
                return len(partitions)
            _log.warning("waiting for topics", missing=[topic], advice="paceline topics apply")
            await asyncio.sleep(1.0)
    finally:
        await client.close()

"""The node agent: reads its sources once a tick, and publishes frames, events, status, and what trainers report.

Guarantees: ticks fall on the node's own phase of the period, so that a fleet's frames do not come all at once; a source
that hangs costs its own values and nobody else's; the heartbeat does not depend on any source; a stop is published and
waits for the brokers for a bounded time. It draws no conclusions, and keeps nothing on disk.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from agents.clock import Clock, SystemClock
from agents.collectors.base import Collector, Row
from agents.collectors.dcgm_exporter import DcgmExporterCollector
from agents.collectors.dcgmi_dmon import DcgmiDmonCollector
from agents.collectors.kernel_log import KernelLogCollector
from agents.collectors.nic import NicCollector
from agents.collectors.nvml import NvmlCollector
from agents.frame_assembly import FabricAssembly, GpuAssembly
from agents.identity import AgentIdentity, Sequences, agent_version
from agents.local_ranks import LocalRanks
from agents.process_devices import ProcessDevices
from agents.publisher import KafkaPublisher, Publisher, PublisherSettings, PublisherSettingsError
from agents.settings import AgentSettings
from agents.sources import Sources, Tick
from agents.step_join import is_due
from agents.trainer_socket import TrainerSocket, TrainerSocketError
from schemas.base import Record
from schemas.events import NodeStatus
from schemas.frames import FabricFrame, GpuFrame

__all__ = ["Agent", "build_collectors", "run_agent", "tick_wait_s"]

_LOG = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_UNUSABLE = 2

_LEAST_WAIT = 0.05
"""Part of a period; a wait that ended a moment early must not make two ticks of one."""

_NOTE_CHARACTERS = 500


class Agent:
    """One run of the agent.

    Args:
        settings: what to do.
        publisher: where records go; the agent closes it.
        collectors: sources, in order of precedence.
        clock: stamps and waits.
        identity: who publishes; None makes a new session of this node.
    """

    def __init__(
        self,
        settings: AgentSettings,
        publisher: Publisher,
        collectors: Sequence[Collector],
        clock: Clock | None = None,
        identity: AgentIdentity | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._identity = identity or AgentIdentity.of_this_run(settings.node_id or None, self._clock.time_ns())
        self._sequences = Sequences()
        self._sources = Sources(collectors, settings.collect_deadline_s)
        self._gpus = GpuAssembly()
        self._ports = FabricAssembly()
        self._heartbeat_ns: int | None = None
        self._delivering: tuple[str, ...] = ()
        self._socket: TrainerSocket | None = None
        if settings.socket:
            look = next((c.device_of_pid for c in collectors if isinstance(c, NvmlCollector)), None)
            ranks = LocalRanks(
                self._identity,
                self._sequences,
                ProcessDevices(look) if look is not None else None,
                step_timeout_ns=round(settings.step_timeout_s * 1e9),
                progress_ns=round(settings.progress_s * 1e9),
            )
            self._socket = TrainerSocket(
                settings.socket, ranks, publisher.publish, self._clock, allowed_uids=settings.socket_uids or None
            )

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, then say so and drain."""
        note = None
        if self._socket is not None:
            try:
                self._socket.start()
            except TrainerSocketError as error:
                note = str(error)
                self._socket = None
                _LOG.warning("%s", note)
        self._sources.start()
        self._status("start", self._clock.time_ns(), note)
        self._heartbeat_ns = self._clock.time_ns()
        try:
            while not self._clock.wait(stop, self._wait_s()):
                self.tick(self._clock.time_ns())
        finally:
            self._stop()

    def tick(self, now_ns: int) -> None:
        """Read the sources and publish what they gave."""
        if is_due(self._heartbeat_ns, now_ns, round(self._settings.heartbeat_s * 1e9)):
            self._heartbeat_ns = now_ns
            self._status("heartbeat", now_ns)
        tick = self._sources.read(now_ns)
        for event in tick.events:
            self._publisher.publish(event)
        self._delivering = tuple(name for name, readings in tick.readings.items() if readings is not None)
        self._publish_frames(tick, now_ns)
        self._publisher.poll()

    def _publish_frames(self, tick: Tick, now_ns: int) -> None:
        given = [readings for readings in tick.readings.values() if readings is not None]
        head = {
            "node_id": self._identity.node_id,
            "agent_session": self._identity.agent_session,
            "event_time_ns": now_ns,
        }
        gpu_rows: list[Sequence[Row] | None] = [readings.gpus for readings in given]
        if (columns := self._gpus.columns(gpu_rows)) is not None:
            about = {"boot_id": self._identity.boot_id, "driver_version": tick.driver_version}
            self._publish_frame("gpu-frames", GpuFrame, {**head, **about, **columns})
        port_rows: list[Sequence[Row] | None] = [readings.ports for readings in given]
        if (columns := self._ports.columns(port_rows)) is not None:
            self._publish_frame("fabric-frames", FabricFrame, {**head, "view": "host", **columns})

    def _publish_frame(self, family: str, kind: Callable[..., Record], fields: dict[str, Any]) -> None:
        try:
            frame = kind(seq=self._sequences.take(family), **fields)
        except ValidationError as error:  # a source told something that no frame can carry
            self.counters["bad_frame"] += 1
            _LOG.warning("%s: %s", family, error.errors(include_url=False, include_input=False)[0])
            return
        self._publisher.publish(frame)

    def _wait_s(self) -> float:
        return tick_wait_s(self._identity.node_id, self._settings.tick_s, self._clock.time_ns())

    def _status(self, state: Literal["start", "heartbeat", "stop"], now_ns: int, note: str | None = None) -> None:
        self._publisher.publish(
            NodeStatus(
                node_id=self._identity.node_id,
                agent_session=self._identity.agent_session,
                seq=self._sequences.take("node-status"),
                event_time_ns=now_ns,
                state=state,
                boot_id=self._identity.boot_id,
                agent_version=agent_version(),
                sources=self._delivering,
                dropped_records=self._publisher.dropped,
                note=note[:_NOTE_CHARACTERS] if note else None,
            )
        )

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.stop()
        self._sources.stop()
        self._status("stop", self._clock.time_ns())
        left = self._publisher.flush(self._settings.drain_s)
        if left:
            _LOG.warning("%d messages were not delivered within %g s", left, self._settings.drain_s)
        self._publisher.close()


def tick_wait_s(node_id: str, period_s: float, now_ns: int) -> float:
    """Seconds until a node's next tick: ticks fall where wall time modulo the period is the node's own phase."""
    period_ns = round(period_s * 1e9)
    phase_ns = int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:8], "big") % period_ns
    wait_ns = period_ns - (now_ns - phase_ns) % period_ns
    if wait_ns < period_ns * _LEAST_WAIT:
        wait_ns += period_ns
    return wait_ns / 1e9


def build_collectors(settings: AgentSettings, identity: AgentIdentity) -> list[Collector]:
    """The collectors that the settings name, in their order."""
    makers: dict[str, Callable[[], Collector]] = {
        "kernel-log": lambda: KernelLogCollector(
            settings.kernel_log, identity, from_start=settings.kernel_log_from_start
        ),
        "nvml": NvmlCollector,
        "dcgm-exporter": lambda: DcgmExporterCollector(settings.dcgm_exporter_url),
        "dcgmi-dmon": lambda: DcgmiDmonCollector((settings.dcgmi,)),
        "nic": lambda: NicCollector(settings.sysfs_root, settings.nic_interfaces or None),
    }
    return [makers[name]() for name in settings.sources]


def run_agent(settings: AgentSettings) -> int:
    """Run the agent of this node until SIGTERM or SIGINT; the exit status.

    Called from the main thread, because only there signals can be handled.

    Returns:
        0 after a stop that was asked for; 2 if the Kafka client refuses the settings.
    """
    clock = SystemClock()
    identity = AgentIdentity.of_this_run(settings.node_id or None, clock.time_ns())
    wire = PublisherSettings(
        bootstrap_servers=settings.bootstrap_servers,
        client_id=identity.node_id,
        queue_messages=settings.queue_messages,
        queue_kbytes=settings.queue_kbytes,
        reserve_messages=settings.queue_messages // 10,
        linger_ms=settings.linger_ms,
        properties=settings.kafka,
    )
    stamp = (lambda: clock.time_ns() // 1_000_000) if settings.stamp_arrival else None
    try:
        publisher = KafkaPublisher(wire, stamp)
    except PublisherSettingsError as error:
        _LOG.error("%s", error)
        return EXIT_UNUSABLE
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    Agent(settings, publisher, build_collectors(settings, identity), clock, identity).run(stop)
    return EXIT_STOPPED

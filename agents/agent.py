"""The node agent: reads its sources once a tick, and publishes frames, events, status, and what trainers report.

Guarantees: ticks fall on the node's own phase of the period, so that a fleet's frames do not come all at once; a source
that hangs costs its own values and nobody else's; the heartbeat does not depend on any source; a fleet that starts at
once spreads its connections; a stop is published and waits for the brokers for a bounded time. It draws no conclusions.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException, Producer
from pydantic import ValidationError

from agents.clock import Clock, SystemClock
from agents.collectors.base import Collector, Row
from agents.frame_assembly import FabricAssembly, GpuAssembly
from agents.held_events import HeldEvents
from agents.identity import AgentIdentity, Sequences, agent_version
from agents.local_ranks import LocalRanks
from agents.process_devices import ProcessDevices
from agents.producer_link import refused_settings
from agents.publisher import KafkaPublisher, Publisher, PublisherSettings, PublisherSettingsError
from agents.service_manager import ServiceManager
from agents.settings import AgentSettings, SettingsError
from agents.source_registry import SourceNameError, build_collectors
from agents.sources import Sources, SourceState, Tick
from agents.spool_policy import SpoolSettings
from agents.step_join import is_due
from agents.trainer_socket import TrainerSocket, TrainerSocketError
from schemas.base import Record
from schemas.events import HostLoad, NodeStatus
from schemas.frames import FabricFrame, GpuFrame

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Agent", "build_collectors", "check_settings", "connect_wait_s", "run_agent", "tick_wait_s"]

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
        service_manager: is told that the agent has started, and of every tick.
    """

    def __init__(
        self,
        settings: AgentSettings,
        publisher: Publisher,
        collectors: Sequence[Collector],
        clock: Clock | None = None,
        identity: AgentIdentity | None = None,
        service_manager: ServiceManager | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._identity = identity or AgentIdentity.of_this_run(settings.node_id or None, self._clock.time_ns())
        self._sequences = Sequences()
        self._collectors = tuple(collectors)
        self._sources = Sources(collectors, settings.collect_deadline_s)
        self._held = HeldEvents(publisher)
        self._service_manager = service_manager or ServiceManager("")
        self._ticked_s = time.monotonic()
        self._said_sources = False
        self._gpus = GpuAssembly()
        self._ports = FabricAssembly()
        self._heartbeat_ns: int | None = None
        self._delivering: tuple[str, ...] = ()
        self._host: HostLoad | None = None
        self._socket: TrainerSocket | None = None
        if settings.socket:
            look = next((c.device_of_pid for c in collectors if hasattr(c, "device_of_pid")), None)
            ranks = LocalRanks(
                self._identity,
                self._sequences,
                ProcessDevices(look) if look is not None else None,
                step_timeout_ns=round(settings.step_timeout_s * 1e9),
                progress_ns=round(settings.progress_s * 1e9),
            )
            for collector in collectors:
                know_ranks = getattr(collector, "know_ranks", None)
                if know_ranks is not None:
                    know_ranks(lambda: ranks.places)
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
        self._service_manager.ready()
        try:
            while not self._clock.wait(stop, self._wait_s()):
                self.tick(self._clock.time_ns())
        finally:
            self._stop()

    def tick(self, now_ns: int) -> None:
        """Read the sources and publish what they gave."""
        # A tick that comes a moment early must not put the heartbeat off by a whole one.
        if is_due(self._heartbeat_ns, now_ns, round((self._settings.heartbeat_s - self._settings.tick_s / 2) * 1e9)):
            self._heartbeat_ns = now_ns
            self._status("heartbeat", now_ns)
        tick = self._sources.read(now_ns, self._held.sources)
        if tick.records:
            self._publisher.publish_all(tick.records)
        self._sources.acknowledge(self._held.hand_on(tick))
        self._delivering = tuple(name for name, readings in tick.readings.items() if readings is not None)
        self._host = self._host_load(tick)
        self._publish_frames(tick, now_ns)
        self._publisher.poll()
        self.counters["ticks"] += 1
        self._ticked_s = time.monotonic()
        self._service_manager.alive()
        if not self._said_sources:
            self._say_sources()

    @property
    def publisher(self) -> Publisher:
        """Where the records go."""
        return self._publisher

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """The sources, in order of precedence."""
        return self._collectors

    @property
    def trainer_socket(self) -> TrainerSocket | None:
        """Where trainers report; None where they cannot."""
        return self._socket

    def source_states(self) -> list[SourceState]:
        """How each source is doing; safe to call from another thread."""
        return self._sources.states()

    def since_tick_s(self) -> float:
        """Real time since the last tick ended, or since the agent was made; grows while the loop is stuck."""
        return time.monotonic() - self._ticked_s

    def _say_sources(self) -> None:
        """What this node has, in one line: once all have answered, or at the first heartbeat."""
        states = self._sources.states()
        asked = [state.name for state in states if state.state == "asked"]
        if asked and self.counters["ticks"] * self._settings.tick_s < self._settings.heartbeat_s:
            return
        self._said_sources = True
        here = [state.name for state in states if state.state == "here"]
        missing = [state.name for state in states if state.state == "missing"]
        parts = [f"{len(here)} of {len(states)} sources are here: {', '.join(here) or 'none'}"]
        parts += [f"not here: {', '.join(missing)}"] if missing else []
        parts += [f"no answer yet: {', '.join(asked)}"] if asked else []
        _LOG.info("node %s: %s", self._identity.node_id, "; ".join(parts))

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

    def _host_load(self, tick: Tick) -> HostLoad | None:
        """The load that the next heartbeat tells; none while no source tells one."""
        told = next((reading.host for reading in tick.readings.values() if reading and reading.host), None)
        if told is None or (self._host is not None and self._host.observed_ns == told.get("observed_ns")):
            return None if told is None else self._host
        try:
            return HostLoad(**told)
        except ValidationError as error:
            self.counters["bad_frame"] += 1
            _LOG.warning("host: %s", error.errors(include_url=False, include_input=False)[0])
            return None

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
                host=self._host if state == "heartbeat" else None,
                note=note[:_NOTE_CHARACTERS] if note else None,
            )
        )

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.stop()
        if self._held:
            self._sources.acknowledge(self._held.hand_on(Tick()))
        self._sources.stop()
        self._status("stop", self._clock.time_ns())
        left = self._publisher.flush(self._settings.drain_s)
        if left:
            _LOG.warning("%d messages were not delivered within %g s", left, self._settings.drain_s)
        self._publisher.close()
        if self._held:
            _LOG.warning("%d kernel events found no room; the next start reads them again", len(self._held))


def tick_wait_s(node_id: str, period_s: float, now_ns: int) -> float:
    """Seconds until a node's next tick: ticks fall where wall time modulo the period is the node's own phase."""
    period_ns = round(period_s * 1e9)
    phase_ns = int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:8], "big") % period_ns
    wait_ns = period_ns - (now_ns - phase_ns) % period_ns
    if wait_ns < period_ns * _LEAST_WAIT:
        wait_ns += period_ns
    return wait_ns / 1e9


def connect_wait_s(node_id: str, spread_s: float) -> float:
    """Seconds that a node waits before it first connects, the same at every start: its own share of the spread."""
    digest = hashlib.sha256(b"connect " + node_id.encode()).digest()
    return spread_s * int.from_bytes(digest[:8], "big") / 2**64


def run_agent(settings: AgentSettings, env: Mapping[str, str] | None = None) -> int:
    """Run the agent of this node until SIGTERM or SIGINT; the exit status.

    Called from the main thread, because only there signals can be handled.

    Args:
        settings: what to do.
        env: the environment, for the service manager's socket.

    Returns:
        0 after a stop that was asked for; 2 if a source, the Kafka client or the metrics port refuses the settings.
    """
    clock = SystemClock()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    identity = AgentIdentity.of_this_run(settings.node_id or None, clock.time_ns())
    try:
        collectors = build_collectors(settings, identity)
    except (SourceNameError, SettingsError) as error:
        _LOG.error("%s", error)
        return EXIT_UNUSABLE
    if clock.wait(stop, connect_wait_s(identity.node_id, settings.connect_spread_s)):
        return EXIT_STOPPED
    try:
        publisher = _publisher(settings, identity, clock)
    except PublisherSettingsError as error:
        _LOG.error("%s", error)
        return EXIT_UNUSABLE
    service_manager = ServiceManager((env or {}).get("NOTIFY_SOCKET", ""))
    agent = Agent(settings, publisher, collectors, clock, identity, service_manager)
    if settings.metrics_port:
        from agents.metrics import AgentMetrics

        try:
            AgentMetrics(agent).serve(settings.metrics_port)
        except OSError as error:
            _LOG.error("metrics_port %d: %s", settings.metrics_port, error.strerror or error)
            publisher.close()
            return EXIT_UNUSABLE
    agent.run(stop)
    return EXIT_STOPPED


def check_settings(settings: AgentSettings) -> None:
    """Hold settings against what can be known without reading a source or reaching a broker.

    Raises:
        SourceNameError: there is no source of a name.
        SettingsError: a source refuses a setting.
        PublisherSettingsError: the Kafka client would refuse a property.
    """
    build_collectors(settings, AgentIdentity(settings.node_id or "check", "check", "check"))
    wire = _publisher_settings(settings, "check").producer_config()
    try:
        Producer({**wire, "bootstrap.servers": "", "log_level": 0})  # without brokers it connects to nobody
    except (KafkaException, TypeError) as error:
        raise PublisherSettingsError(refused_settings(error)) from None


def _publisher_settings(settings: AgentSettings, client_id: str) -> PublisherSettings:
    return PublisherSettings(
        bootstrap_servers=settings.bootstrap_servers,
        client_id=client_id,
        queue_messages=settings.queue_messages,
        queue_kbytes=settings.queue_kbytes,
        reserve_messages=settings.queue_messages // 10,
        linger_ms=settings.linger_ms,
        properties=settings.kafka,
        spool=_spool_settings(settings),
        spool_after_s=settings.spool_after_s,
    )


def _spool_settings(settings: AgentSettings) -> SpoolSettings | None:
    if settings.spool_dir == "auto":
        directory = Path(settings.state_dir, "spool") if settings.state_dir else None
    else:
        directory = Path(settings.spool_dir) if settings.spool_dir else None
    if directory is None:
        return None
    return SpoolSettings(
        directory,
        settings.spool_critical_kbytes,
        settings.spool_bulk_kbytes,
        settings.spool_sync_s,
        settings.dead_letter_kbytes,
        makes_parent=settings.spool_dir == "auto",
    )


def _publisher(settings: AgentSettings, identity: AgentIdentity, clock: Clock) -> KafkaPublisher:
    stamp = (lambda: clock.time_ns() // 1_000_000) if settings.stamp_arrival else None
    return KafkaPublisher(_publisher_settings(settings, identity.node_id), stamp)

"""What a worker counts, for Prometheus. Labels are roles, topic families, kinds and reasons only: bounded by the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from schemas.findings import Finding
from schemas.remediation import Command
from schemas.results import StepResult

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["WorkerMetrics"]


class WorkerMetrics:
    """Counters of one worker process."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()
        self._role = role
        self._in = Counter("paceline_records_in", "Records processed.", ["role", "family"], registry=self.registry)
        self._late = Counter(
            "paceline_late_records", "Records behind their place.", ["role", "family"], registry=self.registry
        )
        self._dead = Counter("paceline_dead_letters", "Records refused.", ["role", "reason"], registry=self.registry)
        self._findings = Counter("paceline_findings", "Findings published.", ["kind", "state"], registry=self.registry)
        self._commands = Counter("paceline_commands", "Commands published.", ["kind", "mode"], registry=self.registry)
        self._steps = Counter("paceline_steps_closed", "Steps joined and closed.", registry=self.registry)
        self._event_time = Gauge(
            "paceline_event_time_seconds", "Event time of a partition.", ["role", "partition"], registry=self.registry
        )

        labels = ["role", "partition"]
        self._snapshot_bytes = Gauge(
            "paceline_snapshot_bytes", "Packed size of the last snapshot.", labels, registry=self.registry
        )
        self._snapshot_plain_bytes = Gauge(
            "paceline_snapshot_plain_bytes", "Size of the last snapshot unpacked.", labels, registry=self.registry
        )
        self._snapshot_seconds = Gauge(
            "paceline_snapshot_pause_seconds", "How long the last one held the loop.", labels, registry=self.registry
        )
        self._snapshots = Counter("paceline_snapshots", "Whole snapshots written.", labels, registry=self.registry)
        self._restore_seconds = Gauge(
            "paceline_restore_seconds", "How long the last restore took.", labels, registry=self.registry
        )

    def snapshot_taken(self, partition: int, seconds: float) -> None:
        """State was copied out of an engine."""
        self._snapshot_seconds.labels(self._role, str(partition)).set(seconds)

    def snapshot_packed(self, partition: int, plain_bytes: int, packed_bytes: int) -> None:
        """A snapshot is ready to be written."""
        self._snapshot_plain_bytes.labels(self._role, str(partition)).set(plain_bytes)
        self._snapshot_bytes.labels(self._role, str(partition)).set(packed_bytes)

    def snapshot_written(self, partition: int) -> None:
        """A snapshot is whole."""
        self._snapshots.labels(self._role, str(partition)).inc()

    def restored(self, partition: int, seconds: float) -> None:
        """An engine took its state from a snapshot."""
        self._restore_seconds.labels(self._role, str(partition)).set(seconds)

    def serve(self, port: int) -> int:
        """Serve the page; returns the port."""
        server, _ = start_http_server(port, registry=self.registry)
        return int(server.server_port)

    def record_in(self, family: str) -> None:
        """A record was processed."""
        self._in.labels(self._role, family).inc()

    def record_out(self, record: Record) -> None:
        """A record is about to be published."""
        if isinstance(record, Finding):
            self._findings.labels(record.kind, record.state).inc()
        elif isinstance(record, Command):
            self._commands.labels(record.kind, record.mode).inc()
        elif isinstance(record, StepResult):
            self._steps.inc()

    def late(self, family: str) -> None:
        """A record came behind its place."""
        self._late.labels(self._role, family).inc()

    def dead_letter(self, reason: str) -> None:
        """A record was refused."""
        self._dead.labels(self._role, reason).inc()

    def event_time(self, partition: int, time_ns: int) -> None:
        """A partition has reached a time."""
        self._event_time.labels(self._role, str(partition)).set(time_ns / 1e9)

"""What a worker counts, for Prometheus; docs/instrumentation.md lists every metric and the bound of its series.

Labels come from the code, the catalogue or bounded sets; never from the content of a record without a bound. Counting
never fails a record: what goes wrong here is counted itself. The page is served by a thread of its own, so it answers
also while the worker is stuck; it says nothing of whether the worker is well.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from schemas import catalog
from schemas.events import KernelEvent
from schemas.findings import Finding, ProgressMark
from schemas.frames import FabricFrame
from schemas.remediation import Command
from schemas.results import StepResult
from schemas.steps import RankProgress, StepTiming
from streams.faust_roles.job_series import JobSeries
from streams.faust_roles.partition_series import PartitionSeries
from streams.faust_roles.pause_rates import PauseRates

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record
    from streams.core.roster import Roster

__all__ = ["PAGE_TYPE", "UNKNOWN_CODE", "UNTRUSTED_CODE", "WorkerMetrics"]

PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN_CODE = "other"
"""Label of Xid codes that the catalogue does not have."""

UNTRUSTED_CODE = "untrusted"
"""Label of Xid lines that a user process may have written, whatever their code."""

_REASONS = ("invalid_record", "processing_failed")
_LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_FINDINGS_REMEMBERED = 4096

_XID = "nvidia_xid_error_counter"

_log = structlog.get_logger(__name__)


class WorkerMetrics:
    """Counters of one worker process.

    Args:
        role: the worker's role.
        roster: the jobs and the policy that limits are read from; without one, the defaults count.
        clock: seconds since the epoch.
    """

    def __init__(self, role: str, roster: Roster | None = None, clock: Callable[[], float] = time.time) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._role = role
        self._clock = clock
        ProcessCollector(registry=registry)
        self._info = Gauge("paceline_worker_info", "1 for a worker of a role.", ["role", "version"], registry=registry)
        self._info.labels(role, _version()).set(1)
        self._in = Counter("paceline_records_in", "Records processed.", ["role", "family"], registry=registry)
        self._in_of: dict[str, Any] = {}
        self._late = Counter(
            "paceline_late_records", "Records behind their place.", ["role", "family"], registry=registry
        )
        self._repeated = Counter(
            "paceline_repeated_records", "Records that had come before.", ["role"], registry=registry
        )
        self._dead = Counter("paceline_dead_letters", "Records refused.", ["role", "reason"], registry=registry)
        self._failures = Counter("paceline_metrics_failures", "Records not counted for an error.", registry=registry)
        self._findings = Counter("paceline_findings", "Findings published.", ["kind", "state"], registry=registry)
        self._commands = Counter("paceline_commands", "Commands published.", ["kind", "mode"], registry=registry)
        self._steps = Counter("paceline_steps_closed", "Steps joined and closed.", registry=registry)
        self._latency = Histogram(
            "paceline_decision_latency_seconds",
            "From the event time of a command's latest finding to its publication.",
            ["kind"],
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._xids = Counter(
            _XID, "Xid lines of the kernel, each once; 'other' is no known code.", ["code"], registry=registry
        )
        self._snapshots = Counter(
            "paceline_snapshots", "Whole snapshots written.", ["role", "partition"], registry=registry
        )
        self._snapshot_bytes = self._by_partition("paceline_snapshot_bytes", "Packed size of the last snapshot.")
        self._snapshot_plain_bytes = self._by_partition(
            "paceline_snapshot_plain_bytes", "Size of the last snapshot unpacked."
        )
        self._snapshot_seconds = self._by_partition(
            "paceline_snapshot_pause_seconds", "How long the last one held the loop."
        )
        self._restore_seconds = self._by_partition("paceline_restore_seconds", "How long the last restore took.")
        self._partitions = PartitionSeries(role, clock)
        self._jobs = JobSeries(roster, clock)
        self._pauses = PauseRates(clock)
        for collector in (self._partitions, self._jobs, self._pauses):
            registry.register(collector)
        self._repeats_seen: dict[int, int] = {}
        self._finding_times: OrderedDict[str, int] = OrderedDict()
        self._begin_at_zero()

    def _by_partition(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["role", "partition"], registry=self.registry)

    def _begin_at_zero(self) -> None:
        """A counter that is first seen at 1 has not risen for Prometheus: what alerts read is there from the start."""
        for reason in _REASONS:
            self._dead.labels(self._role, reason)
        self._repeated.labels(self._role)
        if self._role == "telemetry":
            for code in (*catalog.xids(), UNKNOWN_CODE, UNTRUSTED_CODE):
                self._xids.labels(str(code))

    # --- Records --------------------------------------------------------------------------------------------------

    def taken(self, topic: str, partition: int, offset: int) -> None:
        """A message has come, good or bad; by it is known what is unread."""
        self._partitions.taken(topic, partition, offset)

    def follow_ends(self, end_of: Callable[[tuple[str, int]], int | None]) -> None:
        """Ask this where a topic's partition ends, as `app.consumer.highwater`, whenever the page is read."""
        self._partitions.end_of = lambda topic, partition: end_of((topic, partition))

    def record_in(
        self, family: str, record: Record | None = None, partition: int | None = None, engine: object | None = None
    ) -> None:
        """A record was processed.

        Args:
            family: its topic's.
            record: the record itself, for what is counted by content.
            partition: where it stood.
            engine: what processed it, just now; its `repeats` and `time_ns` are read where it has them.
        """
        counter = self._in_of.get(family)
        if counter is None:
            counter = self._in_of[family] = self._in.labels(self._role, family)
        counter.inc()
        if record is None or partition is None:
            return
        try:
            self._follow(record, partition, engine)
        except Exception:  # noqa: BLE001 (the record is processed: what is wrong here must not cost its outputs)
            self._failed(record)

    def _follow(self, record: Record, partition: int, engine: object | None) -> None:
        repeated = self._take_repeats(partition, engine)
        time_ns = getattr(engine, "time_ns", None)
        if time_ns:
            self._partitions.reached(partition, time_ns)
        elif isinstance(record, ProgressMark):
            self._partitions.advanced(partition, record.mark_ns)
        if isinstance(record, FabricFrame):
            self._pauses.take(record)
        elif isinstance(record, StepTiming | RankProgress):
            self._jobs.seen(record.job_id, partition)
        elif isinstance(record, KernelEvent):
            if not repeated:
                self._count_xid(record)
        elif isinstance(record, Finding):
            self._finding_times[record.finding_id] = record.event_time_ns
            while len(self._finding_times) > _FINDINGS_REMEMBERED:
                self._finding_times.popitem(last=False)

    def _take_repeats(self, partition: int, engine: object | None) -> int:
        """Repeats since the last record of a partition: of this record, unless the engine is a new one."""
        repeats = getattr(engine, "repeats", None)
        if repeats is None:
            return 0
        # An engine that was made anew, or forgot a job, counts from lower down.
        fresh = max(0, int(repeats) - self._repeats_seen.get(partition, 0))
        self._repeats_seen[partition] = int(repeats)
        if fresh:
            self._repeated.labels(self._role).inc(fresh)
        return fresh

    def _count_xid(self, event: KernelEvent) -> None:
        if event.source != "xid" or event.code is None:
            return
        if not event.trusted:
            code = UNTRUSTED_CODE
        elif catalog.xid(event.code) is None:
            code = UNKNOWN_CODE
        else:
            code = str(event.code)
        self._xids.labels(code).inc(event.repeat_count)

    def record_out(self, record: Record) -> None:
        """A record is about to be published."""
        try:
            if isinstance(record, Finding):
                self._findings.labels(record.kind, record.state).inc()
            elif isinstance(record, Command):
                self._commands.labels(record.kind, record.mode).inc()
                self._latency.labels(record.kind).observe(self._latency_s(record))
            elif isinstance(record, StepResult):
                self._steps.inc()
                self._jobs.take(record)
        except Exception:  # noqa: BLE001 (the record must go out all the same)
            self._failed(record)

    def _latency_s(self, command: Command) -> float:
        known = [at for name in command.cause.findings if (at := self._finding_times.get(name)) is not None]
        return max(0.0, self._clock() - max(known, default=command.decided_at_ns) / 1e9)

    def _failed(self, record: Record) -> None:
        self._failures.inc()
        _log.exception("record could not be counted", record=type(record).__name__)

    def late(self, family: str) -> None:
        """A record came behind its place."""
        self._late.labels(self._role, family).inc()

    def dead_letter(self, reason: str) -> None:
        """A record was refused."""
        self._dead.labels(self._role, reason).inc()

    # --- Partitions and their state ---------------------------------------------------------------------------------

    def event_time(self, partition: int, time_ns: int) -> None:
        """A partition has reached a time."""
        self._partitions.reached(partition, time_ns)

    def snapshot_taken(self, partition: int, seconds: float) -> None:
        """State was copied out of an engine."""
        self._snapshot_seconds.labels(self._role, str(partition)).set(seconds)
        self._partitions.snapshot_due(partition)

    def snapshot_packed(self, partition: int, plain_bytes: int, packed_bytes: int) -> None:
        """A snapshot is ready to be written."""
        self._snapshot_plain_bytes.labels(self._role, str(partition)).set(plain_bytes)
        self._snapshot_bytes.labels(self._role, str(partition)).set(packed_bytes)

    def snapshot_written(self, partition: int) -> None:
        """A snapshot is whole."""
        self._snapshots.labels(self._role, str(partition)).inc()
        self._partitions.snapshot_whole(partition)

    def restored(self, partition: int, seconds: float) -> None:
        """An engine took its state from a snapshot."""
        self._restore_seconds.labels(self._role, str(partition)).set(seconds)
        self._partitions.snapshot_due(partition)

    def forget(self, partitions: set[int]) -> None:
        """The partitions went to another worker: their series, and those of their jobs, end here."""
        self._partitions.forget(partitions)
        self._jobs.forget(partitions)
        for partition in partitions:
            self._repeats_seen.pop(partition, None)
            for gauge in (
                self._snapshot_bytes,
                self._snapshot_plain_bytes,
                self._snapshot_seconds,
                self._restore_seconds,
            ):
                with contextlib.suppress(KeyError):
                    gauge.remove(self._role, str(partition))

    # --- The page ---------------------------------------------------------------------------------------------------

    def page(self) -> bytes:
        """All series in Prometheus' text format.

        The client library appends `_total` to the name of every counter. `nvidia_xid_error_counter` is a name that
        dashboards of the field ask for, so it goes out as it is; the text format allows that, OpenMetrics does not, and
        so it is not offered.
        """
        return generate_latest(self.registry).replace(f"{_XID}_total".encode(), _XID.encode())

    def serve(self, port: int) -> int:
        """Serve the page on all interfaces; returns the port.

        Raises:
            OSError: the port is taken.
        """
        metrics = self

        class Page(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the page is /metrics")
                    return
                body = metrics.page()
                self.send_response(200)
                self.send_header("Content-Type", PAGE_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as http.server names it)
                """A scrape every few seconds is no news."""

        server = ThreadingHTTPServer(("0.0.0.0", port), Page)  # noqa: S104 (Prometheus is on another machine)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return int(server.server_port)


def _version() -> str:
    try:
        return importlib.metadata.version("paceline")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

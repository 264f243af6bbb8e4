"""What the agent counts, for Prometheus; docs/instrumentation.md lists every metric and the bound of its series.

Guarantees: figures are read where they are kept, when the page is asked for, so counting costs nothing in between;
labels are names of sources, topic families and outcomes that the code has, never content of a record, and each has a
bound. The page is served by a thread of its own; `/healthz` beside it says whether the agent's loop still comes around.
Brokers that are away are no reason to be unhealthy. The client library is loaded only where a page is wanted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector as PageSource

from agents.identity import agent_version
from agents.publisher import KafkaPublisher
from agents.publisher_counters import DROP_REASONS, LaneCounters
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from agents.agent import Agent

__all__ = ["MOST_SOURCES", "OTHER", "PAGE_TYPE", "STUCK_S", "AgentMetrics"]

_LOG = logging.getLogger(__name__)

PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STUCK_S = 60.0
"""A loop that has not come around for so long is stuck: twelve heartbeats, and far above any wait within a tick."""

MOST_SOURCES = 64
"""Sources that have series; what is added beyond by other distributions has none."""

OTHER = "other"
"""Label of what has no label of its own."""

_FAMILY_OF = {topic.name: topic.family for topic in TOPICS}
_FAMILIES = tuple(topic.family for topic in TOPICS if topic.role in {"telemetry", "jobs"})
"""What agents publish."""

_OUTCOMES = (
    *("messages", "connections", "bad_message", "overlong_line", "too_many_messages", "too_many_connections"),
    *("refused_uid", "unregistered", "replaced_connection", "internal_error"),
)
_MOST_OUTCOMES = 48

_LANES: tuple[tuple[str, type[CounterMetricFamily | GaugeMetricFamily], str, Callable[[LaneCounters], float]], ...] = (
    ("received_records", CounterMetricFamily, "Records handed to the publisher.", lambda c: c.received),
    ("sent_records", CounterMetricFamily, "Records confirmed by brokers.", lambda c: c.sent),
    ("dead_letter_records", CounterMetricFamily, "Records kept that brokers refused.", lambda c: c.dead_letters),
    ("queued_records", GaugeMetricFamily, "Records in memory on their way.", lambda c: c.queued_records),
    ("spool_records", GaugeMetricFamily, "Records in the spool.", lambda c: c.spool_records),
    ("spool_bytes", GaugeMetricFamily, "Size of the spool's files.", lambda c: c.spool_bytes),
    ("spool_age_seconds", GaugeMetricFamily, "Age of the oldest record there.", lambda c: c.spool_oldest_age_s),
    ("spool_damaged_segments", CounterMetricFamily, "Segments with a damaged part.", lambda c: c.corrupt_segments),
)


class AgentMetrics(PageSource):
    """The page of one agent.

    Args:
        agent: whose figures.
    """

    def __init__(self, agent: Agent) -> None:
        self.registry = CollectorRegistry()
        self._agent = agent
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All series of now."""
        agent = self._agent
        info = GaugeMetricFamily("paceline_agent_info", "1 for an agent.", labels=["version"])
        info.add_metric([agent_version() or "unknown"], 1)
        yield info
        yield CounterMetricFamily("paceline_agent_ticks", "Ticks that ended.", agent.counters["ticks"])
        yield CounterMetricFamily(
            "paceline_agent_bad_frames", "Frames that no record could carry.", agent.counters["bad_frame"]
        )
        yield GaugeMetricFamily("paceline_agent_since_tick_seconds", "Since the last tick ended.", agent.since_tick_s())
        yield from self._of_sources()
        yield from self._of_publisher()
        yield from self._of_trainers()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask for figures to know names."""
        return ()

    def page(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self.registry)

    def serve(self, port: int) -> int:
        """Serve `/metrics` and `/healthz` on all interfaces; returns the port.

        Raises:
            OSError: the port is taken.
        """
        metrics = self

        class Page(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, PAGE_TYPE, metrics.page())
                elif path == "/healthz":
                    idle_s = metrics._agent.since_tick_s()
                    text = f"last tick {idle_s:.1f} s ago\n".encode()
                    self._answer(200 if idle_s < STUCK_S else 503, "text/plain; charset=utf-8", text)
                else:
                    self.send_error(404, "the pages are /metrics and /healthz")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as http.server names it)
                """A scrape every few seconds is no news."""

        server = ThreadingHTTPServer(("0.0.0.0", port), Page)  # noqa: S104 (Prometheus is on another machine)
        server.daemon_threads = True
        # The default asks twice a second whether to shut down; this server ends with its process.
        threading.Thread(target=server.serve_forever, args=(3600.0,), name="metrics", daemon=True).start()
        return int(server.server_port)

    def _of_sources(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("paceline_agent_source_up", "1 for a source that is here.", labels=["source"])
        readings = CounterMetricFamily("paceline_agent_readings", "Readings that gave something.", labels=["source"])
        errors = CounterMetricFamily("paceline_agent_source_errors", "Readings that failed.", labels=["source"])
        late = CounterMetricFamily("paceline_agent_late_readings", "Readings behind the deadline.", labels=["source"])
        seconds = SummaryMetricFamily("paceline_agent_collect_seconds", "How long readings took.", labels=["source"])
        for state in self._agent.source_states()[:MOST_SOURCES]:
            name = [state.name]
            up.add_metric(name, state.state == "here")
            readings.add_metric(name, state.readings)
            errors.add_metric(name, state.failed)
            late.add_metric(name, state.late)
            seconds.add_metric(name, state.readings + state.failed, state.seconds)
        yield from (up, readings, errors, late, seconds)
        malformed = CounterMetricFamily(
            "paceline_agent_malformed_entries", "Entries of a source that could not be read.", labels=["source"]
        )
        lost = 0
        for collector in self._agent.collectors[:MOST_SOURCES]:
            lost += int(getattr(collector, "lost_records", 0))
            if isinstance(count := getattr(collector, "malformed", None), int):
                malformed.add_metric([collector.name], count)
        yield malformed
        yield CounterMetricFamily(
            "paceline_agent_lost_kernel_records", "Kernel records overwritten before they were read.", lost
        )

    def _of_publisher(self) -> Iterator[Metric]:
        publisher = self._agent.publisher
        if not isinstance(publisher, KafkaPublisher):
            return
        now = publisher.counters()
        by_lane = {
            name: (kind(f"paceline_agent_{name}", text, labels=["lane"]), read) for name, kind, text, read in _LANES
        }
        dropped = CounterMetricFamily("paceline_agent_dropped_records", "Records given up.", labels=["lane", "reason"])
        for lane, counters in now.lanes().items():
            for metric, read in by_lane.values():
                metric.add_metric([lane], read(counters))
            for reason in DROP_REASONS:
                dropped.add_metric([lane, reason], counters.dropped.get(reason, 0))
        yield from (metric for metric, _ in by_lane.values())
        yield dropped
        yield GaugeMetricFamily("paceline_agent_has_spool", "1 where records are kept on the disk.", now.has_spool)
        sent = CounterMetricFamily("paceline_agent_topic_records", "Records confirmed by brokers.", labels=["family"])
        delivered = Counter(dict.fromkeys(_FAMILIES, 0))
        for topic, count in publisher.delivered.items():
            delivered[_FAMILY_OF.get(topic, OTHER)] += count
        for family, count in sorted(delivered.items()):
            sent.add_metric([family], count)
        yield sent

    def _of_trainers(self) -> Iterator[Metric]:
        trainers = self._agent.trainer_socket
        yield GaugeMetricFamily(
            "paceline_agent_trainers_connected",
            "Trainers that are connected.",
            trainers.connected if trainers is not None else 0,
        )
        messages = CounterMetricFamily(
            "paceline_agent_trainer_messages", "What trainers sent, and what came of it.", labels=["outcome"]
        )
        counters = dict.fromkeys(_OUTCOMES, 0) | (dict(trainers.counters.copy()) if trainers is not None else {})
        for outcome in list(counters)[:_MOST_OUTCOMES]:
            messages.add_metric([outcome], counters[outcome])
        yield messages

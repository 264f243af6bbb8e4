"""The agent's metrics page, and that docs/instrumentation.md lists exactly what is there."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents import metrics as metrics_module
from agents.agent import Agent
from agents.collectors.base import CollectorError, Readings
from agents.identity import AgentIdentity
from agents.metrics import MOST_SOURCES, PAGE_TYPE, STUCK_S, AgentMetrics
from agents.publisher import KafkaPublisher, PublisherSettings
from agents.publisher_counters import DROP_REASONS
from agents.settings import AgentSettings
from agents.testing import FakeClock, RecordingPublisher, ScriptedCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agents.collectors.base import Collector
    from agents.publisher import Publisher

DOCUMENT = Path(__file__).parents[2] / "docs" / "instrumentation.md"
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")


class Counting(ScriptedCollector):
    """A source that counts as a kernel log does."""

    lost_records = 3
    malformed = 2


class QuietProducer:
    """A Kafka client that is never connected."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.waiting: list[Callable[[Any, Any], None]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(self, topic: str, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, timeout_s: float) -> int:
        for report in self.waiting:
            report(None, None)
        self.waiting.clear()
        return 0

    def flush(self, timeout_s: float) -> int:
        self.poll(0)
        return 0

    def purge(self) -> None: ...

    def close(self) -> None: ...


def agent_of(
    *collectors: Collector, publisher: Publisher | None = None, ticks: Sequence[int] = (1, 2), **settings: Any
) -> Agent:
    agent = Agent(
        AgentSettings(**{"socket": "", "collect_deadline_s": 0.2, **settings}),
        publisher or RecordingPublisher(),
        collectors,
        FakeClock(),
        IDENTITY,
    )
    agent._sources.start()
    for tick in ticks:
        agent.tick(tick * 10**9)
    agent._sources.stop()
    return agent


def series(agent: Agent) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = AgentMetrics(agent).page().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(agent: Agent, name: str, **labels: str) -> float:
    return series(agent)[name, tuple(sorted(labels.items()))]


def test_each_source_tells_whether_it_is_here_and_how_its_readings_went() -> None:
    hang = threading.Event()

    def hanging() -> Readings:
        hang.wait(20)
        return Readings()

    agent = agent_of(
        ScriptedCollector("nvml", [Readings(), CollectorError("away")]),
        ScriptedCollector("nic", [hanging]),
        ScriptedCollector("pcie", [], "no card"),
    )
    found = series(agent)
    hang.set()

    def of(name: str, source: str) -> float:
        return found[name, (("source", source),)]

    assert [of("paceline_agent_source_up", name) for name in ("nvml", "nic", "pcie")] == [1, 0, 0]
    assert [of("paceline_agent_readings_total", name) for name in ("nvml", "nic", "pcie")] == [1, 0, 0]
    assert [of("paceline_agent_source_errors_total", name) for name in ("nvml", "nic", "pcie")] == [1, 0, 0]
    assert [of("paceline_agent_late_readings_total", name) for name in ("nvml", "nic", "pcie")] == [0, 2, 0]
    assert of("paceline_agent_collect_seconds_count", "nvml") == 2
    assert of("paceline_agent_collect_seconds_sum", "nvml") >= 0


def test_what_a_kernel_log_lost_and_could_not_read_is_told() -> None:
    agent = agent_of(Counting("kernel-log", [Readings()]), ScriptedCollector("nic", [Readings()]))
    assert value(agent, "paceline_agent_lost_kernel_records_total") == 3
    assert value(agent, "paceline_agent_malformed_entries_total", source="kernel-log") == 2


def test_ticks_and_bad_frames_are_counted() -> None:
    bad = Readings(gpus=({"gpu_uuid": "G" * 200, "power_w": 1.0},))
    agent = agent_of(ScriptedCollector("nvml", [bad]))
    assert value(agent, "paceline_agent_ticks_total") == 2
    assert value(agent, "paceline_agent_bad_frames_total") == 2
    assert 0 <= value(agent, "paceline_agent_since_tick_seconds") < 60


def kafka_agent() -> Agent:
    publisher = KafkaPublisher(PublisherSettings("localhost:1"), producer_class=QuietProducer)
    agent = agent_of(ScriptedCollector("nvml", [Readings(gpus=({"gpu_uuid": "GPU-1"},))]), publisher=publisher)
    publisher.flush(1)
    return agent


def test_records_are_told_by_lane_and_by_family() -> None:
    agent = kafka_agent()
    assert value(agent, "paceline_agent_received_records_total", lane="bulk") == 2
    assert value(agent, "paceline_agent_sent_records_total", lane="bulk") == 2
    assert value(agent, "paceline_agent_topic_records_total", family="gpu-frames") == 2
    assert value(agent, "paceline_agent_topic_records_total", family="kernel-events") == 0
    assert value(agent, "paceline_agent_has_spool") == 0


def test_every_reason_of_a_drop_is_there_at_zero_before_anything_was_dropped() -> None:
    found = series(kafka_agent())
    for lane in ("critical", "bulk"):
        for reason in DROP_REASONS:
            labels = (("lane", lane), ("reason", reason))
            assert found["paceline_agent_dropped_records_total", labels] == 0


def test_trainers_that_are_connected_and_what_they_sent_are_told(tmp_path: Path) -> None:
    agent = agent_of(socket=str(tmp_path / "t.sock"))
    assert agent.trainer_socket is not None
    agent.trainer_socket.counters["messages"] = 7
    agent.trainer_socket.counters["something_new"] = 1
    assert value(agent, "paceline_agent_trainers_connected") == 0
    assert value(agent, "paceline_agent_trainer_messages_total", outcome="messages") == 7
    assert value(agent, "paceline_agent_trainer_messages_total", outcome="something_new") == 1
    assert value(agent, "paceline_agent_trainer_messages_total", outcome="bad_message") == 0


def test_series_of_sources_are_bounded() -> None:
    agent = agent_of(*(ScriptedCollector(f"s{n}", [], "no") for n in range(MOST_SOURCES + 5)))
    assert sum(name == "paceline_agent_source_up" for name, _ in series(agent)) == MOST_SOURCES


@pytest.fixture
def served() -> tuple[Agent, str]:
    agent = agent_of()
    return agent, f"http://127.0.0.1:{AgentMetrics(agent).serve(0)}"


def test_the_page_is_served_and_nothing_else_is(served: tuple[Agent, str]) -> None:
    _, address = served
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == PAGE_TYPE
        assert b"paceline_agent_ticks_total 2.0" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/", timeout=10)


def test_an_agent_whose_loop_is_stuck_is_unhealthy_and_still_answers(
    served: tuple[Agent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, address = served
    with urllib.request.urlopen(f"{address}/healthz", timeout=10) as answer:
        assert answer.status == 200
    monkeypatch.setattr(type(agent), "since_tick_s", lambda self: STUCK_S + 1)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{address}/healthz", timeout=10)


def test_a_port_that_is_taken_is_an_error(served: tuple[Agent, str]) -> None:
    agent, address = served
    with pytest.raises(OSError, match="in use"):
        AgentMetrics(agent).serve(int(address.rpartition(":")[2]))


# --- The document -------------------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Metrics of the section of the agent: type and labels by name."""
    section = DOCUMENT.read_text().partition("## The agent\n")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `paceline_agent_"):
            found[cells[0].strip("`")] = (cells[1], frozenset(re.findall(r"`(\w+)`", cells[2])))
    return found


def exported() -> dict[str, tuple[str, frozenset[str]]]:
    page = AgentMetrics(kafka_agent()).page().decode()
    found = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("paceline_agent_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = frozenset(label for sample in family.samples for label in sample.labels)
        found[name] = (family.type, labels)
    return found


def test_the_document_lists_exactly_what_an_agent_exports() -> None:
    listed, there = documented(), exported()
    assert set(listed) == set(there)
    for name, (kind, labels) in there.items():
        assert listed[name][0] == kind, name
        # A metric without a series of its own here has no labels to compare.
        assert not labels or listed[name][1] == labels, name


def test_the_document_states_the_bound_of_the_sources() -> None:
    assert f"at most {metrics_module.MOST_SOURCES} sources" in DOCUMENT.read_text()

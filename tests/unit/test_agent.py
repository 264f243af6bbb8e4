"""The agent's loop: ticks, frames, events, heartbeat, and sources that misbehave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import Agent, connect_wait_s, tick_wait_s
from agents.collectors.base import CollectorError, Readings
from agents.identity import AgentIdentity, Sequences, read_boot_id
from agents.process_devices import ProcessDevices
from agents.service_manager import ServiceManager
from agents.settings import AgentSettings
from agents.source_registry import known_sources
from agents.testing import FakeClock, RecordingPublisher, ScriptedCollector
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import FabricFrame, GpuFrame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.collectors.base import Collector

IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
SETTINGS = AgentSettings(socket="", collect_deadline_s=0.5)


def gpus(**columns: Any) -> Readings:
    return Readings(gpus=({"gpu_uuid": "GPU-1", **columns},))


def event(seq: int) -> KernelEvent:
    return KernelEvent(
        node_id="node-1", agent_session="session-1", boot_id="boot-1", kmsg_seq=seq, event_time_ns=1, source="xid"
    )


class Stopping(FakeClock):
    """Stops the agent after so many ticks."""

    def __init__(self, ticks: int) -> None:
        super().__init__()
        self.left = ticks

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if self.left == 0:
            event.set()
        self.left -= 1
        return super().wait(event, timeout_s)


def run(ticks: int, *collectors: Collector, settings: AgentSettings = SETTINGS) -> tuple[RecordingPublisher, Agent]:
    publisher = RecordingPublisher()
    agent = Agent(settings, publisher, collectors, Stopping(ticks), IDENTITY)
    agent.run(threading.Event())
    return publisher, agent


def test_every_tick_gives_one_frame_of_all_sources() -> None:
    publisher, _ = run(
        3,
        ScriptedCollector("nvml", [gpus(power_w=1.0), gpus(power_w=2.0), gpus(power_w=3.0)]),
        ScriptedCollector("dcgm-exporter", [gpus(power_w=99.0, sm_active_ratio=0.5)]),
    )
    frames = publisher.of(GpuFrame)
    assert [frame.power_w for frame in frames] == [(1.0,), (2.0,), (3.0,)]
    assert all(frame.sm_active_ratio == (0.5,) for frame in frames)
    assert [frame.seq for frame in frames] == [0, 1, 2]
    assert {frame.boot_id for frame in frames} == {"boot-1"}
    steps = {b.event_time_ns - a.event_time_ns for a, b in pairwise(frames)}
    assert steps == {1_000_000_000}


def test_ports_become_a_frame_as_the_host_sees_them() -> None:
    port = {"kind": "port", "device": "eth0", "port": None, "counters": {"rx_bytes": 7}}
    publisher, _ = run(1, ScriptedCollector("nic", [Readings(ports=(port,))]))
    (frame,) = publisher.of(FabricFrame)
    assert (frame.view, frame.node_id, frame.device, frame.counters) == (
        "host",
        "node-1",
        ("eth0",),
        {"rx_bytes": (7,)},
    )


def test_start_heartbeats_and_stop_frame_a_run() -> None:
    publisher, _ = run(11, ScriptedCollector("nvml", [gpus(power_w=1.0)]), ScriptedCollector("nic", [], "no card"))
    states = publisher.of(NodeStatus)
    assert [status.state for status in states] == ["start", "heartbeat", "heartbeat", "stop"]
    assert [status.seq for status in states] == [0, 1, 2, 3]
    assert states[1].sources == ("nvml",)
    assert publisher.records[-1] is states[-1]
    assert publisher.closed


def test_kernel_events_come_before_the_frame_of_their_tick() -> None:
    publisher, _ = run(
        2,
        ScriptedCollector("nvml", [gpus(power_w=1.0)]),
        ScriptedCollector("kernel-log", [Readings(events=(event(1), event(2))), Readings()]),
    )
    kinds = [type(record).__name__ for record in publisher.records]
    assert kinds == ["NodeStatus", "KernelEvent", "KernelEvent", "GpuFrame", "GpuFrame", "NodeStatus"]


def test_a_source_that_hangs_delays_no_other_and_is_counted() -> None:
    hang = threading.Event()

    def hanging() -> Readings:
        hang.wait(20)
        return gpus(sm_clock_mhz=1)

    settings = AgentSettings(socket="", collect_deadline_s=0.1)
    start = time.monotonic()
    publisher, agent = run(
        4,
        ScriptedCollector("nvml", [gpus(power_w=1.0, sm_clock_mhz=1980), hanging]),
        ScriptedCollector("dcgm-exporter", [gpus(gpu_temp_c=60)]),
        settings=settings,
    )
    assert time.monotonic() - start < 3
    hang.set()
    frames = publisher.of(GpuFrame)
    assert [frame.sm_clock_mhz for frame in frames] == [(1980,), None, None, None]
    assert all(frame.gpu_temp_c == (60,) for frame in frames)
    assert agent._sources.counters == {"nvml.late": 3}


def test_a_late_reading_is_not_passed_off_as_a_later_ticks_but_its_events_are_kept() -> None:
    release = threading.Event()

    def slow() -> Readings:
        release.wait(20)
        return Readings(gpus=({"gpu_uuid": "GPU-1", "power_w": 7.0},), events=(event(5),))

    publisher = RecordingPublisher()
    source = ScriptedCollector("nvml", [slow, gpus(power_w=8.0)])
    agent = Agent(AgentSettings(socket="", collect_deadline_s=0.1), publisher, [source], FakeClock(), IDENTITY)
    agent._sources.start()
    agent.tick(1)
    release.set()
    assert _eventually(lambda: not agent._sources._sources[0].is_busy)
    agent.tick(2)
    agent._sources.stop()
    assert [frame.power_w for frame in publisher.of(GpuFrame)] == [(8.0,)]
    assert [kernel.kmsg_seq for kernel in publisher.of(KernelEvent)] == [5]


def test_a_source_that_fails_costs_its_own_values(caplog: pytest.LogCaptureFixture) -> None:
    publisher, agent = run(
        3,
        ScriptedCollector("nvml", [CollectorError("NVML is away"), ValueError("a bug"), gpus(power_w=3.0)]),
        ScriptedCollector("dcgm-exporter", [gpus(gpu_temp_c=60)]),
    )
    assert [frame.power_w for frame in publisher.of(GpuFrame)] == [None, None, (3.0,)]
    assert agent._sources.counters == {"nvml.failed": 2}
    assert "NVML is away" in caplog.text


def test_a_missing_source_is_asked_again_after_a_minute() -> None:
    class Coming(ScriptedCollector):
        asked = 0

        def is_supported(self) -> str | None:
            self.asked += 1
            return "not yet" if self.asked == 1 else None

    source = Coming("nvml", [gpus(power_w=1.0)])
    publisher, agent = run(62, source)
    assert source.asked == 2
    assert len(publisher.of(GpuFrame)) == 2
    assert agent._sources.missing == {}


def test_a_reading_that_no_frame_can_carry_costs_that_frame_alone() -> None:
    bad = Readings(gpus=({"gpu_uuid": "G" * 200, "power_w": 1.0},))
    port: dict[str, Any] = {"kind": "port", "device": "eth0", "port": None, "counters": {}}
    publisher, agent = run(1, ScriptedCollector("nvml", [bad]), ScriptedCollector("nic", [Readings(ports=(port,))]))
    assert publisher.of(GpuFrame) == []
    assert len(publisher.of(FabricFrame)) == 1
    assert agent.counters["bad_frame"] == 1


def test_a_socket_that_cannot_be_made_is_said_at_the_start_and_costs_nothing_else(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a socket")
    settings = AgentSettings(socket=str(taken))
    publisher, _ = run(1, ScriptedCollector("nvml", [gpus(power_w=1.0)]), settings=settings)
    start = publisher.of(NodeStatus)[0]
    assert start.note is not None
    assert str(taken) in start.note
    assert taken.read_text() == "not a socket"
    assert len(publisher.of(GpuFrame)) == 1


@given(st.text(min_size=1, max_size=20), st.integers(10, 5000), st.integers(0, 2**62))
def test_ticks_keep_the_nodes_own_phase(node_id: str, period_ms: int, now_ns: int) -> None:
    period_s, period_ns = period_ms / 1000, round(period_ms / 1000 * 1e9)
    waits = [tick_wait_s(node_id, period_s, at) for at in (now_ns, now_ns + 7 * period_ns)]
    assert 0 < waits[0] <= 1.06 * period_s
    assert waits[0] == pytest.approx(waits[1])
    landed = now_ns + round(waits[0] * 1e9)
    again = tick_wait_s(node_id, period_s, landed)
    assert again == pytest.approx(period_s, rel=1e-3)


def test_phases_of_a_fleet_are_spread() -> None:
    phases = sorted(tick_wait_s(f"node-{n}", 1.0, 0) % 1.0 for n in range(1000))
    gaps = [b - a for a, b in pairwise(phases)]
    assert max(gaps) < 0.02


def test_numbers_are_taken_once_each_by_several_threads() -> None:
    sequences = Sequences()
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.extend(sequences.take("a") for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(2000))
    assert sequences.take("b") == 0


def test_two_runs_of_one_agent_have_different_sessions_and_one_boot(tmp_path: Path) -> None:
    one, other = (AgentIdentity.of_this_run("n", 5_000_000) for _ in range(2))
    assert one.agent_session != other.agent_session
    assert one.boot_id == other.boot_id
    assert read_boot_id(tmp_path / "none") == "unknown"


def test_a_hung_driver_does_not_hold_up_who_asks_for_a_process() -> None:
    hang = threading.Event()
    answers = ProcessDevices(lambda pid: {"uuid": f"GPU-{pid}"} if hang.wait(20) else None)
    start = time.monotonic()
    assert answers(7) is None
    assert time.monotonic() - start < 1
    hang.set()
    assert _eventually(lambda: answers(7) == {"uuid": "GPU-7"})


def test_every_source_has_a_collector_that_says_in_one_line_whether_it_is_here() -> None:
    settings = AgentSettings(state_dir="")
    for source in known_sources():
        collector = source.collector_class.from_settings(settings, IDENTITY)
        assert collector.name == source.name
        reason = collector.is_supported()
        assert reason is None or "\n" not in reason


def test_a_source_that_hangs_does_not_keep_the_heartbeat() -> None:
    hang = threading.Event()

    def hanging() -> Readings:
        hang.wait(20)
        return Readings()

    hung = [ScriptedCollector(f"hung-{n}", [hanging]) for n in range(3)]
    publisher, agent = run(11, *hung, settings=AgentSettings(socket="", collect_deadline_s=0.05))
    hang.set()
    assert [status.state for status in publisher.of(NodeStatus)] == ["start", "heartbeat", "heartbeat", "stop"]
    assert {state.late for state in agent.source_states()} == {11}


def test_a_tick_that_comes_a_moment_early_does_not_put_the_heartbeat_off() -> None:
    agent = Agent(SETTINGS, publisher := RecordingPublisher(), [], FakeClock(), IDENTITY)
    early_ns = 3_000_000
    for tick in range(1, 601):
        agent.tick(tick * 10**9 - early_ns * (tick % 2))
    heartbeats = [status.event_time_ns for status in publisher.of(NodeStatus)]
    assert len(heartbeats) == 120
    assert max(b - a for a, b in pairwise(heartbeats)) < 5.1e9


def test_a_source_that_never_says_whether_it_is_here_is_late_and_delays_nobody() -> None:
    hang = threading.Event()

    class Hanging(ScriptedCollector):
        def is_supported(self) -> str | None:
            hang.wait(20)
            return None

    settings = AgentSettings(socket="", collect_deadline_s=0.05)
    publisher, agent = run(3, Hanging("nvml", []), ScriptedCollector("nic", [gpus(power_w=1.0)]), settings=settings)
    hang.set()
    assert len(publisher.of(GpuFrame)) == 3
    assert [(state.name, state.state) for state in agent.source_states()] == [("nvml", "asked"), ("nic", "here")]


def test_a_missing_source_wakes_nobody_until_it_is_looked_for_again() -> None:
    class Missing(ScriptedCollector):
        asked = 0

        def is_supported(self) -> str | None:
            self.asked += 1
            return "no such card: buy one"

    source = Missing("nvml", [])
    _, agent = run(59, source)
    assert source.asked == 1
    (state,) = agent.source_states()
    assert (state.state, state.reason, state.failed, state.late) == ("missing", "no such card: buy one", 0, 0)


def test_a_source_that_fails_when_asked_whether_it_is_here_is_missing_for_that_reason() -> None:
    class Broken(ScriptedCollector):
        def is_supported(self) -> str | None:
            raise OSError("the bus is on fire")

    _, agent = run(2, Broken("nvml", []))
    assert agent._sources.missing == {"nvml": "OSError: the bus is on fire"}


def test_finished_records_of_a_source_are_published_as_they_are_also_when_they_come_late() -> None:
    release = threading.Event()
    frame = FabricFrame(
        view="switch",
        switch_id="leaf-1",
        agent_session="s",
        seq=0,
        event_time_ns=1,
        device=(None,),
        port=("Ethernet0",),
    )

    def slow() -> Readings:
        release.wait(20)
        return Readings(records=(frame,))

    publisher = RecordingPublisher()
    source = ScriptedCollector("sonic", [slow, Readings(records=(frame,))])
    agent = Agent(AgentSettings(socket="", collect_deadline_s=0.1), publisher, [source], FakeClock(), IDENTITY)
    agent._sources.start()
    agent.tick(1)
    assert publisher.of(FabricFrame) == []
    release.set()
    assert _eventually(lambda: not agent._sources._sources[0].is_busy)
    agent.tick(2)
    agent._sources.stop()
    assert publisher.of(FabricFrame) == [frame, frame]


def test_a_place_is_kept_at_once_with_events_and_else_now_and_then_and_at_the_stop() -> None:
    kept: list[object] = []

    class Keeping(ScriptedCollector):
        def acknowledge(self, cursor: object) -> None:
            kept.append(cursor)

    readings = [Readings(cursor=0), Readings(cursor=1), Readings(events=(event(1),), cursor=2), Readings(cursor=3)]
    agent = Agent(SETTINGS, RecordingPublisher(), [Keeping("kernel-log", readings)], FakeClock(), IDENTITY)
    agent._sources.start()
    for tick in range(4):
        agent.tick(tick + 1)
        assert _eventually(lambda: 2 in kept) if tick == 2 else True
    agent._sources.stop()
    assert _eventually(lambda: kept == [0, 2, 3]), kept


def test_a_heartbeat_tells_the_load_of_the_host() -> None:
    load = {"observed_ns": 5, "cpu_count": 8, "load_1min": 0.5}
    publisher, agent = run(6, ScriptedCollector("host", [Readings(host=load)]))
    start, heartbeat, *_ = publisher.of(NodeStatus)
    assert start.host is None
    assert heartbeat.host is not None
    assert (heartbeat.host.cpu_count, heartbeat.host.load_1min) == (8, 0.5)
    assert agent.counters["bad_frame"] == 0


def test_a_load_that_no_heartbeat_can_carry_costs_itself_alone() -> None:
    publisher, agent = run(6, ScriptedCollector("host", [Readings(host={"observed_ns": 5, "cpu_busy_ratio": 7})]))
    assert [status.host for status in publisher.of(NodeStatus)] == [None, None, None]
    assert agent.counters["bad_frame"] == 6


def test_the_log_has_a_line_for_each_source_and_one_for_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run(3, ScriptedCollector("nvml", [], "NVML finds no GPU"), ScriptedCollector("nic", [gpus(power_w=1.0)]))
    lines = [record.getMessage() for record in caplog.records if "source" in record.getMessage()]
    assert sorted(lines[:2]) == ["source nic: here", "source nvml: not here: NVML finds no GPU"]
    assert lines[2:] == ["node node-1: 1 of 2 sources are here: nic; not here: nvml"]


def test_a_fleet_that_starts_at_once_connects_over_the_whole_spread() -> None:
    waits = sorted(connect_wait_s(f"node-{n}", 5.0) for n in range(1000))
    assert waits == sorted(connect_wait_s(f"node-{n}", 5.0) for n in range(1000))
    assert 0 <= waits[0] < 0.1
    assert 4.9 < waits[-1] < 5.0
    assert max(b - a for a, b in pairwise(waits)) < 0.1
    assert connect_wait_s("node-1", 0.0) == 0.0


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_a_service_manager_hears_of_the_start_and_of_every_tick(tmp_path: Path, form: str) -> None:
    address = str(tmp_path / "notify") if form == "path" else f"@paceline-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0"))
        manager.settimeout(5)
        agent = Agent(SETTINGS, RecordingPublisher(), [], Stopping(2), IDENTITY, ServiceManager(address))
        agent.run(threading.Event())
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_service_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "none")).alive()
    ServiceManager("").ready()


def test_sigterm_ends_an_agent_that_cannot_reach_its_brokers(tmp_path: Path) -> None:
    code = (
        "import logging, sys; logging.basicConfig(level='ERROR')\n"
        "from agents.agent import run_agent\n"
        "from agents.settings import load\n"
        "sys.exit(run_agent(load(None, {'bootstrap_servers': '127.0.0.1:9', 'drain_s': 0.5, 'connect_spread_s': 0,"
        " 'socket': sys.argv[1], 'sources': ['kernel-log'], 'kernel_log': sys.argv[2], 'state_dir': ''})))"
    )
    log = tmp_path / "kern.log"
    log.write_text("[ 1.0] NVRM: Xid (PCI:0000:1a:00): 79, gone\n")
    path = tmp_path / "t.sock"
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(log)], stderr=subprocess.PIPE)
    try:
        assert _eventually(path.exists, 20)
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"Traceback" not in errors
    assert not path.exists()


def _eventually(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_sigterm_ends_an_agent_that_still_waits_to_connect(tmp_path: Path) -> None:
    code = (
        "import sys; from agents.agent import run_agent; from agents.settings import load\n"
        "print('up', flush=True)\n"
        "sys.exit(run_agent(load(None, {'node_id': 'node-1', 'connect_spread_s': 3600, 'sources': []})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, errors

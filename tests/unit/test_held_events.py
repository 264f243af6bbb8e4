"""Kernel events that the publisher has no room for: they are held, and no crash at any moment loses one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from agents.agent import Agent
from agents.collectors.base import Readings
from agents.collectors.kernel_log import KernelLogCollector
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeClock, FakeKmsg, RecordingPublisher, ScriptedCollector
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import GpuFrame

if TYPE_CHECKING:
    from pathlib import Path

    from agents.collectors.base import Collector

IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
SETTINGS = AgentSettings(socket="", collect_deadline_s=0.5)
BOOT_NS = 1_600_000_000 * 10**9


def event(seq: int) -> KernelEvent:
    return KernelEvent(
        node_id="node-1", agent_session="session-1", boot_id="boot-1", kmsg_seq=seq, event_time_ns=1, source="xid"
    )


class Room(RecordingPublisher):
    """Has room for so many kernel events."""

    def __init__(self, room: int) -> None:
        super().__init__(lambda record: isinstance(record, KernelEvent) and len(self.of(KernelEvent)) >= self.room)
        self.room = room

    @property
    def numbers(self) -> list[int]:
        return [event.kmsg_seq for event in self.of(KernelEvent)]


class Keeping(ScriptedCollector):
    """Notes the places that it was told to keep."""

    def __init__(self, name: str, script: list[Any]) -> None:
        super().__init__(name, script)
        self.kept: list[object] = []

    def acknowledge(self, cursor: object) -> None:
        self.kept.append(cursor)


def started(publisher: Room, *collectors: Collector) -> Agent:
    agent = Agent(SETTINGS, publisher, collectors, FakeClock(), IDENTITY)
    agent._sources.start()
    return agent


def kept_at_the_end(agent: Agent, collector: Keeping) -> list[object]:
    agent._sources.stop()
    agent._sources._sources[0].join(5)
    return collector.kept


def test_events_without_room_are_held_and_handed_on_in_order_when_there_is_room() -> None:
    publisher = Room(1)
    log = Keeping("kernel-log", [Readings(events=(event(1), event(2), event(3)), cursor=3), Readings()])
    agent = started(publisher, log)
    agent.tick(1)
    assert publisher.numbers == [1]
    publisher.room = 2
    agent.tick(2)
    assert publisher.numbers == [1, 2]
    publisher.room = 10
    agent.tick(3)
    assert publisher.numbers == [1, 2, 3]
    assert publisher.dropped == 0
    assert kept_at_the_end(agent, log) == [3]


def test_a_place_is_not_kept_while_what_was_read_before_it_is_held() -> None:
    publisher = Room(0)
    log = Keeping("kernel-log", [Readings(events=(event(1),), cursor=1)])
    agent = started(publisher, log)
    for tick in range(4):
        agent.tick(tick + 1)
    assert kept_at_the_end(agent, log) == []


def test_a_source_whose_events_are_held_is_not_read_on_and_the_others_are() -> None:
    publisher = Room(0)
    log = Keeping("kernel-log", [Readings(events=(event(n),), cursor=n) for n in range(1, 9)])
    gpus = ScriptedCollector("nvml", [Readings(gpus=({"gpu_uuid": "GPU-1", "power_w": 1.0},))])
    agent = started(publisher, log, gpus)
    for tick in range(5):
        agent.tick(tick + 1)
    assert (log.calls, gpus.calls) == (1, 5)
    assert len(publisher.of(GpuFrame)) == 5
    publisher.room = 100
    for tick in range(5, 8):
        agent.tick(tick + 1)
    assert publisher.numbers == [1, 2, 3]
    assert kept_at_the_end(agent, log)[-1] == 3


def test_another_source_of_events_keeps_its_place_when_it_gave_none() -> None:
    publisher = Room(0)
    full = Keeping("kernel-log", [Readings(events=(event(1),), cursor=1)])
    quiet = Keeping("fabric-manager-log", [Readings(cursor=7)])
    agent = started(publisher, full, quiet)
    agent.tick(1)
    agent._sources.stop()
    for source in agent._sources._sources:
        source.join(5)
    assert (full.kept, quiet.kept) == ([], [7])


def test_events_that_come_late_wait_behind_those_that_are_held() -> None:
    release = threading.Event()
    answered = threading.Event()

    def slow() -> Readings:
        release.wait(20)
        answered.set()
        return Readings(events=(event(2),), cursor=2)

    publisher = Room(0)
    log = Keeping("kernel-log", [slow, Readings()])
    other = Keeping("fabric-manager-log", [Readings(events=(event(1),), cursor=1), Readings()])
    agent = Agent(AgentSettings(socket="", collect_deadline_s=0.1), publisher, [log, other], FakeClock(), IDENTITY)
    agent._sources.start()
    agent.tick(1)
    release.set()
    assert answered.wait(5)
    agent.tick(2)
    publisher.room = 9
    agent.tick(3)
    agent.tick(4)
    agent._sources.stop()
    assert publisher.numbers == [1, 2]


@pytest.mark.parametrize("room", range(8))
def test_a_crash_with_events_held_loses_none_of_the_kernels_lines(tmp_path: Path, room: int) -> None:
    ring = FakeKmsg()
    lines = 7
    for n in range(lines):
        ring.write(f"NVRM: Xid (PCI:0000:{n:02x}:00): 79, pid=7, name=python3, GPU has fallen off the bus.")

    def run(publisher: Room) -> None:
        """One run that ends without a word."""
        log = KernelLogCollector(
            "/dev/kmsg", IDENTITY, boot_time_ns=lambda: BOOT_NS, state_dir=str(tmp_path), open_log=ring.open
        )
        agent = started(publisher, log)
        for tick in range(3):
            agent.tick(BOOT_NS + 10**15 + tick)
        agent._sources.stop()
        agent._sources._sources[0].join(5)

    first, second = Room(room), Room(100)
    run(first)
    run(second)
    assert sorted({*first.numbers, *second.numbers}) == list(range(lines))
    assert second.numbers == ([] if room >= lines else list(range(lines)))


def test_a_stop_offers_what_is_held_once_more_and_says_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    class Stopping(FakeClock):
        ticks = 0

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.ticks += 1
            if self.ticks == 3:
                publisher.room = 1
                event.set()
            return super().wait(event, timeout_s)

    publisher = Room(0)
    log = Keeping("kernel-log", [Readings(events=(event(1), event(2)), cursor=2)])
    agent = Agent(SETTINGS, publisher, [log], Stopping(), IDENTITY)
    agent.run(threading.Event())
    assert publisher.numbers == [1]
    assert log.kept == []
    assert publisher.of(NodeStatus)[-1].state == "stop"
    assert "no room for 2 kernel events: they are held, and kernel-log is not read on" in caplog.text
    assert "1 kernel events found no room; the next start reads them again" in caplog.text

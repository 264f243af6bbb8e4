"""The machine's own `/dev/kmsg`: what a process writes there is read over a restart, is not trusted, and nothing acts on it."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.collectors.kernel_log import KernelLogCollector
from agents.identity import AgentIdentity, read_boot_id
from schemas.findings import Finding
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.events import KernelEvent

KMSG = Path("/dev/kmsg")
FATAL = (
    "NVRM: Xid (PCI:0000:fe:1f): 79, pid=1, name={name}, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:fe:1f): 48, pid=1, name={name}, An uncorrectable double bit error (DBE) has been detected",
    "nvidia-nvswitch9: SXid (PCI:0000:fe:1e.0): 20034, Fatal, Link 48 {name}",
    "mlx5_core 0000:fe:1d.0: poll_health:825:(pid 0): Fatal error 1 detected {name}",
    "pcieport 0000:fe:1c.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID) {name}",
)


@pytest.fixture
def say() -> Callable[[str], None]:
    """Writes a line to the kernel's log, as any process of root can."""
    try:
        descriptor = os.open(KMSG, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"needs_kmsg: {KMSG} cannot be opened for reading and writing: {error.strerror}")
    probe = f"paceline test {uuid.uuid4().hex}"
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, f"{probe}\n".encode())
        if not _gives(descriptor, probe.encode()):
            pytest.skip(f"needs_kmsg: {KMSG} does not give back what is written to it")
    except OSError as error:
        pytest.skip(f"needs_kmsg: {KMSG} refuses to be written: {error.strerror}")
    finally:
        os.close(descriptor)

    def write(line: str) -> None:
        with KMSG.open("w") as stream:
            stream.write(f"{line}\n")  # without its end the kernel waits for more of it

    return write


def _gives(descriptor: int, text: bytes) -> bool:
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            if text in os.read(descriptor, 8192):
                return True
        except BlockingIOError:
            time.sleep(0.01)
    return False


def _start(state_dir: Path) -> KernelLogCollector:
    identity = AgentIdentity("node-1", read_boot_id(), uuid.uuid4().hex)
    return KernelLogCollector(KMSG, identity, state_dir=str(state_dir))


def _take(collector: KernelLogCollector, name: str) -> list[KernelEvent]:
    events: list[KernelEvent] = []
    quiet = 0
    while quiet < 2:
        reading = collector.collect(time.time_ns())
        if reading.cursor is not None:
            collector.acknowledge(reading.cursor)
        events += reading.events
        quiet = 0 if reading.events or reading.cursor is not None else quiet + 1
    return [event for event in events if name in event.raw]


def test_what_a_process_writes_is_read_once_over_a_restart_and_never_trusted(
    say: Callable[[str], None], tmp_path: Path
) -> None:
    name = f"p{uuid.uuid4().hex[:8]}"
    collector = _start(tmp_path)
    assert collector.is_supported() is None
    _take(collector, name)  # what the machine's log holds
    for line in FATAL[:2]:
        say(line.format(name=name))
    first = _take(collector, name)
    for line in FATAL[2:]:
        say(line.format(name=name))  # while no agent runs
    restarted = _start(tmp_path)
    second = _take(restarted, name)
    assert [(event.source, event.code) for event in first] == [("xid", 79), ("xid", 48)]
    assert [(event.source, event.code) for event in second] == [("sxid", 20034), ("nic", None), ("aer", None)]
    assert _take(_start(tmp_path), name) == []
    assert not any(event.trusted for event in (*first, *second))
    numbers = [event.kmsg_seq for event in (*first, *second)]
    assert numbers == sorted(set(numbers))
    assert all(abs(event.event_time_ns - time.time_ns()) < 120 * 10**9 for event in (*first, *second))
    assert collector.lost_records == restarted.lost_records == 0


def test_a_forged_fatal_line_leads_to_nothing_that_acts(say: Callable[[str], None], tmp_path: Path) -> None:
    name = f"p{uuid.uuid4().hex[:8]}"
    collector = _start(tmp_path)
    _take(collector, name)
    for line in FATAL:
        for _ in range(12):
            say(line.format(name=name))
    events = _take(collector, name)
    assert sum(event.repeat_count for event in events) == 12 * len(FATAL)
    engine = TelemetryEngine("site-1", 0, Roster())
    outputs = [
        output
        for offset, event in enumerate(events)
        for output in engine.on_record(
            event, Position("paceline.kernel-events.v1", 0, offset, event.event_time_ns // 1_000_000)
        )
    ]
    findings = [output for output in [*outputs, *engine.flush()] if isinstance(output, Finding)]
    assert {(finding.kind, finding.severity, finding.urgent) for finding in findings} == {
        ("xid", "info", False),
        ("sxid", "info", False),
    }
    assert all(finding.values["trusted"] is False for finding in findings)

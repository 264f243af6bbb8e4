"""The journald collector, against a program that prints what journalctl would."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from agents.collectors.base import CollectorError
from agents.collectors.journald import JournaldCollector
from agents.identity import AgentIdentity
from agents.settings import AgentSettings, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.events import KernelEvent

BOOT_NS = 1_700_000_000 * 10**9
NOW_NS = BOOT_NS + 10_000 * 10**9

PROGRAM = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "arguments").open("a").write(" ".join(sys.argv[2:]) + "\\n")
if (folder / "fails").exists():
    print("Failed to seek to cursor: Invalid argument", file=sys.stderr)
    raise SystemExit(1)
after = next((a.partition("=")[2] for a in sys.argv if a.startswith("--after-cursor=")), None)
given = after is None
at = 0
while not (folder / "ends").exists():
    with (folder / "journal").open() as stream:
        stream.seek(at)
        for line in iter(stream.readline, ""):
            at = stream.tell()
            if given:
                print(line, end="", flush=True)
            given = given or f'"__CURSOR": "{after}"' in line
    time.sleep(0.01)
"""


class Journal:
    """A journal in a folder, and collectors that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.made: list[JournaldCollector] = []
        (folder / "program.py").write_text(PROGRAM)
        (folder / "journal").touch()

    def write(self, message: Any, **fields: Any) -> None:
        entry = {
            "__CURSOR": f"s=1f;i={self.count};b=2e;m=3d",
            "__REALTIME_TIMESTAMP": str(BOOT_NS // 1000 + self.count),
            "_TRANSPORT": "kernel",
            "SYSLOG_FACILITY": "0",
            "MESSAGE": message,
            **fields,
        }
        self.count += 1
        with (self.folder / "journal").open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def start(self, boot_id: str = "boot-1", **how: Any) -> JournaldCollector:
        command = (sys.executable, str(self.folder / "program.py"), str(self.folder))
        collector = JournaldCollector(
            command,
            AgentIdentity("node-1", boot_id, "session-1"),
            boot_time_ns=lambda: BOOT_NS,
            state_dir=str(self.folder / "state"),
            **how,
        )
        self.made.append(collector)
        return collector

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().splitlines()


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    made = Journal(tmp_path)
    yield made
    for collector in made.made:
        collector.close()


def take(collector: JournaldCollector, count: int) -> list[KernelEvent]:
    """Events until there are so many, or five seconds are over; then a moment more, for those too many."""
    events: list[KernelEvent] = []
    deadline = time.monotonic() + 5
    while len(events) < count and time.monotonic() < deadline:
        reading = collector.collect(NOW_NS)
        events += reading.events
        if reading.cursor is not None:
            collector.acknowledge(reading.cursor)
        time.sleep(0.01)
    return [*events, *collector.collect(NOW_NS).events]


def xid(code: int) -> str:
    return f"NVRM: Xid (PCI:0000:1a:00): {code}, pid=77, name=python3, Ch 00000008"


def test_entries_of_the_kernel_become_events_and_others_do_not(journal: Journal) -> None:
    journal.write(xid(31))
    journal.write(xid(79), _TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel")
    journal.write(None)
    journal.write([ord(letter) for letter in xid(43)])
    journal.write(xid(94), SYSLOG_FACILITY="1")
    found = take(journal.start(), 3)
    assert [(event.code, event.trusted) for event in found] == [(31, True), (43, True), (94, False)]
    assert found[0].event_time_ns == BOOT_NS
    assert journal.arguments == ["--dmesg --output=json --follow --no-pager --quiet --no-tail"]


def test_a_restart_goes_on_behind_the_last_entry(journal: Journal) -> None:
    journal.write(xid(31))
    first = journal.start()
    assert len(take(first, 1)) == 1
    journal.write(xid(43))
    assert [event.code for event in take(first, 1)] == [43]
    first.close()
    journal.write(xid(94))
    assert [event.code for event in take(journal.start(), 1)] == [94]
    assert journal.arguments[-1].endswith("--after-cursor=s=1f;i=1;b=2e;m=3d")


def test_a_cursor_of_another_boot_is_not_gone_by(journal: Journal) -> None:
    journal.write(xid(31))
    first = journal.start()
    take(first, 1)
    first.close()
    assert len(take(journal.start("boot-2"), 1)) == 1
    assert "--after-cursor" not in journal.arguments[-1]


def test_what_is_in_the_journal_can_be_left_out(journal: Journal) -> None:
    journal.start(from_start=False).collect(NOW_NS)
    deadline = time.monotonic() + 5
    while not (journal.folder / "arguments").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert journal.arguments[-1].endswith("--lines=0")


def test_a_program_that_ends_is_an_error_of_one_line_and_is_run_again(journal: Journal) -> None:
    collector = journal.start()
    journal.write(xid(31))
    take(collector, 1)
    (journal.folder / "ends").touch()
    with pytest.raises(CollectorError, match="ended with status 0"):
        _until_error(collector, NOW_NS)
    assert collector.collect(NOW_NS + 10**9).events == ()
    (journal.folder / "ends").unlink()
    journal.write(xid(43))
    deadline = time.monotonic() + 5
    found: list[KernelEvent] = []
    while not found and time.monotonic() < deadline:
        found += collector.collect(NOW_NS + 11 * 10**9).events
        time.sleep(0.01)
    assert [event.code for event in found] == [43]


def test_a_cursor_that_the_journal_refuses_is_forgotten(journal: Journal) -> None:
    journal.write(xid(31))
    first = journal.start()
    take(first, 1)
    first.close()
    (journal.folder / "fails").touch()
    second = journal.start()
    with pytest.raises(CollectorError, match="Failed to seek to cursor"):
        _until_error(second, NOW_NS)
    (journal.folder / "fails").unlink()
    deadline = time.monotonic() + 5
    found: list[KernelEvent] = []
    while not found and time.monotonic() < deadline:
        found += second.collect(NOW_NS + 11 * 10**9).events
        time.sleep(0.01)
    assert [event.code for event in found] == [31]
    assert "--after-cursor" not in journal.arguments[-1]


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    collector = JournaldCollector((str(tmp_path / "none"),), AgentIdentity("node-1", "boot-1", "session-1"))
    assert "not on PATH" in str(collector.is_supported())
    with pytest.raises(CollectorError, match="cannot be run"):
        collector.collect(NOW_NS)


def test_the_same_lines_are_not_read_twice() -> None:
    with pytest.raises(SettingsError, match="carry the same lines"):
        AgentSettings(sources=("auto", "journald"))
    AgentSettings(sources=("auto", "journald"), disable=("kernel-log",))
    AgentSettings(sources=("journald", "nvml"))


def _until_error(collector: JournaldCollector, now_ns: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        collector.collect(now_ns)
        time.sleep(0.01)

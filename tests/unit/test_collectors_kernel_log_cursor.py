"""Places in logs over restarts: nothing lost, nothing given twice, and what the kernel overwrote is counted."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.agent import Agent
from agents.collectors.kernel_log import KernelLogCollector
from agents.collectors.log_cursor import CursorFile, KmsgPlace, LogCursor
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeClock, FakeKmsg, RecordingPublisher
from schemas.events import KernelEvent

if TYPE_CHECKING:
    from pathlib import Path

BOOT_NS = 1_700_000_000 * 10**9
NOW_NS = BOOT_NS + 10_000 * 10**9
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")


def xid(code: int, bus: str = "1a") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=77, name=python3, Ch 00000008"


class Runs:
    """Runs of an agent's collector on one log, one after the other."""

    def __init__(self, state_dir: Path, path: Path | str = "/dev/kmsg", ring: FakeKmsg | None = None) -> None:
        self.state_dir = state_dir
        self.path = path
        self.ring = ring

    def start(self, boot_id: str = "boot-1", **how: Any) -> KernelLogCollector:
        how = {"open_log": self.ring.open if self.ring is not None else None, "state_dir": str(self.state_dir)} | how
        return KernelLogCollector(
            self.path, AgentIdentity("node-1", boot_id, "session-1"), boot_time_ns=lambda: BOOT_NS, **how
        )


def take(collector: KernelLogCollector, *, acknowledge: bool = True) -> list[KernelEvent]:
    """All that the log has, taken to be handed on unless told otherwise."""
    events: list[KernelEvent] = []
    quiet = 0
    while quiet < 2:  # what is held back comes when the log pauses
        reading = collector.collect(NOW_NS)
        events += reading.events
        if acknowledge and reading.cursor is not None:
            collector.acknowledge(reading.cursor)
        quiet = 0 if reading.events or reading.cursor is not None else quiet + 1
    return events


def codes(events: list[KernelEvent]) -> list[int | None]:
    return [event.code for event in events]


# --- The kernel's ring --------------------------------------------------------------------------------------------


def test_the_ring_is_read_once_a_boot_and_on_from_there_after_a_restart(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))  # before the agent started
    ring.write("eth0: link becomes ready", priority=6, properties={"SUBSYSTEM": "net", "DEVICE": "+net:eth0"})
    first = runs.start()
    assert codes(take(first)) == [31]
    ring.write(xid(43))
    assert codes(take(first)) == [43]
    ring.write(xid(94))  # while no agent runs
    second = runs.start()
    assert codes(take(second)) == [94]
    assert codes(take(runs.start())) == []
    assert second.lost_records == 0


def test_events_that_were_not_handed_on_come_again_under_the_same_numbers(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))
    take(runs.start())
    ring.write(xid(43))
    ring.write(xid(94))
    before = take(runs.start(), acknowledge=False)
    after = take(runs.start())
    assert codes(before) == [43, 94]
    assert [event.kmsg_seq for event in after] == [event.kmsg_seq for event in before]


def test_a_cursor_of_another_boot_is_ignored(tmp_path: Path) -> None:
    ring = FakeKmsg()
    ring.write(xid(31))
    ring.write(xid(43))
    take(Runs(tmp_path, ring=ring).start())
    fresh = FakeKmsg()
    fresh.write(xid(94))
    assert codes(take(Runs(tmp_path, ring=fresh).start("boot-2"))) == [94]


def test_overwritten_records_are_counted_by_the_gap_in_their_numbers(tmp_path: Path) -> None:
    ring = FakeKmsg(capacity=10)
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))
    collector = runs.start()
    take(collector)
    for _ in range(25):
        ring.write(xid(43))
    found = take(collector)
    assert sum(event.repeat_count for event in found) == 10
    assert collector.lost_records == 15


def test_what_was_overwritten_while_no_agent_ran_is_counted_too(tmp_path: Path) -> None:
    ring = FakeKmsg(capacity=5)
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))
    take(runs.start())
    for _ in range(12):
        ring.write(xid(43))
    later = runs.start()
    assert len(take(later)) == 5
    assert later.lost_records == 7


def test_what_was_overwritten_before_the_first_agent_is_not_lost_by_it(tmp_path: Path) -> None:
    ring = FakeKmsg(capacity=5)
    for _ in range(9):
        ring.write(xid(43))
    collector = Runs(tmp_path, ring=ring).start()
    assert len(take(collector)) == 5
    assert collector.lost_records == 0


def test_a_gpu_that_was_named_before_the_restart_is_still_known_after_it(tmp_path: Path) -> None:
    ring = FakeKmsg(capacity=2)
    runs = Runs(tmp_path, ring=ring)
    ring.write("NVRM: GPU at PCI:0000:1a:00: GPU-00000000-1111-2222-3333-444444444444")
    take(runs.start())
    for code in (31, 43):  # the naming line is overwritten
        ring.write(xid(code))
    assert {event.gpu_uuid for event in take(runs.start())} == {"GPU-00000000-1111-2222-3333-444444444444"}


def test_a_restart_in_the_middle_of_a_burst_does_not_begin_it_anew(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    for _ in range(15):
        ring.write(xid(31), time_us=5_000_000)
    assert len(take(runs.start())) == 11
    for _ in range(15):
        ring.write(xid(31), time_us=5_000_001)
    (folded,) = take(runs.start())
    assert folded.repeat_count == 15


def test_nothing_is_kept_while_a_line_is_held_back(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))
    take(runs.start())
    ring.write("NVRM: The NVIDIA GPU 0000:b3:00.0")
    ring.write("NVRM: (PCI ID: 10de:26b5) installed in this system has")
    half = runs.start().collect(NOW_NS)
    assert (half.events, half.cursor) == ((), None)
    ring.write("NVRM: fallen off the bus and is not responding to commands.")
    (lost,) = take(runs.start())
    assert (lost.code, lost.inferred, lost.pci_bus_id) == (79, True, "0000:b3:00")
    assert lost.raw.count("\n") == 2


def test_without_a_state_directory_every_start_reads_the_ring_again(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    ring.write(xid(31))
    for _ in range(2):
        reading = runs.start(state_dir="").collect(NOW_NS)
        assert (codes(list(reading.events)), reading.cursor) == ([31], None)


@given(st.lists(st.sampled_from(["write", "read", "crash", "restart"]), max_size=40))
@settings(deadline=None, max_examples=60)
def test_no_line_is_lost_or_given_twice_whenever_agents_stop(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path_factory.mktemp("state"), ring=ring)
    collector = runs.start()
    written = 0
    given_out: list[tuple[int, int]] = []
    for step in [*steps, "restart", "read"]:
        if step == "write":
            ring.write(xid(31, f"{written % 200:02x}"))
            written += 1
        elif step == "read":
            given_out += [(event.kmsg_seq, event.repeat_count) for event in take(collector)]
        elif step == "crash":  # the events went out, and the place was not kept
            given_out += [(event.kmsg_seq, event.repeat_count) for event in take(collector, acknowledge=False)]
            collector = runs.start()
        else:
            collector = runs.start()
    assert {seq for seq, _ in given_out} == set(range(written))
    if "crash" not in steps:
        assert len(given_out) == written


# --- Files --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    runs = Runs(tmp_path / "state", log)
    log.write_text(f"{xid(31)}\n{xid(43)}\n{xid(94)[:20]}")
    assert codes(take(runs.start())) == [31, 43]
    with log.open("a") as stream:
        stream.write(f"{xid(94)[20:]}\n")
    assert codes(take(runs.start())) == [94]
    assert codes(take(runs.start("boot-2"))) == []  # a file outlives the boot


def test_a_file_that_was_renamed_while_no_agent_ran_is_read_to_its_end_first(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    runs = Runs(tmp_path / "state", log)
    log.write_text(f"{xid(31)}\n")
    take(runs.start())
    with log.open("a") as stream:
        stream.write(f"{xid(43)}\n")
    log.rename(tmp_path / "kern.log.1")
    log.write_text(f"{xid(94)}\n")
    (tmp_path / "kern.log.2").write_text(f"{xid(13)}\n" * 3)  # an older one
    assert codes(take(runs.start())) == [43, 94]


@pytest.mark.parametrize("while_running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("refill", [1, 40], ids=["shorter", "longer"])
def test_a_file_that_was_copied_and_cut_is_read_on_in_the_copy(
    tmp_path: Path, refill: int, while_running: bool
) -> None:
    log = tmp_path / "kern.log"
    runs = Runs(tmp_path / "state", log)
    lines = [f"[ {n}.000001] {xid(31)}\n" for n in range(20)]
    log.write_text("".join(lines))
    collector = runs.start()
    assert len(take(collector)) == 20
    with log.open("a") as stream:
        stream.write(f"[ 21.000001] {xid(43)}\n")
    shutil.copyfile(log, tmp_path / "kern.log.1")
    os.truncate(log, 0)
    with log.open("a") as stream:
        stream.writelines(f"[ {30 + n}.000001] {xid(94)}\n" for n in range(refill))
    found = take(collector if while_running else runs.start())
    assert codes(found) == [43, *[94] * refill]
    numbers = [event.kmsg_seq for event in found]
    assert numbers == sorted(set(numbers))


def test_another_file_under_the_name_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    runs = Runs(tmp_path / "state", log)
    log.write_text(f"{xid(31)}\n")
    take(runs.start())
    log.write_text(f"[ 99.5] {xid(94)} and more than there was\n")  # same inode, other content
    assert codes(take(runs.start())) == [94]


def test_lines_read_before_an_error_are_not_lost(tmp_path: Path) -> None:
    ring = FakeKmsg()

    class Failing:
        def __init__(self) -> None:
            self._reader = ring.open()
            self._reads = 0

        def read(self, size: int) -> bytes:
            self._reads += 1
            if self._reads == 3:
                raise OSError(5, "Input/output error")
            return self._reader.read(size)

        def close(self) -> None:
            self._reader.close()

    for code in (31, 43, 94):
        ring.write(xid(code))
    collector = Runs(tmp_path, ring=ring).start(open_log=Failing)
    assert codes(list(collector.collect(NOW_NS).events)) == [31, 43]
    assert codes(list(collector.collect(NOW_NS).events)) == [94]


# --- The cursor on disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"version":2}',
        b"0" * 3_000_000,
        b'{"version":1,"log":"/dev/kmsg","boot_id":"boot-1","place":{"kind":"kmsg","seq":-4},"fold":{},"reader":{}}',
        b'{"version":1,"log":"/dev/kmsg","boot_id":"boot-1","place":{"kind":"kmsg","seq":4},"fold":{},"reader":{}}',
        b'{"version":1,"log":"/dev/kmsg","boot_id":"boot-1","place":{"kind":"kmsg","seq":4},"fold":{"window":"x"},"reader":7}',
        b'{"version":1,"log":"/dev/kmsg","boot_id":"boot-1","place":{"kind":"kmsg","seq":4},"fold":{"counts":3},"reader":{}}',
        b'{"version":1,"log":"/other","boot_id":"boot-1","place":{"kind":"kmsg","seq":4},"fold":{},"reader":{}}',
    ],
)
def test_a_damaged_cursor_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernel-log.cursor.json").write_bytes(content)
    ring = FakeKmsg()
    ring.write(xid(31))
    assert codes(take(Runs(tmp_path, ring=ring).start())) == [31]
    assert codes(take(Runs(tmp_path, ring=ring).start())) == []


def test_a_cursor_that_cannot_be_written_costs_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "state"
    taken.write_text("a file is in the way")
    ring = FakeKmsg()
    collector = Runs(taken, ring=ring).start()
    for _ in range(3):
        ring.write(xid(31))
        assert codes(take(collector)) == [31]
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_a_cursor_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = CursorFile(tmp_path / "new" / "x.cursor.json", "/dev/kmsg", "boot-1")
    for seq in (1, 2):
        cursor = LogCursor(log="/dev/kmsg", boot_id="boot-1", place=KmsgPlace(seq=seq), fold={}, reader={})
        assert file.save(cursor)
        assert file.load() == cursor
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.cursor.json"]


# --- The agent keeps the place ------------------------------------------------------------------------------------


def test_an_agent_keeps_the_place_only_after_it_published(tmp_path: Path) -> None:
    ring = FakeKmsg()
    runs = Runs(tmp_path, ring=ring)
    kept_before: list[bool] = []

    def refuse(record: object) -> bool:
        if isinstance(record, KernelEvent):
            kept_before.append((tmp_path / "kernel-log.cursor.json").exists())
        return False

    ring.write(xid(31))
    publisher = RecordingPublisher(refuse)
    agent = Agent(AgentSettings(socket=""), publisher, [runs.start()], FakeClock(NOW_NS), IDENTITY)
    agent._sources.start()
    agent.tick(NOW_NS)
    agent._stop()
    assert codes(publisher.of(KernelEvent)) == [31]
    assert kept_before == [False]
    ring.write(xid(43))
    again = RecordingPublisher()
    agent = Agent(AgentSettings(socket=""), again, [runs.start()], FakeClock(NOW_NS), IDENTITY)
    agent._sources.start()
    agent.tick(NOW_NS)
    agent._stop()
    assert codes(again.of(KernelEvent)) == [43]

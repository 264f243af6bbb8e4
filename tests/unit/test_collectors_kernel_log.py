"""The kernel-log collector: following a file, numbering, times, and what it refuses to lose or to invent."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.collectors.base import CollectorError
from agents.collectors.kernel_log import KernelLogCollector
from agents.collectors.log_follower import LogFollower
from agents.identity import AgentIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.events import KernelEvent

IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
BOOT_NS = 1_700_000_000 * 10**9
NOW_NS = BOOT_NS + 10_000 * 10**9


def collector(path: Path, *, from_start: bool = True) -> KernelLogCollector:
    return KernelLogCollector(path, IDENTITY, from_start=from_start, boot_time_ns=lambda: BOOT_NS)


def events(source: KernelLogCollector) -> list[KernelEvent]:
    """All events that the log holds now, those that were held back too."""
    return [*source.collect(NOW_NS).events, *source.collect(NOW_NS).events]


def kmsg(seq: int, text: str, *, priority: int = 4, usec: int = 5_000_000) -> str:
    return f"{priority},{seq},{usec},-;{text}\n"


XID_31 = "NVRM: Xid (PCI:0000:1a:00): 31, pid=77, name=python3, Ch 00000008, MMU Fault"
XID_79 = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


def test_a_kmsg_line_becomes_an_event_with_the_kernels_number_and_time(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kmsg(4711, XID_31) + kmsg(4712, "eth0: link up"))
    (event,) = events(collector(log))
    assert (event.node_id, event.agent_session, event.boot_id) == ("node-1", "session-1", "boot-1")
    assert (event.source, event.code, event.severity, event.pci_bus_id) == ("xid", 31, "app", "0000:1a:00")
    assert (event.pid, event.process, event.kmsg_seq, event.trusted) == (77, "python3", 4711, True)
    assert event.event_time_ns == BOOT_NS + 5_000_000_000
    assert event.raw == kmsg(4711, XID_31).rstrip("\n")


def test_a_line_of_another_facility_is_not_trusted(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kmsg(1, XID_79, priority=12))
    (event,) = events(collector(log))
    assert not event.trusted


def test_lines_written_while_it_follows_come_once_each(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[ 10.000001] {XID_31}\n")
    source = collector(log)
    assert [event.code for event in events(source)] == [31]
    with log.open("a") as stream:
        stream.write(f"[ 11.000001] {XID_79[:30]}")
        stream.flush()
        assert events(source) == []  # the line is not whole yet
        stream.write(f"{XID_79[30:]}\n")
    assert [event.code for event in events(source)] == [79]
    assert events(source) == []


def test_following_from_the_end_leaves_out_what_was_there(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[ 10.000001] {XID_31}\n")
    source = collector(log, from_start=False)
    assert events(source) == []
    with log.open("a") as stream:
        stream.write(f"[ 11.000001] {XID_79}\n")
    assert [event.code for event in events(source)] == [79]


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"{XID_31}\n")
    source = collector(log)
    first = events(source)
    with log.open("a") as stream:
        stream.write(f"{XID_79}")  # its line never gets an end
    log.rename(tmp_path / "kern.log.1")
    last_of_old = events(source)
    log.write_text(f"{XID_31}\n")
    second = events(source)
    assert [event.code for event in [*first, *last_of_old, *second]] == [31, 79, 31]
    numbers = [event.kmsg_seq for event in [*first, *last_of_old, *second]]
    assert numbers == sorted(set(numbers))


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"{XID_31}\n{XID_79}\n")
    source = collector(log)
    first = events(source)
    log.write_text(f"{XID_79}\n")
    second = events(source)
    assert [event.code for event in second] == [79]
    assert second[0].kmsg_seq > first[-1].kmsg_seq


def test_a_directory_is_no_log(tmp_path: Path) -> None:
    assert "is a directory" in str(collector(tmp_path).is_supported())


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    source = collector(log, from_start=False)
    assert source.is_supported() is not None
    assert events(source) == []
    log.write_text(f"{XID_31}\n")
    assert source.is_supported() is None
    assert [event.code for event in events(source)] == [31]


def test_a_log_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match="cannot be read"):
        collector(tmp_path).collect(NOW_NS)


def test_a_pipe_is_followed_like_the_kernels_device(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    source = collector(log)
    assert events(source) == []
    writer = os.open(log, os.O_WRONLY)
    os.write(writer, kmsg(5, XID_31).encode())
    assert [event.kmsg_seq for event in events(source)] == [5]
    os.write(writer, kmsg(6, XID_79).encode())
    assert [event.kmsg_seq for event in events(source)] == [6]
    os.close(writer)


@pytest.mark.parametrize(
    "line",
    [
        f"[ 4242.000001] {XID_31}",
        f"2023-11-15T01:02:03.000004+00:00 node-1 kernel: [ 4242.000001] {XID_31}",
        XID_31,
    ],
    ids=["kernel-time", "wall-time", "no-time"],
)
def test_a_second_agent_gives_the_same_numbers_for_the_same_file(tmp_path: Path, line: str) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"something else\n{line}\n{line}\n")
    one, other = events(collector(log)), events(collector(log))
    assert [event.kmsg_seq for event in one] == [event.kmsg_seq for event in other]
    assert one[0].kmsg_seq < one[1].kmsg_seq


def test_time_of_its_own_is_taken_before_the_boots_and_never_lies_ahead(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(
        f"2023-11-15T00:02:03.000004+00:00 node-1 kernel: [ 1.0] {XID_31}\n"
        f"[ 9000.5] {XID_31}\n"
        f"[ 99999.5] {XID_31}\n"
        f"{XID_31}\n"
    )
    at = [event.event_time_ns for event in events(collector(log))]
    assert at == [1_700_006_523_000_004_000, BOOT_NS + 9_000_500_000_000, NOW_NS, NOW_NS]


def test_a_line_from_before_the_boot_is_not_of_this_boot(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"2020-01-01T00:00:00+00:00 node-1 kernel: {XID_31}\n")
    (event,) = events(collector(log))
    assert event.boot_id == "before-boot-1"
    assert event.event_time_ns == 1_577_836_800 * 10**9


def test_a_forged_number_does_not_spoil_the_numbers_that_follow(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(kmsg(99_999_999_999_999_999_999, XID_31) + kmsg(7, XID_79))
    numbers = [event.kmsg_seq for event in events(collector(log))]
    assert numbers == [0, 7]


def test_a_lost_gpu_without_a_code_is_reported_when_the_log_pauses(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(
        kmsg(1, "NVRM: The NVIDIA GPU 0000:b3:00.0")
        + kmsg(2, "NVRM: (PCI ID: 10de:26b5) installed in this system has")
        + kmsg(3, "NVRM: fallen off the bus and is not responding to commands.")
    )
    source = collector(log)
    assert source.collect(NOW_NS).events == ()
    (event,) = source.collect(NOW_NS).events
    assert (event.code, event.inferred, event.pci_bus_id) == (79, True, "0000:b3:00")


def test_a_storm_of_equal_lines_is_folded_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("".join(kmsg(seq, XID_31) for seq in range(500)) + kmsg(500, XID_79))
    found = events(collector(log))
    assert len(found) == 12
    assert sum(event.repeat_count for event in found) == 501
    assert found[-1].code == 79


def test_equal_lines_of_different_seconds_stay_apart(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("".join(kmsg(n, XID_31, usec=n * 1_000_000) for n in range(40)))
    assert len(events(collector(log))) == 40


def test_lines_that_are_no_events_are_counted_or_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    long_name = "x" * 5000
    log.write_text(
        kmsg(1, "NVRM: Xid PCI:0000:1a:00: 31")
        + kmsg(2, f"app said: {XID_31}")
        + kmsg(3, f"NVRM: Xid (PCI:0000:1a:00): 13, pid=1, name={long_name}, {long_name}")
    )
    source = collector(log)
    found = events(source)
    assert source.malformed == 1
    assert [len(event.text) <= 2000 and len(event.raw) <= 2000 for event in found] == [True]


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x1b"), max_size=30), max_size=20),
    st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_lines_do_not_depend_on_how_the_writing_was_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    data = "".join(f"{line}\n" for line in lines).encode()
    path.touch()
    follower = LogFollower(path)
    read = []
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(edges):
        with path.open("ab") as stream:
            stream.write(data[start:end])
        read += follower.read()
    follower.close()
    assert [line.text for line in read] == lines
    positions = [line.position for line in read]
    assert positions == [sum(len(one.encode()) + 1 for one in lines[:n]) for n in range(len(lines))]

"""Bursts of equal lines: ten single events a second and kind, the rest in one, and never a line uncounted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.collectors.event_fold import KINDS, SINGLE_LINES
from agents.collectors.kernel_events import KernelEventReader
from agents.collectors.log_follower import LogLine
from agents.identity import AgentIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.events import KernelEvent

NOW_NS = 1_800_000_000 * 10**9


def kmsg(seq: int, text: str, usec: int = 5_000_000, priority: int = 4) -> str:
    return f"{priority},{seq},{usec},-;{text}"


def xid(code: int = 31, bus: int = 0x1A, pid: int = 77) -> str:
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=python3, Ch 00000008"


def events(*readings: Iterable[str]) -> list[list[KernelEvent]]:
    reader = KernelEventReader(AgentIdentity("node-1", "boot-1", "session-1"), lambda: 1_700_000_000 * 10**9)
    position = 0
    found = []
    for lines in readings:
        numbered = [LogLine(position + offset, text) for offset, text in enumerate(lines)]
        position += len(numbered)
        found.append([*reader.read(numbered, NOW_NS), *reader.finish(NOW_NS)])
    return found


def test_ten_lines_stay_single_and_the_rest_is_one_record_with_first_and_last_line() -> None:
    lines = [kmsg(seq, xid(pid=seq)) for seq in range(500)]
    (found,) = events(lines)
    assert len(found) == SINGLE_LINES + 1
    assert [event.repeat_count for event in found] == [1] * SINGLE_LINES + [490]
    folded = found[-1]
    assert (folded.raw, folded.last_raw) == (lines[10], lines[-1])
    assert (folded.kmsg_seq, folded.code, folded.pci_bus_id) == (10, 31, "0000:1a:00")
    assert all(event.last_raw is None for event in found[:-1])


def test_eleven_lines_are_eleven_events() -> None:
    (found,) = events(kmsg(seq, xid()) for seq in range(11))
    assert [event.repeat_count for event in found] == [1] * 11
    assert found[-1].last_raw is None


def test_every_second_begins_anew() -> None:
    (found,) = events(kmsg(n, xid(), usec=n * 500_000) for n in range(40))
    assert len(found) == 40
    (found,) = events([kmsg(n, xid(), usec=5_900_000 + n * 10_000) for n in range(20)])
    assert [event.repeat_count for event in found] == [1] * 20


def test_a_burst_over_two_readings_counts_on() -> None:
    first, second = events([kmsg(n, xid()) for n in range(15)], [kmsg(20 + n, xid()) for n in range(5)])
    assert [event.repeat_count for event in first] == [1] * 10 + [5]
    assert [event.repeat_count for event in second] == [5]


@pytest.mark.parametrize(
    "other",
    [
        kmsg(500, xid(bus=0x1B)),
        kmsg(500, xid(code=43)),
        kmsg(500, xid(), priority=12),
        kmsg(500, "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."),
    ],
    ids=["device", "code", "trust", "fatal"],
)
def test_another_kind_is_never_folded_away(other: str) -> None:
    (found,) = events([*(kmsg(seq, xid()) for seq in range(500)), other, *(kmsg(501 + n, xid()) for n in range(9))])
    assert len(found) == SINGLE_LINES + 2
    assert found[-1].raw == other
    assert sum(event.repeat_count for event in found) == 510


def test_a_change_of_recovery_action_within_a_burst_is_kept() -> None:
    def action(text: str) -> str:
        return f"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to {text}"

    (found,) = events(
        [*(kmsg(n, action("0x0 (None)")) for n in range(50)), kmsg(50, action("0x2 (Node Reboot Required)"))]
    )
    assert found[-1].recovery_action == "node_reboot"


def test_a_fatal_switch_error_within_a_burst_of_milder_ones_is_kept() -> None:
    def line(word: str) -> str:
        return f"nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20009, {word}, Link 04 RX Short Error Rate"

    (found,) = events([*(kmsg(n, line("Non-fatal")) for n in range(50)), kmsg(50, line("Fatal"))])
    assert found[-1].reported_severity == "fatal"


def test_more_kinds_than_are_told_apart_are_counted_in_one_record_that_nothing_acts_on() -> None:
    count = KINDS + 500
    (found,) = events(kmsg(n, xid(code=1_000 + n)) for n in range(count))
    assert len(found) == KINDS + 1
    assert sum(event.repeat_count for event in found) == count
    assert (found[-1].code, found[-1].pci_bus_id, found[-1].trusted) == (None, None, False)


def test_lines_of_other_transports_are_folded_alike() -> None:
    (found,) = events(f"May 19 07:08:57 node-1 kernel: [ 5.{n:06d}] {xid()}" for n in range(500))
    assert [event.repeat_count for event in found] == [1] * 10 + [490]


def test_a_hundred_thousand_equal_lines_are_a_matter_of_a_second() -> None:
    lines = [LogLine(n, kmsg(n, xid(pid=n), usec=5_000_000 + n * 5)) for n in range(100_000)]
    reader = KernelEventReader(AgentIdentity("node-1", "boot-1", "session-1"), lambda: 1_700_000_000 * 10**9)
    begun = time.process_time()
    found = reader.read(lines, NOW_NS)
    assert time.process_time() - begun < 3.0  # a third of a second on an idle core
    assert len(found) == SINGLE_LINES + 1
    assert sum(event.repeat_count for event in found) == 100_000


@given(
    st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=3),
            st.sampled_from([31, 43]),
            st.sampled_from([4, 12]),
            st.integers(min_value=0, max_value=40),
        ),
        max_size=30,
    ),
    st.integers(min_value=1, max_value=50),
)
def test_no_line_goes_uncounted_however_the_reading_is_cut(
    bursts: list[tuple[int, int, int, int]], reading: int
) -> None:
    lines = []
    for second, code, priority, count in bursts:
        lines += [kmsg(len(lines) + n, xid(code), usec=second * 1_000_000 + n, priority=priority) for n in range(count)]
    found = [
        event
        for one in events(*(lines[start : start + reading] for start in range(0, len(lines), reading)))
        for event in one
    ]
    for code in (31, 43):
        for priority in (4, 12):
            written = sum(line.startswith(f"{priority},") and f": {code}, " in line for line in lines)
            assert sum(e.repeat_count for e in found if e.code == code and e.trusted == (priority == 4)) == written
    numbers = [event.kmsg_seq for event in found]
    assert numbers == sorted(set(numbers))

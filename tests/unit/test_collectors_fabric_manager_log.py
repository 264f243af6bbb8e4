"""The Fabric Manager's log: its lines, its times in local zone, and numbers that do not meet the kernel's."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from agents.collectors.fabric_manager_log import FabricManagerLogCollector
from agents.collectors.local_time import local_time_ns
from agents.identity import AgentIdentity
from agents.settings import AgentSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemas.events import KernelEvent

IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
ERROR_TIME_NS = int(datetime(2025, 2, 27, 13, 10, 2, tzinfo=UTC).timestamp()) * 10**9  # 15:10:02 two hours east
BOOT_NS = ERROR_TIME_NS - 3600 * 10**9
NOW_NS = ERROR_TIME_NS + 60 * 10**9


def line(word: str = "fatal ", code: int = 20034, clock: str = "15:10:02") -> str:
    return (
        f"[Feb 27 2025 {clock}] [ERROR] [tid 841] detected NVSwitch {word}error {code} on fid 0"
        " on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33\n"
    )


@pytest.fixture(autouse=True)
def two_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EET-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def collector(path: Path, **how: Any) -> FabricManagerLogCollector:
    return FabricManagerLogCollector(path, IDENTITY, boot_time_ns=lambda: BOOT_NS, **how)


def events(source: FabricManagerLogCollector, now_ns: int = NOW_NS) -> list[KernelEvent]:
    reading = source.collect(now_ns)
    source.acknowledge(reading.cursor)
    return list(reading.events)


def test_an_error_becomes_an_sxid_event_of_the_switch(tmp_path: Path) -> None:
    log = tmp_path / "fabricmanager.log"
    log.write_text(
        "[Feb 27 2025 15:09:59] [INFO] [tid 841] Fabric Manager version 550.54.15 is running\n"
        + line()
        + line("non-fatal ", 12028)
        + line("", 11004)
        + "[Feb 27 2025 15:10:03] [ERROR] [tid 841] detected NVSwitch error of some kind\n"
        + "NVRM: Xid (PCI:0000:1a:00): 79, not of this log\n"
    )
    source = collector(log)
    found = events(source)
    assert [(event.source, event.code, event.reported_severity) for event in found] == [
        ("sxid", 20034, "fatal"),
        ("sxid", 12028, "non_fatal"),
        ("sxid", 11004, None),
    ]
    assert {(event.pci_bus_id, event.link) for event in found} == {("0000:86:00", 33)}
    assert source.malformed == 1


def test_a_time_without_zone_is_read_in_this_machines(tmp_path: Path) -> None:
    log = tmp_path / "fabricmanager.log"
    log.write_text(line())
    assert [event.event_time_ns for event in events(collector(log))] == [ERROR_TIME_NS]


def test_a_line_that_is_read_as_it_is_written_is_of_now_whatever_its_zone(tmp_path: Path) -> None:
    log = tmp_path / "fabricmanager.log"
    log.touch()
    source = collector(log)
    events(source)
    with log.open("a") as stream:
        stream.write(line(clock="13:10:02"))  # the writer's clock is UTC's
        stream.write(line(clock="15:10:58"))
    assert [event.event_time_ns for event in events(source)] == [NOW_NS, ERROR_TIME_NS + 56 * 10**9]


def test_its_numbers_are_apart_from_the_kernels(tmp_path: Path) -> None:
    log = tmp_path / "fabricmanager.log"
    log.write_text(line(clock="11:10:02") + line() + line())
    found = events(collector(log))
    assert [event.boot_id for event in found] == ["before-fabric-manager-boot-1", *["fabric-manager-boot-1"] * 2]
    numbers = [event.kmsg_seq for event in found]
    assert numbers == sorted(set(numbers))
    assert [event.kmsg_seq for event in events(collector(log))] == numbers


def test_a_restart_gives_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "fabricmanager.log"
    how = {"state_dir": str(tmp_path / "state")}
    log.write_text(line())
    assert len(events(collector(log, **how))) == 1
    with log.open("a") as stream:
        stream.write(line(code=20033))
    assert [event.code for event in events(collector(log, **how))] == [20033]


def test_it_is_made_of_the_settings_and_says_what_is_missing(tmp_path: Path) -> None:
    settings = AgentSettings(fabric_manager_log=str(tmp_path / "none.log"), state_dir="")
    source = FabricManagerLogCollector.from_settings(settings, IDENTITY)
    assert "no Fabric Manager logs here" in str(source.is_supported())
    (tmp_path / "none.log").touch()
    assert source.is_supported() is None


@pytest.mark.parametrize(
    ("text", "seconds_before"),
    [
        ("Feb 27 2025 15:10:02", 0),
        ("Feb 27 15:10:02", 0),
        ("Thu Feb 27 15:10:02 2025", 0),
        ("2025-02-27T15:10:02", 0),
        ("Thu 2025-02-27 15:10:02 EET", 0),
        ("Feb  7 15:10:02", 20 * 24 * 3600),
        ("Mar 19 15:10:02", 345 * 24 * 3600),  # a year ago: it is not March yet
    ],
)
def test_local_times_of_all_forms(text: str, seconds_before: int) -> None:
    assert local_time_ns(text, NOW_NS) == ERROR_TIME_NS - seconds_before * 10**9


def test_a_fraction_of_a_second_is_kept() -> None:
    assert local_time_ns("2025-02-27 15:10:02,000004", NOW_NS) == ERROR_TIME_NS + 4_000


@pytest.mark.parametrize("text", ["", "Feb 32 15:10:02", "Foo 27 15:10:02", "Feb 27 25:10:02", "+5.1", "Feb 27 15:10"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert local_time_ns(text, NOW_NS) is None

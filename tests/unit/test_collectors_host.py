"""The host collector and the part of a heartbeat that its readings become."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.base import CollectorError
from agents.collectors.host import HostCollector
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeSysfs
from schemas.events import HostLoad

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


@pytest.fixture
def node(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    set_ticks(tree, user=1000, idle=9000)
    tree.write("proc/loadavg", "3.50 2.25 1.00 5/246 12542")
    tree.write("proc/meminfo", "MemTotal:       2048 kB\nMemFree:        100 kB\nMemAvailable:   1024 kB")
    for resource, share in (("cpu", "12.50"), ("memory", "0.00"), ("io", "1.25")):
        tree.write(
            f"proc/pressure/{resource}",
            f"some avg10={share} avg60=9.00 avg300=9.00 total=5\nfull avg10=0.50 avg60=9.00 avg300=9.00 total=5",
        )
    return tree


def set_ticks(tree: FakeSysfs, *, user: int, idle: int, iowait: int = 0, steal: int = 0) -> None:
    tree.write("proc/stat", f"cpu  {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0\ncpu0 1 2 3 4\nintr 5")


def source(node: FakeSysfs) -> HostCollector:
    return HostCollector(node.root / "proc", node.root, [str(node.root)])


def load(collector: HostCollector, now_ns: int) -> HostLoad:
    readings = collector.collect(now_ns)
    assert readings.host is not None
    return HostLoad.model_validate(readings.host)


def test_everything_that_the_kernel_tells_is_told(node: FakeSysfs) -> None:
    collector = source(node)
    assert collector.is_supported() is None
    first = load(collector, S)
    assert (first.load_1min, first.load_5min, first.load_15min) == (3.5, 2.25, 1.0)
    assert (first.memory_total_bytes, first.memory_available_bytes) == (2048 * 1024, 1024 * 1024)
    assert (first.cpu_pressure_some_pct, first.io_pressure_some_pct, first.memory_pressure_full_pct) == (
        12.5,
        1.25,
        0.5,
    )
    assert 0 < first.disk_free_ratio[str(node.root)] <= 1
    assert first.cpu_busy_ratio is None  # one reading has no span


def test_shares_of_the_processors_are_of_the_time_between_two_readings(node: FakeSysfs) -> None:
    collector = source(node)
    load(collector, S)
    set_ticks(node, user=1300, idle=9500, iowait=100, steal=100)
    second = load(collector, 6 * S)
    assert (second.cpu_busy_ratio, second.cpu_iowait_ratio, second.cpu_steal_ratio) == (0.3, 0.1, 0.1)
    assert second.cpu_span_s == 5


def test_waiting_that_counts_backwards_is_no_negative_share(node: FakeSysfs) -> None:
    set_ticks(node, user=1000, idle=9000, iowait=50)
    collector = source(node)
    load(collector, S)
    set_ticks(node, user=1500, idle=9500, iowait=10)
    second = load(collector, 6 * S)
    assert (second.cpu_busy_ratio, second.cpu_iowait_ratio) == (0.5, 0.0)


def test_readings_of_two_seconds_are_the_same_one(node: FakeSysfs) -> None:
    collector = source(node)
    load(collector, S)
    node.write("proc/loadavg", "9.00 9.00 9.00 1/1 1")
    assert load(collector, 2 * S).load_1min == 3.5
    assert load(collector, 6 * S).load_1min == 9.0


def test_a_clock_that_is_set_back_costs_the_shares_of_one_reading(node: FakeSysfs) -> None:
    collector = source(node)
    load(collector, 100 * S)
    set_ticks(node, user=1100, idle=9100)
    assert load(collector, 50 * S).cpu_busy_ratio is None
    set_ticks(node, user=1200, idle=9200)
    assert load(collector, 55 * S).cpu_busy_ratio == 0.5


def test_a_core_counts_once_for_all_its_threads(node: FakeSysfs) -> None:
    for processor, core, package in ((0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 0, 1)):
        directory = f"devices/system/cpu/cpu{processor}"
        node.write(f"{directory}/topology/core_id", core)
        node.write(f"{directory}/topology/physical_package_id", package)
        node.write(f"{directory}/thermal_throttle/core_throttle_count", 10)
        node.write(f"{directory}/thermal_throttle/package_throttle_count", 7)
    node.write("devices/system/cpu/cpufreq/policy0", "")
    told = load(source(node), S)
    assert (told.core_throttle_count, told.package_throttle_count) == (30, 14)


def test_what_the_kernel_does_not_tell_is_unknown(node: FakeSysfs) -> None:
    for resource in ("cpu", "memory", "io"):
        node.remove(f"proc/pressure/{resource}")
    node.remove("proc/meminfo")
    told = load(HostCollector(node.root / "proc", node.root, ["/no/such/place"]), S)
    assert told.cpu_pressure_some_pct is None
    assert told.memory_total_bytes is None
    assert told.core_throttle_count is None
    assert told.disk_free_ratio == {}
    assert told.load_1min == 3.5


def test_without_procfs_it_is_unsupported_and_a_failure_is_an_error(tmp_path: Path) -> None:
    collector = HostCollector(tmp_path, tmp_path)
    assert "no procfs" in str(collector.is_supported())
    with pytest.raises(CollectorError, match="nothing can be read"):
        collector.collect(S)


def test_the_settings_name_the_roots_and_the_state_directory(node: FakeSysfs) -> None:
    given_settings = AgentSettings(
        procfs_root=str(node.root / "proc"), sysfs_root=str(node.root), state_dir=str(node.root)
    )
    told = load(HostCollector.from_settings(given_settings, AgentIdentity("n", "b", "s")), S)
    assert told.load_1min == 3.5
    assert set(told.disk_free_ratio) == {"/", str(node.root)}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.binary(max_size=200), second=st.binary(max_size=200), prefix=st.sampled_from(["", "cpu ", "some avg10="])
)
def test_whatever_the_files_hold_the_record_holds(node: FakeSysfs, first: bytes, second: bytes, prefix: str) -> None:
    collector = source(node)
    for moment, content in ((S, first), (6 * S, second)):
        for path in ("stat", "loadavg", "meminfo", "pressure/cpu", "pressure/io"):
            node.write(f"proc/{path}", prefix.encode() + content)
        told = load(collector, moment)
        assert told.memory_pressure_full_pct == 0.5

"""The NIC collector and the fabric frame that its rows become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.base import CollectorError
from agents.collectors.nic import NicCollector
from agents.collectors.nic_ethernet import is_of_the_link
from agents.collectors.program import ProgramError
from agents.frame_assembly import FabricAssembly
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeEthtool, FakeSysfs
from schemas.frames import FabricFrame
from streams.core.counters import CounterIncrease

if TYPE_CHECKING:
    from pathlib import Path

ETHTOOL = """NIC statistics:
     rx_packets: 100
     rx_prio3_pause: 12
     rx_prio3_pause_duration: 90
     tx_prio3_pause: 0
     link_down_events_phy: 2
"""

MLX5 = {
    "rx_packets": 100,
    "rx_bytes": 9000,
    "rx0_packets": 60,
    "ch1_poll": 5,
    "rx_out_of_buffer": 4,
    "outbound_pci_stalled_rd": 80,
    "outbound_pci_stalled_rd_events": 3,
    "rx_xdp_drop": 1,
    "rx_prio0_pause": 1,
    "rx_prio3_pause": 12,
    "rx_prio3_pause_duration": 90,
    "tx_prio3_pause": 0,
    "rx_global_pause": 7,
    "rx_prio3_marked": 8,
    "link_down_events_phy": 2,
}


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    tree.add_infiniband(
        "mlx5_0",
        counters={
            "port_rcv_data": 1000,
            "port_xmit_data": 0,
            "link_downed": 1,
            "symbol_error": 3,
            "port_xmit_wait": 77,
            "VL15_dropped": "N/A (no PMA)",
        },
        hw_counters={"lifespan": 12, "out_of_sequence": 7, "np_ecn_marked_roce_packets": 2},
    )
    tree.add_interface("eth0", carrier_changes=5, statistics={"rx_bytes": 1, "rx_errors": 6})
    tree.add_interface("lo", has_device=False)
    return tree


def frame(columns: dict[str, Any] | None, at_ns: int = 1) -> FabricFrame:
    assert columns is not None
    return FabricFrame(view="host", node_id="n", agent_session="s", seq=0, event_time_ns=at_ns, **columns)


def collected(source: NicCollector, assembly: FabricAssembly | None = None) -> FabricFrame:
    return frame((assembly or FabricAssembly()).columns([source.collect(0).ports]))


def of_port(found: FabricFrame, device: str) -> dict[str, int | None]:
    position = found.device.index(device)
    return {name: column[position] for name, column in found.counters.items()}


def test_ports_of_all_sources_become_one_frame(sysfs: FakeSysfs) -> None:
    source = NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5}))
    assert source.is_supported() is None
    found = collected(source)
    assert (found.device, found.port) == (("mlx5_0", "eth0"), ("1", None))
    assert found.link_state == ("active", "active")
    assert found.rate_gbps == (400.0, 400.0)
    assert found.rx_data_bytes == (4000, None)
    assert found.tx_data_bytes == (0, None)
    assert found.link_down_events == (1, 2)  # the port's own count, not the carrier's
    assert found.rx_global_pause_frames == (None, 7)
    assert of_port(found, "mlx5_0")["port_xmit_wait"] == 77
    assert of_port(found, "mlx5_0")["np_ecn_marked_roce_packets"] == 2
    assert "lifespan" not in found.counters
    assert (found.pfc_port, found.pfc_priority) == ((1, 1), (0, 3))
    assert (found.rx_pause_frames, found.tx_pause_frames) == ((1, 12), (None, 0))
    assert found.rx_pause_us == (None, 90)
    assert found.tx_pause_us is None  # not told: unknown, not zero
    assert source.malformed == 0  # "N/A" is a way to say that there is none


def test_a_counter_that_two_sources_know_is_the_drivers(sysfs: FakeSysfs) -> None:
    counters = of_port(collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5}))), "eth0")
    assert (counters["rx_bytes"], counters["rx_errors"]) == (9000, 6)


def test_flaps_are_the_carriers_where_the_driver_counts_none(sysfs: FakeSysfs) -> None:
    source = NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": {"rx_discards": 0}}))
    assembly = FabricAssembly()
    assert collected(source, assembly).link_down_events == (1, 2)
    sysfs.set_carrier_changes("eth0", 7)  # down and up again between two readings
    found = collected(source, assembly)
    assert found.link_down_events == (1, 3)
    assert found.link_state == ("active", "active")
    assert of_port(found, "eth0")["carrier_changes"] == 7


def test_a_link_that_goes_down_is_down_and_has_no_rate(sysfs: FakeSysfs) -> None:
    source = NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5}))
    collected(source)
    sysfs.write("class/net/eth0/operstate", "down")
    sysfs.write("class/net/eth0/speed", -1)
    sysfs.write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    found = collected(source)
    assert found.link_state == ("down", "down")
    assert found.rate_gbps is None


def test_a_link_that_trained_down_tells_its_new_rate_with_its_next_state(sysfs: FakeSysfs) -> None:
    source = NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5}))
    assert collected(source).rate_gbps == (400.0, 400.0)
    sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (2X NDR)")
    sysfs.write("class/net/eth0/speed", 200_000)
    sysfs.set_carrier_changes("eth0", 7)
    rates = [collected(source).rate_gbps for _ in range(10)]
    assert rates[0] == (400.0, 200.0)
    assert rates[-1] == (200.0, 200.0)


@pytest.mark.parametrize(
    ("driver", "statistics", "expected"),
    [
        ("mlx5", {"rx_prio3_pause": 4, "rx_prio3_pause_duration": 9}, (3, 4, None, (9,))),
        ("ice", {"tx_priority_3_xoff.nic": 5, "tx_priority_3_xon.nic": 99}, (3, None, 5, None)),
        ("bnxt", {"rx_pfc_ena_frames_pri3": 6, "pfc_pri3_rx_duration_us": 8}, (3, 6, None, (8,))),
    ],
)
def test_pause_of_each_driver_is_found_by_priority(
    sysfs: FakeSysfs, driver: str, statistics: dict[str, int], expected: tuple[Any, ...]
) -> None:
    found = collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": statistics})))
    assert (found.pfc_priority, found.rx_pause_frames, found.tx_pause_frames, found.rx_pause_us) == (
        (expected[0],),
        (expected[1],),
        (expected[2],),
        expected[3],
    )


def test_a_driver_without_statistics_has_the_kernels_and_no_pause(sysfs: FakeSysfs) -> None:
    found = collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": {}})))
    assert of_port(found, "eth0")["rx_bytes"] == 1
    assert found.pfc_port == ()


def test_counters_of_single_rings_and_gauges_are_left_out(sysfs: FakeSysfs) -> None:
    counters = of_port(collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5}))), "eth0")
    assert {"rx_packets", "rx_out_of_buffer", "rx_prio3_marked"} <= counters.keys()
    assert not {"rx0_packets", "ch1_poll", "outbound_pci_stalled_rd", "rx_xdp_drop"} & counters.keys()


@pytest.mark.parametrize(
    "name",
    [
        *("rx3_packets", "tx0_dropped", "ch0_poll", "rx_queue_0_drops", "tx_queue_12_bytes", "queue_0_tx_missed_tx"),
        *("[0]: rx_discards", "rx_packets[0]", "rx-0.packets", "rxq0_errors", "rx_0_packets", "rx_tls_drop"),
    ],
)
def test_the_drivers_ways_to_name_a_ring_are_known(name: str) -> None:
    assert not is_of_the_link(name)


@pytest.mark.parametrize(
    "name",
    [
        *("rx_prio3_buf_discard", "rx_crc_errors_phy", "tx_queue_dropped", "rx_pcs_symbol_err_phy", "rx_bytes"),
        *("rx_out_of_buffer", "bw_in_allowance_exceeded", "tx_pause_storm_warning_events", "port.rx_dropped"),
    ],
)
def test_counters_of_the_whole_link_stay(name: str) -> None:
    assert is_of_the_link(name)


def test_where_the_kernel_refuses_the_call_the_program_is_run(sysfs: FakeSysfs) -> None:
    asked = []

    def ethtool(interface: str) -> str:
        asked.append(interface)
        return ETHTOOL

    source = NicCollector(sysfs.root, ethtool=ethtool, ioctl=FakeEthtool({}, is_refused=True))
    found = collected(source)
    assert asked == ["eth0"]  # no hardware behind lo
    assert found.link_down_events == (1, 2)
    assert (found.pfc_port, found.pfc_priority) == ((1,), (3,))
    assert (found.rx_pause_frames, found.tx_pause_frames, found.rx_pause_us) == ((12,), (0,), (90,))
    assert of_port(found, "eth0")["rx_packets"] == 100


def test_an_interface_that_cannot_be_read_costs_only_its_own_statistics(sysfs: FakeSysfs) -> None:
    sysfs.add_interface("eth1", carrier_changes=3, statistics={"rx_bytes": 5})

    def ethtool(interface: str) -> str:
        if interface == "eth1":
            raise ProgramError("ethtool -S eth1 did not end within 2 s")
        return ETHTOOL

    source = NicCollector(sysfs.root, ethtool=ethtool)
    found = collected(source)
    assert found.device == ("mlx5_0", "eth0", "eth1")
    assert list(source.failed) == ["eth1"]
    assert found.link_state == ("active", "active", "active")
    # What the driver may count is not taken from elsewhere for a moment: the two would take turns.
    assert found.link_down_events == (1, 2, None)
    assert of_port(found, "eth1")["rx_bytes"] is None


def test_without_any_port_it_is_unsupported_and_a_failure_is_an_error(tmp_path: Path) -> None:
    assert "neither" in str(NicCollector(tmp_path).is_supported())
    with pytest.raises(CollectorError, match="eth7: there is no such interface"):
        NicCollector(tmp_path, ["eth7"]).collect(0)


def test_virtual_interfaces_are_left_out_unless_they_are_named(sysfs: FakeSysfs) -> None:
    for name in ("bond0", "eth0.100", "vethc0ffee"):
        sysfs.add_interface(name, has_device=False)
    sysfs.add_interface("eth0v0")
    sysfs.write("class/net/eth0v0/device/physfn/vendor", "0x15b3")
    sysfs.add_interface("eth0r1")
    sysfs.write("class/net/eth0r1/phys_port_name", "pf0vf1")
    sysfs.add_interface("eth2")
    sysfs.write("class/net/eth2/phys_port_name", "p0")
    sysfs.add_interface("ib0.8001")
    sysfs.write("class/net/ib0.8001/parent", "ib0")
    statistics = FakeEthtool(dict.fromkeys(("eth0", "eth2", "bond0"), MLX5))
    assert collected(NicCollector(sysfs.root, ioctl=statistics)).device == ("mlx5_0", "eth0", "eth2")
    assert collected(NicCollector(sysfs.root, ("bond0",), ioctl=statistics)).device == ("mlx5_0", "bond0")


def test_an_infiniband_interface_states_no_link_of_its_own(sysfs: FakeSysfs) -> None:
    sysfs.add_interface("ib0", operstate="down")
    sysfs.write("class/net/ib0/type", 32)
    found = collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"ib0": MLX5, "eth0": MLX5})))
    assert found.link_state == ("active", "active", None)


def test_a_priority_that_was_seen_keeps_its_row_when_its_source_is_late(sysfs: FakeSysfs) -> None:
    assembly = FabricAssembly()
    collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5})), assembly)
    found = frame(assembly.columns([None]))
    assert (found.device, found.pfc_priority) == (("mlx5_0", "eth0"), (0, 3))
    assert (found.rx_pause_frames, found.rx_pause_us, found.counters) == ((None, None), None, {})


def test_a_port_that_is_gone_has_no_values_and_is_read_again_when_it_comes_back(sysfs: FakeSysfs) -> None:
    statistics = FakeEthtool({"eth0": MLX5, "eth1": MLX5})
    sysfs.add_interface("eth1")
    source, assembly = NicCollector(sysfs.root, ioctl=statistics), FabricAssembly()
    assert collected(source, assembly).link_state == ("active", "active", "active")
    sysfs.remove("class/infiniband/mlx5_0")
    sysfs.remove("class/net/eth1")
    del statistics.statistics["eth1"]
    found = collected(source, assembly)
    assert found.device == ("mlx5_0", "eth0", "eth1")
    assert found.link_state == (None, "active", None)
    assert found.link_down_events == (None, 2, None)
    sysfs.add_infiniband("mlx5_0", counters={"symbol_error": 0})
    sysfs.add_interface("eth1")
    statistics.statistics["eth1"] = {**MLX5, "rx_packets": 1}
    found = collected(source, assembly)
    assert found.link_state == ("active", "active", "active")
    assert of_port(found, "mlx5_0")["symbol_error"] == 0
    assert of_port(found, "eth1")["rx_packets"] == 1


def test_statistics_that_become_more_or_other_keep_their_names(sysfs: FakeSysfs) -> None:
    statistics = FakeEthtool({"eth0": {"rx_discards": 1, "rx_prio3_pause": 2}})
    source = NicCollector(sysfs.root, ioctl=statistics)
    collected(source)
    statistics.statistics["eth0"] = {"rx_bytes": 5, "rx_discards": 1, "rx_prio3_pause": 3}
    found = collected(source)
    assert (found.rx_pause_frames, of_port(found, "eth0")["rx_bytes"]) == ((3,), 5)
    statistics.statistics["eth0"] = {"rx_bytes": 5, "rx_discards": 1, "rx_prio4_pause": 4}  # as many, but another
    priorities = [collected(source).pfc_priority for _ in range(10)]
    assert priorities[-1] == (4,)


def test_a_counter_of_32_bits_that_wraps_counts_on_and_one_that_was_reset_begins_anew(sysfs: FakeSysfs) -> None:
    statistics = FakeEthtool({"eth0": {"rx_prio3_pause": 2**32 - 100}})
    source, assembly = NicCollector(sysfs.root, ioctl=statistics), FabricAssembly()
    increase = CounterIncrease()

    def step(count: int, second: int) -> int | None:
        statistics.statistics["eth0"]["rx_prio3_pause"] = count
        (frames,) = collected(source, assembly).rx_pause_frames
        found = increase.read("session", second * 10**9, frames)
        return found[0] if found is not None else None

    assert step(2**32 - 100, 0) is None
    assert step(2**32 - 10, 1) == 90
    assert step(40, 2) == 50  # wrapped
    assert step(900_000, 3) == 899_960
    assert step(5, 4) is None  # the driver was loaded again
    assert step(7, 5) == 2


def test_the_settings_name_root_and_interfaces(sysfs: FakeSysfs) -> None:
    sysfs.add_interface("eth77")
    source = NicCollector.from_settings(
        AgentSettings(sysfs_root=str(sysfs.root), nic_interfaces=("eth77",)), AgentIdentity("n", "b", "s")
    )
    assert source.is_supported() is None
    found = collected(source)
    assert found.device == ("mlx5_0", "eth77")  # no such interface in the kernel, and yet its link is told
    assert list(source.failed) == ["eth77"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), name=st.sampled_from(["symbol_error", "port_rcv_data", "link_downed"]))
def test_whatever_a_file_holds_the_rest_is_read_and_the_frame_holds(
    sysfs: FakeSysfs, content: bytes, name: str
) -> None:
    port = "class/infiniband/mlx5_0/ports/1"
    for path in (f"{port}/counters/{name}", f"{port}/rate", f"{port}/state", "class/net/eth0/carrier_changes"):
        sysfs.write(path, content)
    for path in ("class/net/eth0/speed", "class/net/eth0/operstate", "class/net/eth0/statistics/rx_errors"):
        sysfs.write(path, content)
    found = collected(NicCollector(sysfs.root, ioctl=FakeEthtool({"eth0": MLX5})))
    assert of_port(found, "mlx5_0")["port_xmit_wait"] == 77
    assert found.rx_pause_frames == (1, 12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=st.binary(max_size=320), text=st.text(max_size=300))
def test_whatever_a_driver_or_the_program_says_the_frame_holds(sysfs: FakeSysfs, block: bytes, text: str) -> None:
    class Odd(FakeEthtool):
        def name_block(self, interface: str) -> bytes:
            return block

        def numbers(self, interface: str, count: int) -> tuple[int, ...]:
            return (2**64 - 1,) * count

    for source in (NicCollector(sysfs.root, ioctl=Odd({})), NicCollector(sysfs.root, ethtool=lambda _: text)):
        assert "mlx5_0" in collected(source).device

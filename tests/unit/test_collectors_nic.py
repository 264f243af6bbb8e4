"""The NIC collector and the fabric frame that its rows become."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from agents.collectors.base import CollectorError
from agents.collectors.nic import NicCollector
from agents.frame_assembly import FabricAssembly
from schemas.frames import FabricFrame

if TYPE_CHECKING:
    from pathlib import Path

ETHTOOL = """NIC statistics:
     rx_packets: 100
     rx_prio3_pause: 12
     rx_prio3_pause_duration: 90
     tx_prio3_pause: 0
     link_down_events_phy: 2
"""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for name, value in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "counters/port_rcv_data": "1000",
        "counters/port_xmit_data": "0",
        "counters/link_downed": "1",
        "counters/symbol_error": "3",
        "hw_counters/lifespan": "12",
        "hw_counters/out_of_sequence": "7",
    }.items():
        file = port / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    (tmp_path / "class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "class/net/lo").mkdir()
    return tmp_path


def frame(columns: dict[str, Any] | None) -> FabricFrame:
    assert columns is not None
    return FabricFrame(view="host", node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


def test_ports_of_both_sources_become_one_frame(sysfs: Path) -> None:
    asked = []

    def ethtool(interface: str) -> str:
        asked.append(interface)
        return ETHTOOL

    source = NicCollector(sysfs, ethtool=ethtool)
    assert source.is_supported() is None
    found = frame(FabricAssembly().columns([source.collect(0).ports]))
    assert asked == ["eth0"]  # no hardware behind lo
    assert (found.device, found.port) == (("mlx5_0", "eth0"), ("1", None))
    assert found.link_state == ("active", None)
    assert found.rate_gbps == (400.0, None)
    assert found.rx_data_bytes == (4000, None)
    assert found.tx_data_bytes == (0, None)
    assert found.link_down_events == (1, 2)
    assert found.counters == {
        "out_of_sequence": (7, None),
        "rx_packets": (None, 100),
        "symbol_error": (3, None),
    }
    assert (found.pfc_port, found.pfc_priority) == ((1,), (3,))
    assert (found.rx_pause_frames, found.tx_pause_frames, found.rx_pause_us) == ((12,), (0,), (90,))
    assert found.tx_pause_us is None  # not printed: unknown, not zero


def test_an_interface_that_cannot_be_read_costs_only_itself(sysfs: Path) -> None:
    def ethtool(interface: str) -> str:
        if interface == "eth1":
            raise subprocess.TimeoutExpired(["ethtool"], 2)
        return ETHTOOL

    source = NicCollector(sysfs, ["eth0", "eth1"], ethtool)
    rows = source.collect(0).ports
    assert rows is not None
    assert {row["device"] for row in rows} == {"mlx5_0", "eth0"}
    assert list(source.failed) == ["eth1"]


def test_without_any_port_it_is_unsupported_and_a_failure_is_an_error(tmp_path: Path) -> None:
    assert "neither" in str(NicCollector(tmp_path).is_supported())

    def ethtool(interface: str) -> str:
        raise FileNotFoundError("no ethtool")

    with pytest.raises(CollectorError, match="no ethtool"):
        NicCollector(tmp_path, ["eth0"], ethtool).collect(0)


def test_a_priority_that_was_seen_keeps_its_row_when_its_source_is_late(sysfs: Path) -> None:
    assembly = FabricAssembly()
    source = NicCollector(sysfs, ethtool=lambda _: ETHTOOL)
    assembly.columns([source.collect(0).ports])
    found = frame(assembly.columns([None]))
    assert (found.device, found.pfc_priority) == (("mlx5_0", "eth0"), (3,))
    assert (found.rx_pause_frames, found.rx_pause_us, found.counters) == ((None,), None, {})

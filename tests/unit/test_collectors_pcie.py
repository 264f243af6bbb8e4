"""The PCIe collector: links of GPUs and NICs from sysfs, and from lspci where sysfs tells none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.base import CollectorError, Readings
from agents.collectors.pcie import PcieCollector
from agents.collectors.program import ProgramError
from agents.frame_assembly import FabricAssembly, GpuAssembly
from agents.testing import FakeSysfs
from schemas.frames import FabricFrame, GpuFrame

if TYPE_CHECKING:
    from pathlib import Path

GPU, NIC = "0000:17:00.0", "0000:18:00.0"

LSPCI = """0000:17:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)
\tLnkSta2: Current De-emphasis Level: -3.5dB
"""


def no_lspci() -> str:
    raise ProgramError("lspci cannot be run: No such file or directory")


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    tree.add_pci(GPU)
    return tree


def add_nic(sysfs: FakeSysfs, address: str = NIC, **link: Any) -> None:
    sysfs.add_pci(address, vendor="0x15b3", device_class="0x020000", **link)
    sysfs.write(f"bus/pci/devices/{address}/net/eth0/mtu", 9000)
    sysfs.write(f"bus/pci/devices/{address}/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    sysfs.add_interface("eth0")


def gpus(readings: Readings) -> GpuFrame:
    columns = GpuAssembly().columns([readings.gpus])
    assert columns is not None
    return GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


def ports(readings: Readings) -> FabricFrame:
    columns = FabricAssembly().columns([readings.ports])
    assert columns is not None
    return FabricFrame(view="host", node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


def link(frame: GpuFrame | FabricFrame) -> list[tuple[int | None, ...] | None]:
    return [frame.pcie_link_gen, frame.pcie_link_width, frame.pcie_max_link_gen, frame.pcie_max_link_width]


def test_a_gpu_is_found_without_any_driver(sysfs: FakeSysfs) -> None:
    source = PcieCollector(sysfs.root)
    assert source.is_supported() is None
    sysfs.set_link(GPU, (1, 16))  # at rest
    frame = gpus(source.collect(0))
    assert (frame.pci_bus_id, frame.gpu_uuid) == (("0000:17:00",), (None,))
    assert link(frame) == [(1,), (16,), (5,), (16,)]
    sysfs.set_link(GPU, (5, 8))
    assert link(gpus(source.collect(0))) == [(5,), (8,), (5,), (16,)]


def test_the_maximum_is_what_both_ends_can_do(sysfs: FakeSysfs) -> None:
    sysfs.add_pci("0000:27:00.0", link=(4, 8), above=(4, 8))
    assert link(gpus(PcieCollector(sysfs.root).collect(0))) == [(5, 4), (16, 8), (5, 4), (16, 8)]


def test_an_emulated_bridge_does_not_say_what_a_link_can_do(sysfs: FakeSysfs) -> None:
    sysfs.add_pci("0000:27:00.0", link=(1, 16), above=(1, 1))
    assert link(gpus(PcieCollector(sysfs.root).collect(0)))[2:] == [(5, 5), (16, 16)]


def test_a_gpu_that_does_not_answer_has_no_link_and_says_so(sysfs: FakeSysfs) -> None:
    source = PcieCollector(sysfs.root)
    source.collect(0)
    sysfs.set_link(GPU, (0, 63))
    frame = gpus(source.collect(0))
    assert (frame.pcie_link_width, frame.pcie_link_gen) == (None, None)
    assert frame.read_error == ("PCIe device does not answer",)


@pytest.mark.parametrize(
    ("vendor", "device_class"),
    [("0x1002", "0x038000"), ("0x10de", "0x068000"), ("0x10de", "0x040300"), ("0x10de", "0x060400")],
)
def test_what_is_no_gpu_of_ours_is_none(tmp_path: Path, vendor: str, device_class: str) -> None:
    sysfs = FakeSysfs(tmp_path)
    sysfs.add_pci(GPU, vendor=vendor, device_class=device_class)
    source = PcieCollector(sysfs.root)
    assert "neither" in str(source.is_supported())
    with pytest.raises(CollectorError, match="no GPU"):
        source.collect(0)


def test_virtual_functions_and_devices_of_virtual_machines_are_left_out(sysfs: FakeSysfs) -> None:
    sysfs.add_pci("0000:17:00.4")
    sysfs.link("bus/pci/devices/0000:17:00.4/physfn", f"bus/pci/devices/{GPU}")
    sysfs.add_pci("0000:27:00.0")
    sysfs.link("bus/pci/devices/0000:27:00.0/driver", "bus/pci/drivers/vfio-pci")
    assert gpus(PcieCollector(sysfs.root).collect(0)).pci_bus_id == ("0000:17:00",)


def test_a_nic_tells_its_link_under_each_of_its_ports(sysfs: FakeSysfs) -> None:
    add_nic(sysfs, link=(5, 8))
    directory = f"bus/pci/devices/{NIC}"
    sysfs.write(f"{directory}/aer_dev_correctable", "RxErr 2\nBadTLP 1\nTOTAL_ERR_COR 3")
    sysfs.write(f"{directory}/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0")
    sysfs.write(f"{directory}/aer_dev_fatal", "garbage")
    frame = ports(PcieCollector(sysfs.root).collect(0))
    assert (frame.device, frame.port) == (("eth0", "mlx5_0"), (None, "1"))
    assert link(frame) == [(5, 5), (8, 8), (5, 5), (16, 16)]
    assert frame.pci_bus_id == ("0000:18:00", "0000:18:00")
    assert frame.counters == {
        "pcie_aer_correctable": (3, 3),
        "pcie_aer_fatal": (None, None),
        "pcie_aer_nonfatal": (0, 0),
    }


def test_only_interfaces_that_are_read_are_told(sysfs: FakeSysfs) -> None:
    add_nic(sysfs)
    assert ports(PcieCollector(sysfs.root, ("eth9",)).collect(0)).device == ("mlx5_0",)


def test_where_sysfs_tells_of_no_link_lspci_does(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    sysfs.add_pci(GPU, link=None)
    source = PcieCollector(sysfs.root, lspci=lambda: LSPCI)
    assert link(gpus(source.collect(0))) == [(5,), (8,), (5,), (16,)]
    source = PcieCollector(sysfs.root, lspci=no_lspci)
    assert source.collect(0).gpus == ()
    assert "No such file" in source.failed["lspci"]


def test_lspci_is_not_run_where_sysfs_tells(sysfs: FakeSysfs) -> None:
    source = PcieCollector(sysfs.root, lspci=no_lspci)
    source.collect(0)
    assert source.failed == {}


def test_a_gpu_that_nvml_knows_keeps_one_row(sysfs: FakeSysfs) -> None:
    nvml = {
        "gpu_uuid": "GPU-1",
        "gpu_index": 0,
        "pci_bus_id": "0000:17:00",
        "pcie_link_width": 16,
        "sm_clock_mhz": 1980,
    }
    sysfs.set_link(GPU, (5, 8))
    columns = GpuAssembly().columns([[nvml], PcieCollector(sysfs.root).collect(0).gpus])
    assert columns is not None
    assert (columns["gpu_uuid"], columns["pcie_link_width"], columns["pcie_link_gen"]) == (("GPU-1",), (16,), (5,))


def test_an_address_alone_makes_no_gpu_beside_those_whose_address_is_unknown(sysfs: FakeSysfs) -> None:
    by_index = [{"gpu_uuid": None, "gpu_index": 0, "sm_clock_mhz": 1980}]
    columns = GpuAssembly().columns([by_index, PcieCollector(sysfs.root).collect(0).gpus])
    assert columns is not None
    assert columns["gpu_index"] == (0,)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=120))
def test_whatever_the_files_hold_the_frames_hold(sysfs: FakeSysfs, content: bytes) -> None:
    if not (sysfs.root / "class/net/eth0").exists():
        add_nic(sysfs)
    for address in (GPU, NIC):
        names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "aer_dev_correctable")
        for name in names:
            sysfs.write(f"bus/pci/devices/{address}/{name}", content)
    readings = PcieCollector(sysfs.root, lspci=lambda: content.decode("latin-1")).collect(0)
    assert gpus(readings).pci_bus_id == ("0000:17:00",)
    assert ports(readings).device == ("eth0", "mlx5_0")

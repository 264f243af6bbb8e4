"""Lines of network drivers and of the PCIe services: what each says, and what is none of them."""

from __future__ import annotations

import io
from typing import Any

import pytest

from agents.decode import aer_line, nic_line
from agents.decode.kernel_log import decode
from agents.decode.record import Tally


@pytest.mark.parametrize(
    ("line", "condition", "severity", "address", "interface"),
    [
        ("mlx5_core 0000:17:00.0: poll_health:825:(pid 0): Fatal error 1 detected", "firmware_fatal", "fatal", "0000:17:00", None),
        ("mlx5_core 0002:17:00.1: poll_health:971: device's health compromised - reached miss count.", "health_lost", "fatal", "0002:17:00", None),
        ("mlx5_core 0000:17:00.0: print_health_info:506:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:", "health_issue", "degraded", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: print_health_info:506:(pid 0): Health issue observed, hardware error, severity(2) CRITICAL:", "health_issue", "fatal", "0000:17:00", None),
        ("mlx5_core: INFO: synd 0x8: unrecoverable hardware error.", "hardware_error", "fatal", None, None),
        ("mlx5_core 0000:17:00.0: mlx5_health_try_recover:335:(pid 7): handling bad device here", "device_error", "fatal", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still not working", "recovery_failed", "fatal", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: mlx5_health_try_recover:390:(pid 1): health recovery succeeded", "recovered", "info", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: wait_func:1195:(pid 9): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource", "command_timeout", "fatal", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1", "high_temperature", "degraded", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: mlx5_pcie_event:299:(pid 5): Detected insufficient power on the PCIe slot (27W).", "insufficient_power", "degraded", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)", "module_error", "degraded", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged", "cable_unplugged", "degraded", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0: Port module event: module 0, Cable plugged", "cable_plugged", "info", "0000:17:00", None),
        ("mlx5_core 0000:17:00.0 enp23s0f0np0: Link down", "link_down", "degraded", "0000:17:00", "enp23s0f0np0"),
        ("mlx5_core 0000:17:00.0 enp23s0f0np0: Link up", "link_up", "info", "0000:17:00", "enp23s0f0np0"),
        ("mlx5_core 0000:17:00.0 enp23s0f0np0: TX timeout detected", "transmit_timeout", "degraded", "0000:17:00", "enp23s0f0np0"),
        ("mlx5_core 0000:17:00.0 eth2: Error cqe on cqn 0x1a, ci 0x0, sqn 0x7, opcode 0xd, syndrome 0x2", "queue_error", "degraded", "0000:17:00", "eth2"),
        ("bnxt_en 0000:65:00.0 ens1f0np0: NIC Link is Down", "link_down", "degraded", "0000:65:00", "ens1f0np0"),
        ("bnxt_en 0000:65:00.0 ens1f0np0: NIC Link is Up, 200000 Mbps full duplex, Flow control: none", "link_up", "info", "0000:65:00", "ens1f0np0"),
        ("bnxt_en 0000:65:00.0 (unnamed net_device) (uninitialized): hwrm req_type 0x1d seq id 0xb error 0x2", "command_error", "degraded", "0000:65:00", None),
        ("bnxt_en 0000:65:00.0 ens1f0np0: Error (timeout: 5000015) msg {0x41 0x1fd} len:0", "command_timeout", "degraded", "0000:65:00", "ens1f0np0"),
        ("ice 0000:31:00.0 ens3f0: NIC Link is Down", "link_down", "degraded", "0000:31:00", "ens3f0"),
        ("ice 0000:31:00.0 ens3f0: NIC Link is up 100 Gbps Full Duplex, Requested FEC: RS-FEC", "link_up", "info", "0000:31:00", "ens3f0"),
        ("ice 0000:31:00.0 ens3f0: tx_timeout: VSI_num: 6, Q 3, NTC: 0x0", "transmit_timeout", "degraded", "0000:31:00", "ens3f0"),
        ("ice 0000:31:00.0 ens3f0: NETDEV WATCHDOG: CPU: 3: transmit queue 3 timed out 5000 ms", "transmit_timeout", "degraded", "0000:31:00", "ens3f0"),
        ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", "link_down", "degraded", "0000:01:00", "eno1"),
        ("e1000e: eth1 NIC Link is Down", "link_down", "degraded", None, "eth1"),
        ("tg3 0000:02:00.0 eth0: Link is down", "link_down", "degraded", "0000:02:00", "eth0"),
        ("NETDEV WATCHDOG: eth0 (ice): transmit queue 3 timed out", "transmit_timeout", "degraded", None, "eth0"),
        ("bond0: (slave eth0): link status definitely down, disabling it", "link_down", "degraded", None, "eth0"),
        ("bond0: link status definitely up for interface eth0, 100000 Mbps full duplex", "link_up", "info", None, "eth0"),
    ],
)  # fmt: skip
def test_a_network_drivers_line_says_what_happened_to_which_port(
    line: str, condition: str, severity: str, address: str | None, interface: str | None
) -> None:
    record = nic_line.parse(line)
    assert record is not None
    assert (record["condition"], record["severity"]) == (condition, severity)
    assert (record["pci_bus_id"], record["interface"]) == (address, interface)
    assert aer_line.parse(line) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "pcieport 0000:16:02.0: AER: Multiple Correctable error message received from 0000:17:00.0",
            {"condition": "message", "corrected": True, "severity": "info", "pci_bus_id": "0000:17:00"},
        ),
        (
            "pcieport 0000:00:01.0: AER: Corrected error received: id=0008",
            {"condition": "message", "corrected": True, "pci_bus_id": None},
        ),
        (
            "pcieport 0004:00:00.0: AER: Uncorrectable (Fatal) error message received from 0004:01:00.0",
            {"condition": "message", "reported_severity": "fatal", "severity": "fatal", "pci_bus_id": "0004:01:00"},
        ),
        (
            "nvidia 0000:17:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
            {"condition": "bus_error", "corrected": True, "driver": "nvidia", "layer": "physical", "agent": "receiver"},
        ),
        (
            "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=0008(Transmitter ID)",
            {"condition": "bus_error", "corrected": True, "layer": "data_link", "agent": "transmitter"},
        ),
        (
            "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
            {"corrected": False, "reported_severity": "non_fatal", "severity": "degraded", "layer": "transaction"},
        ),
        (
            "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
            {"reported_severity": "fatal", "severity": "fatal", "layer": None, "pci_bus_id": "0000:c0:01"},
        ),
        (
            "nvidia 0000:17:00.0:    [ 0] RxErr                  (First)",
            {"condition": "error", "error_name": "RxErr", "corrected": True},
        ),
        ("igb 0000:09:00.0: AER:    [14] CmpltTO", {"condition": "error", "error_name": "CmpltTO", "corrected": False}),
        (
            "hpsa 0000:04:00.0:    [12] Replay Timer Timeout  ",
            {"error_name": "Replay Timer Timeout", "corrected": True},
        ),
        ("pcieport 0000:03:04.0: AER: device recovery failed", {"condition": "recovery_failed", "severity": "fatal"}),
        ("pcieport 0000:03:04.0: AER: Device recovery successful", {"condition": "recovered", "severity": "info"}),
        ("pcieport 0000:00:1b.0: DPC: containment event, status:0x1f01 source:0x0000", {"condition": "containment"}),
        ("pcieport 0000:00:1b.0: pciehp: Slot(4-1): Link Down", {"condition": "slot_link_down"}),
        ("pcieport 0000:00:1b.0: pciehp: Slot(4): Card not present", {"condition": "slot_empty"}),
        ("nvidia 0000:17:00.0: AER: aer_status: 0x00002000, aer_mask: 0x00000000", {"condition": "status"}),
    ],
)
def test_a_pcie_line_says_which_device_has_what_error(line: str, expected: dict[str, Any]) -> None:
    record = aer_line.parse(line)
    assert record is not None
    assert {name: record[name] for name in expected} == expected
    assert nic_line.parse(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:17:00.0: firmware version: 28.39.1002",
        "mlx5_core 0000:17:00.0: mlx5_pcie_event:294:(pid 5): PCIe slot advertised sufficient power (75W).",
        "mlx5_core 0000:17:00.0 enp23s0f0np0: renamed from eth0",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "ahci 0000:00:17.0: link down",
        "nvidia 0000:17:00.0:   device [10de:2330] error status/mask=00000001/0000e000",
        "snd_hda_intel 0000:01:00.1:    [ 0] Something else",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
        "pcieport 0000:00:01.0: pciehp: Slot(4): Card present",
        "a program said: mlx5_core 0000:17:00.0 eth0: Link down",
        "",
    ],
)
def test_other_lines_of_such_drivers_are_none(line: str) -> None:
    assert nic_line.parse(line) is None
    assert aer_line.parse(line) is None


def test_they_are_read_through_any_transport_and_a_users_line_is_not_trusted() -> None:
    down = "mlx5_core 0000:17:00.0 enp23s0f0np0: Link down"
    error = "nvidia 0000:17:00.0:    [ 0] RxErr                  (First)"
    text = "\n".join(
        [
            f"3,7,5000000,-;{down}",
            " SUBSYSTEM=net",
            f"12,8,5000001,-;{down}",
            f"[    6.500000] {error}",
            f"kern  :warn  : 2025-01-25T10:34:54,859532+00:00 {error}",
            f"May 19 07:08:57 node-1 kernel: [680111.646286] {down}",
            f"May 19 07:08:57 node-1 exporter[7]: {down}",
            '{"_TRANSPORT": "kernel", "MESSAGE": "' + down + '"}',
        ]
    )
    records = list(decode(io.BytesIO(text.encode()), Tally()))
    assert [record["kind"] for record in records] == ["nic", "nic", "aer", "aer", "nic", "nic"]
    assert [record.get("trusted", True) for record in records] == [True, False, True, True, True, True]
    assert (records[0]["kernel_time_us"], records[0]["kmsg_seq"]) == (5_000_000, 7)

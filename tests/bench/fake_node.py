"""A node made of files: NICs in a sysfs tree, a kernel log that grows, and a `pynvml` module of eight GPUs.

It stands for a node's sources where none are, so that the real `paceline agent` can be run against them in a process of
its own. What it cannot stand for: the time that a driver spends in a call, and counters that a card makes up when asked.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from agents.testing import FakeGpu, FakeNvml

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GPUS", "NICS", "KernelLogWriter", "busy_nvml", "write_pynvml", "write_sysfs"]

GPUS = 8
NICS = 8

_COUNTERS = (
    *("VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery"),
    *("local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_constraint_errors"),
    *("port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors"),
    *("port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards"),
    *("port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets"),
)
_HW_COUNTERS = (
    *("duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent"),
    *("np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error"),
    *("req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request", "resp_cqe_error"),
    *("resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors", "rnr_nak_retry_err"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps"),
    *("roce_slow_restart_trans", "rp_cnp_handled", "rp_cnp_ignored", "rx_atomic_requests", "rx_dct_connect"),
    *("rx_icrc_encapsulated", "rx_read_requests", "rx_write_requests"),
)
"""Counters of a ConnectX-7 port under `counters` and `hw_counters`."""

_NOISE = (
    "audit: type=1400 apparmor=ALLOWED operation=open profile=/usr/bin/man",
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali4f2: link becomes ready",
    "EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode",
    "nvidia-uvm: Loaded the UVM driver, major device number 508.",
    "systemd[1]: Started Session 4412 of user root.",
    "nvme nvme3: 64/0/0 default/read/poll queues",
    "TCP: request_sock_TCP: Possible SYN flooding on port 6443. Sending cookies.",
)


def write_sysfs(root: Path) -> None:
    """Eight InfiniBand devices of one port, each with 21 + 30 counters, and the PCI functions of cards and GPUs."""
    for number in range(NICS):
        port = root / f"class/infiniband/mlx5_{number}/ports/1"
        files = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            **{f"counters/{name}": str(1_000_003 * (number + 1)) for name in _COUNTERS},
            **{f"hw_counters/{name}": str(17 * number) for name in _HW_COUNTERS},
        }
        for name, value in files.items():
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text(f"{value}\n")
        _write_pci(root / f"bus/pci/devices/0000:{0x1A + 16 * number:02x}:00.0", "0x10de", "0x030200")
        card = root / f"bus/pci/devices/0000:{0x1B + 16 * number:02x}:00.0"
        _write_pci(card, "0x15b3", "0x020700")
        (card / f"infiniband/mlx5_{number}/ports/1").mkdir(parents=True)
        for severity in ("correctable", "nonfatal", "fatal"):
            name = f"TOTAL_ERR_{'COR' if severity == 'correctable' else severity.upper()}"
            (card / f"aer_dev_{severity}").write_text(f"RxErr 0\nBadTLP 0\n{name} 0\n")


def _write_pci(directory: Path, vendor: str, device_class: str) -> None:
    directory.mkdir(parents=True)
    for name, value in {
        "vendor": vendor,
        "class": device_class,
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }.items():
        (directory / name).write_text(f"{value}\n")


def write_pynvml(folder: Path, bench: Path) -> None:
    """A module `pynvml` that is `busy_nvml`, for `PYTHONPATH`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pynvml.py").write_text(
        f"import sys\nsys.path.append({str(bench)!r})\nimport fake_node\nsys.modules[__name__] = fake_node.busy_nvml()\n"
    )


class _BusyGpu(FakeGpu):
    """A GPU under load: what moves on a real one moves with the time here, so that frames compress as real ones do."""

    @property
    def PowerUsage(self) -> int:  # noqa: N802 - the library's name
        return 640_000 + time.time_ns() // 1_000_003 % 50_000

    @property
    def TotalEnergyConsumption(self) -> int:  # noqa: N802 - as above
        return time.time_ns() // 1_500_000

    @property
    def TemperatureV(self) -> int:  # noqa: N802 - as above
        return 60 + time.time_ns() // 3_000_000_007 % 9

    @property
    def ClockInfo(self) -> dict[tuple[int], int]:  # noqa: N802 - as above
        return {
            (FakeNvml.NVML_CLOCK_SM,): 1980 - time.time_ns() // 1_000_000_007 % 4 * 15,
            (FakeNvml.NVML_CLOCK_MEM,): 2619,
        }


def busy_nvml() -> FakeNvml:
    """Answers like `pynvml` on a node with eight H100 under load."""
    link = {"CurrPcieLinkGeneration": 5, "CurrPcieLinkWidth": 16, "MaxPcieLinkGeneration": 5, "MaxPcieLinkWidth": 16}
    gpus = [
        _BusyGpu(
            uuid=f"GPU-{number:08x}-0000-4000-8000-000000000000",
            address=f"00000000:{0x1A + 16 * number:02X}:00.0",
            EnforcedPowerLimit=700_000,
            MemoryInfo=SimpleNamespace(used=71 << 30, total=80 << 30, free=9 << 30),
            TotalEccErrors=0,
            PcieReplayCounter=0,
            CurrentClocksEventReasons=4,
            ViolationStatus=SimpleNamespace(violationTime=123_456_789, referenceTime=0),
            UtilizationRates=SimpleNamespace(gpu=100, memory=61),
            RemappedRows=(0, 0, 0, 0),
            **link,
        )
        for number in range(GPUS)
    ]
    for gpu in gpus:
        gpu.FieldValues = _FieldValues()
    return FakeNvml(gpus)


class _FieldValues(dict[Any, Any]):
    """Any field of any GPU: an unsigned integer, as most are."""

    def get(self, selectors: Any, default: Any = None) -> Any:
        value = SimpleNamespace(uiVal=0, ulVal=0, ullVal=0, sllVal=0, siVal=0, usVal=0, dVal=0.0)
        return [
            SimpleNamespace(fieldId=field, nvmlReturn=FakeNvml.NVML_SUCCESS, valueType=3, value=value, timestamp=0)
            for field in selectors[0]
        ]


class KernelLogWriter:
    """Appends lines to a file as `/dev/kmsg` gives them, from a thread; one in a thousand is an Xid.

    Args:
        path: the file.
        lines_per_s: how many, in ten portions a second.
    """

    def __init__(self, path: Path, lines_per_s: int) -> None:
        self.written = 0
        self.events = 0
        self._path = path
        self._lines_per_s = lines_per_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        path.touch()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _write(self) -> None:
        while not self._stop.wait(0.1):
            lines = []
            for _ in range(self._lines_per_s // 10):
                self.written += 1
                text = _NOISE[self.written % len(_NOISE)]
                if self.written % 1000 == 0:
                    text, self.events = "NVRM: Xid (PCI:0000:1a:00): 31, pid=4242, name=python", self.events + 1
                lines.append(f"6,{self.written},{time.monotonic_ns() // 1000},-;{text}\n")
            with self._path.open("a") as log:
                log.writelines(lines)

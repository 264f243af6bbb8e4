"""Stand-ins for what a kernel tells of network cards and PCIe devices: a tree of files, and the statistics of drivers.

The tree has the directories and links that collectors follow, with contents as the kernel prints them. It cannot stand
for the time that a card takes to answer, nor for files that refuse to be read.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path

from agents.collectors.ethtool import EthtoolIoctl

__all__ = ["FakeEthtool", "FakeSysfs"]

_SPEEDS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


class FakeSysfs:
    """A tree of files under a directory.

    Args:
        root: where it begins; what stands for `/sys`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: str | int | bytes) -> None:
        """Write a file, with what it is in."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link to another place in the tree, which is made too."""
        (self.root / target).mkdir(parents=True, exist_ok=True)
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(self.root / target)

    def remove(self, path: str) -> None:
        """Take away a directory or link, with all below it."""
        place = self.root / path
        if place.is_symlink() or place.is_file():
            place.unlink()
        else:
            shutil.rmtree(place)

    def add_infiniband(
        self,
        device: str,
        *,
        port: str = "1",
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        counters: Mapping[str, int | str] | None = None,
        hw_counters: Mapping[str, int | str] | None = None,
    ) -> None:
        """A device with one port."""
        directory = f"class/infiniband/{device}/ports/{port}"
        self.write(f"{directory}/state", state)
        self.write(f"{directory}/phys_state", "5: LinkUp")
        self.write(f"{directory}/rate", rate)
        self.write(f"{directory}/link_layer", "InfiniBand")
        for name, value in (counters or {}).items():
            self.write(f"{directory}/counters/{name}", value)
        for name, value in (hw_counters or {}).items():
            self.write(f"{directory}/hw_counters/{name}", value)

    def add_interface(
        self,
        name: str,
        *,
        has_device: bool = True,
        operstate: str = "up",
        speed_mbps: int = 400_000,
        carrier_changes: int = 1,
        statistics: Mapping[str, int] | None = None,
    ) -> None:
        """A network interface; without a device it is a bond, a VLAN or the like."""
        directory = f"class/net/{name}"
        self.write(f"{directory}/type", 1)
        self.write(f"{directory}/operstate", operstate)
        self.write(f"{directory}/speed", speed_mbps)
        self.set_carrier_changes(name, carrier_changes)
        for counter, value in (statistics or {}).items():
            self.write(f"{directory}/statistics/{counter}", value)
        if has_device:
            (self.root / directory / "device").mkdir(exist_ok=True)

    def set_carrier_changes(self, name: str, changes: int) -> None:
        """How often an interface's link went up or down."""
        self.write(f"class/net/{name}/carrier_changes", changes)
        self.write(f"class/net/{name}/carrier_up_count", (changes + 1) // 2)
        self.write(f"class/net/{name}/carrier_down_count", changes // 2)

    def add_pci(
        self,
        address: str,
        *,
        vendor: str = "0x10de",
        device_class: str = "0x030200",
        link: tuple[int, int] | None = (5, 16),
        most: tuple[int, int] = (5, 16),
        above: tuple[int, int] | None = (5, 16),
    ) -> None:
        """A PCI device below a port.

        Args:
            address: `dddd:bb:dd.f`.
            vendor: its vendor, as in sysfs.
            device_class: likewise.
            link: generation and width now; None for a device without the files of a link.
            most: what the device can do.
            above: what the port above it can do; None for none.
        """
        place = f"devices/pci0000:00/0000:00:{address[5:7]}.0"
        self.link(f"bus/pci/devices/{address}", f"{place}/{address}")
        self.write(f"{place}/{address}/vendor", vendor)
        self.write(f"{place}/{address}/class", device_class)
        if link is not None:
            self.set_link(address, link)
            self._write_most(f"{place}/{address}", most)
        if above is not None:
            self._write_most(place, above)

    def set_link(self, address: str, link: tuple[int, int]) -> None:
        """Train a link anew; width 63 is a device that does not answer."""
        directory = f"bus/pci/devices/{address}"
        self.write(f"{directory}/current_link_speed", _SPEEDS.get(link[0], "Unknown"))
        self.write(f"{directory}/current_link_width", link[1])

    def _write_most(self, directory: str, most: tuple[int, int]) -> None:
        self.write(f"{directory}/max_link_speed", _SPEEDS[most[0]])
        self.write(f"{directory}/max_link_width", most[1])


class FakeEthtool(EthtoolIoctl):
    """Answers for the kernel, from a table.

    Attributes:
        statistics: number by name, by interface; an interface that is not in it is not there.
        is_refused: whether the kernel refuses the call, as where a filter of system calls does.
    """

    def __init__(self, statistics: Mapping[str, Mapping[str, int]], *, is_refused: bool = False) -> None:
        super().__init__()
        self.statistics = {interface: dict(numbers) for interface, numbers in statistics.items()}
        self.is_refused = is_refused

    def name_block(self, interface: str) -> bytes:
        """The names, 32 bytes each."""
        return b"".join(name.encode()[:32].ljust(32, b"\0") for name in self._of(interface))

    def numbers(self, interface: str, count: int) -> tuple[int, ...] | None:
        """The numbers, None if their count is another."""
        numbers = tuple(self._of(interface).values())
        return numbers if len(numbers) == count else None

    def _of(self, interface: str) -> dict[str, int]:
        if self.is_refused:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        if interface not in self.statistics:
            raise OSError(errno.ENODEV, "No such device")
        return self.statistics[interface]

"""PCIe links of a node's GPUs and NICs: the files under `/sys/bus/pci/devices`, or `lspci` where they tell of no link.

Guarantees: GPUs are found without any driver's library, so their links are known where NVML is not; the maximum is what
both ends of the link can do, as NVML states it, and not what the device alone could; a device that does not answer has
no link, which is not a narrow one. Virtual functions and devices that were handed to a virtual machine are left out. It
judges nothing: a link that idles at generation 1 is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.attribute_files import AttributeFiles
from agents.collectors.base import CollectorError, Readings, Row
from agents.collectors.nic_hardware import is_physical
from agents.collectors.program import ProgramError, run_program
from agents.decode import pci_address, pcie_lspci, pcie_sysfs
from agents.decode.quantity import Unreadable, integer

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["NO_ANSWER", "PcieCollector", "run_lspci"]

_NVIDIA = "0x10de"
_DISPLAY, _NETWORK = "0x03", "0x02"
_LINK_NOW = ("current_link_speed", "current_link_width")
_LINK_MOST = ("max_link_speed", "max_link_width")
_AER = {
    "aer_dev_correctable": ("TOTAL_ERR_COR", "pcie_aer_correctable"),
    "aer_dev_nonfatal": ("TOTAL_ERR_NONFATAL", "pcie_aer_nonfatal"),
    "aer_dev_fatal": ("TOTAL_ERR_FATAL", "pcie_aer_fatal"),
}
"""Files with one error a line and the line of their sum (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""

_NO_LINK = {"link_gen": None, "link_width": None, "max_link_gen": None, "max_link_width": None}

NO_ANSWER = "PCIe device does not answer"
"""`read_error` of a GPU whose link reads as that of a device which is gone."""

_LIST_EVERY = 60
_ASK_LSPCI_EVERY = 10


def run_lspci(timeout_s: float = 2.0) -> str:
    """Standard output of `lspci -D -vvv` for NVIDIA's devices; it tells of links only to a privileged user.

    Raises:
        ProgramError: the program cannot be run, failed or took too long.
    """
    return run_program(["lspci", "-D", "-vvv", "-d", "10de:"], timeout_s).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Device:
    """One device function whose link is read.

    Attributes:
        address: as in sysfs, `dddd:bb:dd.f`.
        most: generation and width that both ends can do.
        tells: whether sysfs tells of its link.
        ports: device and port of each port of a NIC; none for a GPU.
    """

    address: str
    most: tuple[int | None, int | None]
    tells: bool
    ports: tuple[tuple[str, str | None], ...] = ()


class PcieCollector:
    """Reads links.

    Args:
        sysfs_root: where sysfs is mounted.
        interfaces: network interfaces whose links are read; None takes the physical ones.
        lspci: runs the program.
    """

    name = "pcie"
    precedence = 60

    def __init__(
        self,
        sysfs_root: str | Path = "/sys",
        interfaces: tuple[str, ...] | None = None,
        lspci: Callable[[], str] = run_lspci,
    ) -> None:
        self.failed: dict[str, str] = {}
        """`lspci`, when it could not be run the last time, and why."""
        self._directory = Path(sysfs_root) / "bus/pci/devices"
        self._interfaces = interfaces
        self._lspci = lspci
        self._devices: dict[str, _Device] = {}
        self._files = AttributeFiles(self._list, list_every=_LIST_EVERY)
        self._readings = 0
        self._from_lspci: dict[str, Row] = {}

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> PcieCollector:  # noqa: ARG003 - the same for every node
        """The collector of this node's GPUs and of the interfaces that the settings name."""
        return cls(settings.sysfs_root, settings.nic_interfaces or None)

    def is_supported(self) -> str | None:
        """None if there is a GPU or a NIC on the bus, else why not."""
        tuple(self._list())
        if self._devices:
            return None
        return f"neither an NVIDIA GPU nor a network card with a PCIe link under {self._directory}"

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - a link is read as it is now
        """Read all links.

        Raises:
            CollectorError: there is no device any more.
        """
        links: dict[str, list[tuple[str, str]]] = {}
        errors: dict[str, dict[str, int | None]] = {}
        for path, content in self._files.read():
            directory, _, name = path.rpartition("/")
            address = directory.rpartition("/")[2]
            if name in _AER:
                total, counter = _AER[name]
                errors.setdefault(address, {})[counter] = _total(content, total)
            elif name in _LINK_NOW:
                links.setdefault(address, []).append((name, content))
        if not self._devices:
            raise CollectorError(f"no GPU and no network card under {self._directory}")
        gpus: list[Row] = []
        ports: list[Row] = []
        for device in self._devices.values():
            row = self._link(device, links.get(device.address))
            if row is None:
                continue
            if not device.ports:
                gpus.append({"gpu_uuid": None, "gpu_index": None, **row})
            for name, port in device.ports:
                of_port = {"kind": "port", "view": "host", "device": name, "port": port}
                ports.append({**of_port, **row, "counters": errors.get(device.address, {})})
        self._readings += 1
        return Readings(gpus=tuple(gpus), ports=tuple(ports))

    def _link(self, device: _Device, files: list[tuple[str, str]] | None) -> Row | None:
        """The columns of one device; None where nothing tells of its link."""
        if files:
            (link,) = pcie_sysfs.parse((device.address, name, content) for name, content in files)
            generation, lanes = device.most
            return _columns({**link, "max_link_gen": generation, "max_link_width": lanes})
        if device.tells or not (self._directory / device.address).exists():
            return None
        if self._readings % _ASK_LSPCI_EVERY == 0:
            self._ask_lspci()
        return self._from_lspci.get(pci_address.normalise(device.address) or "")

    def _ask_lspci(self) -> None:
        self.failed = {}
        self._from_lspci = {}
        try:
            text = self._lspci()
        except ProgramError as error:
            self.failed["lspci"] = str(error)
            return
        reader = pcie_lspci.Reader()
        records = [record for number, line in enumerate(text.splitlines(), 1) for record in reader.read(number, line)]
        for record in (*records, *reader.end()):
            if record["kind"] == "pcie_link" and record["pci_bus_id"] is not None:
                self._from_lspci[record["pci_bus_id"]] = _columns(record)

    def _list(self) -> Iterator[Path]:
        self._devices = {}
        for directory in sorted(self._directory.glob("*")):
            device_class = _text(directory / "class")
            is_gpu = device_class.startswith(_DISPLAY) and _text(directory / "vendor") == _NVIDIA
            if not (is_gpu or device_class.startswith(_NETWORK)) or _is_not_ours(directory):
                continue
            ports = () if is_gpu else tuple(self._ports(directory))
            links = [directory / name for name in _LINK_NOW if (directory / name).is_file()]
            if not is_gpu and not (ports and links):
                continue
            self._devices[directory.name] = _Device(directory.name, _both_ends(directory), bool(links), ports)
            yield from links
            if ports:
                yield from (directory / name for name in _AER if (directory / name).is_file())

    def _ports(self, directory: Path) -> Iterator[tuple[str, str | None]]:
        for interface in sorted((directory / "net").glob("*")):
            if self._interfaces is None:
                if is_physical(self._directory.parents[2] / "class/net" / interface.name):
                    yield interface.name, None
            elif interface.name in self._interfaces:
                yield interface.name, None
        for port in sorted((directory / "infiniband").glob("*/ports/*")):
            yield port.parent.parent.name, port.name


def _columns(link: Row) -> dict[str, Any]:
    fault = {"read_error": NO_ANSWER} if link["device_lost"] else {}
    return {
        **fault,
        "pci_bus_id": link["pci_bus_id"],
        "pcie_link_gen": link["link_gen"],
        "pcie_link_width": link["link_width"],
        "pcie_max_link_gen": link["max_link_gen"],
        "pcie_max_link_width": link["max_link_width"],
    }


def _both_ends(directory: Path) -> tuple[int | None, int | None]:
    """Generation and width that a device and the port above it can do; of an end that does not say, the other's."""
    here, above = (_link_files(end, directory.name) for end in (directory, directory.resolve().parent))
    most = {}
    for name in ("link_gen", "link_width"):
        own, other, now = here[f"max_{name}"], above[f"max_{name}"], here[name]
        if now is not None and other is not None and now > other:
            # An emulated bridge above a device that was handed to a virtual machine states less than the link carries.
            return here["max_link_gen"], here["max_link_width"]
        most[name] = min((value for value in (own, other) if value is not None), default=None)
    return most["link_gen"], most["link_width"]


def _link_files(end: Path, address: str) -> Row:
    files = [(address, name, text) for name in (*_LINK_NOW, *_LINK_MOST) if (text := _text(end / name))]
    return next(iter(pcie_sysfs.parse(files)), _NO_LINK)


def _is_not_ours(directory: Path) -> bool:
    """Whether a device is a virtual function of a card that is here too, or belongs to a virtual machine."""
    return (directory / "physfn").exists() or (directory / "driver").resolve().name == "vfio-pci"


def _total(content: str, name: str) -> int | None:
    for line in content.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            try:
                return integer(words[1])
            except Unreadable:
                return None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""

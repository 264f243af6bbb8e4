"""Which network interfaces and InfiniBand devices of a node are physical ports, by what sysfs says of them.

Guarantees: bonds, bridges, VLANs, tunnels and loopback have no device and are left out; so are virtual functions whose
card this kernel has too, sub-functions, the representors of a switched card, and the children of an IPoIB interface. In
a virtual machine a virtual function is the card. What was found is kept for as long as the entry in sysfs is the same.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Hardware", "PhysicalPorts"]

_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:vf|sf)[0-9]+", re.ASCII)
_NAME = re.compile(r"[^\s/:]+")


@dataclass(frozen=True, slots=True, order=True)
class Hardware:
    """One interface or device.

    Attributes:
        name: its name in sysfs.
        entry: the number of its entry there; another one is another device, or the same after its driver was reloaded.
    """

    name: str
    entry: int


class PhysicalPorts:
    """Lists what is physical in one class of sysfs.

    Args:
        sysfs_root: where sysfs is mounted.
        device_class: `net` or `infiniband`.
        chosen: names to list whatever sysfs says of them; None lists what is physical.
    """

    def __init__(self, sysfs_root: str | Path, device_class: str, chosen: tuple[str, ...] | None = None) -> None:
        self._directory = Path(sysfs_root) / "class" / device_class
        self._chosen = chosen
        self._judged: dict[Hardware, bool] = {}
        self.missing: tuple[str, ...] = chosen or ()
        """Chosen names that were not there at the last listing."""

    def list(self) -> tuple[Hardware, ...]:
        """What is here now, by name. One reading of a directory; only what is new is looked at."""
        try:
            with os.scandir(self._directory) as entries:
                here = sorted(Hardware(entry.name, entry.inode()) for entry in entries if _NAME.fullmatch(entry.name))
        except OSError:
            here = []
        self._judged = {one: self._judged[one] if one in self._judged else self._is_wanted(one.name) for one in here}
        listed = tuple(one for one, wanted in self._judged.items() if wanted)
        self.missing = tuple(sorted({*(self._chosen or ())} - {one.name for one in listed}))
        return listed

    def _is_wanted(self, name: str) -> bool:
        if self._chosen is not None:
            return name in self._chosen
        return is_physical(self._directory / name)


def is_physical(entry: Path) -> bool:
    """Whether an entry of `class/net` or `class/infiniband` is a port of a card of this node."""
    device = entry / "device"
    if entry.parent.name == "net" and not device.exists():
        return False
    if (device / "physfn").exists() or (device / "sfnum").exists() or (entry / "parent").is_file():
        return False
    try:
        port_name = (entry / "phys_port_name").read_text("utf-8", "replace").strip()
    except OSError:  # most drivers name no ports
        return True
    return _REPRESENTOR.fullmatch(port_name) is None

"""A dump of `/sys/bus/pci/devices` as `PATH:VALUE` lines: one record for each device that tells of its link.

Guarantees: devices keep their order of appearance, whichever order their files have; a path through bridges
belongs to the last address in it. Devices without a link, which have no such files, yield nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agents.decode import pci_address
from agents.decode.pcie_link import LOST_REVISION, generation, link_record, width
from agents.decode.record import Record

_LINE = re.compile(
    r"(?:\S*/)?(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/(?P<name>[a-z_]+)\s*:[ \t]*(?P<value>.*)",
    re.ASCII | re.IGNORECASE,
)
_SECTION = re.compile(r"\s*[-=#]{3,}\s+(?P<directory>\S*/\S*?)/?\s*(?:[-=#]{3,})?\s*")
_NAMED = re.compile(r"\s*(?P<name>[a-z_]+)\s*:[ \t]*(?P<value>.*)", re.ASCII)
_LINK_FILES = frozenset({"current_link_speed", "current_link_width", "max_link_speed", "max_link_width"})


class Devices:
    """Files by device, while they are gathered."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, str]] = {}
        self._directory: str | None = None

    def take(self, line: str) -> bool:
        """Takes in a line `PATH:VALUE`, or `NAME: VALUE` below `--- PATH ---`; whether it was a file of a device."""
        section = _SECTION.fullmatch(line)
        if section is not None:
            self._directory = section["directory"]
            return False
        found = _LINE.fullmatch(line)
        if found is None and self._directory is not None:
            named = _NAMED.fullmatch(line)
            found = _LINE.fullmatch(f"{self._directory}/{named['name']}:{named['value']}") if named else None
        if found is None:
            return False
        self.put(found["address"], found["name"].lower(), found["value"].strip())
        return True

    def put(self, address: str, name: str, value: str) -> None:
        """Takes in one file of the device at `address`."""
        self._files.setdefault(address.lower(), {})[name] = value

    def records(self) -> Iterator[Record]:
        """One record for each device with a link, or with the revision of one that does not answer."""
        for address, files in self._files.items():
            lost = files.get("revision", "").lower().removeprefix("0x") == LOST_REVISION
            if not lost and not _LINK_FILES & files.keys():
                continue
            yield link_record(
                pci_address.normalise(address),
                gen=_generation(files.get("current_link_speed", "")),
                lanes=width(files.get("current_link_width", "")),
                max_gen=_generation(files.get("max_link_speed", "")),
                max_lanes=width(files.get("max_link_width", "")),
                lost=lost,
            )


def parse(files: Iterable[tuple[str, str, str]]) -> list[Record]:
    """The records of files that a collector has read: address, file name and content of each."""
    devices = Devices()
    for address, name, content in files:
        devices.put(address, name, content.strip())
    return list(devices.records())


def _generation(text: str) -> int | None:
    # A device that does not answer has no speed: the kernel prints "Unknown", older ones "Unknown speed".
    return 0 if text.strip() == "0" else generation(text)

"""One `pcie_link` record: generations from speeds, widths, and how a device that is gone reads.

Guarantees: a lost device (all ones on the bus: width 63, generation 0, revision ff) has no link, whatever its
registers read; unknown is null. A device whose last reading is cached reads like a healthy one, which nothing here
can tell.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.quantity import Unreadable, number
from agents.decode.record import Record

LOST_WIDTH: Final = 63
"""Six bits of ones: the width field of a device that does not answer."""
LOST_GENERATION: Final = 0
LOST_REVISION: Final = "ff"

_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_SPEED = re.compile(r"\s*(?P<speed>[0-9]{1,4}(?:\.[0-9]{1,3})?)\s*GT/?s\b", re.ASCII | re.IGNORECASE)
_WIDTH = re.compile(r"\s*x?(?P<width>[0-9]{1,3})\b", re.ASCII | re.IGNORECASE)


def generation(text: str) -> int | None:
    """The generation of a speed as lspci or sysfs print it (`32GT/s`, `32.0 GT/s PCIe`); None for any other text."""
    found = _SPEED.match(text)
    return _GENERATIONS.get(float(found["speed"])) if found else None


def width(text: str) -> int | None:
    """The lanes in `x16` or `16`, None for any other text."""
    found = _WIDTH.match(text)
    return int(found["width"]) if found else None


def whole(text: str) -> int | None:
    """An integer of a table's cell, None for any other text."""
    try:
        value = number(text)
    except Unreadable:
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value


def link_record(
    address: str | None,
    *,
    gen: int | None,
    lanes: int | None,
    max_gen: int | None,
    max_lanes: int | None,
    lost: bool = False,
) -> Record:
    """The record of one reading.

    Args:
        address: `dddd:bb:dd`, None if the source has none that can be read.
        gen: Current generation.
        lanes: Current width.
        max_gen: What the device can do.
        max_lanes: Likewise.
        lost: That the source says so in another way than by generation and width.
    """
    lost = lost or gen == LOST_GENERATION or lanes == LOST_WIDTH
    return {
        "kind": "pcie_link",
        "pci_bus_id": address,
        "link_gen": None if lost else gen,
        "link_width": None if lost else lanes,
        "max_link_gen": max_gen or None,
        "max_link_width": None if max_lanes in {None, 0, LOST_WIDTH} else max_lanes,
        "device_lost": lost,
    }

"""`lspci -vv`: one record for each `LnkSta` line, and one for a device that only says that it does not answer.

Guarantees: `LnkSta2` and `LnkCap2` are never taken for the link's state; a capability belongs to the device under
whose heading it stands. A bridge is a device like any other.
"""

from __future__ import annotations

import re

from agents.decode import pci_address
from agents.decode.pcie_link import LOST_REVISION, generation, link_record, width
from agents.decode.record import Record, malformed

_HEADING = re.compile(
    r"(?P<address>(?:[0-9a-f]{1,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+\S.*", re.ASCII | re.IGNORECASE
)
_REVISION = re.compile(r"\(rev (?P<revision>[0-9a-f]{2})\)", re.ASCII | re.IGNORECASE)
_NO_ANSWER = re.compile(r"\s*!!! Unknown header type\b", re.IGNORECASE)
_LINK = re.compile(r"\s*(?P<what>LnkSta|LnkCap):\s*(?P<text>.*)", re.IGNORECASE)
_SPEED = re.compile(r"\bSpeed\s+(?P<speed>[^,]*)", re.IGNORECASE)
_WIDTH = re.compile(r"\bWidth\s+(?P<width>[^,]*)", re.IGNORECASE)


class Reader:
    """Reads line after line, with the device that they are about."""

    def __init__(self) -> None:
        self.recognised = False
        self._open = False
        self._address: str | None = None
        self._lost = False
        self._told = False
        self._max_gen: int | None = None
        self._max_lanes: int | None = None

    def read(self, number: int, line: str) -> list[Record]:
        """The records that a line completes."""
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            ended = self.end()
            revision = _REVISION.search(line)
            self.recognised = self._open = True
            self._told = False
            self._address = pci_address.normalise(heading["address"])
            self._lost = revision is not None and revision["revision"].lower() == LOST_REVISION
            self._max_gen = self._max_lanes = None
            return ended
        if self._open and _NO_ANSWER.match(line):
            self._lost = True
            return []
        link = _LINK.fullmatch(line)
        if link is None:
            return []
        self.recognised = True  # even filtered output without headings is lspci's
        speed, lanes = _SPEED.search(link["text"]), _WIDTH.search(link["text"])
        if speed is None and lanes is None:
            return [malformed(f"neither speed nor width in {link['what']}", line, number)]
        gen_now = generation(speed["speed"]) if speed else None
        lanes_now = width(lanes["width"]) if lanes else None
        if link["what"].lower() == "lnkcap":
            self._max_gen, self._max_lanes = gen_now, lanes_now
            return []
        return [self._record(gen_now, lanes_now)]

    def end(self) -> list[Record]:
        """The record of a device that ends here without a `LnkSta` line, if it is one that does not answer."""
        if not (self._open and self._lost and not self._told):
            return []
        return [self._record(None, None)]

    def _record(self, gen: int | None, lanes: int | None) -> Record:
        self._told = True
        return link_record(
            self._address, gen=gen, lanes=lanes, max_gen=self._max_gen, max_lanes=self._max_lanes, lost=self._lost
        )

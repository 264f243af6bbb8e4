"""`paceline decode pcie`: state of PCIe links from lspci, sysfs or a table, recognised by content.

Guarantees: one record for each `LnkSta` line, sysfs device or row; lspci and tables are read line by line, files of
sysfs gathered, because the files of a device stand apart. Nothing is judged: a link that idles at generation 1
is not told from one that is stuck there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from agents.decode import pcie_csv, pcie_lspci, pcie_sysfs
from agents.decode.record import Record, Tally, UnknownFormat
from agents.decode.text import lines

_LONGEST_ROW: Final = 1 << 12


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:  # noqa: ARG001 - nothing here lacks text
    """Yields the records of one file.

    Raises:
        UnknownFormat: Nothing in the file is of a known sub-format.
    """
    lspci = pcie_lspci.Reader()
    devices = pcie_sysfs.Devices()
    table: pcie_csv.Header | None = None
    is_empty, is_known = True, False
    for number, line in lines(stream):
        if not line.strip() or len(line) > _LONGEST_ROW:
            is_empty = is_empty and not line.strip()
            continue
        is_empty = False
        if devices.take(line):
            is_known = True
            continue
        header = pcie_csv.parse_header(line)
        if header is not None:
            table, is_known = header, True
        elif table is not None and "," in line and not line[:1].isspace() and not line.startswith("#"):
            yield pcie_csv.parse_row(line, table, number)
        else:
            yield from lspci.read(number, line)
    yield from lspci.end()
    yield from devices.records()
    if not (is_empty or is_known or lspci.recognised):
        raise UnknownFormat("no LnkSta of lspci, link files of sysfs, or table of link readings")

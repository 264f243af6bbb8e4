"""The pieces every decoder of raw telemetry shares: records, the count, and the two ways a file can fail.

A decoder is a function from a binary stream to records. It yields `malformed` records for units that were
meant to be telemetry but cannot be read, and raises only `UnknownFormat` and `Damaged`, never for one bad
line. Writing the records out, counting them and choosing the exit status is the driver's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

Record = dict[str, Any]
"""One record as it is written: JSON types only, always with a string under `kind`."""

RAW_LIMIT = 500
"""Characters of a source line that a malformed record quotes at most."""


@dataclass(slots=True)
class Tally:
    """What became of the units of one file.

    Attributes:
        records: Records written, malformed ones not among them.
        malformed: Malformed records written.
        skipped: Units that had no text to read. The decoder counts these, the driver the other two.
    """

    records: int = 0
    malformed: int = 0
    skipped: int = 0

    def line(self) -> str:
        """The count as it ends standard error: `records=12 malformed=1 skipped=3`."""
        return f"records={self.records} malformed={self.malformed} skipped={self.skipped}"


Decoder = Callable[[BinaryIO, Tally], Iterator[Record]]
"""Reads a stream to its end and yields records in source order."""


class UnknownFormat(Exception):  # noqa: N818 - says what the file is, as the contract words it
    """The file is of no sub-format that the decoder knows; nothing of it was given out."""


class Damaged(Exception):  # noqa: N818 - says what the file is, as the contract words it
    """The file as a whole cannot be read: cut, refused or not what it claims to be.

    Attributes:
        reason: Why, in a few words.
        raw: The text that shows it, or an empty string where there is none.
    """

    def __init__(self, reason: str, raw: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.raw = raw


def malformed(reason: str, raw: str, line: int | None = None) -> Record:
    """A record for input that was meant to be telemetry but cannot be read.

    Args:
        reason: Why, in a few words.
        raw: The source text; the first 500 characters are kept.
        line: Its line, counted from 1; None where a line is no unit, and then the field is left out.
    """
    record: Record = {"kind": "malformed", "reason": reason, "raw": raw[:RAW_LIMIT]}
    if line is not None:
        record["line"] = line
    return record

"""One file of a spool lane: entries with consecutive numbers, the first of which is the file's name.

Reading gives every entry that checks and says where bytes do not; a file that is torn anywhere is still read to its
end. It writes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.spool_frames import Damage, Entry, scan, seed_of

__all__ = ["MAGIC", "Segment", "new_segment", "segments_in"]

MAGIC = b"PLSPOOL\x01"
"""What every segment begins with: format and version."""

_SUFFIX = ".seg"
_DIGITS = 20


@dataclass(slots=True, eq=False)
class Segment:
    """A segment as its lane knows it.

    Attributes:
        path: the file.
        first: number of its first entry.
        last: number of its last one; `first - 1` where it has none.
        size: bytes that are written whole.
        is_reported: whether its damage was counted.
    """

    path: Path
    first: int
    last: int
    size: int
    is_reported: bool = False

    @property
    def seed(self) -> int:
        """The seed of its CRCs: an entry is one only in its own lane and segment."""
        return seed_of(f"{self.path.parent.name}/{self.path.name}")

    def load(self, start: int = 0) -> Iterator[Entry | Damage]:
        """Entries and damage from a byte on, up to `size`; places of damage count from `start`.

        Raises:
            OSError: the file cannot be read.
        """
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(self.size - start)
        if start:
            return scan(data, self.seed)
        rest = scan(data, self.seed, len(MAGIC))
        if data and not data.startswith(MAGIC):
            return itertools.chain((Damage(0, min(len(MAGIC), len(data))),), rest)
        return rest


def new_segment(directory: Path, first: int) -> Segment:
    """A segment without entries; the file is not made."""
    return Segment(directory / f"{first:0{_DIGITS}d}{_SUFFIX}", first, first - 1, 0)


def segments_in(directory: Path) -> list[Segment]:
    """The segments in a lane's directory, oldest first; the last one's `last` is not known and is `first - 1`.

    Raises:
        OSError: the directory cannot be read.
    """
    segments = [
        Segment(path, int(path.stem), int(path.stem) - 1, path.stat().st_size)
        for path in sorted(directory.glob(f"*{_SUFFIX}"))
        if path.stem.isascii() and path.stem.isdigit() and len(path.stem) == _DIGITS and int(path.stem) > 0
    ]
    for segment, following in itertools.pairwise(segments):
        segment.last = following.first - 1
    return segments

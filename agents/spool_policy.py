"""What the disk spool may hold, and how firmly: the settings of the spool and the policy of each of its lanes.

Two lanes. Critical records are on the disk before they count as taken, and none is given up for another: a full lane
takes no more. Bulk is synced by interval, and the oldest goes when the lane is full. Pure data; nothing is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BULK", "CRITICAL_LANE", "LanePolicy", "SpoolSettings"]

CRITICAL_LANE = "critical"
BULK = "bulk"

_CRITICAL_SEGMENT_BYTES = 1 << 20
_BULK_SEGMENT_BYTES = 4 << 20
_LEAST_SEGMENTS = 8
"""A full lane gives up a segment at a time, so one must be a small part of it."""


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How one lane treats its disk.

    Attributes:
        cap_bytes: all segments of the lane together.
        segment_bytes: size at which a segment is followed by the next; one entry may pass it.
        drops_oldest: whether a full lane gives up its oldest segment; else it takes no more.
        syncs_first: whether an entry may be read only once it is synced.
    """

    cap_bytes: int
    segment_bytes: int
    drops_oldest: bool
    syncs_first: bool


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Where the spool lies and how large it may be.

    Attributes:
        directory: the spool's own; it is made if its parent is there.
        makes_parent: whether the parent is made too: yes for the agent's own state directory, where else a parent that
            is missing is more often a mount or a typing error than a wish.
        critical_kbytes: cap of the critical lane.
        bulk_kbytes: cap of the bulk lane.
        bulk_sync_s: how often bulk is synced; what a power failure may cost.
        dead_letter_kbytes: size of the dead-letter file, which is kept once more under `.1`.
    """

    directory: Path
    critical_kbytes: int = 65_536
    bulk_kbytes: int = 524_288
    bulk_sync_s: float = 1.0
    dead_letter_kbytes: int = 16_384
    makes_parent: bool = False

    def critical_policy(self) -> LanePolicy:
        """Synced first, never dropped."""
        cap = self.critical_kbytes * 1024
        return LanePolicy(cap, min(_CRITICAL_SEGMENT_BYTES, cap // _LEAST_SEGMENTS), False, True)

    def bulk_policy(self) -> LanePolicy:
        """Synced by interval, the oldest dropped first."""
        cap = self.bulk_kbytes * 1024
        return LanePolicy(cap, min(_BULK_SEGMENT_BYTES, cap // _LEAST_SEGMENTS), True, False)

"""What a publisher counts: one snapshot of plain numbers, by lane, for status records and metrics.

`received` = `sent` + what was dropped + dead letters + what is still held (`queued_records`, `spool_records`), where a
record may be in the queue and in the spool at once, what an earlier run left in the spool is sent but was not received,
and what is sent a second time after a restart counts as sent twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DROP_REASONS", "LaneCounters", "PublisherCounters", "Tally"]

DROP_REASONS = (
    "queue_full",  # no spool, and no room in memory
    "spool_full",  # bulk: of the oldest segment; critical: not taken
    "spool_error",  # the disk did not take it, and memory had no room
    "corrupt",  # lay in a damaged part of the spool
    "delivery_failed",  # no spool, and not delivered in time
    "refused",  # by the brokers, for good; kept as a dead letter where that is possible
    "invalid",  # cannot be put on the wire
    "closed",  # came after the end
    "not_delivered",  # no spool, and in memory at the end
)
"""Why records were given up."""


@dataclass(slots=True)
class Tally:
    """A lane's running counts; whoever changes them holds the lane's lock."""

    received: int = 0
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    refused_by_topic: Counter[str] = field(default_factory=Counter)
    failed_by_topic: Counter[str] = field(default_factory=Counter)
    dead_letters: int = 0

    def refuse(self, topic: str, reason: str) -> None:
        """A record that was not taken."""
        self.dropped[reason] += 1
        self.refused_by_topic[topic] += 1

    def fail(self, topic: str, reason: str) -> None:
        """A record that was taken and is given up."""
        self.dropped[reason] += 1
        self.failed_by_topic[topic] += 1


@dataclass(frozen=True, slots=True)
class LaneCounters:
    """One lane.

    Attributes:
        received: records handed to `publish`.
        sent: records that the brokers have confirmed.
        dropped: records given up, by reason of `DROP_REASONS`; dead letters are among them as `refused`.
        dead_letters: records written to the dead-letter file.
        queued_records: records in memory on their way.
        spool_records: records in the spool that are not delivered.
        spool_bytes: size of the lane's files.
        spool_oldest_age_s: age of the oldest record in the spool that is not delivered; 0 without one.
        corrupt_segments: spool segments of which something could not be read.
    """

    received: int = 0
    sent: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    queued_records: int = 0
    spool_records: int = 0
    spool_bytes: int = 0
    spool_oldest_age_s: float = 0.0
    corrupt_segments: int = 0


@dataclass(frozen=True, slots=True)
class PublisherCounters:
    """Both lanes.

    Attributes:
        critical: records that are never dropped for others.
        bulk: all others.
        spool_trouble: why there is no spool, in one line; None if there is one or none was asked for.
        has_spool: whether records are kept on the disk.
    """

    critical: LaneCounters
    bulk: LaneCounters
    has_spool: bool = False
    spool_trouble: str | None = None

    def lanes(self) -> Mapping[str, LaneCounters]:
        """The lanes by name."""
        return {"critical": self.critical, "bulk": self.bulk}

    @property
    def dropped(self) -> int:
        """Records given up in both lanes."""
        return sum(sum(lane.dropped.values()) for lane in (self.critical, self.bulk))

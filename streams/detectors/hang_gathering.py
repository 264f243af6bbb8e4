"""The digests of a job that stands still, gathered until the hang can be judged.

Guarantees: of a rank the newest digest counts, and one of a dump before one of watchdog lines; one from before the last
progress tells of another moment and is dropped. Judged is when all ranks are in that can still write a dump, or when no
digest has come for `quiet_ns`, or, without any, after `deadline_ns`: then missing digests are missing dumps. What comes
later is judged again once it is quiet, a few times at most. Digests are kept compressed, at most one a rank and
`most_bytes` in all; a worker's snapshot is without them, and they are read again after a restart. The order in which they come
makes no difference. Who hangs is decided in `hang`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import zstandard

from schemas.steps import CollectiveDigest
from streams.detectors.hang import judge
from streams.detectors.hang_watchdog import is_watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streams.detectors.hang_suspicion import HangThresholds, JobProgress
    from streams.detectors.hang_verdict import HangVerdict

__all__ = ["DigestGathering"]

_LARGEST_DIGEST_BYTES = 16_384
"""A digest that its agent made has at most 16,000 bytes."""

_MOST_BYTES = 64 << 20
"""Of the digests of one job: a rank's takes half a kilobyte to two, compressed."""

_MOST_VERDICTS = 8


class _Kept(NamedTuple):
    is_dump: bool
    at_ns: int
    seq: int
    written_ns: int
    offset: int
    node_id: str
    packed: bytes


class DigestGathering:
    """The digests of one epoch of one job.

    Args:
        most_bytes: of all that is kept, compressed.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.refused = 0
        """Digests for which there was no room, or that were too large."""
        self._most_bytes = most_bytes
        self._kept: dict[int, _Kept] = {}
        self._bytes = 0
        self._newest_ns = 0
        self._is_new = True
        self._verdicts = 0
        self._forgotten_ns = 0

    def __len__(self) -> int:
        """Ranks of which there is a digest."""
        return len(self._kept)

    @property
    def newest_ns(self) -> int:
        """Event time of the newest digest; 0 without any."""
        return self._newest_ns

    @property
    def first_offset(self) -> int | None:
        """Lowest offset of a digest that is kept: it is in no snapshot and must come again."""
        return min((kept.offset for kept in self._kept.values()), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether something waits to be judged."""
        return self._is_new and self._verdicts < _MOST_VERDICTS

    @property
    def is_first(self) -> bool:
        """Whether this standstill has not been judged yet.

        Afterwards a rank's newer dump replaces its older one: until its peers' have followed, two moments are mixed.
        """
        return self._verdicts == 0

    def add(self, record: CollectiveDigest, offset: int, is_again: bool = False) -> None:
        """Take a digest in.

        Args:
            record: as published.
            offset: its place.
            is_again: it was taken before a restart, and comes only to fill the gathering.
        """
        known = self._kept.get(record.rank)
        is_dump = not is_watchdog(record)
        written_ns = record.event_time_ns if record.written_ns is None else record.written_ns
        if written_ns < self._forgotten_ns:
            return
        if known is not None and (is_dump, record.event_time_ns, record.seq) <= known[:3]:
            return
        value = record.model_dump_json(exclude_none=True).encode()
        packed = zstandard.compress(value, 3)
        size = self._bytes + len(packed) - (len(known.packed) if known is not None else 0)
        if len(value) > _LARGEST_DIGEST_BYTES or size > self._most_bytes:
            self.refused += 1
            return
        self._bytes = size
        self._kept[record.rank] = _Kept(
            is_dump, record.event_time_ns, record.seq, written_ns, offset, record.node_id, packed
        )
        if not is_again:
            self._newest_ns = max(self._newest_ns, record.event_time_ns)
            self._is_new = True

    def forget_before(self, progress_ns: int) -> None:
        """The job made progress: what was written before it tells nothing of where it stands now."""
        if not self._kept or progress_ns <= self._forgotten_ns:
            return
        self._forgotten_ns = progress_ns
        if progress_ns > self._newest_ns:
            self._kept, self._bytes = {}, 0
            return
        over = [rank for rank, kept in self._kept.items() if kept.written_ns < progress_ns]
        for rank in over:
            self._bytes -= len(self._kept.pop(rank).packed)

    def begin(self) -> None:
        """A suspicion stands from now on."""
        self._is_new, self._verdicts = True, 0

    def end(self) -> None:
        """The suspicion is over."""
        self._kept, self._bytes, self._newest_ns = {}, 0, 0

    def is_complete(self, world_size: int | None, progress: JobProgress) -> bool:
        """Whether all ranks are in that can still write a dump.

        Args:
            world_size: ranks of the job; None if that is not known.
            progress: knows which ranks write none any more.
        """
        if world_size is None or not self._kept:
            return False
        missing = world_size - len(self._kept)
        if missing <= 0 or missing > progress.unreachable_at_most:
            return missing <= 0
        return missing <= len({rank for rank in progress.unreachable() if rank not in self._kept})

    def due_ns(self, suspected_ns: int, is_complete: bool, thresholds: HangThresholds) -> int:
        """The event time at which what is here is judged."""
        if not self._kept:
            return suspected_ns + thresholds.deadline_ns
        wait_ns = 0 if is_complete and self.is_first else thresholds.quiet_ns
        return max(suspected_ns, self._newest_ns + wait_ns)

    def judge(self, world_size: int | None = None) -> HangVerdict:
        """What the digests say about a job of so many ranks, if that is known."""
        self._is_new = False
        self._verdicts += 1
        return judge(self._records(), world_size)

    def node_of(self, rank: int) -> str | None:
        """The node that a rank's digest came from."""
        kept = self._kept.get(rank)
        return kept.node_id if kept is not None else None

    def _records(self) -> Iterator[CollectiveDigest]:
        # Checked when they came; to check them again would cost more than to judge them.
        unpack = zstandard.ZstdDecompressor().decompress
        for rank in sorted(self._kept):
            yield CollectiveDigest.model_construct(**orjson.loads(unpack(self._kept[rank].packed)))

    def snapshot(self, with_digests: bool = False) -> list[Any]:
        """Plain data that `restore` takes.

        Args:
            with_digests: whether the digests are part of it, and how many were refused; false where they will come again.
        """
        state = [self._newest_ns, self._is_new, self._verdicts, self._forgotten_ns]
        if not with_digests:
            return state
        kept = [[rank, *one[:-1], base64.b64encode(one.packed).decode()] for rank, one in self._kept.items()]
        return [*state, self.refused, kept]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's; digests that are not in it come again."""
        self._newest_ns, self._is_new, self._verdicts, self._forgotten_ns, *digests = snapshot
        self.refused, kept = digests or (0, [])
        self._kept = {rank: _Kept._make([*fields, base64.b64decode(packed)]) for rank, *fields, packed in kept}
        self._bytes = sum(len(one.packed) for one in self._kept.values())

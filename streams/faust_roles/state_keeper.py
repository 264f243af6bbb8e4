"""Engines of the assigned partitions, their snapshots, and the offsets at which a partition resumes.

Order of one record: folded into the engine, outputs published and confirmed, then counted as folded. A snapshot is taken
only when nothing of its partition is between these steps, so it never contains a record whose outputs may be lost.
Packing runs in a thread; writing is one chunk per event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from streams.core.snapshot_codec import PackedSnapshot, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record
    from streams.core.position import Position
    from streams.faust_roles.metrics import WorkerMetrics
    from streams.faust_roles.snapshot_table import SnapshotSlots

__all__ = ["Engine", "StateKeeper", "Turn"]

_log = structlog.get_logger(__name__)


class Engine(Protocol):
    """What a role's engine offers to its adapter."""

    def on_record(self, record: Record, position: Position) -> list[Record]:
        """Take one record, and return what is to be published."""
        ...

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a record that still waits inside and is not in the snapshot."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """State as plain data that nobody else changes."""
        ...

    def restore(self, snapshot: dict[str, Any], folded: dict[str, int]) -> None:
        """Replace the state; records up to `folded` come again and are not to be judged twice."""
        ...


@dataclass(slots=True)
class _Kept:
    engine: Engine
    folded: dict[str, int]
    catching_up: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    snapshot_at: float = -1.0
    packing: asyncio.Future[PackedSnapshot] | None = None
    packed_folded: dict[str, int] = field(default_factory=dict)
    packed_resume: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One record on its way through an engine."""

    partition: int
    kept: _Kept

    @property
    def engine(self) -> Engine:
        """The engine that folds it."""
        return self.kept.engine


class StateKeeper:
    """Keeps the engines of one worker.

    Args:
        make: makes the engine of a partition, empty.
        slots: where snapshots are kept.
        cadence_s: seconds between snapshots of a partition.
        clock: monotonic seconds.
        metrics: what is measured.
    """

    def __init__(
        self,
        make: Callable[[int], Engine],
        slots: SnapshotSlots,
        cadence_s: float,
        clock: Callable[[], float],
        metrics: WorkerMetrics,
    ) -> None:
        self._make = make
        self._slots = slots
        self._cadence_s = cadence_s
        self._clock = clock
        self._metrics = metrics
        self._kept: dict[int, _Kept] = {}
        self.processed = 0
        """Records whose outputs are confirmed, since the start."""

    def begin(self, partition: int) -> Turn:
        """A record of the partition is about to be folded; its engine is restored when this is the first."""
        kept = self._of(partition)
        kept.in_flight += 1
        return Turn(partition, kept)

    def finish(self, turn: Turn, topic: str, offset: int) -> None:
        """The record's outputs are confirmed.

        A partition may have been taken away while they were on their way: then this says nothing about the engine that
        has since been restored from a snapshot without the record.
        """
        self.processed += 1
        if self._kept.get(turn.partition) is not turn.kept:
            return
        kept = turn.kept
        kept.in_flight -= 1
        kept.folded[topic] = max(offset, kept.folded.get(topic, -1))
        if kept.catching_up.get(topic, offset + 1) <= offset:
            del kept.catching_up[topic]

        self._advance_snapshot(turn.partition, kept)

    def _advance_snapshot(self, partition: int, kept: _Kept) -> None:
        """Do the next piece of snapshot work; a table may be written only while an event is processed."""
        if self._slots.is_writing(partition):
            if self._slots.step(partition):
                self._metrics.snapshot_written(partition)
            return
        if kept.packing is not None:
            if kept.packing.done():
                packed, kept.packing = kept.packing.result(), None
                self._slots.begin(partition, packed, kept.packed_folded, kept.packed_resume)
                self._metrics.snapshot_packed(partition, packed.plain_bytes, sum(map(len, packed.chunks)))
            return
        now = self._clock()
        # While records that still waited are read again, the state lacks those that have not come yet.
        if kept.in_flight or kept.catching_up or (kept.snapshot_at >= 0 and now - kept.snapshot_at < self._cadence_s):
            return
        kept.snapshot_at = now
        started = self._clock()
        state = kept.engine.snapshot()
        self._metrics.snapshot_taken(partition, self._clock() - started)
        kept.packed_folded = dict(kept.folded)
        waiting = kept.engine.resume_offsets()
        kept.packed_resume = {
            topic: min(offset + 1, waiting.get(topic, offset + 1)) for topic, offset in kept.folded.items()
        }
        kept.packing = asyncio.get_running_loop().run_in_executor(None, pack, state)

    def restart_offset(self, partition: int, topic: str) -> int | None:
        """Where to read a topic's partition from, or None when no snapshot holds anything of it."""
        latest = self._slots.latest(partition)
        return latest[0].resume.get(topic) if latest is not None else None

    def has_snapshot(self, partition: int) -> bool:
        """Whether a whole snapshot of the partition is there."""
        return self._slots.latest(partition) is not None

    def folded(self, partition: int, topic: str) -> int:
        """The last offset whose outputs are confirmed; -1 when there is none."""
        kept = self._kept.get(partition)
        return kept.folded.get(topic, -1) if kept is not None else -1

    def drop(self, partitions: set[int]) -> None:
        """The partitions are no longer this worker's; what they knew is in their snapshots."""
        for partition in partitions:
            self._kept.pop(partition, None)
            self._slots.forget(partition)

    def _of(self, partition: int) -> _Kept:
        kept = self._kept.get(partition)
        if kept is None:
            engine = self._make(partition)
            folded: dict[str, int] = {}
            catching_up: dict[str, int] = {}
            latest = self._slots.latest(partition)
            if latest is not None:
                manifest, state = latest
                started = self._clock()
                engine.restore(state, manifest.folded)
                folded = dict(manifest.folded)
                catching_up = {t: last for t, last in folded.items() if manifest.resume.get(t, last + 1) <= last}
                self._metrics.restored(partition, self._clock() - started)
                _log.info("restored", partition=partition, sequence=manifest.sequence, resume=manifest.resume)
            kept = self._kept[partition] = _Kept(engine, folded, catching_up)
        return kept

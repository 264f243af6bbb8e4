"""Snapshots of engines in a Faust table: chunks in two alternating slots per partition, each with a manifest.

A slot counts only when its manifest is there and all its chunks have the manifest's digest, so a worker that ends while it
writes leaves the other slot as it was. Keys carry the partition, because a table holds many.
Writing is spread over events, one chunk each: it never holds the loop for longer than one chunk takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from streams.core.snapshot_codec import DamagedSnapshotError, unpack

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from streams.core.snapshot_codec import PackedSnapshot

__all__ = ["Manifest", "SnapshotSlots"]

_log = structlog.get_logger(__name__)
_SLOTS = (0, 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a slot holds.

    Attributes:
        sequence: counts the snapshots of a partition; the higher of two whole slots is the newer.
        chunks: how many chunks there are.
        digest: of all chunks together.
        folded: by topic, the last offset that the state contains.
        resume: by topic, the offset to read from: lower than `folded` + 1 where records still wait.
    """

    sequence: int
    chunks: int
    digest: str
    folded: dict[str, int]
    resume: dict[str, int]

    def to_bytes(self) -> bytes:
        """As the table keeps it."""
        return orjson.dumps(
            {
                "sequence": self.sequence,
                "chunks": self.chunks,
                "digest": self.digest,
                "folded": self.folded,
                "resume": self.resume,
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes) -> Manifest:
        """As the table kept it.

        Raises:
            DamagedSnapshotError: it is no manifest.
        """
        try:
            return cls(**orjson.loads(value))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise DamagedSnapshotError(f"no manifest: {error}") from None


@dataclass(slots=True)
class _Writing:
    packed: PackedSnapshot
    manifest: Manifest
    slot: int
    written: int = 0


@dataclass(slots=True)
class _Partition:
    sequence: int = 0
    whole_slot: int | None = None
    writing: _Writing | None = None


class SnapshotSlots:
    """The snapshots of all partitions of one worker.

    Args:
        table: maps bytes to bytes; a Faust table, or a dict in tests.
    """

    def __init__(self, table: MutableMapping[bytes, bytes]) -> None:
        self._table = table
        self._partitions: dict[int, _Partition] = {}

    def latest(self, partition: int) -> tuple[Manifest, Any] | None:
        """The newest whole snapshot of a partition with its state, or None."""
        for slot, manifest in self._manifests(partition):
            chunks = tuple(self._get(_chunk_key(partition, slot, number)) or b"" for number in range(manifest.chunks))
            try:
                state = unpack(chunks, manifest.digest)
            except DamagedSnapshotError as error:
                # Half written when its worker ended: the other slot is the one that counts.
                _log.warning("snapshot slot is not whole", partition=partition, slot=slot, reason=str(error))
                continue
            self._of(partition).sequence = manifest.sequence
            self._of(partition).whole_slot = slot
            return manifest, state
        return None

    def begin(self, partition: int, packed: PackedSnapshot, folded: dict[str, int], resume: dict[str, int]) -> None:
        """Start writing a snapshot; one that is still being written is given up."""
        state = self._of(partition)
        newest = self._manifests(partition)
        state.sequence = max([state.sequence, *(manifest.sequence for _, manifest in newest)]) + 1
        # Never over the newest whole one, also when the last attempt was given up.
        slot = 1 if state.whole_slot == 0 else 0
        manifest = Manifest(state.sequence, len(packed.chunks), packed.digest, folded, resume)
        state.writing = _Writing(packed, manifest, slot)

    def step(self, partition: int) -> bool:
        """Write the next chunk, or at last the manifest; true when the snapshot is whole with this call."""
        state = self._of(partition)
        writing = state.writing
        if writing is None:
            return False
        if writing.written < len(writing.packed.chunks):
            key = _chunk_key(partition, writing.slot, writing.written)
            self._table[key] = writing.packed.chunks[writing.written]
            writing.written += 1
            return False
        self._table[_manifest_key(partition, writing.slot)] = writing.manifest.to_bytes()
        state.whole_slot = writing.slot
        state.writing = None
        return True

    def is_writing(self, partition: int) -> bool:
        """Whether chunks are still to be written."""
        return self._of(partition).writing is not None

    def forget(self, partition: int) -> None:
        """The partition went to another worker."""
        self._partitions.pop(partition, None)

    def _of(self, partition: int) -> _Partition:
        return self._partitions.setdefault(partition, _Partition())

    def _manifests(self, partition: int) -> list[tuple[int, Manifest]]:
        """Slots with a readable manifest, newest first."""
        found = []
        for slot in _SLOTS:
            value = self._get(_manifest_key(partition, slot))
            if value is None:
                continue
            try:
                found.append((slot, Manifest.from_bytes(value)))
            except DamagedSnapshotError as error:
                _log.warning("snapshot manifest refused", partition=partition, slot=slot, reason=str(error))
        return sorted(found, key=lambda entry: -entry[1].sequence)

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._table[key]
        except KeyError:
            return None


def _manifest_key(partition: int, slot: int) -> bytes:
    return f"{partition}/{slot}/manifest".encode()


def _chunk_key(partition: int, slot: int, number: int) -> bytes:
    return f"{partition}/{slot}/{number}".encode()

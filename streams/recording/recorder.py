"""What becomes of messages on their way into an archive: choice, lines, blocks, and the manifest over all of them.

A block is closed when it is large enough, or, where records trickle in, after some seconds: a recorder that is killed loses
no more than that, and goes on behind it. Pure: the caller reads the clock and the topics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

from schemas.fleet import Policy
from schemas.topics import topic_of
from streams.recording.taken import line_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from schemas.archive_blocks import BlockWriter
    from streams.recording.arrival_merge import Place
    from streams.recording.selection import Selection
    from streams.recording.taken import Taken

__all__ = ["Recorder", "positions_of", "summed_up"]

_BLOCK_BYTES = 4 << 20
_BLOCK_S = 5.0
_POLICY = topic_of(Policy).name


class Recorder:
    """Writes what is wanted.

    Args:
        writer: of the archive.
        selection: what is wanted.
    """

    def __init__(self, writer: BlockWriter, selection: Selection) -> None:
        self._writer = writer
        self._selection = selection
        self._since_s: float | None = None

    def take(self, taken: Taken) -> None:
        """Take the next message."""
        writer = self._writer
        if not self._selection.wants(taken):
            writer.looked_at(taken.topic, taken.partition, taken.offset)
            return
        writer.add(line_of(taken), taken.topic, taken.partition, taken.offset, max(0, taken.timestamp_ms))
        schemas = writer.remarks.setdefault("schemas", Counter())
        schemas[_schema(taken)] += 1
        if taken.topic == _POLICY:
            writer.remarks.setdefault("policies", []).append(_policy(taken))
        if writer.pending_bytes >= _BLOCK_BYTES:
            writer.close_block()
            self._since_s = None

    def tick(self, now_s: float) -> None:
        """Close a block that has been open for too long.

        Args:
            now_s: monotonic seconds.
        """
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= _BLOCK_S:
            self._writer.close_block()
            self._since_s = now_s

    def gap(self, place: Place, first: int, last: int) -> None:
        """Note offsets that the broker did not have."""
        self._writer.remarks.setdefault("gaps", []).append([f"{place[0]}/{place[1]}", first, last])


def positions_of(blocks: Iterable[Mapping[str, Any]]) -> dict[Place, int]:
    """By place, the offset after the last one that a recording has looked at."""
    positions: dict[Place, int] = {}
    for block in blocks:
        for name, offset in block["read_to"].items():
            topic, _, partition = name.rpartition("/")
            positions[topic, int(partition)] = offset
    return positions


def summed_up(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the notes of all blocks say together: places, gaps, times, records by schema, and the policies that were read."""
    places: dict[str, list[int]] = {}
    gaps: list[list[Any]] = []
    schemas: Counter[str] = Counter()
    policies: dict[bytes, Any] = {}
    times: list[int] = []
    for block in blocks:
        for name, (first, last, count) in block["places"].items():
            place = places.setdefault(name, [first, last, 0])
            place[:] = min(place[0], first), max(place[1], last), place[2] + count
        gaps += block.get("gaps", [])
        schemas.update(block.get("schemas", {}))
        for policy in block.get("policies", []):
            # It is published every day again: each is told once, with the place at which it was read first.
            policies.setdefault(orjson.dumps(policy["value"]), policy)
        times += [block["first_ms"], block["last_ms"]] if block["first_ms"] is not None else []
    return {
        "places": dict(sorted(places.items())),
        "positions": {f"{topic}/{number}": at for (topic, number), at in sorted(positions_of(blocks).items())},
        "gaps": gaps,
        "schemas": dict(sorted(schemas.items())),
        "policies": list(policies.values()),
        "first_ms": min(times, default=None),
        "last_ms": max(times, default=None),
    }


def _schema(taken: Taken) -> str:
    for name, value in taken.headers:
        if name == "schema":
            return (value or b"").decode(errors="replace")
    return "without schema header"


def _policy(taken: Taken) -> dict[str, Any]:
    try:
        value = orjson.loads(taken.value) if taken.value is not None else None
    except orjson.JSONDecodeError:
        value = None
    return {"partition": taken.partition, "offset": taken.offset, "timestamp_ms": taken.timestamp_ms, "value": value}

"""A decisions worker without Kafka: topics as lists, a feed of reference records, snapshots, and sudden ends.

It does what `streams.faust_roles` does, one step at a time and in whatever order a test asks for: reference records are
read by partition at any moment, findings and results are judged one by one, and a restart goes on from the last snapshot with
all reference records read. After a restart its topics are read in any order among each other, as Kafka gives them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import orjson

from schemas.archive import ArchiveLine
from schemas.codec import message
from schemas.findings import Evidence
from schemas.remediation import Approval
from schemas.topics import topic_of
from streams.core.position import Position, event_time_of
from streams.core.roster import Roster
from streams.core.snapshot_codec import PackedSnapshot, pack, unpack
from streams.engines.decisions import DecisionsEngine

if TYPE_CHECKING:
    import random

    from schemas.base import Record

__all__ = ["DecisionsWorker"]


class DecisionsWorker:
    """One partition of a site's decisions.

    Args:
        site_id: the site.
        rng: in which order partitions of reference records are read.
        partition: of the findings.
    """

    def __init__(self, site_id: str, rng: random.Random, partition: int = 2) -> None:
        self.lines: list[ArchiveLine] = []
        """Everything that was appended to a topic, in the order of appending."""
        self.key_id: str | None = None
        """What signs from the next start on."""
        self.words: tuple[str | None, ...] = (None, None, None, "key_expired", "bad_signature")
        """What may be found of the signature of an approval."""
        self._site_id, self._rng, self._partition = site_id, rng, partition
        self._ends: dict[tuple[str, int], int] = defaultdict(int)
        self._reference: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self._logs: dict[str, list[Record]] = defaultdict(list)
        self._stored: tuple[PackedSnapshot, dict[str, int], dict[str, int]] | None = None
        self._start()

    def publish(self, record: Record) -> None:
        """Append a reference record to the partition of its key; the worker has not read it yet."""
        place = (topic_of(record).name, sum(message(record).key) % 4)
        self._reference[place].append(record)
        self._append(record, place[1])

    def read_some(self) -> None:
        """Have the feed read a few of what it has not read."""
        for _ in range(self._rng.randint(1, 4)):
            self._read_one()

    def find(self, record: Record) -> None:
        """Append a finding, a mark or what came of a command, and judge it."""
        topic = topic_of(record).name
        self._logs[topic].append(record)
        self._append(record, self._partition)
        self._judge(topic, len(self._logs[topic]) - 1)

    def snapshot(self) -> None:
        """Store the engine's state with what it holds and where to go on."""
        packed = pack(self._engine.snapshot())
        folded = {topic: len(log) - 1 for topic, log in self._logs.items()}
        waiting = self._engine.resume_offsets()
        self._stored = (packed, folded, {topic: waiting.get(topic, last + 1) for topic, last in folded.items()})

    def kill(self) -> None:
        """End without a word and start again: from the last snapshot, or from the beginning without one."""
        self._start()
        while self._read_one():
            pass
        following = dict.fromkeys(self._logs, 0)
        if self._stored is not None:
            packed, folded, resume = self._stored
            self._engine.restore(unpack(packed.chunks, packed.digest), folded)
            following |= resume
        while unread := [topic for topic, offset in following.items() if offset < len(self._logs[topic])]:
            topic = self._rng.choice(unread)
            self._judge(topic, following[topic])
            following[topic] += 1
            if self._rng.random() < 0.1:
                self._read_one()

    def recorded(self, record: str) -> list[bytes]:
        """Values of the lines of one family of records, in order."""
        return [orjson.dumps(line.value) for line in self.lines if line.value["record"] == record]

    def _start(self) -> None:
        self._roster = Roster()
        self._engine = DecisionsEngine(self._site_id, self._roster, self.key_id)
        self._read: dict[tuple[str, int], int] = defaultdict(int)

    def _read_one(self) -> bool:
        unread = [place for place, records in self._reference.items() if self._read[place] < len(records)]
        if not unread:
            return False
        topic, partition = place = self._rng.choice(unread)
        offset = self._read[place]
        self._read[place] += 1
        self._roster.take(self._reference[place][offset], Evidence(topic=topic, partition=partition, offset=offset))
        return True

    def _judge(self, topic: str, offset: int) -> None:
        record = self._logs[topic][offset]
        at_ns = getattr(record, "mark_ns", None) or event_time_of(record) or 0
        position = Position(topic, self._partition, offset, at_ns // 1_000_000)
        if isinstance(record, Approval):
            # As a worker's ring and clock may see it, and another time differently.
            word = self._rng.choice(self.words)
            outputs = self._engine.on_approval(record, word, position)
        else:
            outputs = self._engine.on_record(record, position)
        for output in outputs:
            self._append(output, 1)

    def _append(self, record: Record, partition: int) -> None:
        wire = message(record)
        place = (wire.topic, partition)
        offset, self._ends[place] = self._ends[place], self._ends[place] + 1
        at_ns = getattr(record, "mark_ns", None) or event_time_of(record) or getattr(record, "effective_from_ns", 0)
        headers = {name: value.decode() for name, value in wire.headers}
        self.lines.append(
            ArchiveLine(
                wire.topic,
                partition,
                offset,
                at_ns // 1_000_000,
                wire.key.decode(),
                orjson.loads(wire.value),
                headers,
                len(self.lines) + 1,
            )
        )

"""The agent's way to Kafka: two lanes in front of an idempotent producer, with a disk spool behind them.

Guarantees: keys meet the same partitions as those of every other client (murmur2). Critical records (kernel events,
node status, jobs and placements) have a lane of their own: bulk cannot take their room, and with a spool each is synced
to the disk before it counts as taken and leaves it when the brokers have confirmed it, so that no kill and no outage
loses one below the lane's cap. `publish` of bulk never waits; it goes to the disk when the brokers are away, the oldest
first to go when that is full. Payload, time, session and numbers of a record are never changed. A record that the
brokers refuse for good goes to the dead-letter file. Every record that is given up is counted, by reason. After a
crash, records may be sent twice.

Without a spool, or where it cannot be used, all is kept in memory, and what is queued when the process dies is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from confluent_kafka import Producer

from agents.dead_letters import DeadLetters
from agents.memory_lane import MemoryLane
from agents.producer_link import ProducerLink
from agents.publisher_counters import PublisherCounters
from agents.publisher_settings import PublisherSettings, PublisherSettingsError
from agents.spool import Spool, SpoolUnavailableError
from agents.spool_policy import BULK, CRITICAL_LANE
from agents.spooled_lane import LaneLimits, SpooledLane
from schemas.base import Record
from schemas.codec import Message, message
from schemas.errors import SchemaError
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, RankPlacement

__all__ = ["CRITICAL", "KafkaPublisher", "Publisher", "PublisherSettings", "PublisherSettingsError"]

_LOG = logging.getLogger(__name__)

CRITICAL: tuple[type[Record], ...] = (KernelEvent, NodeStatus, Job, RankPlacement)
"""Record families that are never dropped for others. Jobs and placements are said again only once a day."""

_BULK_PART = 0.9
"""Part of the queue's bytes that bulk may take."""

_REPORT_WAIT_S = 0.1
_IDLE_WAIT_S = 0.5
_FLUSH_STEP_S = 0.1


class Publisher(Protocol):
    """Where an agent's records go."""

    def publish(self, record: Record) -> bool:
        """Take a record for delivery; False if it was dropped."""
        ...

    def publish_all(self, records: Sequence[Record]) -> int:
        """Take records for delivery, in order; how many were taken. Cheaper than one by one."""
        ...

    def offer(self, events: Sequence[KernelEvent]) -> int:
        """Take events in order, up to the first for which there is no room now; how many are dealt with.

        An event that is given up for good is dealt with, and counted. What there was no room for is not counted: its
        caller keeps it and offers it again.
        """
        ...

    def poll(self) -> None:
        """Let delivery reports in; costs nothing where there are none."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait until all is delivered or the time is over; how many messages are not."""
        ...

    def close(self) -> None:
        """Let go of what is not delivered."""
        ...

    @property
    def dropped(self) -> int:
        """Records that were given up so far."""
        ...


class KafkaPublisher:
    """Publishes records; safe to use from several threads.

    With a spool it has a thread of its own, which sends from the disk and takes reports.

    Args:
        settings: brokers, bounds and spool. A spool that cannot be used is logged, and memory takes its place.
        stamp: arrival time in milliseconds for each message, for brokers that keep the producer's time; None leaves
            it to the client, which stamps the moment of the call, and to brokers with `LogAppendTime`. What comes
            from the spool is stamped when it is sent.
        producer_class: makes the client; for tests.
        now_ns: wall time, for the arrival that the spool keeps.
        has_thread: False leaves sending from the disk to calls of `poll` and `keep_disk`; for tests.

    Raises:
        PublisherSettingsError: the client refuses the settings.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        stamp: Callable[[], int] | None = None,
        producer_class: Callable[[dict[str, Any]], Any] = Producer,
        now_ns: Callable[[], int] = time.time_ns,
        has_thread: bool = True,
    ) -> None:
        self._spool_trouble: str | None = None
        settings.producer_config()
        self._spool = self._open_spool(settings)
        try:
            self._link = ProducerLink(settings, self._spool is not None, stamp, producer_class)
        except PublisherSettingsError:
            if self._spool is not None:
                self._spool.close()
            raise
        self._critical, self._bulk = _lanes(settings, self._link, self._spool, now_ns)
        self._is_closed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self._spool is not None and has_thread:
            self._thread = threading.Thread(target=self._work, name="paceline-publisher", daemon=True)
            self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that were given up so far, for whatever reason."""
        return self.counters().dropped

    @property
    def delivered(self) -> dict[str, int]:
        """Messages confirmed by the brokers, by topic."""
        with self._critical.lock, self._bulk.lock:
            return dict(self._critical.tally.delivered + self._bulk.tally.delivered)

    @property
    def failed(self) -> dict[str, int]:
        """Messages that were taken and given up, by topic; not those that a full or damaged spool lost."""
        with self._critical.lock, self._bulk.lock:
            return dict(self._critical.tally.failed_by_topic + self._bulk.tally.failed_by_topic)

    @property
    def refused(self) -> dict[str, int]:
        """Records that were never taken, by topic."""
        with self._critical.lock, self._bulk.lock:
            return dict(self._critical.tally.refused_by_topic + self._bulk.tally.refused_by_topic)

    def counters(self) -> PublisherCounters:
        """All counts and gauges now. May read from the spool."""
        return PublisherCounters(
            self._critical.counters(), self._bulk.counters(), self._spool is not None, self._spool_trouble
        )

    def publish(self, record: Record) -> bool:
        """Take a record; False if it was dropped, which is counted.

        Bulk never waits. A critical record waits until it is on the disk, or without a spool up to `critical_wait_s`
        for room.
        """
        return self.publish_all((record,)) == 1

    def publish_all(self, records: Sequence[Record]) -> int:
        """Take records, in order within each lane; how many were taken. Critical ones share a sync of the disk."""
        lanes: dict[bool, list[Message]] = {True: [], False: []}
        for record in records:
            is_critical = isinstance(record, CRITICAL)
            lane = self._critical if is_critical else self._bulk
            try:
                wire = message(record)
            except SchemaError as error:
                self._refuse_invalid(lane, record, error)
                continue
            with lane.lock:
                lane.tally.received += 1
                if self._is_closed:
                    lane.tally.refuse(wire.topic, "closed")
                    continue
            lanes[is_critical].append(wire)
        if not self._is_closed:
            self.poll()
        taken = self._critical.take(lanes[True]) if lanes[True] else 0
        return taken + (self._bulk.take(lanes[False]) if lanes[False] else 0)

    def offer(self, events: Sequence[KernelEvent]) -> int:
        """Take events in order, up to the first for which there is no room now; how many are dealt with."""
        if self._is_closed:
            return 0
        wires: list[Message] = []
        places: list[int] = []
        invalid: list[tuple[int, SchemaError]] = []
        for place, event in enumerate(events):
            try:
                wires.append(message(event))
                places.append(place)
            except SchemaError as error:
                invalid.append((place, error))
        self.poll()
        taken = self._critical.offer(wires)
        dealt = len(events) if taken == len(wires) else places[taken]
        with self._critical.lock:
            self._critical.tally.received += taken
        for place, trouble in invalid:
            if place < dealt:
                self._refuse_invalid(self._critical, events[place], trouble)
        return dealt

    def poll(self) -> None:
        """Let delivery reports in, replace a client that has failed for good, and send what waits."""
        self._link.poll()
        if self._link.must_be_replaced:
            generation = self._link.replace()
            self._critical.abandon(generation)
            self._bulk.abandon(generation)
        self._critical.poll()
        self._bulk.poll()

    def keep_disk(self) -> None:
        """Sync the spool and write down what is delivered, where it is time. The publisher's thread does this."""
        self._critical.keep_disk()
        self._bulk.keep_disk()

    def flush(self, timeout_s: float) -> int:
        """Wait until all is delivered or the time is over; how many messages are not.

        What is in the spool from earlier runs is among them.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.poll()
            waiting = self._critical.waiting + self._bulk.waiting
            left_s = deadline - time.monotonic()
            if not waiting or left_s <= 0:
                return waiting
            if len(self._link):
                self._link.flush(min(_FLUSH_STEP_S, left_s))
            else:
                time.sleep(min(0.01, left_s))

    def close(self) -> None:
        """Keep what is not delivered in the spool, or drop it where there is none; call `flush` before."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._critical.prepare_close()
        self._bulk.prepare_close()
        self._link.close()
        if self._spool is None:
            return
        if kept := self._critical.waiting + self._bulk.waiting:
            _LOG.warning("%d messages stay in the spool and are sent after the next start", kept)
        try:
            self._spool.close()
        except OSError as error:
            _LOG.warning("spool: %s", error.strerror or error)

    def _refuse_invalid(self, lane: MemoryLane | SpooledLane, record: Record, error: SchemaError) -> None:
        name = type(record).__name__
        self._link.say(name, f"{name} cannot be sent: {error}")
        with lane.lock:
            lane.tally.received += 1
            lane.tally.refuse(name, "invalid")

    def _open_spool(self, settings: PublisherSettings) -> Spool | None:
        if settings.spool is None:
            return None
        try:
            return Spool(settings.spool)
        except SpoolUnavailableError as error:
            self._spool_trouble = str(error)
            _LOG.warning("no spool, records are kept in memory alone: %s", error)
            return None

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
                self.keep_disk()
                if len(self._link):
                    self._link.poll(_REPORT_WAIT_S)
                else:
                    self._stop.wait(_IDLE_WAIT_S)
            except Exception as error:  # noqa: BLE001 - an agent that sends nothing more would be worse
                self._link.say(f"publisher {type(error).__name__}", f"publisher: {type(error).__name__}: {error}")
                self._stop.wait(_IDLE_WAIT_S)


def _lanes(
    settings: PublisherSettings, link: ProducerLink, spool: Spool | None, now_ns: Callable[[], int]
) -> tuple[MemoryLane | SpooledLane, MemoryLane | SpooledLane]:
    """Critical and bulk."""
    bulk_messages = max(1, settings.queue_messages - settings.reserve_messages)
    if spool is None:
        return (
            MemoryLane(CRITICAL_LANE, link, None, settings.critical_wait_s, True, None, now_ns),
            MemoryLane(BULK, link, bulk_messages, 0.0, False, None, now_ns),
        )
    disk = spool.settings
    letters = DeadLetters(disk.directory / "dead-letters.jsonl", disk.dead_letter_kbytes * 1024)
    limits = LaneLimits(
        memory_messages=bulk_messages,
        memory_bytes=int(settings.queue_kbytes * 1024 * _BULK_PART),
        replay_messages=min(settings.replay_messages, bulk_messages),
        replay_bytes=settings.replay_kbytes * 1024,
        patience_s=settings.spool_after_s,
        sync_every_s=disk.bulk_sync_s,
    )
    critical = replace(
        limits, replay_messages=max(1, min(settings.replay_messages, settings.reserve_messages)), sync_every_s=0.0
    )
    return (
        SpooledLane(CRITICAL_LANE, link, spool.critical, critical, letters, now_ns),
        SpooledLane(BULK, link, spool.bulk, limits, letters, now_ns),
    )

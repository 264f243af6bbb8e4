"""The publisher with a spool: what is on the disk when, in which order it is sent, and what becomes of failures."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from agents.publisher import CRITICAL, KafkaPublisher, PublisherSettings
from agents.publisher_counters import DROP_REASONS
from agents.spool import Spool
from agents.spool_policy import SpoolSettings
from schemas.codec import decode
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, RankPlacement
from schemas.frames import GpuFrame
from tests.fake_producer import FakeProducer

if TYPE_CHECKING:
    from pathlib import Path

AWAY = KafkaError(KafkaError._PURGE_QUEUE)
NEVER = 3600.0


@pytest.fixture(autouse=True)
def _fresh() -> None:
    FakeProducer.made = []


def publisher(path: Path, **named: Any) -> tuple[KafkaPublisher, FakeProducer]:
    spool = SpoolSettings(path / "spool", named.pop("critical_kbytes", 1024), named.pop("bulk_kbytes", 1024))
    settings = PublisherSettings(
        "b:9092",
        queue_messages=named.pop("queue", 10),
        reserve_messages=named.pop("reserve", 3),
        spool=spool,
        spool_after_s=named.pop("after_s", NEVER),
        replay_messages=named.pop("replay", 1000),
    )
    made = KafkaPublisher(settings, producer_class=FakeProducer, has_thread=False, **named)
    return made, FakeProducer.made[-1]


def frame(seq: int = 0, text: str = "GPU-1") -> GpuFrame:
    return GpuFrame(node_id="n", agent_session="s", seq=seq, event_time_ns=1, gpu_uuid=(text,))


def status(seq: int = 0) -> NodeStatus:
    return NodeStatus(node_id="n", agent_session="s", seq=seq, event_time_ns=1, state="heartbeat")


def event(number: int = 0, raw: str = "") -> KernelEvent:
    head = {"node_id": "n", "agent_session": "s", "boot_id": "b"}
    return KernelEvent(**head, kmsg_seq=number, event_time_ns=1, source="xid", code=79, raw=raw)


def numbers(sent: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """What was handed to the client or sent by it, by sequence number."""
    records = [decode(topic, named["value"]) for topic, named in sent]
    return [record.kmsg_seq if isinstance(record, KernelEvent) else record.seq for record in records]  # type: ignore[attr-defined]


def deliver_all(made: KafkaPublisher, producer: FakeProducer) -> None:
    for _ in range(1000):
        made.poll()
        if not producer.queue:
            return
        producer.settle(None)
    raise AssertionError("it never ends")


def lose(made: KafkaPublisher) -> None:
    """The process is killed: nothing is closed, and the lock is gone."""
    assert made._spool is not None
    made._spool._unlock()


def test_kernel_events_status_jobs_and_placements_are_critical() -> None:
    assert set(CRITICAL) >= {KernelEvent, NodeStatus, Job, RankPlacement}


def test_a_critical_record_is_synced_before_the_client_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, producer = publisher(tmp_path)
    order: list[str] = []
    produce = producer.produce
    monkeypatch.setattr(os, "fdatasync", lambda _: order.append("synced"))
    producer.produce = lambda *a, **k: (order.append("produced"), produce(*a, **k))[1]  # type: ignore[method-assign]
    assert made.publish(event())
    assert order == ["synced", "produced"]


def test_many_critical_records_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = publisher(tmp_path)
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    assert made.publish_all([event(number) for number in range(500)]) == 500
    assert len(syncs) <= 2  # a segment more at most


def test_bulk_that_is_delivered_never_touches_the_disk(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    for seq in range(100):
        assert made.publish(frame(seq))
        producer.settle(None)
    assert list((tmp_path / "spool" / "bulk").glob("*.seg")) == []
    assert made.counters().bulk.sent == 100


def test_bulk_goes_to_the_disk_when_memory_is_full_and_keeps_its_order(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    assert all(made.publish(frame(seq)) for seq in range(50))
    counters = made.counters().bulk
    assert (counters.received, counters.spool_records, counters.dropped) == (50, 50, {})
    assert len(producer.queue) == 7
    deliver_all(made, producer)
    assert numbers(producer.sent) == list(range(50))
    assert made.counters().bulk.spool_records == 0


def test_bulk_goes_to_the_disk_when_the_oldest_is_not_answered(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, queue=1000, after_s=0.05)
    made.publish(frame(0))
    made.publish(frame(1))
    assert made.counters().bulk.spool_records == 0
    time.sleep(0.06)
    made.poll()
    assert made.counters().bulk.spool_records == 2
    made.publish(frame(2))
    assert made.counters().bulk.spool_records == 3
    deliver_all(made, producer)
    assert numbers(producer.sent) == [0, 1, 2]
    made.publish(frame(3))
    assert made.counters().bulk.spool_records == 0


def test_fresh_bulk_goes_behind_what_an_earlier_run_left(tmp_path: Path) -> None:
    made, _ = publisher(tmp_path)
    for seq in range(30):
        made.publish(frame(seq))
    made.close()
    again, producer = publisher(tmp_path)
    for seq in range(30, 40):
        again.publish(frame(seq))
    deliver_all(again, producer)
    assert numbers(producer.sent) == list(range(40))


def test_bytes_time_session_and_number_are_those_of_the_first_try(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, now_ns=lambda: 111)
    made.publish(event(5))
    first = producer.queue[0]
    lose(made)
    again, producer = publisher(tmp_path, stamp=lambda: 999, now_ns=lambda: 222)
    again.poll()
    topic, named = producer.queue[0]
    assert topic == first[0]
    assert {name: named[name] for name in ("key", "value", "headers")} == {
        name: first[1][name] for name in ("key", "value", "headers")
    }
    assert named["timestamp"] == 999
    assert again.counters().critical.spool_oldest_age_s == pytest.approx(111e-9)


def test_what_was_not_confirmed_is_sent_again_after_a_kill_and_only_that(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, queue=1000, reserve=100)
    made.publish_all([event(number) for number in range(10)])
    producer.settle(None, 4)
    made._critical._saved_at_s = 0.0
    made.keep_disk()
    lose(made)
    again, producer = publisher(tmp_path)
    deliver_all(again, producer)
    assert numbers(producer.sent) == [4, 5, 6, 7, 8, 9]
    assert again.counters().critical.spool_records == 0


def test_bulk_cannot_take_the_room_of_critical_records(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    for seq in range(100):
        made.publish(frame(seq))
    assert len(producer.queue) == 7
    made.publish(status(0))
    assert [topic for topic, _ in producer.queue][7:] == ["paceline.node-status.v1"]


def test_a_full_bulk_lane_gives_up_its_oldest_and_counts_them(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, bulk_kbytes=16)
    for seq in range(500):
        assert made.publish(frame(seq))
    made.publish(event())
    counters = made.counters()
    lost = counters.bulk.dropped["spool_full"]
    assert lost > 300
    assert counters.critical.dropped == {}
    assert counters.bulk.spool_bytes <= 16 * 1024
    assert made.dropped == lost
    deliver_all(made, producer)
    frames = [
        number for number, (topic, _) in zip(numbers(producer.sent), producer.sent, strict=True) if "gpu" in topic
    ]
    assert frames == sorted(frames)
    assert frames[-1] == 499
    assert len(frames) == 500 - lost


def test_a_full_critical_lane_takes_no_more_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, producer = publisher(tmp_path, critical_kbytes=16)
    taken = 0
    while made.publish(event(taken)):
        taken += 1
    assert not made.publish(event(taken))
    assert made.counters().critical.dropped == {"spool_full": 2}
    assert "at its cap" in caplog.text
    deliver_all(made, producer)
    assert numbers(producer.sent) == list(range(taken))
    assert made.publish(event(taken + 1))


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC]
)
@pytest.mark.parametrize("record", [event(7), frame(7)])
def test_what_the_brokers_refuse_is_a_dead_letter_and_blocks_nothing(
    tmp_path: Path, code: int, record: KernelEvent | GpuFrame
) -> None:
    made, producer = publisher(tmp_path)
    made.publish(record)
    producer.settle(KafkaError(code))
    made.publish(event(8))
    deliver_all(made, producer)
    assert numbers(producer.sent) == [8]
    (letter,) = [json.loads(line) for line in (tmp_path / "spool" / "dead-letters.jsonl").read_text().splitlines()]
    assert letter["reason"] == KafkaError(code).name()
    assert made.dropped == 1
    lanes = made.counters().lanes().values()
    assert sum(lane.dead_letters for lane in lanes) == 1
    assert sum(lane.spool_records for lane in lanes) == 0


@pytest.mark.parametrize("make", [event, frame])
def test_a_batch_that_is_refused_for_one_record_costs_that_one(tmp_path: Path, make: Any) -> None:
    made, producer = publisher(tmp_path, queue=1000, reserve=100)
    made.publish_all([make(number) for number in range(5)])
    producer.settle(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    made.publish(make(5))
    for _ in range(20):
        made.poll()
        assert len(producer.queue) <= 1 or numbers(producer.queue)[0] > 4
        if producer.queue:
            refused = numbers(producer.queue) == [2]
            producer.settle(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if refused else None)
    assert numbers(producer.sent) == [0, 1, 3, 4, 5]
    assert made.dropped == 1


def test_a_message_that_the_client_refuses_at_once_is_a_dead_letter(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    produce = producer.produce

    def refuse(topic: str, **named: Any) -> None:
        if numbers([(topic, named)]) == [1]:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        produce(topic, **named)

    producer.produce = refuse  # type: ignore[method-assign]
    made.publish_all([event(number) for number in range(3)])
    assert not made.publish(frame(1))
    assert numbers(producer.queue) == [0, 2]
    assert [made.counters().critical.dead_letters, made.counters().bulk.dead_letters] == [1, 1]


def test_a_client_that_failed_for_good_is_replaced_and_all_goes_over_in_order(tmp_path: Path) -> None:
    made, old = publisher(tmp_path, queue=1000)
    for number in range(5):
        made.publish(frame(number))
        made.publish(event(number))
    old.settle(None, 4)
    old.config["error_cb"](KafkaError(KafkaError._FATAL, "out of order sequence", fatal=True))
    made.publish(frame(5))
    new = FakeProducer.made[-1]
    assert new is not old
    deliver_all(made, new)
    by_topic = {
        topic: [number for number, (other, _) in zip(numbers(new.sent), new.sent, strict=True) if other == topic]
        for topic in ("paceline.gpu-frames.v1", "paceline.kernel-events.v1")
    }
    assert by_topic == {"paceline.gpu-frames.v1": [2, 3, 4, 5], "paceline.kernel-events.v1": [2, 3, 4]}
    assert made.dropped == 0


def test_a_client_that_goes_without_a_word_costs_nothing(tmp_path: Path) -> None:
    made, old = publisher(tmp_path, queue=1000)
    made.publish(frame(0))
    made.publish(event(0))
    old.purge = lambda: None  # type: ignore[method-assign]
    old.config["error_cb"](KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    made.poll()
    made.poll()
    assert sorted(numbers(FakeProducer.made[-1].queue)) == [0, 0]


def test_a_cluster_that_refuses_every_client_gets_a_new_one_only_now_and_then(tmp_path: Path) -> None:
    made, _ = publisher(tmp_path)
    for _ in range(20):
        FakeProducer.made[-1].config["error_cb"](KafkaError(KafkaError._FATAL, "no", fatal=True))
        made.publish(event())
    assert len(FakeProducer.made) == 2
    assert made.counters().critical.spool_records == 20


def test_what_is_not_delivered_at_the_end_stays_on_the_disk(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, queue=1000)
    for number in range(10):
        made.publish(frame(number))
        made.publish(event(number))
    producer.settle(None, 6)
    assert made.flush(0) == 14
    made.close()
    assert made.dropped == 0
    assert not made.publish(event(99))
    again, producer = publisher(tmp_path, queue=1000)
    deliver_all(again, producer)
    assert sorted(numbers(producer.sent)) == sorted([*range(3, 10), *range(3, 10)])


def test_a_lane_has_a_bounded_number_on_its_way_from_the_disk(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, queue=1000, replay=5)
    made.publish_all([event(number) for number in range(100)])
    assert len(producer.queue) == 3  # no more than the reserve
    deliver_all(made, producer)
    assert numbers(producer.sent) == list(range(100))


def test_a_full_client_is_tried_again(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    producer.room = 0
    assert made.publish(event(0))
    assert made.publish(frame(0))
    producer.room = 10
    made.poll()
    assert sorted(numbers(producer.queue)) == [0, 0]


@pytest.mark.parametrize("trouble", ["missing", "file", "in use"])
def test_without_a_spool_the_publisher_works_from_memory_and_says_so(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a" if trouble == "missing" else tmp_path
    if trouble == "file":
        (tmp_path / "spool").touch()
    holder = Spool(SpoolSettings(tmp_path / "spool")) if trouble == "in use" else None
    made, producer = publisher(path)
    assert made.publish(event())
    assert made.publish(frame())
    assert len(producer.queue) == 2
    counters = made.counters()
    assert not counters.has_spool
    assert counters.spool_trouble
    assert "records are kept in memory alone" in caplog.text
    assert producer.config["delivery.timeout.ms"] == 30_000
    made.close()
    if holder is not None:
        holder.close()


def test_a_disk_that_fails_costs_no_critical_record_while_memory_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, producer = publisher(tmp_path)
    made.publish(event(0))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        for number in range(1, 20):
            assert made.publish(event(number))
            made.publish(frame(number))
    assert "No space left" in caplog.text
    assert made.counters().bulk.dropped["spool_error"] > 0
    deliver_all(made, producer)
    events = [n for n, (topic, _) in zip(numbers(producer.sent), producer.sent, strict=True) if "kernel" in topic]
    assert events == list(range(20))
    assert made.counters().critical.dropped == {}


def test_a_sync_that_fails_is_told_and_the_record_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, producer = publisher(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    assert made.publish(event(0))
    assert "Input/output error" in caplog.text
    assert numbers(producer.queue) == [0]


def test_a_damaged_spool_is_counted(tmp_path: Path) -> None:
    made, _ = publisher(tmp_path)
    made.publish_all([event(number) for number in range(10)])
    lose(made)
    (path,) = (tmp_path / "spool" / "critical").glob("*.seg")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again, producer = publisher(tmp_path)
    deliver_all(again, producer)
    counters = again.counters().critical
    assert (counters.corrupt_segments, counters.dropped, counters.sent) == (1, {"corrupt": 1}, 9)
    assert again.dropped == 1


def test_every_reason_is_listed(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, bulk_kbytes=16)
    for seq in range(300):
        made.publish(frame(seq))
    producer.settle(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    made.close()
    made.publish(frame())
    for lane in made.counters().lanes().values():
        assert set(lane.dropped) <= set(DROP_REASONS)
    assert set(made.counters().bulk.dropped) == {"spool_full", "refused", "closed"}


def test_a_publisher_with_a_thread_sends_and_writes_down_by_itself(tmp_path: Path) -> None:
    settings = PublisherSettings("b:9092", spool=SpoolSettings(tmp_path / "spool"))
    made = KafkaPublisher(settings, producer_class=FakeProducer)
    producer = FakeProducer.made[-1]
    producer.on_poll = lambda _: producer.settle(None)
    try:
        made.publish(event())
        deadline = time.monotonic() + 10
        while not (tmp_path / "spool" / "critical" / "settled").read_text().startswith("1 "):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        made.close()
    logging.getLogger(__name__).debug("%s", made.counters())


def test_a_failed_record_is_sent_again_once_nothing_else_is_on_its_way(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, queue=1000, reserve=100)
    made.publish_all([event(number) for number in range(5)])
    producer.settle(AWAY, 1)
    made.poll()
    assert numbers(producer.queue) == [1, 2, 3, 4]
    deliver_all(made, producer)
    assert numbers(producer.sent) == [1, 2, 3, 4, 0]
    assert made.dropped == 0


def test_fresh_bulk_does_not_overtake_what_is_on_the_disk(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, replay=2)
    for seq in range(20):
        made.publish(frame(seq))
    producer.settle(None)
    made.publish(frame(20))
    assert len(producer.queue) == 2
    deliver_all(made, producer)
    assert numbers(producer.sent) == list(range(21))


def test_what_made_room_while_it_was_on_its_way_is_counted_at_the_end(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, bulk_kbytes=16)
    for seq in range(300):
        made.publish(frame(seq))
    assert numbers(producer.queue) == list(range(7))
    made.close()
    counters = made.counters().bulk
    assert counters.dropped["spool_full"] + counters.spool_records == 300


def test_an_offer_to_a_full_lane_counts_nothing_and_is_taken_when_there_is_room(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path, critical_kbytes=16)
    events = [event(number) for number in range(200)]
    taken = made.offer(events)
    assert 0 < taken < 200
    assert made.offer(events[taken:]) == 0
    counters = made.counters().critical
    assert (counters.received, counters.dropped) == (taken, {})
    while taken < 200:
        deliver_all(made, producer)
        taken += made.offer(events[taken:])
    deliver_all(made, producer)
    assert numbers(producer.sent) == list(range(200))
    assert made.counters().critical.received == 200


def test_an_offer_that_is_given_up_for_good_is_dealt_with_and_counted(tmp_path: Path) -> None:
    made, producer = publisher(tmp_path)
    huge = event(1).model_copy(update={"text": "x" * (5 << 20)})
    assert made.offer([event(0), huge, event(2)]) == 3
    deliver_all(made, producer)
    assert numbers(producer.sent) == [0, 2]
    assert sum(made.counters().critical.dropped.values()) == 1
    assert made.counters().critical.received == 3


def test_a_closed_publisher_deals_with_no_offer(tmp_path: Path) -> None:
    made, _ = publisher(tmp_path)
    made.close()
    assert made.offer([event(0)]) == 0


def test_what_memory_holds_for_a_full_disk_goes_there_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = publisher(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", _full)
        made.publish_all([event(number) for number in range(5)])
        assert made.counters().critical.spool_records == 0
    made._critical._saved_at_s = -NEVER  # type: ignore[union-attr]
    made.keep_disk()
    assert made.counters().critical.spool_records == 5
    lose(made)
    again, producer = publisher(tmp_path)
    deliver_all(again, producer)
    assert numbers(producer.sent) == list(range(5))


def test_a_disk_that_is_full_at_the_end_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, producer = publisher(tmp_path)
    producer.room = 1
    made.publish(event(0))
    monkeypatch.setattr(os, "write", _full)
    made.publish_all([event(number) for number in range(1, 5)])
    made.close()
    assert made.counters().critical.dropped == {"not_delivered": 4}


def _full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")

"""The publisher: what may be dropped, what may not, and that every loss is counted."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from agents.publisher import KafkaPublisher, PublisherSettings, PublisherSettingsError
from agents.testing import RecordingPublisher
from schemas.base import Record
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import GpuFrame
from schemas.steps import CollectiveTiming
from tests.fake_producer import FakeProducer


@pytest.fixture(autouse=True)
def _fresh() -> None:
    FakeProducer.made = []


def publisher(**named: Any) -> tuple[KafkaPublisher, FakeProducer]:
    settings = PublisherSettings(
        "b:9092", queue_messages=named.pop("room", 10), reserve_messages=3, critical_wait_s=named.pop("wait_s", 0.2)
    )
    made = KafkaPublisher(settings, producer_class=FakeProducer, **named)
    return made, FakeProducer.made[-1]


def frame(seq: int = 0) -> GpuFrame:
    return GpuFrame(node_id="n", agent_session="s", seq=seq, event_time_ns=1, gpu_uuid=("GPU-1",))


def status(seq: int = 0) -> NodeStatus:
    return NodeStatus(node_id="n", agent_session="s", seq=seq, event_time_ns=1, state="heartbeat")


def event() -> KernelEvent:
    return KernelEvent(node_id="n", agent_session="s", boot_id="b", kmsg_seq=1, event_time_ns=1, source="xid", code=79)


def test_a_record_goes_to_its_topic_with_key_and_headers() -> None:
    made, producer = publisher()
    assert made.publish(event())
    ((topic, named),) = producer.queue
    assert topic == "paceline.kernel-events.v1"
    assert (named["key"], dict(named["headers"])) == (b"n", {"schema": b"paceline.kernel-event.v1"})
    assert "timestamp" not in named


def test_arrival_is_stamped_where_it_was_asked_for() -> None:
    made, producer = publisher(stamp=lambda: 1234)
    made.publish(event())
    assert producer.queue[0][1]["timestamp"] == 1234


def test_delivery_is_idempotent_and_keys_agree_with_other_clients() -> None:
    _, producer = publisher()
    assert {
        name: producer.config[name]
        for name in ("enable.idempotence", "acks", "partitioner", "compression.type", "allow.auto.create.topics")
    } == {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": "zstd",
        "allow.auto.create.topics": False,
    }


@pytest.mark.parametrize("name", ["acks", "request.required.acks", "partitioner", "enable.idempotence"])
def test_what_delivery_rests_on_cannot_be_configured(name: str) -> None:
    with pytest.raises(PublisherSettingsError, match=name):
        PublisherSettings("b:9092", properties={name: "0"}).producer_config()


def test_a_property_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(PublisherSettingsError, match=r"no\.such\.property"):
        KafkaPublisher(PublisherSettings("b:9092", properties={"no.such.property": "1"}))


def test_bulk_leaves_the_reserve_to_critical_records() -> None:
    made, producer = publisher()
    accepted = [made.publish(frame(seq)) for seq in range(9)]
    assert accepted == [True] * 7 + [False] * 2
    assert [made.publish(status(seq)) for seq in range(3)] == [True] * 3
    assert len(producer) == 10
    assert made.refused == {"paceline.gpu-frames.v1": 2}
    assert made.dropped == 2


def test_a_critical_record_waits_for_room_in_a_full_queue() -> None:
    made, producer = publisher(wait_s=5)
    for seq in range(10):
        made.publish(status(seq))
    producer.on_poll = lambda timeout: producer.settle(None) if timeout else None  # room comes while it waits
    assert made.publish(event())
    assert [topic for topic, _ in producer.queue] == ["paceline.kernel-events.v1"]
    assert made.delivered == {"paceline.node-status.v1": 10}


def test_a_critical_record_waits_for_a_bounded_time_and_is_counted() -> None:
    made, _ = publisher(wait_s=0.01)
    for seq in range(10):
        made.publish(status(seq))
    assert not made.publish(event())
    assert made.refused == {"paceline.kernel-events.v1": 1}


def test_bulk_never_waits_even_when_bytes_run_out() -> None:
    made, producer = publisher(wait_s=5)
    producer.room = 0
    waits: list[float] = []
    producer.on_poll = waits.append
    assert not made.publish(frame())
    assert all(timeout == 0 for timeout in waits)


def test_a_failed_delivery_is_a_loss_for_bulk_and_another_try_for_critical_records() -> None:
    made, producer = publisher()
    made.publish(frame())
    made.publish(event())
    producer.settle(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert made.failed == {"paceline.gpu-frames.v1": 1}
    made.poll()
    assert [topic for topic, _ in producer.queue] == ["paceline.kernel-events.v1"]
    producer.settle(None)
    assert made.delivered == {"paceline.kernel-events.v1": 1}
    assert made.flush(0) == 0


def test_a_client_that_failed_for_good_is_replaced_and_critical_records_go_over() -> None:
    made, old = publisher()
    made.publish(frame())
    made.publish(event())
    old.config["error_cb"](KafkaError(KafkaError._FATAL, "out of order sequence", fatal=True))
    made.poll()
    new = FakeProducer.made[-1]
    assert new is not old
    assert old.purged
    made.poll()
    assert [topic for topic, _ in new.queue] == ["paceline.kernel-events.v1"]
    assert made.failed == {"paceline.gpu-frames.v1": 1}


def test_a_client_that_refuses_a_message_costs_that_message_alone() -> None:
    made, producer = publisher()

    def refuse(topic: str, **_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    producer.produce = refuse  # type: ignore[method-assign]
    assert not made.publish(frame())
    assert made.refused == {"paceline.gpu-frames.v1": 1}


def test_a_record_without_a_topic_is_counted_and_not_raised() -> None:
    made, _ = publisher()
    assert not made.publish(CollectiveTiming(group="dp", duration_us=(1,)))
    assert made.refused == {"CollectiveTiming": 1}


def test_a_closed_publisher_refuses_and_counts() -> None:
    made, producer = publisher()
    made.publish(frame())
    made.close()
    assert producer.closed
    assert not made.publish(event())
    assert made.dropped == 2


def test_the_same_trouble_is_logged_once_until_something_is_delivered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    made, producer = publisher()

    def outage() -> None:
        for after_ms in range(20):
            producer.config["error_cb"](KafkaError(KafkaError._TRANSPORT, f"refused after {after_ms} ms"))
            producer.config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))

    outage()
    assert len(caplog.records) == 2
    made.publish(frame())
    producer.settle(None)
    outage()
    assert len(caplog.records) == 4
    assert made.dropped == 0


def test_counts_hold_when_several_threads_publish() -> None:
    made, producer = publisher(room=10**6)
    threads = [threading.Thread(target=lambda: [made.publish(frame(n)) for n in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.settle(None)
    assert made.delivered == {"paceline.gpu-frames.v1": 2000}


def test_the_recording_publisher_refuses_what_it_is_told_to() -> None:
    recording = RecordingPublisher(refuse=lambda record: isinstance(record, GpuFrame))
    records: list[Record] = [frame(), event()]
    assert [recording.publish(record) for record in records] == [False, True]
    assert recording.of(KernelEvent) == [records[1]]
    assert recording.dropped == 1


def test_an_offer_without_a_spool_stops_at_the_first_that_finds_no_room() -> None:
    made, producer = publisher(wait_s=0.01)
    events = [event().model_copy(update={"kmsg_seq": number}) for number in range(15)]
    assert made.offer(events) == 10
    assert made.refused == {}
    producer.settle(None)
    assert made.offer(events[10:]) == 5
    assert made.counters().critical.received == 15

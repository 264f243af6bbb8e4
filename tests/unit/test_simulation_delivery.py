"""The way of a simulated stream: same bytes for the same seed, delivery with its imperfections, archives and play."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.simulation import Delivery, default_scenario, deliver, play, simulate
from schemas.archive import ArchiveWriter
from schemas.base import Record
from schemas.codec import decode, decode_value, message
from schemas.events import NodeStatus
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable

START = 1_760_000_000_000_000_000
Events = tuple[tuple[int, Record], ...]


@cache
def short(seed: int = 0) -> Events:
    return tuple(simulate(default_scenario(nodes=4, duration_s=20, seed=seed), START))


def archived(events: Iterable[tuple[int, Record]]) -> bytes:
    stream = io.BytesIO()
    writer = ArchiveWriter(stream, partitions=4)
    for arrival_ns, record in events:
        writer.write(record, arrival_ns)
    return stream.getvalue()


def digest(events: Events) -> str:
    return hashlib.sha256(archived(deliver(events))).hexdigest()


def test_two_runs_of_one_seed_are_the_same_bytes_and_another_seed_is_not() -> None:
    again = tuple(simulate(default_scenario(nodes=4, duration_s=20, seed=0), START))
    assert digest(again) == digest(short(0))
    assert digest(short(1)) != digest(short(0))


def test_a_longer_run_has_the_same_healthy_beginning() -> None:
    def begun(duration_s: float) -> list[bytes]:
        scenario = default_scenario(nodes=4, duration_s=duration_s, scenario="healthy").model_copy(
            update={"look_alikes": ()}
        )
        return [message(r).value for at, r in simulate(scenario, START) if at < START + 10 * 10**9]

    assert begun(12) == begun(20)


def test_a_shift_of_the_start_shifts_every_time_alike() -> None:
    scenario = default_scenario(nodes=4, duration_s=12)
    early, late = simulate(scenario, START), simulate(scenario, START + 10**12)
    for (at, _), (later, _) in zip(early, late, strict=True):
        assert later - at == 10**12


def test_a_run_may_begin_at_the_epoch() -> None:
    assert sum(1 for _ in simulate(default_scenario(nodes=4, duration_s=3), 0)) > 20


def test_records_come_in_the_order_of_publication_and_survive_the_codec() -> None:
    times = [at for at, _ in short()]
    assert times == sorted(times)
    for _, record in short():
        sent = message(record)
        assert decode(sent.topic, sent.value) == record


SHARES = st.floats(0, 1)


@settings(max_examples=25, deadline=None)
@given(SHARES, SHARES, SHARES, st.integers(0, 2**32))
def test_delivery_is_by_arrival_and_never_before_publication(
    duplicates: float, out_of_order: float, loss: float, seed: int
) -> None:
    events = short()[:400]
    settings_ = Delivery(duplicates=duplicates, out_of_order=out_of_order, loss=loss)
    arrived = list(deliver(events, settings_, seed))
    assert [at for at, _ in arrived] == sorted(at for at, _ in arrived)
    sent = {id(record): at for at, record in events}
    assert all(at >= sent[id(record)] for at, record in arrived)
    assert arrived == list(deliver(iter(events), settings_, seed))


def test_by_default_nothing_is_lost_half_a_percent_comes_twice_and_sources_stay_in_order() -> None:
    events = short()
    arrived = list(deliver(events))
    counts = Counter(id(record) for _, record in arrived)
    assert set(counts) == {id(record) for _, record in events}
    twice = sum(1 for count in counts.values() if count == 2)
    assert 0 < twice < 0.02 * len(events)
    order = {id(record): number for number, (_, record) in enumerate(events)}
    last: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for _, record in arrived:
        if id(record) in seen:
            continue  # a duplicate comes when it comes
        seen.add(id(record))
        source = topic_of(record).name, topic_of(record).key(record)
        assert order[id(record)] > last.get(source, -1)
        last[source] = order[id(record)]


def test_all_can_be_lost_and_all_can_come_twice() -> None:
    assert list(deliver(short(), Delivery(loss=1))) == []
    assert len(list(deliver(short(), Delivery(duplicates=1)))) == 2 * len(short())


def test_records_out_of_order_overtake_their_source() -> None:
    arrived = [record for _, record in deliver(short(), Delivery(out_of_order=0.1))]
    beats = [r.seq for r in arrived if isinstance(r, NodeStatus) and r.node_id == "node-0000"]
    times = [r.event_time_ns for r in arrived if hasattr(r, "event_time_ns")]
    assert times != sorted(times)
    assert beats


@pytest.mark.parametrize(
    "bad", [{"loss": 1.5}, {"duplicates": -0.1}, {"delay_p50_ms": 0}, {"delay_p50_ms": 9, "delay_p99_ms": 3}]
)
def test_impossible_deliveries_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"share|delays"):
        Delivery(**bad)


def test_an_archive_counts_offsets_in_each_partition_and_keeps_a_key_in_one() -> None:
    lines = [json.loads(line) for line in archived(deliver(short())).splitlines()]
    expected: Counter[tuple[str, int]] = Counter()
    partitions: dict[tuple[str, str], set[int]] = {}
    for line in lines:
        place = line["topic"], line["partition"]
        assert line["offset"] == expected[place]
        expected[place] += 1
        partitions.setdefault((line["topic"], line["key"]), set()).add(line["partition"])
        assert set(line) == {"topic", "partition", "offset", "timestamp_ms", "key", "headers", "value"}
        assert line["headers"]["schema"].startswith("paceline.")
        decode_value(line["topic"], line["value"])
    assert all(len(found) == 1 for found in partitions.values())
    assert {line["partition"] for line in lines} <= {0, 1, 2, 3}
    stamps = [line["timestamp_ms"] for line in lines]
    assert stamps == sorted(stamps)


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Publisher:
    def __init__(self, clock: Clock, takes: int | None = None) -> None:
        self.clock, self.takes = clock, takes
        self.published: list[tuple[float, Record]] = []

    def publish(self, record: Record) -> bool:
        self.published.append((self.clock.now_s, record))
        return self.takes is None or len(self.published) <= self.takes


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_a_play_publishes_each_record_at_its_time(rate: float) -> None:
    clock = Clock()
    publisher = Publisher(clock)
    report = play(short(), publisher, threading.Event(), rate=rate, clock=clock, sleep=clock.sleep)
    assert (report.published, report.refused, report.stopped) == (len(short()), 0, False)
    first = short()[0][0]
    for (at, record), (due, original) in zip(publisher.published, short(), strict=True):
        assert record is original
        assert at - 100.0 == pytest.approx((due - first) * 1e-9 / rate, abs=1e-3)


def test_a_play_stops_when_told() -> None:
    clock, stop = Clock(), threading.Event()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now_s > 105:
            stop.set()

    publisher = Publisher(clock)
    report = play(short(), publisher, stop, clock=clock, sleep=sleep)
    assert report.stopped
    assert 0 < report.published < len(short())
    assert report.published == len(publisher.published)


def test_records_that_a_publisher_refuses_are_counted() -> None:
    clock = Clock()
    report = play(short(), Publisher(clock, takes=10), threading.Event(), clock=clock, sleep=clock.sleep)
    assert (report.published, report.refused) == (10, len(short()) - 10)


def test_a_play_needs_a_positive_rate() -> None:
    with pytest.raises(ValueError, match="not positive"):
        play(short(), Publisher(Clock()), threading.Event(), rate=0)

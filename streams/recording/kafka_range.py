"""A range of topics on Kafka, read once, in order of arrival. An adapter: it holds the only consumer of recording and replay.

Guarantees: no group is joined and nothing is committed; where a range has an end, it is fixed before the first message is
read; a record that the broker no longer has, or that goes away while we read, is an error or is named, never skipped in
silence. Held in memory are at most a few thousand messages a partition. Deliberately there is no way to write here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.kafka_answers import answer, watermarks
from streams.recording.arrival_merge import ArrivalMerge, Place
from streams.recording.taken import Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from confluent_kafka import Message

    from streams.recording.bounds import Bound

__all__ = ["KafkaRange", "RangeError", "Span", "taken_of"]

_TIMEOUT_S = 20.0
_MOST_HELD = 4_000
_POLL_S = 0.2


class RangeError(Exception):
    """The brokers do not answer, a topic is missing, or records went away; the text says what, in one line."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is read of one partition.

    Attributes:
        first: offset of the first message.
        end: offset after the last; null when there is none yet.
        is_cut: whether older records of the partition are gone, and perhaps some that were asked for.
    """

    first: int
    end: int | None
    is_cut: bool = False


class KafkaRange:
    """Reads a range of topics.

    Args:
        bootstrap_servers: host:port list.
        topics: full names, from the start of the range on.
        whole_topics: full names of those that are read from their first record on (reference records).
        start: where the range begins.
        end: where it ends; null goes on for as long as the caller reads.
        goes_on_at: by place, offsets to begin at in place of `start`: of a recording that is resumed.
        fixed: by place, what was read before in place of `start` and `end`: of a replay that is resumed.

    Raises:
        RangeError: brokers or topics are not there.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: tuple[str, ...],
        whole_topics: tuple[str, ...],
        start: Bound,
        end: Bound | None,
        goes_on_at: Mapping[Place, int] | None = None,
        fixed: Mapping[Place, Span] | None = None,
    ) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # A name is demanded; without a subscription and without commits no group comes into being.
                "group.id": "paceline-range-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 16_384,
                "log_level": 0,
            }
        )
        self._known = goes_on_at or {}
        self.gaps: list[tuple[Place, int, int]] = []
        """Places and offsets, from and to, that the broker does not have between others."""
        self.read = 0
        """Messages given out."""
        self.is_complete = False
        """Whether all of a range that has an end was given out."""
        self._is_fixed = fixed is not None
        self._latest_ms: dict[Place, int] = {}
        try:
            self.cluster_id = ""
            self.spans = self._spans(topics, whole_topics, start, end) if fixed is None else self._known_cluster(fixed)
        except KafkaException as error:
            self._consumer.close()
            raise RangeError(f"{bootstrap_servers}: {error.args[0].str()}") from None
        except RangeError:
            self._consumer.close()
            raise

    @property
    def expected(self) -> int | None:
        """How many messages lie in the range; null when it has no end."""
        if any(span.end is None for span in self.spans.values()):
            return None
        return sum(max(0, (span.end or 0) - span.first) for span in self.spans.values())

    def go_on(self, reached: Mapping[Place, tuple[int, int]], read: int) -> None:
        """Begin behind what was given out before: to be called before the first message is asked for.

        Args:
            reached: by place, the offset after the last message and the latest arrival in milliseconds.
            read: how many messages there were.
        """
        self._known = {place: offset for place, (offset, _) in reached.items()}
        self._latest_ms = {place: at_ms for place, (_, at_ms) in reached.items()}
        self.read = read

    def messages(self, must_stop: Callable[[], bool] = lambda: False) -> Iterator[Taken | None]:
        """Messages in order of arrival; null whenever none came for a moment, so that the caller can look at its clock.

        Raises:
            RangeError: the brokers fail, or records went away.
        """
        expected = {place: max(span.first, self._known.get(place, 0)) for place, span in self.spans.items()}
        if self._is_fixed:
            self._must_be_held(expected)
        open_places = {place for place, span in self.spans.items() if span.end is None or expected[place] < span.end}
        merge = ArrivalMerge(self.spans, self._latest_ms)
        for place in self.spans.keys() - open_places:
            merge.waits(place)
        paused: set[Place] = set()
        self._consumer.assign([TopicPartition(*place, expected[place]) for place in sorted(open_places)])
        while not must_stop():
            taken_any = False
            for taken in merge.ready():
                taken_any = True
                self.read += 1
                yield taken
            if not open_places:
                self.is_complete = True
                return
            self._let_go_on(merge, paused)
            for message in self._consumer.consume(500, _POLL_S if not taken_any else 0.0):
                self._take(message, merge, open_places, expected)
            self._hold_back(merge, open_places, paused)
            if not taken_any:
                yield None

    def _take(self, message: Message, merge: ArrivalMerge, open_places: set[Place], expected: dict[Place, int]) -> None:
        place = (message.topic() or "", message.partition() or 0)
        offset = message.offset() or 0
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                merge.waits(place)
                self._close_at(place, offset, open_places, merge)
                return
            name = f"{place[0]}/{place[1]}"
            if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                raise RangeError(f"{name}: offset {expected[place]} is no longer there: it was deleted while we read")
            if error.fatal() or not error.retriable():
                raise RangeError(f"{name}: {error.str()}")
            return
        if place not in open_places or offset < expected[place]:
            return
        end = self.spans[place].end
        last = offset if end is None else min(offset, end)
        if last > expected[place]:
            self.gaps.append((place, expected[place], last - 1))
        expected[place] = offset + 1
        if end is None or offset < end:
            merge.add(taken_of(message, place, offset))
        self._close_at(place, offset + 1, open_places, merge)

    def _close_at(self, place: Place, reached: int, open_places: set[Place], merge: ArrivalMerge) -> None:
        end = self.spans[place].end
        if end is None or reached < end or place not in open_places:
            return
        open_places.discard(place)
        merge.waits(place)
        self._consumer.incremental_unassign([TopicPartition(*place)])

    def _hold_back(self, merge: ArrivalMerge, open_places: set[Place], paused: set[Place]) -> None:
        full = [place for place in open_places - paused if merge.held(place) > _MOST_HELD]
        if full:
            self._consumer.pause([TopicPartition(*place) for place in full])
            paused.update(full)

    def _let_go_on(self, merge: ArrivalMerge, paused: set[Place]) -> None:
        free = [place for place in paused if merge.held(place) < _MOST_HELD // 2]
        for place in free:
            paused.discard(place)
        assigned = {(found.topic, found.partition) for found in self._consumer.assignment()} if free else set()
        if again := [TopicPartition(*place) for place in free if place in assigned]:
            self._consumer.resume(again)

    def _spans(
        self, topics: tuple[str, ...], whole_topics: tuple[str, ...], start: Bound, end: Bound | None
    ) -> dict[Place, Span]:
        metadata = self._consumer.list_topics(timeout=_TIMEOUT_S)
        self.cluster_id = metadata.cluster_id or ""
        missing = [name for name in (*topics, *whole_topics) if name not in metadata.topics]
        if missing:
            raise RangeError(f"there is no topic {', '.join(missing)}; paceline topics apply makes them")
        places = [
            (name, number) for name in (*whole_topics, *topics) for number in sorted(metadata.topics[name].partitions)
        ]
        marks = {place: self._watermarks(place) for place in places}
        starts = self._at(start, [place for place in places if place[0] in topics], marks, is_end=False)
        ends = self._at(end, places, marks, is_end=True) if end is not None else {}
        spans = {}
        for place in places:
            low, high = marks[place]
            first = self._known.get(place, starts.get(place, low))
            last = ends.get(place, high) if end is not None else None
            first_there = max(first, low)
            if first > high:
                raise RangeError(f"{place[0]}/{place[1]} ends at offset {high}, before {first}: another topic?")
            is_cut = low > 0 and first <= low
            spans[place] = Span(first_there if last is None else min(first_there, max(last, low)), last, is_cut)
        return spans

    def _known_cluster(self, fixed: Mapping[Place, Span]) -> dict[Place, Span]:
        """Spans that were fixed before, of the cluster that answers now."""
        self.cluster_id = self._consumer.list_topics(timeout=_TIMEOUT_S).cluster_id or ""
        return dict(fixed)

    def _must_be_held(self, begins: Mapping[Place, int]) -> None:
        """Spans that were fixed before must be with the broker still, from where they are read on."""
        for place, first in begins.items():
            end = self.spans[place].end
            if end is None or first >= end:
                continue
            try:
                low, high = self._watermarks(place)
            except KafkaException as error:
                raise RangeError(f"{place[0]}/{place[1]}: {error.args[0].str()}") from None
            if low > first or high < end:
                raise RangeError(f"{place[0]}/{place[1]} holds {low}..{high - 1} by now, and not {first}..{end - 1}")

    def _watermarks(self, place: Place) -> tuple[int, int]:
        return watermarks(self._consumer, TopicPartition(*place), _TIMEOUT_S)

    def _at(
        self, bound: Bound, places: list[Place], marks: Mapping[Place, tuple[int, int]], is_end: bool
    ) -> dict[Place, int]:
        """The offset of a bound by place."""
        if bound.time_ms is None:
            named = {place: offset for place, offset in bound.offsets.items() if place in marks}
            unknown = set(bound.offsets) - set(marks)
            if unknown:
                raise RangeError(f"there is no partition {', '.join(f'{t}/{n}' for t, n in sorted(unknown))}")
            if is_end:
                return {place: min(offset, marks[place][1]) for place, offset in named.items()}
            return named
        offsets = {}
        found = self._found_at(bound.time_ms, places)
        if any(place.offset < 0 for place in found):
            self._must_know_times(marks)
        for place in found:
            # Nothing so late: the end that stands now.
            offsets[place.topic, place.partition] = (
                place.offset if place.offset >= 0 else marks[place.topic, place.partition][1]
            )
        return offsets

    def _found_at(self, time_ms: int, places: list[Place]) -> list[TopicPartition]:
        asked = [TopicPartition(*place, time_ms) for place in places]
        return answer(self._consumer, partial(self._offsets_for, asked), _TIMEOUT_S) if asked else []

    def _must_know_times(self, marks: Mapping[Place, tuple[int, int]]) -> None:
        """The embedded broker finds nothing at any time: what begins at one would be empty without a word.

        Raises:
            RangeError: nothing is found at the beginning of time where there are records.
        """
        found = self._found_at(1, [place for place, (low, high) in marks.items() if low < high])
        if found and all(place.offset < 0 for place in found):
            raise RangeError("these brokers cannot look a time up (the embedded one cannot): name offsets")

    def _offsets_for(self, asked: list[TopicPartition]) -> list[TopicPartition]:
        found = self._consumer.offsets_for_times(asked, timeout=_TIMEOUT_S)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return found

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


def taken_of(message: Message, place: Place, offset: int) -> Taken:
    """A message of the client with its bytes, at the place that was read from it."""
    headers = tuple((str(pair[0]), _bytes(pair[1])) for pair in message.headers() or ())
    return Taken(
        place[0], place[1], offset, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), headers
    )


def _bytes(raw: str | bytes | None) -> bytes | None:
    return raw.encode() if isinstance(raw, str) else raw

"""Where a replay reads from: an archive, or a range of topics on Kafka. Both give lines in one order, and neither can write.

Of a range that begins at a time, inputs are read from the warm-up before it on, and reference records from their first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import NotAnArchiveError, is_recorded, marks_of
from schemas.topics import REFERENCE_FAMILIES, TOPICS, topic_named
from streams.recording.bounds import Bound, BoundError, parse_bound, parse_span_s
from streams.recording.kafka_range import KafkaRange
from streams.recording.taken import archive_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from schemas.archive import BadLine
    from streams.recording.arrival_merge import Place
    from streams.recording.kafka_range import Span

__all__ = ["ArchiveSource", "KafkaSource", "ReplaySpan", "open_source", "paced"]

_SCHEME = "kafka://"
_REFERENCE = frozenset(topic.name for topic in TOPICS if topic.family in REFERENCE_FAMILIES)
INPUTS = frozenset(topic.name for topic in TOPICS if topic.role in {"telemetry", "jobs"}) | _REFERENCE
OUTPUTS = frozenset(topic.name for topic in TOPICS if topic.family in {"findings", "incidents", "actions"})
_SAID = OUTPUTS | {topic_named(family).name for family in ("action-results", "step-results")}


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """What of a source is judged.

    Attributes:
        start: from where on outputs are told.
        end: append time or offsets before which it ends.
        warm_up_ms: how much before the start is read, so that rules know what is usual.
    """

    start: Bound = field(default_factory=Bound)
    end: Bound = field(default_factory=Bound)
    warm_up_ms: int = 0

    @staticmethod
    def parse(start: str | None, end: str | None, warm_up: str) -> ReplaySpan:
        """What was given on the command line.

        Raises:
            BoundError: a text is no bound or no span, or the end is not after the start.
        """
        now_ms = time.time_ns() // 1_000_000
        span = ReplaySpan(parse_bound(start, now_ms), parse_bound(end, now_ms), int(parse_span_s(warm_up) * 1000))
        if span.start.time_ms is not None and span.end.time_ms is not None and span.end.time_ms <= span.start.time_ms:
            raise BoundError(f"--to {end} is not after --from {start}")
        return span

    @property
    def shown_from_ns(self) -> int:
        """Event time before which outputs belong to the warm-up."""
        return self.start.time_ms * 1_000_000 if self.start.time_ms is not None else 0

    @property
    def shown_to_ns(self) -> int:
        """Event time from which on what was recorded is beyond the range."""
        return self.end.time_ms * 1_000_000 if self.end.time_ms is not None else 2**63

    def warm_start(self) -> Bound:
        """The bound from which inputs are read."""
        if self.start.time_ms is None:
            return self.start
        return Bound(time_ms=max(0, self.start.time_ms - self.warm_up_ms))

    def holds_of(self, note: dict[str, Any]) -> bool:
        """Whether a block may hold lines that are read, by its note: by its times, and whether it has reference records."""
        if note["first_ms"] is None or any(place.rpartition("/")[0] in _REFERENCE for place in note["places"]):
            return True
        is_after = self.end.time_ms is not None and note["first_ms"] >= self.end.time_ms
        return not is_after and bool(note["last_ms"] >= (self.warm_start().time_ms or 0))

    def holds(self, line: ArchiveLine) -> bool:
        """Whether a line of an archive is read; reference records are from the beginning on."""
        place = (line.topic, line.partition)
        end = self.end.time_ms
        if (end is not None and line.timestamp_ms >= end) or line.offset >= self.end.offsets.get(place, 2**63):
            return False
        if line.topic in _REFERENCE and place not in self.start.offsets:
            return True
        begin = self.warm_start()
        return line.timestamp_ms >= (begin.time_ms or 0) and line.offset >= begin.offsets.get(place, 0)


class ArchiveSource:
    """An archive of any form.

    Args:
        path: the file.
        span: what of it is read.
        is_tolerant: read around what is damaged.

    Raises:
        NotAnArchiveError: it cannot be opened, or its sums do not hold and nobody asked to read around that.
    """

    def __init__(self, path: Path, span: ReplaySpan, is_tolerant: bool) -> None:
        self._path, self._span, self._is_tolerant = path, span, is_tolerant
        self.site_id: str | None = None
        self._topics: set[str] = set()
        try:
            self.total: int | None = path.stat().st_size
            with path.open("rb") as stream:
                start = stream.read(12)
        except OSError as error:
            raise NotAnArchiveError(f"{path}: {error.strerror}") from None
        if not start:
            # What a full disk leaves: nothing was found in it because nothing is in it.
            raise NotAnArchiveError(f"{path}: it is empty")
        if is_recorded(start):
            marks = marks_of(path)
            self._topics = {name.rpartition("/")[0] for block in marks.blocks for name in block["places"]}
            self.site_id = (marks.head or marks.end or {}).get("site_id")
            if marks.damages and not is_tolerant:
                told = "; ".join(damage.reason for damage in marks.damages[:3])
                more = f" (and {len(marks.damages) - 3} more)" if len(marks.damages) > 3 else ""
                raise NotAnArchiveError(f"{path}: {told}{more}; --readable replays the rest")

    def lines(self, on_read: Callable[[int], None]) -> Iterator[ArchiveLine | BadLine]:
        """All lines within the span; bad lines always."""
        for line in read_archive(self._path, on_read, self._is_tolerant, self._span.holds_of):
            if not isinstance(line, ArchiveLine) or self._span.holds(line):
                yield line

    def has(self, family: str) -> bool:
        """Whether its notes say that it holds records of a topic; false where it has none."""
        return topic_named(family).name in self._topics

    @property
    def notes(self) -> list[str]:
        """Nothing to say besides its lines."""
        return []

    def close(self) -> None:
        """Nothing is held open."""


class KafkaSource:
    """A range of topics, its ends fixed now.

    Args:
        bootstrap_servers: host:port list.
        span: the range.
        has_outputs: read what was said of the inputs as well.
        fixed: the partitions' spans, of a replay that goes on.

    Raises:
        RangeError: brokers or topics are not there.
    """

    def __init__(
        self, bootstrap_servers: str, span: ReplaySpan, has_outputs: bool, fixed: Mapping[Place, Span] | None = None
    ) -> None:
        wanted = INPUTS | (_SAID if has_outputs else frozenset())
        named = {topic for topic, _ in span.start.offsets}
        topics = [topic.name for topic in TOPICS if topic.name in wanted]
        self._range = KafkaRange(
            bootstrap_servers,
            tuple(name for name in topics if name not in _REFERENCE or name in named),
            tuple(name for name in topics if name in _REFERENCE and name not in named),
            span.warm_start(),
            span.end,
            fixed=fixed,
        )
        self.total = self._range.expected
        self.site_id: str | None = None

    def has(self, family: str) -> bool:
        """Whether the range holds records of a topic."""
        name = topic_named(family).name
        return any(topic == name and span.first < (span.end or 0) for (topic, _), span in self._range.spans.items())

    @property
    def spans(self) -> Mapping[Place, Span]:
        """What is read of each partition."""
        return self._range.spans

    @property
    def notes(self) -> list[str]:
        """What the broker no longer has of the range."""
        cut = [f"{topic}/{number}" for (topic, number), span in self._range.spans.items() if span.is_cut]
        gone = [f"{name}: older records are gone from the broker" for name in sorted(cut)]
        return gone + [f"{t}/{n}: no records {a}..{b}" for (t, n), a, b in self._range.gaps]

    def lines(self, on_read: Callable[[int], None]) -> Iterator[ArchiveLine | BadLine]:
        """Messages of the range as lines, numbered as they come."""
        number = 0
        for taken in self._range.messages():
            if taken is not None:
                number += 1
                yield archive_line(taken, number)
            if taken is None or number % 256 == 0:
                on_read(self._range.read)

    def close(self) -> None:
        """Leave the brokers."""
        self._range.close()


def open_source(
    text: str,
    span: ReplaySpan,
    is_tolerant: bool = False,
    has_outputs: bool = False,
    fixed: Mapping[Place, Span] | None = None,
) -> ArchiveSource | KafkaSource:
    """The source that a text names: `kafka://host:port[,host:port]`, else a file.

    Raises:
        BoundError: an address without a port.
        NotAnArchiveError: a file that cannot be used.
        RangeError: brokers that cannot.
    """
    from pathlib import Path

    if not text.startswith(_SCHEME):
        return ArchiveSource(Path(text), span, is_tolerant)
    servers = text.removeprefix(_SCHEME).rstrip("/")
    if not all(":" in server for server in servers.split(",")):
        raise BoundError(f"{text}: write kafka://HOST:PORT")
    return KafkaSource(servers, span, has_outputs, fixed)


def paced(lines: Iterator[ArchiveLine | BadLine], rate: float) -> Iterator[ArchiveLine | BadLine]:
    """Lines at so many of their own seconds a second, by append time."""
    begun: tuple[float, int] | None = None
    for line in lines:
        if isinstance(line, ArchiveLine) and line.timestamp_ms > 0 and line.topic not in _REFERENCE:
            begun = begun or (time.monotonic(), line.timestamp_ms)
            left = begun[0] + (line.timestamp_ms - begun[1]) / 1000 / rate - time.monotonic()
            if left > 0:
                time.sleep(left)
        yield line

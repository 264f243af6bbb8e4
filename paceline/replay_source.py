"""Where a replay reads from: an archive, or a range of topics on Kafka. Both give lines in one order, and neither can write.

Of a range that begins at a time, inputs are read from the warm-up before it on, and reference records from their first.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import NotAnArchiveError, is_recorded, marks_of
from schemas.errors import UnknownTopicError
from schemas.topics import REFERENCE_FAMILIES, TOPICS, topic_named
from streams.recording.bounds import Bound, BoundError, parse_bound, parse_span_s
from streams.recording.kafka_range import KafkaRange
from streams.recording.taken import archive_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from schemas.archive import BadLine
    from schemas.archive_blocks import ArchiveMarks
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

    @property
    def plain(self) -> list[Any]:
        """The same as plain data: what tells it from another span."""
        bounds = [[bound.time_ms, sorted(bound.offsets.items())] for bound in (self.start, self.end)]
        return [*bounds, self.warm_up_ms]

    @property
    def is_whole(self) -> bool:
        """Whether it has no bounds, so that no line needs to be held against them."""
        return self.start == self.end == Bound()

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
        self._at, self._taken = 1, 0
        try:
            there = path.stat()
            self.total: int | None = there.st_size
            with path.open("rb") as stream:
                start = stream.read(12)
        except OSError as error:
            raise NotAnArchiveError(f"{path}: {error.strerror}") from None
        if not start:
            # What a full disk leaves: nothing was found in it because nothing is in it.
            raise NotAnArchiveError(f"{path}: it is empty")
        self.identity: dict[str, Any] = {"bytes": self.total, "changed_ns": there.st_mtime_ns}
        """What tells this archive from another: its sums, or, where it has none, its size and the time of its last change."""
        self._can_go_on = path.is_file()
        self.marks: ArchiveMarks | None = None
        """What its blocks say of themselves; null where it has none."""
        if is_recorded(start):
            self.marks = marks = marks_of(path)
            self.identity = {"sums": _sum_of(marks)}
            firsts = [block["first_line"] for block in marks.blocks]
            # Of archives that were put one behind the other lines have numbers twice.
            self._can_go_on = firsts == sorted(set(firsts))
            self._topics = {name.rpartition("/")[0] for block in marks.blocks for name in block["places"]}
            self.site_id = (marks.head or marks.end or {}).get("site_id")
            if marks.damages and not is_tolerant:
                told = "; ".join(damage.reason for damage in marks.damages[:3])
                more = f" (and {len(marks.damages) - 3} more)" if len(marks.damages) > 3 else ""
                raise NotAnArchiveError(f"{path}: {told}{more}; --readable replays the rest")

    def lines(self, on_read: Callable[[int], None]) -> Iterator[ArchiveLine | BadLine]:
        """All lines within the span; bad lines always."""
        known_at, known = self._at, self._taken
        self._taken = 0
        is_whole = self._span.is_whole
        for line in read_archive(self._path, on_read, self._is_tolerant, self._span.holds_of, known_at):
            # What is damaged can have the number of the line behind it.
            self._at, self._taken = line.number, self._taken + 1 if line.number == self._at else 1
            if line.number == known_at and self._taken <= known:
                continue
            if is_whole or not isinstance(line, ArchiveLine) or self._span.holds(line):
                yield line

    @property
    def position(self) -> dict[str, Any] | None:
        """Behind which line the last one is that was given out; null where a number does not tell."""
        return {"line": self._at, "taken": self._taken} if self._can_go_on else None

    def go_on(self, position: dict[str, Any]) -> None:
        """Give out what is behind a position alone; to be called before `lines`."""
        self._at, self._taken = position["line"], position["taken"]

    def has(self, family: str) -> bool:
        """Whether its notes say that it holds records of a topic; false where it has none."""
        return topic_named(family).name in self._topics

    def held(self) -> Counter[str]:
        """Records within the span by the family of their topic; of a damaged archive those that can be read."""
        found: Counter[str] = Counter()
        try:
            for line in read_archive(self._path, None, self._is_tolerant, self._span.holds_of):
                if isinstance(line, ArchiveLine) and self._span.holds(line):
                    found[_family(line.topic)] += 1
        except NotAnArchiveError:
            pass  # told where it was replayed
        return found

    @property
    def notes(self) -> list[str]:
        """Nothing to say besides its lines."""
        return []

    def close(self) -> None:
        """Nothing is held open."""


def _family(topic: str) -> str:
    try:
        return topic_named(topic).family
    except UnknownTopicError:
        return topic


def _sum_of(marks: ArchiveMarks) -> str:
    """SHA-256 over the sums and numbers of all blocks, and over what cannot be read."""
    blocks = [[block["first_line"], block["lines"], block["sha256"]] for block in marks.blocks]
    damages = [[damage.at, damage.reason] for damage in marks.damages]
    return hashlib.sha256(orjson.dumps([blocks, damages])).hexdigest()


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
        self._reached: dict[Place, tuple[int, int]] = {}
        self._gaps: list[tuple[Place, int, int]] = []

    def has(self, family: str) -> bool:
        """Whether the range holds records of a topic."""
        name = topic_named(family).name
        return any(topic == name and span.first < (span.end or 0) for (topic, _), span in self._range.spans.items())

    def held(self) -> Counter[str]:
        """Records that are read, by the family of their topic."""
        found: Counter[str] = Counter()
        for (topic, _), span in self._range.spans.items():
            found[_family(topic)] += max(0, (span.end or 0) - span.first)
        return +found

    @property
    def spans(self) -> Mapping[Place, Span]:
        """What is read of each partition."""
        return self._range.spans

    @property
    def notes(self) -> list[str]:
        """What the broker no longer has of the range."""
        cut = [f"{topic}/{number}" for (topic, number), span in self._range.spans.items() if span.is_cut]
        gone = [f"{name}: older records are gone from the broker" for name in sorted(cut)]
        gaps = [*self._gaps, *self._range.gaps]
        return gone + [f"{t}/{n}: no records {a}..{b}" for (t, n), a, b in gaps]

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this range from another: the cluster, and what is read of each partition."""
        spans = sorted((topic, number, span.first, span.end) for (topic, number), span in self.spans.items())
        return {"cluster": self._range.cluster_id, "spans": spans}

    @property
    def position(self) -> dict[str, Any]:
        """How many messages were given out, where each partition goes on, and the gaps before that."""
        passed = [gap for gap in self._range.gaps if gap[2] < self._reached.get(gap[0], (0, 0))[0]]
        return {
            "line": self._range.read,
            "reached": [[*place, offset, at_ms] for place, (offset, at_ms) in sorted(self._reached.items())],
            "gaps": [[*place, first, last] for place, first, last in [*self._gaps, *passed]],
        }

    def go_on(self, position: dict[str, Any]) -> None:
        """Give out what is behind a position alone; to be called before `lines`."""
        self._reached = {(topic, number): (offset, at_ms) for topic, number, offset, at_ms in position["reached"]}
        self._gaps = [((topic, number), first, last) for topic, number, first, last in position["gaps"]]
        self._range.go_on(self._reached, position["line"])

    def lines(self, on_read: Callable[[int], None]) -> Iterator[ArchiveLine | BadLine]:
        """Messages of the range as lines, numbered as they come."""
        for taken in self._range.messages():
            if taken is not None:
                place = (taken.topic, taken.partition)
                latest_ms = self._reached.get(place, (0, 0))[1]
                self._reached[place] = (taken.offset + 1, max(latest_ms, taken.timestamp_ms))
                yield archive_line(taken, self._range.read)
            if taken is None or self._range.read % 256 == 0:
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

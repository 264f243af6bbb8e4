"""Laws of kernel lines: any bytes are read without an error, every shape gives its kind, and an event's raw line gives it again."""

from __future__ import annotations

import io
from random import Random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.kernel_events import KernelEventReader
from agents.collectors.log_follower import LogLine
from agents.decode import aer_line, nic_line
from agents.decode.kernel_log import KernelLogReader, decode
from agents.decode.record import Tally, UnknownFormat
from agents.identity import AgentIdentity
from tests.property.kernel_line_shapes import garbled, shaped, shapes

if TYPE_CHECKING:
    from schemas.events import KernelEvent

LINES_IN_CI = 20_000
BOOT_NS = 1_700_000_000 * 10**9
NOW_NS = 1_800_000_000 * 10**9
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")


def events_of(*lines: str) -> list[KernelEvent]:
    reader = KernelEventReader(IDENTITY, lambda: BOOT_NS)
    numbered = [LogLine(position, text) for position, text in enumerate(lines)]
    return [*reader.read(numbered, NOW_NS), *reader.finish(NOW_NS)]


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    try:
        records = list(decode(io.BytesIO(data), Tally()))
    except UnknownFormat:
        return
    assert all(isinstance(record["kind"], str) for record in records)


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    events_of(*lines)
    for line in lines:
        nic_line.parse(line)
        aer_line.parse(line)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=60))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_cut_or_spliced_line_is_read_without_an_error(seed: int, count: int) -> None:
    random = Random(seed)
    events_of(*(garbled(random) for _ in range(count)))


@given(st.integers(min_value=0))
@settings(deadline=None)
def test_a_recognised_lines_event_comes_back_from_its_raw_line(seed: int) -> None:
    random = Random(seed)
    line = shaped(random)
    for event in events_of(line.text):
        (again,) = events_of(event.raw)
        assert again == event
        assert event.trusted == line.trusted


def test_every_shape_gives_its_kind_and_keeps_its_trust() -> None:
    random = Random(20_000)
    reader = KernelLogReader()
    for number, line in enumerate(shapes(random, LINES_IN_CI)):
        records = [*reader.feed(number, line.text), *reader.finish()]
        kinds = [record["kind"] for record in records]
        assert kinds == ([] if line.kind is None else [line.kind]), line
        assert all(record.get("trusted", True) == line.trusted for record in records), line


def test_twenty_thousand_garbled_lines_raise_nothing() -> None:
    random = Random(7)
    reader = KernelEventReader(IDENTITY, lambda: BOOT_NS)
    for number in range(LINES_IN_CI):
        reader.read([LogLine(number, garbled(random))], NOW_NS)
    reader.finish(NOW_NS)

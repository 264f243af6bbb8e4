"""A million generated kernel lines, whole and garbled, through decoder and collector: not one error, bounded memory."""

from __future__ import annotations

import resource
import time
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from agents.collectors.kernel_events import KernelEventReader
from agents.collectors.log_follower import LogLine
from agents.identity import AgentIdentity
from tests.property.kernel_line_shapes import garbled, shaped

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = 1_000_000
READING = 10_000
NOW_NS = 1_800_000_000 * 10**9
GROWTH_KIB = 64 << 10


def lines(random: Random) -> Iterator[LogLine]:
    for position in range(LINES):
        text = garbled(random) if position % 4 == 0 else shaped(random).text
        yield LogLine(position, text)


def test_a_million_lines_parse_without_one_error() -> None:
    reader = KernelEventReader(AgentIdentity("node-1", "boot-1", "session-1"), lambda: 1_700_000_000 * 10**9)
    source = lines(Random(1_000_000))
    begun = time.monotonic()
    read = counted = events = 0
    at_a_tenth = 0
    while reading := list(islice(source, READING)):
        read += len(reading)
        given = reader.read(reading, NOW_NS)
        events += len(given)
        counted += sum(event.repeat_count for event in given)
        if read == LINES // 10:
            at_a_tenth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - at_a_tenth
    print(
        f"\n{read} lines in {time.monotonic() - begun:.0f} s with their making: {events} events of {counted} lines,"
        f" {reader.malformed} malformed, {growth_kib} KiB more than after a tenth"
    )
    assert read == LINES
    assert counted > LINES // 2
    assert growth_kib < GROWTH_KIB

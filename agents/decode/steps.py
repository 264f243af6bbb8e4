"""Trainer logs to steps, timers, extremes over ranks and failures: eight tools and their forks, mixed as they come.

Guarantees: a record is found wherever in the line it begins, behind progress bars and launcher labels; records glued
together on one line are all read; lines of other programs give nothing; memory does not grow with the log. The tool
is recognised from each line itself. Deliberately does not compute: a step whose line prints no duration has none, and
a step that several lines report gives several records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

from agents.decode import (
    steps_bar,
    steps_deepspeed,
    steps_huggingface,
    steps_maxtext,
    steps_megatron,
    steps_nanogpt,
    steps_nanotron,
    steps_nemo,
    steps_straggler,
    steps_timers,
    steps_torchtitan,
)
from agents.decode.record import Record, Tally, UnknownFormat, malformed
from agents.decode.steps_failure import FailureReader
from agents.decode.steps_prefix import PREFIX_LIMIT, message, rank_in, time_text, wall_time_us
from agents.decode.steps_repr import Cut
from agents.decode.text import lines

_StepReader = Callable[[re.Match[str], str], Record | None]


_RECORD_LIMIT: Final = 8192
"""Characters of one record that are read; the longest iteration lines have a tenth of that."""

_ENTRIES_AT_MOST: Final = 64
"""Dictionaries that are tried on one line."""

_MESSAGE_LIMIT: Final = 2000
"""Characters of a line without a step that are looked at."""


class _Tool(NamedTuple):
    hints: tuple[str, ...]
    start: re.Pattern[str]
    read: _StepReader


_TOOLS: Final = (
    _Tool((steps_nemo.HINT,), steps_nemo.START, steps_nemo.read),
    _Tool((steps_nanotron.HINT,), steps_nanotron.START, steps_nanotron.read),
    _Tool((steps_megatron.HINT,), steps_megatron.START, steps_megatron.read),
    _Tool((steps_maxtext.HINT,), steps_maxtext.START, steps_maxtext.read),
    _Tool((steps_torchtitan.HINT,), steps_torchtitan.START, steps_torchtitan.read),
    _Tool(steps_deepspeed.HINTS, steps_deepspeed.START, steps_deepspeed.read),
    _Tool((steps_nanogpt.HINT,), steps_nanogpt.START, steps_nanogpt.read),
)

_TRAINER = re.compile(
    r"validation loss at iteration|iteration-time|\bacross ranks \(ms\)|\(after \d+ iterations\) memory"
    r"|using world size:|building \S+ model|number of parameters|\[titan\]|validate step:|\[NeMo [A-Z]"
    r"|\[(?:INFO|WARNING|ERROR)\] \[\w+\.py:\d+|\[(?:INFO|WARNING)\|DP=|\bstep \d+: train loss|\bNCCL (?:INFO|WARN)\b"
    r"|\btorch[./]distributed[./]run\b|\[DeepSpeed\]|\bmegatron\.(?:core|training)\b|Sanity Checking"
    r"|(?:^|[\]:] ?)Traceback \(most recent call last\):|eval metrics after step|Bottom \d+ Ranks"
    r"|(?:saved|saving) checkpoint"
)
"""What shows a trainer's log that has not come to its first step, or ends before it."""


_BAR: Final = "_bar"
"""Marks a bar's step until it is known whether it belongs to another step on the line; never written."""


class _Found(NamedTuple):
    begin: int
    end: int
    read: Callable[[str, int, int], list[Record]]
    """Records of the segment from `end` to the next record's begin, given (text, from, to)."""


class StepLogReader:
    """Reads a trainer log line by line, for files and for following a log that is being written.

    Attributes:
        recognised: Whether any line so far showed that this is a trainer's log.
    """

    def __init__(self) -> None:
        self.recognised = False
        self._timers = steps_timers.TimerBlock()
        self._failures = FailureReader()
        self._huggingface = False

    def feed(self, line_number: int, text: str) -> Iterator[Record]:
        """Yields the records of one line.

        Args:
            line_number: Counted from 1; it goes into malformed records only.
            text: The line without its end and without terminal escape sequences, as `text.lines` gives it.
        """
        if not text or text.isspace():
            return
        records = self._records(line_number, text)
        self.recognised = self.recognised or bool(records) or _TRAINER.search(text[:_MESSAGE_LIMIT]) is not None
        yield from records

    def finish(self) -> Iterator[Record]:
        """Yields what the end of the log completes; no format needs it, every record is whole with its line."""
        yield from ()

    def _records(self, line_number: int, text: str) -> list[Record]:
        found = self._found(line_number, text)
        if not found:
            return self._other(line_number, text)
        records = self._segments(text, found)
        # A crash may write right behind a bar, which ends no line.
        tail = text[found[-1].end : found[-1].end + _MESSAGE_LIMIT]
        failure = self._failures.feed(text, message(tail)) if text[found[-1].end - 1] == "]" and tail else None
        return [*records, failure] if failure else records

    def _segments(self, text: str, found: list[_Found]) -> list[Record]:
        records: list[Record] = []
        context: Record = {}
        after = 0
        for index, item in enumerate(found):
            stop = found[index + 1].begin if index + 1 < len(found) else len(text)
            context |= _context(text[after : item.begin])
            for record in item.read(text, after, stop):
                if record["kind"] == "step":
                    record.update({key: value for key, value in context.items() if key not in record})
                _join(records, record)
            after = item.end
        for record in records:
            record.pop(_BAR, None)
        return records

    def _found(self, line_number: int, text: str) -> list[_Found]:
        """The records that begin on a line, in order, none within another."""
        found: list[_Found] = []
        for tool in _TOOLS:
            if any(hint in text for hint in tool.hints):
                found += (_Found(*match.span(), _reading(tool.read, match)) for match in tool.start.finditer(text))
        if any(hint in text for hint in steps_bar.HINTS):
            found += (_Found(*match.span(), self._bar(match)) for match in steps_bar.START.finditer(text))
        if steps_timers.LINE_HINT in text:
            found += (_Found(*match.span(), _timers(match)) for match in steps_timers.LINE_START.finditer(text))
        if steps_huggingface.HINT in text and "{" in text:
            found += self._entries(line_number, text)
        found.sort(key=lambda item: (item.begin, -item.end))
        kept: list[_Found] = []
        for item in found:
            if not kept or item.begin >= kept[-1].end:
                kept.append(item)
        return kept

    def _entries(self, line_number: int, text: str) -> Iterator[_Found]:
        position = 0
        for _ in range(_ENTRIES_AT_MOST):
            match = steps_huggingface.START.search(text, position)
            if match is None:
                return
            entry = steps_huggingface.entry(text, match.start())
            position = match.end()
            if entry is None:
                self.recognised = self.recognised or steps_huggingface.is_summary(text, match.start())
                continue
            if isinstance(entry, Cut):
                broken = malformed("the dictionary has no end", text, line_number)
                yield _Found(match.start(), len(text), _constant(broken))
                return
            position = entry.end
            self._huggingface = True
            yield _Found(match.start(), entry.end, _constant(steps_huggingface.read(entry.values)))

    def _bar(self, match: re.Match[str]) -> Callable[[str, int, int], list[Record]]:
        def read(text: str, begin: int, _: int) -> list[Record]:
            described = text[begin : match.start()]
            record = steps_bar.read(match, described)
            if record is None:
                return []
            # Its Trainer describes no bar and puts nothing behind the rate.
            if self._huggingface and record["tool"] is None and "loss" not in record and not message(described).strip():
                record["tool"] = "huggingface"
            return [{**record, _BAR: True}]

        return read

    def _other(self, line_number: int, text: str) -> list[Record]:
        """Lines without a step: extremes over ranks, timer blocks, failures, steps that cannot be read."""
        text = text[:_MESSAGE_LIMIT]
        if steps_straggler.HINT in text and (extremes := steps_straggler.read(text)):
            return extremes
        stripped = message(text)
        timers = self._timers.feed(line_number, stripped)
        if timers is not None:
            self.recognised = True
            return timers
        if "elapsed" in text and "per iteration" in text and steps_megatron.BROKEN.search(text):
            return [malformed("the iteration is no number", text, line_number)]
        failure = self._failures.feed(text, stripped)
        return [failure] if failure else []


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:  # noqa: ARG001 - no unit here is without text
    """Yields the records of a trainer log in source order.

    Raises:
        UnknownFormat: The file has text, but nothing that a trainer prints.
    """
    reader = StepLogReader()
    empty = True
    for line_number, text in lines(stream):
        empty = empty and (not text or text.isspace())
        yield from reader.feed(line_number, text)
    yield from reader.finish()
    if not empty and not reader.recognised:
        raise UnknownFormat("no line is a trainer's")


def _reading(read: _StepReader, match: re.Match[str]) -> Callable[[str, int, int], list[Record]]:
    def segment(text: str, _: int, stop: int) -> list[Record]:
        record = read(match, text[match.end() : min(stop, match.end() + _RECORD_LIMIT)])
        return [record] if record else []

    return segment


def _timers(match: re.Match[str]) -> Callable[[str, int, int], list[Record]]:
    def segment(text: str, _: int, stop: int) -> list[Record]:
        rank = rank_in(text[max(0, match.start() - PREFIX_LIMIT) : match.start()])
        rest = text[match.end() : min(stop, match.end() + _RECORD_LIMIT)]
        return list(steps_timers.read_line(match, rest, rank))

    return segment


def _constant(record: Record) -> Callable[[str, int, int], list[Record]]:
    return lambda _text, _begin, _stop: [record]


def _join(records: list[Record], record: Record) -> None:
    """Adds `record`; a bar right in front of a step on the same line belongs to that step."""
    if records and record["kind"] == "step" and _BAR in records[-1] and _BAR not in record:
        bar = records.pop()
        if record["step"] is None:
            record["step"] = bar["step"]
        if "smoothed_step_time_ms" in bar:
            record.setdefault("smoothed_step_time_ms", bar["smoothed_step_time_ms"])
    records.append(record)


def _context(prefix: str) -> Record:
    """What stands in front of a step and holds for it: the rank, the time."""
    context: Record = {}
    rank = rank_in(prefix)
    if rank is not None:
        context["rank"] = rank
    time = time_text(prefix)
    if time is not None:
        wall = wall_time_us(time)
        context.update({"wall_time_us": wall} if wall is not None else {"time_text": time})
    return context

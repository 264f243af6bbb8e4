"""Timers: Megatron-LM's blocks over ranks in three spellings, and the one-line `time (ms) | name: 1.2 | name: 3.4`.

A block is a heading and lines of its own: `(min, max) time across ranks (ms):` with `name ....: (1.2, 3.4)`,
`max time across ranks (ms):` with `name ....: 3.4`, `times across ranks (ms):` with `name:` and `rank  0: 1.2`.
Another rank prints it than prints the steps, so other lines may come between; a block is given up after
`PATIENCE_LINES` of them. Lines with filling dots say what they are and need no heading. Only the last form names
ranks. The one-line form is also DeepSpeed's wall-clock breakdown, which may say who prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from agents.decode.record import Record, malformed
from agents.decode.steps_quantity import number

PATIENCE_LINES: Final = 16
"""Lines of other programs that may stand within a block."""

LINE_START: Final = re.compile(r"(?:\[Rank (?P<rank>\d{1,9})\] |(?<!\w)rank=(?P<own>\d{1,9}) )?time \(ms\)\s{0,4}\|")
LINE_HINT: Final = "time (ms)"

_HEADING = re.compile(r"(?P<spread>\(min, max\) |max )?times? across ranks \(ms\)\s*:\s*$")
_VALUE = r"[+-]?[\d.,]{1,40}(?:e[+-]?\d+)?|nan|inf"
_SPREAD = re.compile(rf"\s*(?P<name>\S.{{0,200}}?) ?\.*\s*:\s*\((?P<min>{_VALUE}),\s*(?P<max>{_VALUE})\)\s*")
_DOTTED_MAX = re.compile(rf"\s*(?P<name>\S.{{0,200}}?) \.+\s*:\s*(?P<max>{_VALUE})\s*")
_PLAIN_MAX = re.compile(rf"\s*(?P<name>[A-Za-z][\w/ .-]{{30,200}}?) ?:\s*(?P<max>{_VALUE})\s*")
_RANK = re.compile(rf"\s*rank\s+(?P<rank>\d{{1,9}})\s*:\s*(?P<time>{_VALUE})\s*")
_NAME = re.compile(r"\s*(?P<name>[A-Za-z][\w/ .()-]{0,200}?)\s*:\s*")
_DOTTED = re.compile(r"\s*\S.{0,200}? \.{2,}\s*:\s*\(")
_CELL = re.compile(rf"\s*(?P<name>[^:|]{{1,200}}?)\s*:\s*(?P<time>{_VALUE})\b")


def read_line(start: re.Match[str], rest: str, rank: int | None) -> Iterator[Record]:
    """The timers of a `time (ms) |` line; `rank` is that of the line where it names one itself."""
    named = start["rank"] or start["own"]
    for cell in rest.split("|"):
        if found := _CELL.match(cell):
            yield {
                "kind": "timer",
                "name": found["name"],
                "rank": int(named) if named else rank,
                "time_ms": number(found["time"]),
            }


class _Form(Enum):
    SPREAD = auto()
    MAX = auto()
    ALL = auto()


class TimerBlock:
    """Reads the lines of timer blocks, and remembers which block and timer they are in."""

    def __init__(self) -> None:
        self._form: _Form | None = None
        self._name: str | None = None
        self._patience = 0

    def feed(self, line_number: int, text: str) -> list[Record] | None:
        """Reads one line without launcher labels.

        Returns:
            The records of the line, none for a heading or a timer's name, None if it is no line of a block.
        """
        if text.rstrip().endswith(":") and (heading := _HEADING.search(text)):
            spread = heading["spread"]
            self._form = _Form.ALL if spread is None else _Form.MAX if spread == "max " else _Form.SPREAD
            self._name = None
            self._patience = PATIENCE_LINES
            return []
        if ":" not in text:
            self._foreign()
            return None
        records = self._timer(line_number, text)
        if records is None:
            self._foreign()
        elif self._form is not None:
            self._patience = PATIENCE_LINES
        return records

    def _foreign(self) -> None:
        self._patience -= 1
        if self._patience < 0:
            self._form = self._name = None

    def _timer(self, line_number: int, text: str) -> list[Record] | None:
        if self._form is _Form.ALL:
            if self._name is not None and (found := _RANK.fullmatch(text)):
                time_ms = number(found["time"])
                return [{"kind": "timer", "name": self._name, "rank": int(found["rank"]), "time_ms": time_ms}]
            if text[:1].isspace() and (found := _NAME.fullmatch(text)):
                self._name = found["name"]
                return []
        dotted = " .." in text
        if (dotted or self._form is _Form.SPREAD) and (found := _SPREAD.fullmatch(text)):
            times = {"min_ms": number(found["min"]), "max_ms": number(found["max"])}
            return [{"kind": "timer", "name": found["name"], **times}]
        if (dotted and (found := _DOTTED_MAX.fullmatch(text))) or (
            self._form is _Form.MAX and (found := _PLAIN_MAX.fullmatch(text))
        ):
            return [{"kind": "timer", "name": found["name"], "max_ms": number(found["max"])}]
        if dotted and _DOTTED.match(text):
            return [malformed("no minimum and maximum in parentheses", text, line_number)]
        return None

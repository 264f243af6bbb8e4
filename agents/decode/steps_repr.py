"""A flat dictionary as Python or JSON prints it, read without evaluating anything.

`{'loss': nan, 'learning_rate': 1e-05, 'epoch': 0.02}`: keys are quoted, values are kept as text, strings without
their quotes. Nested values are stepped over, whatever they hold, and kept as printed. Guarantees: linear in what it
reads, bounded in depth and length, no text raises.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LENGTH_LIMIT: Final = 20_000
"""Characters of one dictionary; a trainer's log entry has a few hundred."""

_DEPTH_LIMIT: Final = 16
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_BLANK = re.compile(r"\s*")
_CLOSES: Final = {"{": "}", "[": "]", "(": ")"}


class Printed(NamedTuple):
    """A dictionary's values as text by key, and where it ends in the text."""

    values: dict[str, str]
    end: int


class Cut(NamedTuple):
    """A dictionary that the text ends within: what was complete of it."""

    values: dict[str, str]


def dictionary(text: str, start: int) -> Printed | Cut | None:
    """The dictionary that opens at `text[start]`; None when there is none, `Cut` when it has no end."""
    stop = min(len(text), start + LENGTH_LIMIT)
    if start >= stop or text[start] != "{":
        return None
    values: dict[str, str] = {}
    position = start + 1
    while True:
        position = _after_blanks(text, position, stop)
        if position >= stop:
            return Cut(values)
        if text[position] == "}":
            return Printed(values, position + 1)
        key = _STRING.match(text, position, stop)
        if key is None:
            return Cut(values) if text[position] in "'\"" else None
        position = _after_blanks(text, key.end(), stop)
        if position >= stop:
            return Cut(values)
        if text[position] != ":":
            return None
        begin = _after_blanks(text, position + 1, stop)
        end = _value_end(text, begin, stop)
        if end is None:
            return None
        if end >= stop:
            return Cut(values)
        values[key[0][1:-1]] = _unquoted(text[begin:end].strip())
        position = end + 1 if text[end] == "," else end


def _after_blanks(text: str, position: int, stop: int) -> int:
    match = _BLANK.match(text, position, stop)
    return match.end() if match else position


def _value_end(text: str, position: int, stop: int) -> int | None:
    """Where the value that begins at `position` ends: its comma or brace, `stop` if it has none."""
    closers: list[str] = []
    while position < stop:
        character = text[position]
        if character in "'\"":
            string = _STRING.match(text, position, stop)
            if string is None:
                return stop
            position = string.end()
            continue
        if character in _CLOSES:
            if len(closers) >= _DEPTH_LIMIT:
                return None
            closers.append(_CLOSES[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif not closers and character in ",}":
            return position
        position += 1
    return stop


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0] else value

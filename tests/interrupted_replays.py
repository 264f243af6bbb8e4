"""Replays that are interrupted at a line, as by SIGINT, and how many lines they read until then.

As a program (`interrupted_replays.py SOURCE OUTPUT`) it replays in steps: a dot on stdout before every ten lines, which are read when
a byte has come on stdin, or its end. So whoever kills it knows between which lines it was.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import paceline.replay_command
from paceline.replay_command import ReplayOptions, replay_command
from streams.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PER_DOT", "Reading", "interrupted_at"]

PER_DOT = 10


class Reading:
    """What the replays of a block have read."""

    def __init__(self) -> None:
        self.lines = 0


@contextmanager
def interrupted_at(line: int | None) -> Iterator[Reading]:
    """Replays within the block are interrupted when they ask for this line, counted from 1 by each; never without one."""
    reading = Reading()

    def on_line(number: int) -> None:
        if number == line:
            raise KeyboardInterrupt
        reading.lines += 1

    with _told_of_lines(on_line):
        yield reading


@contextmanager
def _told_of_lines(on_line: Callable[[int], None]) -> Iterator[None]:
    def told(lines: Any) -> Iterator[Any]:
        for number, one in enumerate(lines, 1):
            on_line(number)
            yield one

    def telling(lines: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        return replay(told(lines), *arguments, **named)

    with mock.patch.object(paceline.replay_command, "replay", telling):
        yield


def _main(source: str, output: str) -> int:
    def on_line(number: int) -> None:
        if number % PER_DOT == 0:
            sys.stdout.buffer.write(b".")
            sys.stdout.buffer.flush()
            sys.stdin.buffer.raw.read(1)  # type: ignore[union-attr]

    # Of one process to the next the code is the same, also while somebody works on it.
    is_same_code = mock.patch.object(paceline.replay_command, "code_sum", return_value="the same")
    with is_same_code, _told_of_lines(on_line):
        return replay_command(ReplayOptions(source, output=Path(output), is_resumed=True, checkpoint_every_s=0.0))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))

"""A long-running command of `paceline` as a process, and what it has said so far."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["LoggedProcess"]


class LoggedProcess:
    """One process; whatever is left of it is ended when the block is left.

    Args:
        arguments: of `paceline`.
        log: for what it says, with another ending for each stream.
        environment: its own, this process's unless another is given.
    """

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
            )

    def until_said(self, text: bytes) -> None:
        """Wait until it has said something."""
        self.until(lambda: text in self._said())

    def until(self, holds: Callable[[], bool], timeout_s: float = 90.0) -> None:
        """Wait until something holds while it runs."""
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert self._process.poll() is None, self._said().decode(errors="replace")
            assert time.monotonic() < deadline_s, self._said().decode(errors="replace")
            time.sleep(0.2)

    def kill(self) -> None:
        """End it without a word."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def end(self) -> int:
        """Ask it to end; with which status it did."""
        self._process.terminate()
        return self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _said(self) -> bytes:
        return self._out.read_bytes() + self._err.read_bytes()

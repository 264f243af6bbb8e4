"""Child processes that end with their parent: in a session of their own, so that Ctrl-C reaches only the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["ChildFailedError", "Children"]

_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 15.0


class ChildFailedError(Exception):
    """A child did not become ready, or ended by itself; the text holds the end of what it wrote."""


def _die_with_parent() -> None:
    # Linux only; elsewhere a parent that is killed outright leaves its children to their closed standard input.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Child:
    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.ready = threading.Event()
        self.tail: list[str] = []
        for stream, is_output in ((process.stdout, True), (process.stderr, False)):
            assert stream is not None
            threading.Thread(target=self._follow, args=(stream, is_output), daemon=True).start()

    def _follow(self, stream: IO[bytes], is_output: bool) -> None:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            if is_output and '"ready"' in line:
                self.ready.set()
            self.tail.append(line)
            del self.tail[:-40]


class Children:
    """A set of child processes, started together and ended together.

    As a context manager it ends all of them on exit, however the block is left.
    """

    def __init__(self) -> None:
        self._children: list[_Child] = []

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start a Python module of ours as a child: `python -m <arguments>`."""
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (no threads hold locks that prctl needs)
        )
        self._children.append(_Child(name, process))

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until every child has said that it is ready.

        Raises:
            ChildFailedError: one ended or did not say so in time.
        """
        deadline = time.monotonic() + timeout_s
        for child in self._children:
            while not child.ready.wait(0.1):
                self.check()
                if time.monotonic() > deadline:
                    raise ChildFailedError(self._report(child, f"was not ready within {timeout_s:.0f} s"))

    def check(self) -> None:
        """Raise when a child has ended by itself."""
        for child in self._children:
            if child.process.poll() is not None:
                raise ChildFailedError(self._report(child, f"ended with status {child.process.returncode}"))

    def stop(self) -> None:
        """End all children: SIGTERM, then SIGKILL for those that stay."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for child in self._children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
        self._children.clear()

    @staticmethod
    def _report(child: _Child, what: str) -> str:
        return f"{child.name} {what}:\n" + "\n".join(child.tail[-15:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

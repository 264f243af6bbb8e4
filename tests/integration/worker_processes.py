"""Workers as processes that a test can kill one by one, and whose ends it can look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ROLES", "WorkerProcesses"]

ROLES = ("telemetry", "jobs", "decisions")


class WorkerProcesses:
    """One worker of each role; whatever is left of them is ended when the block is left.

    Args:
        servers: the brokers.
        site_id: their site.
        directory: for what they write.
        *options: further options of `paceline worker`.
    """

    def __init__(self, servers: str, site_id: str, directory: Path, *options: str) -> None:
        self._arguments = ["--bootstrap", servers, "--site", site_id, "--announce", *options]
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: dict[str, int] = dict.fromkeys(ROLES, 0)

    def start(self, *roles: str, timeout_s: float = 90.0) -> None:
        """Start workers, and wait until they have their partitions."""
        for role in roles:
            self.starts[role] += 1
            out, err = (self._log(role, stream).open("wb") for stream in ("out", "err"))
            with out, err:
                self._running[role] = subprocess.Popen(
                    [sys.executable, "-m", "paceline", "worker", "--role", role, *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        deadline = time.monotonic() + timeout_s
        for role in roles:
            while b'"ready"' not in self._log(role, "out").read_bytes():
                self.check()
                assert time.monotonic() < deadline, f"{role} is not ready after {timeout_s:.0f} s\n{self.said(role)}"
                time.sleep(0.1)

    def check(self) -> None:
        """Hold that none has ended by itself."""
        for role, process in self._running.items():
            assert process.poll() is None, f"{role} ended with {process.returncode}\n{self.said(role)}"

    def kill(self, role: str) -> None:
        """End one without a word."""
        process = self._running.pop(role)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def stop(self) -> dict[str, int]:
        """Ask all to end, and say with which status each did."""
        self.check()
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        ended = {role: process.wait(45) for role, process in self._running.items()}
        self._running.clear()
        return ended

    def said(self, role: str) -> str:
        """The end of what the role's last worker wrote on standard error."""
        return self._log(role, "err").read_text(errors="replace")[-3000:]

    def _log(self, role: str, stream: str) -> Path:
        return self._directory / f"{role}-{self.starts[role]}.{stream}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

"""Worker processes of one epoch, one a node, and the certainty that none of an earlier epoch is left.

Every worker inherits a locked file; whoever gets that lock knows that no worker lives, whatever became of the controller that
started them. Those that live are found by the file they hold. Nothing here knows what a worker does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploy.job_controller.job_settings import JobSettings

__all__ = ["LOCK_VARIABLE", "Launcher", "LeftoverWorkersError", "Workers"]

LOCK_VARIABLE = "PACELINE_JOB_LOCK"
"""Names the lock's file to workers. A process of a worker that does not inherit the lock takes it, shared, by this name."""

_POLL_S = 0.01


class LeftoverWorkersError(Exception):
    """Workers of an earlier epoch cannot be ended: a new one must not be started beside them."""


class Launcher(Protocol):
    """Starts and ends the workers of a job."""

    def start(self, epoch: int, seats: Mapping[str, Sequence[int]], step: int | None) -> None:
        """Start one worker a node; none is running."""
        ...

    def fate(self) -> str:
        """`running`; `ended` when all have ended well; `failed` as soon as one has not."""
        ...

    def end_all(self) -> None:
        """End all workers, also those of an earlier controller; none is left when the call returns."""
        ...

    def ask_for_evidence(self) -> None:
        """Have every worker write down where it stands."""
        ...


class Workers:
    """Workers on this machine.

    Args:
        settings: the job's command, and how long it may take to end.
    """

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._lock = settings.run_dir / "workers.lock"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, epoch: int, seats: Mapping[str, Sequence[int]], step: int | None) -> None:
        """Start one worker a node.

        Raises:
            LeftoverWorkersError: one of an earlier epoch lives.
            OSError: the command cannot be started.
        """
        held = self._locked()
        if held is None:
            raise LeftoverWorkersError(f"processes hold {self._lock}")
        # Shared, so that processes which inherit nothing can hold it beside those that do.
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            for index, node_id in enumerate(sorted(seats, key=lambda node: min(seats[node]))):
                arguments, environment = self._settings.command_of(epoch, seats, node_id, index, step)
                with (self._settings.run_dir / f"worker-{node_id}.log").open("ab") as log:
                    self._running[node_id] = subprocess.Popen(
                        arguments,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **environment, LOCK_VARIABLE: str(self._lock)},
                        pass_fds=(held,),
                        start_new_session=True,
                    )
        finally:
            # The workers' copies hold the lock from here on.
            os.close(held)

    def fate(self) -> str:
        """How the workers are."""
        statuses = [process.poll() for process in self._running.values()]
        if any(status not in {None, 0} for status in statuses):
            return "failed"
        return "ended" if statuses and all(status == 0 for status in statuses) else "running"

    def end_all(self) -> None:
        """End all workers: asked first, then without a word.

        Raises:
            LeftoverWorkersError: one lives still.
        """
        for sign in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + self._settings.end_s
            for pid in self._holders():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    group = os.getpgid(pid)
                    if group != os.getpgrp():
                        os.killpg(group, sign)
            while time.monotonic() < deadline:
                for process in self._running.values():
                    process.poll()
                held = self._locked()
                if held is not None:
                    os.close(held)
                    for process in self._running.values():
                        process.wait()
                    self._running.clear()
                    return
                time.sleep(_POLL_S)
        raise LeftoverWorkersError(f"processes {self._holders()} hold {self._lock} after SIGKILL")

    def ask_for_evidence(self) -> None:
        """Ask every rank by its pipe, or every worker by a signal; who cannot be asked is passed over."""
        if self._settings.dump_pipe:
            for rank in range(self._settings.world_size):
                with contextlib.suppress(OSError):
                    # Without a reader there is nobody to wait for.
                    pipe = os.open(self._settings.dump_pipe.replace("{rank}", str(rank)), os.O_WRONLY | os.O_NONBLOCK)
                    try:
                        os.write(pipe, b"1")
                    finally:
                        os.close(pipe)
            return
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR1)

    def _locked(self) -> int | None:
        """The lock's file, locked, or None where a worker holds it."""
        held = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            return None
        return held

    def _holders(self) -> list[int]:
        """Processes but for this one that have the lock's file open; those of other users are not seen."""
        wanted = str(self._lock.resolve())
        found = []
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal() or int(place.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if any(str(file.readlink()) == wanted for file in (place / "fd").iterdir()):
                    found.append(int(place.name))
        return found


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("the reference controller finds its workers in /proc")

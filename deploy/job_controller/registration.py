"""Tells the pipeline of each epoch: a job file, and the command that registers it (`paceline jobs put`).

A file is written before its epoch begins, and stays until the command has succeeded, whatever ends in between; training never
waits for it.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

from deploy.job_controller.files import write_whole
from deploy.job_controller.job_settings import ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploy.job_controller.job_settings import JobSettings

__all__ = ["Registration", "job_file"]

_AGAIN_NS = 5_000_000_000
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def job_file(
    settings: JobSettings, epoch: int, seats: Mapping[str, Sequence[int]], since_ns: int, state: str = "running"
) -> str:
    """A job file as `paceline jobs put` reads it (docs/job-file.md), of one epoch."""
    # Of one epoch the later record replaces the earlier one by its version.
    version = since_ns // 10**9 + (state == "ended")
    head = {
        "job_id": settings.job_id,
        "world_size": settings.world_size,
        "epoch": epoch,
        "version": version,
        "state": state,
        "effective_from_ns": since_ns,
    }
    tables = {name: value for name, value in settings.job.items() if isinstance(value, dict)}
    plain = {name: value for name, value in settings.job.items() if name not in tables and name not in head}
    parts = [_assignments({**head, **plain})]
    parts += [f"[{_key(name)}]\n{_assignments(value)}" for name, value in tables.items()]
    for node_id, ranks in sorted(seats.items(), key=lambda item: min(item[1])):
        node: dict[str, Any] = {"node_id": node_id, "ranks": ranks_text(ranks)}
        devices = settings.devices.get(node_id)
        if devices is not None and len(devices) == len(ranks):
            node["gpu_uuid"] = list(devices)
        parts.append(f"[[nodes]]\n{_assignments(node)}")
    return "\n".join(parts)


class Registration:
    """Files that wait to be registered.

    Args:
        settings: the job, and the command.
        clock_ns: wall time.
    """

    def __init__(self, settings: JobSettings, clock_ns: Callable[[], int]) -> None:
        self._settings, self._clock_ns = settings, clock_ns
        self._directory = settings.run_dir / "epochs"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._not_before_ns = 0

    def write(self, epoch: int, seats: Mapping[str, Sequence[int]], since_ns: int, state: str = "running") -> None:
        """Write down that an epoch begins, or that the job has ended in it."""
        # By name in the order in which they are to be registered.
        path = self._directory / f"epoch-{epoch:06d}-{'ended' if state == 'ended' else 'began'}.toml"
        write_whole(path, job_file(self._settings, epoch, seats, since_ns, state).encode())

    def tick(self) -> None:
        """Register what waits, one after another, in order; what fails is tried again after 5 s."""
        if not self._settings.register:
            return
        if self._running is not None:
            path, process = self._running
            status = process.poll()
            if status is None:
                return
            self._running = None
            if status == 0:
                path.rename(path.with_suffix(".registered"))
            else:
                self._not_before_ns = self._clock_ns() + _AGAIN_NS
        waiting = sorted(self._directory.glob("*.toml"))
        if waiting and self._clock_ns() >= self._not_before_ns:
            command = [part.replace("{file}", str(waiting[0])) for part in self._settings.register]
            with (self._settings.run_dir / "register.log").open("ab") as log:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self._running = waiting[0], process

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be registered still."""
        return bool(self._settings.register) and next(self._directory.glob("*.toml"), None) is not None

    def close(self) -> None:
        """End a command that is running; the next controller runs it again."""
        if self._running is not None:
            self._running[1].kill()
            self._running[1].wait()
            self._running = None


def _assignments(values: Mapping[str, Any]) -> str:
    # Texts, numbers, truth values and lists of them are written alike in JSON and in TOML.
    return "".join(f"{_key(name)} = {json.dumps(value)}\n" for name, value in values.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)

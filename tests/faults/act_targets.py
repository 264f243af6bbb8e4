"""What the campaign's actuator acts on: a stand-in for `scontrol`, or a real Slurm with a node for each fault.

Both have a log of their own, written by nobody of the project's, whose lines are brought to one form: `word` (`came` a request,
`done` a change), `at_ns`, `node`, `reason`. Slurm's controller writes a line for each change of a reason and none for a
request that changes nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.faults.scontrol_stand_in import AWAY_NAME, LOG_NAME

# As pytest has it: modules that tests share import each other by their plain names.
sys.path.append(str(Path(__file__).parents[1]))
from slurm_cluster import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RealSlurm", "StandIn"]

_CHANGE = re.compile(r"\[(\S+)\] update_node: node (\S+) reason set to: (paceline .*)")


class StandIn:
    """The program of `scontrol_stand_in.py`.

    Args:
        directory: for its log.
        seed: of how long its changes take.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self.program = directory / "scontrol"
        words = (sys.executable, "-I", "-S", str(Path(__file__).with_name("scontrol_stand_in.py")), str(directory))
        _write_program(self.program, f"exec {shlex.join((*words, str(seed)))}")

    def lines(self) -> list[dict[str, Any]]:
        """The log."""
        log = self._directory / LOG_NAME
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        lines = self.lines()
        return bool(lines) and lines[-1]["word"] != "answered"

    def be_away(self, wait: Callable[[], object]) -> None:
        """Answer nobody while the caller waits."""
        (self._directory / AWAY_NAME).touch()
        wait()
        (self._directory / AWAY_NAME).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left running."""


class RealSlurm:
    """A cluster of this machine's own.

    Args:
        directory: for the program that knows where the cluster is.
        nodes: names of its nodes.
    """

    is_busy = False
    """Its requests take a moment that no look can hit."""

    def __init__(self, directory: Path, nodes: list[str]) -> None:
        # Sockets have short names.
        self._home = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._cluster = SlurmCluster(self._home, tuple(nodes))
        self.program = directory / "scontrol"
        where = {name: self._cluster.environment[name] for name in ("SLURM_CONF", "PATH")}
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in where.items())
        _write_program(self.program, f"{told} exec scontrol")

    def lines(self) -> list[dict[str, Any]]:
        """Changes in the controller's log."""
        found = [_CHANGE.match(line) for line in (self._home / "slurmctld.log").read_text().splitlines()]
        return [
            {"word": word, "at_ns": round(datetime.fromisoformat(at).timestamp() * 1e9), "node": node, "reason": reason}
            for at, node, reason in (change.groups() for change in found if change is not None)
            for word in ("came", "done")
        ]

    def be_away(self, wait: Callable[[], object]) -> None:
        """End the controller while the caller waits, and start it again."""
        self._cluster.end("slurmctld")
        wait()
        self._cluster.start_controller()

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()
        shutil.rmtree(self._home, ignore_errors=True)


def _write_program(path: Path, words: str) -> None:
    path.write_text(f'#!/bin/sh\n{words} "$@"\n')
    path.chmod(0o755)

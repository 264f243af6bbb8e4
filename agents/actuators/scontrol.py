"""Slurm's `scontrol`: runs it without a shell, reads its one-line records, and tells apart what went wrong.

A name goes to it only if it can mean one node or job alone: Slurm reads `n[1-9]`, `a,b` and `ALL` as many. Text for people is
brought down to one line of plain characters. Nothing is decided here.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.actuators.hands import ActFailedError, TargetAwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

__all__ = ["JobRecord", "NodeRecord", "Scontrol", "is_job_id", "is_node_name", "plain_text"]

_TIMEOUT_S = 20.0

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?")

_AWAY = (
    "unable to contact slurm controller",
    "connect failure",
    "socket timed out",
    "could not establish",
    "connection",
)
"""What `scontrol` says, in any case, when nobody took its request."""

_FIELD = re.compile(r"(?:^| )([A-Za-z][\w:/&-]*)=(\S*)")
_REASON = re.compile(r"(?:^| )Reason=(.*?) \[[^\s\[\]]+@[^\s\[\]]+\]")


def is_node_name(name: str) -> bool:
    """Whether a name can mean one node alone."""
    return _NODE_NAME.fullmatch(name) is not None and name.upper() != "ALL"


def is_job_id(name: str) -> bool:
    """Whether a name is the number of one job, or of one task of an array."""
    return _JOB_ID.fullmatch(name) is not None


def plain_text(text: str, most: int = 160) -> str:
    """A text as one short line of printable ASCII without brackets, by which Slurm's own stamp is known."""
    kept = "".join(c if " " <= c <= "~" and c not in "[]" else " " for c in text)
    return " ".join(kept.split())[:most]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What Slurm says of a node.

    Attributes:
        flags: base state and flags, as `IDLE` and `DRAIN`, in capitals.
        reason: why it is drained or down, without Slurm's stamp of who said so; empty when nobody did.
        boot_time: when it booted, as Slurm writes it.
        slurmd_start_time: when its daemon started.
    """

    flags: frozenset[str]
    reason: str
    boot_time: str
    slurmd_start_time: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What Slurm says of a job.

    Attributes:
        state: as `RUNNING`.
        restarts: how often it was requeued.
        can_requeue: whether its owner lets it be.
    """

    state: str
    restarts: int
    can_requeue: bool


class Scontrol:
    """Runs the program.

    Args:
        program: its name or path.
        run: runs an argument list; raises `subprocess.TimeoutExpired` and `OSError` as `subprocess.run` does.
    """

    def __init__(self, program: str = "scontrol", run: Run | None = None) -> None:
        self._program = program
        self._inherited: tuple[int, ...] = ()
        self._run = run if run is not None else self._subprocess

    def hand_down(self, descriptor: int) -> None:
        """Let each run of the program inherit a descriptor, and hold its lock also when this process has ended."""
        self._inherited = (descriptor,)

    def node(self, name: str) -> NodeRecord:
        """What Slurm says of a node.

        Raises:
            TargetAwayError: the controller does not answer.
            ActFailedError: there is no such node, or the answer is none.
        """
        line = self._one_line("show", "node", name, "-o")
        fields = _fields(line)
        if fields.get("NodeName") != name or "State" not in fields:
            raise ActFailedError(f"scontrol says no state of node {name!r}")
        reason = _REASON.search(line)
        return NodeRecord(
            frozenset(part.strip("*~#!%$@^-") for part in fields["State"].upper().split("+")),
            reason[1] if reason is not None else "",
            fields.get("BootTime", ""),
            fields.get("SlurmdStartTime", ""),
        )

    def job(self, job_id: str) -> JobRecord:
        """What Slurm says of a job.

        Raises:
            TargetAwayError: the controller does not answer.
            ActFailedError: there is no such job, or it is several.
        """
        line = self._one_line("show", "job", job_id, "-o")
        fields = _fields(line)
        restarts = fields.get("Restarts", "0")
        if "JobId" not in fields or "JobState" not in fields or not restarts.isdecimal():
            raise ActFailedError(f"scontrol says no state of job {job_id}")
        return JobRecord(fields["JobState"].upper(), int(restarts), fields.get("Requeue", "1") != "0")

    def command(self, *arguments: str) -> None:
        """Run a command that changes something.

        Raises:
            TargetAwayError: nobody took it.
            ActFailedError: it was refused, or it is not known what became of it.
        """
        self._output(arguments)

    def _one_line(self, *arguments: str) -> str:
        lines = [line for line in self._output(arguments).splitlines() if line.strip()]
        if len(lines) != 1:
            raise ActFailedError(f"scontrol {' '.join(arguments)} names {len(lines)}, not one")
        return lines[0]

    def _output(self, arguments: Sequence[str]) -> str:
        try:
            done = self._run([self._program, *arguments])
        except subprocess.TimeoutExpired:
            raise ActFailedError(f"scontrol {arguments[0]} did not end within {_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise TargetAwayError(f"{self._program}: {error.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        said = plain_text(f"{done.stdout} {done.stderr}") or f"status {done.returncode}"
        if any(sign in said.lower() for sign in _AWAY):
            raise TargetAwayError(f"scontrol {arguments[0]}: {said}")
        raise ActFailedError(f"scontrol {arguments[0]}: {said}")

    def _subprocess(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(arguments),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
            pass_fds=self._inherited,
        )


def _fields(line: str) -> dict[str, str]:
    """Fields of a record. The first of a name counts: what people wrote stands at the end, and may look like one."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    return fields

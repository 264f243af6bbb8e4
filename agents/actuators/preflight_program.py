"""Pre-flights: has a node checked by a program of the site's own, and reports `fit` or `unfit` by what it says.

How one reaches a node that takes no jobs is the site's business (ssh, a reservation, a pod), so the program is given: it gets the
name of the node as its only argument and passes on what `paceline preflight --json` prints there, and its status. Both must say
the same, of the node that was asked for; all else is no word about it. A pre-flight changes nothing, so that one whose
actuator was killed is made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

from agents.actuators.hands import ActFailedError, Done, Judgement, State
from agents.actuators.scontrol import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas.remediation import Command

__all__ = ["PreflightHands"]

_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_MOST_BYTES = 1_000_000
"""Of what a program says, the end that is read: a line per check of a node is some kilobytes."""

_POLL_S = 0.2
_GRACE_S = 5.0


class PreflightHands:
    """Runs the program.

    Args:
        program: what is run, with the name of a node as its only argument.
        limit_s: seconds after which it is ended.
        wait: waits some seconds, and says whether this process is to end.
        clock_s: a clock that only goes forward, seconds.
    """

    kinds = frozenset({"run_preflight"})

    def __init__(
        self,
        program: Path,
        limit_s: float,
        wait: Callable[[float], bool],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program, self._limit_s = program, limit_s
        self._wait, self._clock_s = wait, clock_s

    def look(self, command: Command) -> State:  # noqa: ARG002 (of the protocol)
        """Nothing: the pre-flight itself is the look."""
        return {}

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:  # noqa: ARG002
        """Whether there is one node to check; owned or not makes no difference."""
        if _NODE_NAME.fullmatch(command.target.node_id or "") is None:
            return Judgement("refuse", "not_permitted", "its target is not the name of one node")
        return Judgement("do")

    def act(self, command: Command, state: State) -> Done:  # noqa: ARG002
        """Check the node.

        Raises:
            ActFailedError: it cannot be said whether the node is fit.
        """
        node_id = command.target.node_id or ""
        status, told = self._run(node_id)
        said = _last_word(told)
        if said is None:
            raise ActFailedError(f"the program ended with status {status} and no word of a pre-flight")
        if not _is_the_same(str(said.get("node")), node_id):
            raise ActFailedError(f"the pre-flight speaks of {plain_text(str(said.get('node')))!r}, not of {node_id!r}")
        fit, summary = said.get("fit"), plain_text(str(said.get("summary", "")))
        if (status, fit) == (0, True):
            return Done(summary, "fit")
        if (status, fit) == (1, False):
            return Done(summary, "unfit")
        raise ActFailedError(f"it cannot be said whether the node is fit (status {status}): {summary}")

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:  # noqa: ARG002
        """Never: there is no effect, and a verdict that was not kept is asked for again."""
        return False

    def _run(self, node_id: str) -> tuple[int, bytes]:
        with tempfile.TemporaryFile() as out:
            try:
                process = subprocess.Popen(
                    [str(self._program), node_id], stdin=subprocess.DEVNULL, stdout=out, start_new_session=True
                )
            except OSError as error:
                raise ActFailedError(f"{self._program}: {error.strerror or error}") from None
            ends_s = self._clock_s() + self._limit_s
            try:
                while process.poll() is None:
                    if self._clock_s() >= ends_s:
                        raise ActFailedError(f"the program did not end within {self._limit_s:.0f} s")
                    if self._wait(_POLL_S):
                        raise ActFailedError("this actuator is told to stop")
            finally:
                _end(process)
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - _MOST_BYTES))
            return process.returncode, out.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started, if it has not ended by itself."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


def _last_word(told: bytes) -> dict[str, Any] | None:
    """The record of all checks, which is the last line of a pre-flight that came to its end."""
    lines = told.splitlines()
    if not lines:
        return None
    try:
        record = json.loads(lines[-1])
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("record") == "preflight" else None


def _is_the_same(name: str, other: str) -> bool:
    """Whether two names mean one node: one of them may leave out the domain, but two domains are two nodes."""
    return name == other or (("." in name) != ("." in other) and name.split(".", 1)[0] == other.split(".", 1)[0])

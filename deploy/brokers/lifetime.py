"""Child processes that never outlive their owner.

A bound child runs in a session of its own, so a terminal's Ctrl-C reaches the owner only and the broker outlives
the clients that are still finishing. It ends when its standard input closes, on SIGTERM, or when the owner is gone
(seen within 0.2 s, SIGKILL included). Run as a module, this supervises a command that knows nothing of all that,
such as a JVM; on Linux the kernel also kills that command should the supervisor itself be killed. It does not
restart anything, and it does not support Windows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from deploy.brokers.errors import BrokerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

POLL_S = 0.2
TAIL_LINES = 30
TAIL_BYTES = 64 * 1024
# From Linux's <sys/prctl.h>: the signal a process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1


class BoundProcess:
    """A child Python process running one of this package's modules, bound to this process.

    The child gets `--owner PID` and must print one JSON object on one line of standard output once it is up.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        """Starts `python -m module --owner PID *arguments`."""
        package_root = str(Path(__file__).resolve().parents[2])
        inherited = os.environ.get("PYTHONPATH")
        python_path = os.pathsep.join([package_root, inherited] if inherited else [package_root])
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            # -P: a folder named `deploy` in the working directory must not shadow this package.
            [sys.executable, "-P", "-m", module, "--owner", str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path},
        )

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the child is alive."""
        return self._process.poll() is None

    @property
    def has_failed(self) -> bool:
        """Whether the child ended without being asked to; a child that was asked exits with 0."""
        return self._process.poll() not in (None, 0)

    def greeting(self, timeout_s: float) -> dict[str, Any]:
        """The JSON object that the child prints when it is up.

        Raises:
            BrokerStartError: The child ended or stayed silent for `timeout_s`, or said something else.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not _is_readable(descriptor, left_s):
                raise BrokerStartError(f"the broker's process said nothing within {timeout_s:g} s")
            piece = os.read(descriptor, 4096)
            if not piece:
                raise BrokerStartError(f"the broker's process ended before it was up:\n{self.complaints()}")
            line += piece
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise BrokerStartError(f"the broker's process should greet with a JSON object, and said {line[:200]!r}")
        return said

    def complaints(self) -> str:
        """The last lines of the child's standard error."""
        # pread: the child writes through the same file offset, which a seek would move under it.
        size = os.fstat(self._complaints.fileno()).st_size
        start = max(0, size - TAIL_BYTES)
        return last_lines(os.pread(self._complaints.fileno(), TAIL_BYTES, start).decode(errors="replace"))

    def stop(self, grace_s: float) -> None:
        """Asks the child to end, and kills its whole process group after `grace_s`."""
        # Both ways of asking: a process forked from the owner may still hold the pipe's other end.
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._complaints.close()


def last_lines(text: str, count: int = TAIL_LINES) -> str:
    """The last `count` lines of a text."""
    return "\n".join(text.splitlines()[-count:])


class OwnersEnd:
    """When a bound child should end. Make it first thing in the main thread, before anything is announced.

    From then on SIGTERM asks the child to end and SIGINT is ignored.
    """

    def __init__(self, owner_pid: int) -> None:
        """Watches for the end of the parent process, `owner_pid`."""
        self._owner_pid = owner_pid
        self._was_asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait(self, has_ended: Callable[[], bool] = lambda: False) -> None:
        """Blocks until standard input closes, SIGTERM came, the owner is gone, or `has_ended` says so."""
        while not self._was_asked and not has_ended() and os.getppid() == self._owner_pid:
            if _is_readable(0, POLL_S) and not os.read(0, 4096):
                return

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._was_asked = True


def supervise(owner_pid: int, log: Path, grace_s: float, command: Sequence[str]) -> int:
    """Runs a command with its output appended to `log` until it ends or the owner does.

    Prints `{"pid": N}` once it runs. Ends it with SIGTERM, and with SIGKILL after `grace_s`.

    Returns:
        0 when the command was ended here. Else the command ended by itself: its exit status, 128 + N for signal N,
        and 1 for a 0, because a command that should go on has failed by ending.
    """
    owners_end = OwnersEnd(owner_pid)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509 - this process has one thread
        )
    announce({"pid": process.pid})
    owners_end.wait(lambda: process.poll() is not None)
    status = process.poll()
    if status is not None:
        return (status if status >= 0 else 128 - status) or 1
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return 0


def announce(greeting: dict[str, Any]) -> None:
    """Prints the one line by which a bound child says that it is up."""
    # The owner may be gone already; then the wait that follows ends at once.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(greeting).encode() + b"\n")


def _die_with_parent(parent_pid: int) -> Callable[[], None]:
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None

    def set_up() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent_pid:
                os._exit(1)

    return set_up


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervises the command after `--`; see `supervise`."""
    parser = argparse.ArgumentParser(prog="python -m deploy.brokers.lifetime", description="Supervise a command.")
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("command", nargs="+")
    taken = parser.parse_args(arguments)
    try:
        return supervise(taken.owner, taken.log, taken.grace_s, taken.command)
    except OSError as error:
        sys.stderr.write(f"{taken.command[0]}: {error}\n")
        return 127


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether something can be read, or the other end has closed, within a time."""
    looked_at = select.poll()  # not select(): a process may hold more than 1,024 files
    looked_at.register(descriptor, select.POLLIN)
    return bool(looked_at.poll(max(0.0, timeout_s) * 1000))


if __name__ == "__main__":
    sys.exit(main())

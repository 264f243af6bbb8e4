"""A program that is run for its output: without a shell, with a deadline and a limit.

Guarantees: when the time is over or the output too long, the program is killed with everything that it started, and
nothing waits for what survives. Its input is empty. It judges no output: an exit status other than 0 is an error.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

__all__ = ["ProgramError", "run_program"]

_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 64 << 20
_ERROR_BYTES = 1 << 12
_ERROR_CHARACTERS = 200


class ProgramError(Exception):
    """A program could not be run, failed, took too long or said too much; the text is one line."""


def run_program(command: Sequence[str], timeout_s: float, most_bytes: int = _MOST_BYTES) -> bytes:
    """Standard output of a program.

    Args:
        command: the program and its arguments.
        timeout_s: when it is killed.
        most_bytes: how much it may print.

    Raises:
        ProgramError: as the class says.
    """
    name = " ".join(command)[:_ERROR_CHARACTERS]
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ProgramError(f"{name} cannot be run: {getattr(error, 'strerror', None) or error}") from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        printed, errors = _read_both(process.stdout, process.stderr, name, timeout_s, most_bytes)
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{name} did not end within {timeout_s:g} s") from None
    finally:
        _end(process)
    if status:
        said = (errors.strip() or printed[-_ERROR_BYTES:].strip()).decode("utf-8", "replace").splitlines()
        raise ProgramError(f"{name}: status {status}: {said[-1][:_ERROR_CHARACTERS] if said else '-'}")
    return printed


def _read_both(
    stdout: IO[bytes], stderr: IO[bytes], name: str, timeout_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    """Everything printed, and the beginning of the errors."""
    end_s = time.monotonic() + timeout_s
    printed, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as open_ends:
        open_ends.register(stdout, selectors.EVENT_READ, printed)
        open_ends.register(stderr, selectors.EVENT_READ, errors)
        while open_ends.get_map():
            left_s = end_s - time.monotonic()
            ready = open_ends.select(left_s) if left_s > 0 else []
            if not ready:
                raise ProgramError(f"{name} did not end within {timeout_s:g} s")
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    open_ends.unregister(key.fileobj)
                elif key.data is printed:
                    printed += chunk
                    if len(printed) > most_bytes:
                        raise ProgramError(f"{name} printed more than {most_bytes} bytes")
                else:
                    errors += chunk[: max(0, _ERROR_BYTES - len(errors))]
    return bytes(printed), bytes(errors)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and what it started, if it has not ended, and let go of its pipes."""
    if process.returncode is None:  # nobody waited for it yet, so its number, and its group's, are still its own
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

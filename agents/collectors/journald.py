"""Kernel events from the journal of systemd, through a `journalctl` that follows it.

Guarantees: of this boot's kernel messages none is lost and none repeated over restarts of the agent and of journalctl,
as far as the journal keeps them: reading goes on behind the last entry's `__CURSOR`, which is kept on disk once the
events were handed on. Only entries whose transport is the kernel count, whatever their fields say. The program is run
without a shell and ends with the agent. Not for use beside the kernel log, which has the same lines under other numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from agents.clock import boot_time_ns
from agents.collectors.base import CollectorError, Readings
from agents.collectors.kernel_events import KernelEventReader
from agents.collectors.log_cursor import CursorFile, JournalPlace, LogCursor
from agents.collectors.log_follower import LogFollower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["JournaldCollector"]

_ARGUMENTS = ("--dmesg", "--output=json", "--follow", "--no-pager", "--quiet")
_READING_BYTES = 2 << 20
_START_AGAIN_NS = 10 * 10**9
_END_S = 1.0
_ERROR_BYTES = 1 << 12
_ERROR_CHARACTERS = 200

# The journal writes its cursors in letters, digits, `=` and `;`.
_CURSOR = re.compile(r'"__CURSOR" ?: ?"(?P<cursor>[^"\\]{1,1024})"')


class JournaldCollector:
    """Reads kernel events.

    Args:
        command: journalctl, with arguments before its own.
        identity: who the events are from.
        from_start: without a cursor, read what this boot's journal holds already.
        boot_time_ns: wall time of the boot.
        state_dir: directory for the cursor; empty keeps none.
    """

    name = "journald"
    precedence = 11
    only_if_named = True  # the kernel log has the same lines

    def __init__(
        self,
        command: Sequence[str],
        identity: AgentIdentity,
        *,
        from_start: bool = True,
        boot_time_ns: Callable[[], int] = boot_time_ns,
        state_dir: str = "",
    ) -> None:
        self._command = tuple(command)
        self._boot_id = identity.boot_id
        self._from_start = from_start
        self._cursors = CursorFile.in_directory(state_dir, self.name, self.name, identity.boot_id)
        self._reader = KernelEventReader(identity, boot_time_ns)
        self._program: _Program | None = None
        self._follower: LogFollower | None = None
        self._last_cursor: str | None = None
        self._begun = False
        self._ended_ns: int | None = None

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> JournaldCollector:
        """The collector that runs the command that the settings name."""
        return cls(
            (settings.journalctl,),
            identity,
            from_start=settings.kernel_log_from_start,
            state_dir=settings.state_dir,
        )

    @property
    def malformed(self) -> int:
        """Lines that were meant to be events and could not be read."""
        return self._reader.malformed

    def is_supported(self) -> str | None:
        """None if the command is on PATH, else why not."""
        if shutil.which(self._command[0]) is None:
            return f"{self._command[0]} is not on PATH"
        return None

    def collect(self, now_ns: int) -> Readings:
        """The events of entries that are new.

        Raises:
            CollectorError: journalctl cannot be run, or has ended; it is run again after ten seconds.
        """
        if not self._begun:
            self._begun = True
            self._restore()
        if self._follower is None:
            if self._ended_ns is not None and 0 <= now_ns - self._ended_ns < _START_AGAIN_NS:
                return Readings()
            self._start(now_ns)
        assert self._follower is not None
        is_live = self._follower.is_caught_up
        lines = self._follower.read()
        if lines:
            events = self._reader.read(lines, now_ns, is_live=is_live)
            for line in reversed(lines):
                if found := _CURSOR.search(line.text):
                    self._last_cursor = found["cursor"]
                    break
            return Readings(events=events, cursor=self._cursor())
        if self._reader.is_waiting:
            return Readings(events=self._reader.finish(now_ns), cursor=self._cursor())
        self._check_alive(now_ns)
        return Readings()

    def acknowledge(self, cursor: object) -> None:
        """Keep a reading's cursor: its events were handed on."""
        if self._cursors is not None and isinstance(cursor, LogCursor):
            self._cursors.save(cursor)

    def close(self) -> None:
        """End the program."""
        if self._program is not None:
            self._program.close()
        self._program = self._follower = None

    def _restore(self) -> None:
        cursor = self._cursors.load() if self._cursors is not None else None
        if cursor is None or not isinstance(cursor.place, JournalPlace):
            return
        if self._reader.restore(cursor.last_number, cursor.fold, cursor.reader):
            self._last_cursor = cursor.place.cursor

    def _start(self, now_ns: int) -> None:
        arguments = [*self._command, *_ARGUMENTS]
        if self._last_cursor is not None:
            arguments += ["--no-tail", f"--after-cursor={self._last_cursor}"]
        else:
            arguments.append("--no-tail" if self._from_start else "--lines=0")
        try:
            self._program = program = _Program(arguments)
        except (OSError, ValueError) as error:
            self._ended_ns = now_ns
            reason = getattr(error, "strerror", None) or error
            raise CollectorError(f"{self._command[0]} cannot be run: {reason}") from None
        self._follower = LogFollower(self._command[0], max_bytes=_READING_BYTES, open_log=lambda: program)

    def _check_alive(self, now_ns: int) -> None:
        """Notice that the program has ended.

        Raises:
            CollectorError: it has.
        """
        program = self._program
        if program is None or program.status() is None:
            return
        status, said = program.status(), program.last_words()
        self.close()
        self._ended_ns = now_ns
        if "cursor" in said.lower():
            self._last_cursor = None  # the journal does not know it: read this boot from its start, under equal numbers
        raise CollectorError(f"{self._command[0]} ended with status {status}: {said or '-'}; it is run again")

    def _cursor(self) -> LogCursor | None:
        if self._cursors is None or self._last_cursor is None or self._reader.is_waiting:
            return None
        return LogCursor(
            log=self.name,
            boot_id=self._boot_id,
            place=JournalPlace(cursor=self._last_cursor),
            last_number=self._reader.last_number,
            fold=self._reader.fold_snapshot(),
            reader=self._reader.reader_snapshot(),
        )


class _Program:
    """A running journalctl, read without waiting."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output, self._errors = self._process.stdout, self._process.stderr
        os.set_blocking(self._output.fileno(), False)
        os.set_blocking(self._errors.fileno(), False)
        self._end = weakref.finalize(self, _end, self._process)

    def read(self, size: int) -> bytes:
        """What it has printed, none when it has ended.

        Raises:
            BlockingIOError: nothing at the moment.
        """
        return os.read(self._output.fileno(), size)

    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """The last line of its errors."""
        try:
            said = os.read(self._errors.fileno(), _ERROR_BYTES).decode("utf-8", "replace").strip()
        except BlockingIOError:
            return ""
        return said.splitlines()[-1][:_ERROR_CHARACTERS] if said else ""

    def close(self) -> None:
        """End it."""
        self._end()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()

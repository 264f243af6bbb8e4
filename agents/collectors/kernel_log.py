"""Kernel events from `/dev/kmsg` or from a log file that is still being written.

Guarantees: every recognised line becomes one event or is counted in one, also those written before the agent started,
once a boot; over restarts none is lost and none repeated while there is a cursor; records that the kernel overwrote
unread are counted. Lines of another facility than the kernel's are marked as not trusted. It decides nothing, and does
not see lines that the kernel dropped or rate-limited. A text file is as good as whoever may write to it: only `/dev/kmsg`
and the journal tell what the kernel said from what a process says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agents.clock import boot_time_ns
from agents.collectors.event_log import EventLog
from agents.collectors.kernel_events import KernelEventReader
from agents.collectors.log_cursor import CursorFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.collectors.base import Readings
    from agents.collectors.log_follower import OpenLog
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["KernelLogCollector"]


class KernelLogCollector:
    """Reads kernel events.

    Args:
        path: `/dev/kmsg`, or a file in any form that the kernel-log decoder knows.
        identity: who the events are from.
        from_start: without a cursor, read what is there already.
        boot_time_ns: wall time of the boot.
        state_dir: directory for the cursor; empty keeps none, and then every start reads the log again. Repeats carry
            equal numbers, so this is safe.
        open_log: opens the log instead of `path`, for tests.
    """

    name = "kernel-log"
    precedence = 10

    def __init__(
        self,
        path: str | Path,
        identity: AgentIdentity,
        *,
        from_start: bool = True,
        boot_time_ns: Callable[[], int] = boot_time_ns,
        state_dir: str = "",
        open_log: Callable[[], OpenLog] | None = None,
    ) -> None:
        self._path = Path(path)
        self._is_given = open_log is not None
        self._reader = KernelEventReader(identity, boot_time_ns)
        self._log = EventLog(
            self._path,
            self._reader,
            identity.boot_id,
            CursorFile.in_directory(state_dir, self.name, str(self._path), identity.boot_id),
            from_start=from_start,
            open_log=open_log,
        )

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> KernelLogCollector:
        """The collector of the log that the settings name."""
        return cls(
            settings.kernel_log, identity, from_start=settings.kernel_log_from_start, state_dir=settings.state_dir
        )

    @property
    def lost_records(self) -> int:
        """Records of the kernel's ring that were overwritten before they were read."""
        return self._log.lost_records

    @property
    def malformed(self) -> int:
        """Lines that were meant to be events and could not be read."""
        return self._reader.malformed

    def is_supported(self) -> str | None:
        """None if the log can be opened, else why not."""
        if self._is_given:
            return None
        if not self._path.exists():
            return f"{self._path} does not exist"
        if self._path.is_dir():
            return f"{self._path} is a directory: name a log in kernel_log"
        if not os.access(self._path, os.R_OK):
            return f"{self._path} is not readable: run as root or give CAP_SYSLOG"
        return None

    def collect(self, now_ns: int) -> Readings:
        """The events of lines that are new.

        Raises:
            CollectorError: the log cannot be read.
        """
        return self._log.collect(now_ns)

    def finish(self, now_ns: int) -> Readings:
        """What was held back until later lines would decide, for one reading of a whole file."""
        return self._log.finish(now_ns)

    def acknowledge(self, cursor: object) -> None:
        """Keep a reading's cursor: its events were handed on."""
        self._log.acknowledge(cursor)

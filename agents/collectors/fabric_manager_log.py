"""SXid events from the log of NVIDIA's Fabric Manager, which names the switch, the port and whether an error is fatal.

Guarantees: as for a kernel log in a file, over rotations and restarts. The log gives local time without a zone: a line
that is read as it is written is never put more than five minutes beside the clock. The kernel's own SXid line tells the
same error and both are published: equal code and device are one episode downstream. Numbers are the log's own, under a
boot id of their own, so that they cannot be taken for repeats of kernel lines. Other lines of the log are passed over.
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
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["FabricManagerLogCollector"]


class FabricManagerLogCollector:
    """Reads SXid events.

    Args:
        path: the log.
        identity: who the events are from.
        boot_time_ns: wall time of the boot.
        from_start: without a cursor, read what is there already.
        state_dir: directory for the cursor; empty keeps none.
    """

    name = "fabric-manager-log"
    precedence = 12

    def __init__(
        self,
        path: str | Path,
        identity: AgentIdentity,
        *,
        from_start: bool = True,
        boot_time_ns: Callable[[], int] = boot_time_ns,
        state_dir: str = "",
    ) -> None:
        self._path = Path(path)
        self._reader = KernelEventReader(identity, boot_time_ns, kinds=("sxid",), numbers_apart="fabric-manager")
        self._log = EventLog(
            self._path,
            self._reader,
            identity.boot_id,
            CursorFile.in_directory(state_dir, self.name, str(self._path), identity.boot_id),
            from_start=from_start,
        )

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> FabricManagerLogCollector:
        """The collector of the log that the settings name."""
        return cls(
            settings.fabric_manager_log,
            identity,
            from_start=settings.kernel_log_from_start,
            state_dir=settings.state_dir,
        )

    @property
    def malformed(self) -> int:
        """Lines that were meant to be events and could not be read."""
        return self._reader.malformed

    def is_supported(self) -> str | None:
        """None if the log can be opened, else why not."""
        if not self._path.exists():
            return f"{self._path} does not exist: no Fabric Manager logs here"
        if self._path.is_dir():
            return f"{self._path} is a directory: name a log in fabric_manager_log"
        if not os.access(self._path, os.R_OK):
            return f"{self._path} is not readable: run as root or as a member of its group"
        return None

    def collect(self, now_ns: int) -> Readings:
        """The events of lines that are new.

        Raises:
            CollectorError: the log cannot be read.
        """
        return self._log.collect(now_ns)

    def acknowledge(self, cursor: object) -> None:
        """Keep a reading's cursor: its events were handed on."""
        self._log.acknowledge(cursor)

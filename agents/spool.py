"""The agent's disk spool: a directory with a lane for critical records and one for bulk, held by one process.

Opening takes a lock that ends with the process, however that ends. A directory that cannot be used raises one error
with one line of text, and the agent then works from memory. It neither sends nor decides what is spooled.
"""

from __future__ import annotations

import fcntl
import os

from agents.spool_lane import SpoolLane
from agents.spool_policy import BULK, CRITICAL_LANE, SpoolSettings

__all__ = ["Spool", "SpoolUnavailableError"]


class SpoolUnavailableError(Exception):
    """The spool cannot be used; the text says where, why and what to do."""


class Spool:
    """An open spool.

    Args:
        settings: place and caps. The directory is made if it is missing.

    Raises:
        SpoolUnavailableError: missing, not writable, or in use by another process.
    """

    def __init__(self, settings: SpoolSettings) -> None:
        self.settings = settings
        directory = settings.directory
        self._lock: int | None = None
        try:
            if settings.makes_parent:
                directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory.mkdir(mode=0o750, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.critical = SpoolLane(directory / CRITICAL_LANE, settings.critical_policy())
            self.bulk = SpoolLane(directory / BULK, settings.bulk_policy())
        except BlockingIOError:
            self._unlock()
            raise SpoolUnavailableError(f"{directory} is in use by another process: give each agent its own") from None
        except OSError as error:
            self._unlock()
            reason = error.strerror or str(error)
            raise SpoolUnavailableError(
                f"{error.filename or directory}: {reason}; give a directory that the agent may write"
            ) from None

    def close(self) -> None:
        """Sync both lanes and give the directory free.

        Raises:
            OSError: the disk does not take what is left; the directory is free all the same.
        """
        try:
            try:
                self.critical.close()
            finally:
                self.bulk.close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

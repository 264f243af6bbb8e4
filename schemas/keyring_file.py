"""The ring of trusted keys as its file stands: read anew when it changes, so that a revoked key needs no restart.

A ring that can no longer be read is not gone on with: the ring is then empty, and everything is refused until it is whole.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from schemas.key_files import KeyFileError, load_keyring
from schemas.keyring import Keyring

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KeyringFile"]

_LOG = logging.getLogger(__name__)


class KeyringFile:
    """Follows one file.

    Args:
        path: the ring.

    Raises:
        KeyFileError: it cannot be read now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._mark()
        self._ring = load_keyring(path)

    def current(self) -> Keyring:
        """The ring that is trusted now."""
        mark = self._mark()
        if mark is None or mark != self._seen:
            self._seen = mark
            try:
                self._ring = load_keyring(self._path)
            except KeyFileError as error:
                _LOG.error("%s; nobody is trusted until it can be read", error)
                self._ring = Keyring()
        return self._ring

    def _mark(self) -> tuple[int, int, int, int] | None:
        """What differs when the file is another or was written; None when it cannot be looked at."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

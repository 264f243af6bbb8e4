"""Where a log is to be read on after a restart, kept in one small file a log.

Guarantees: the file is replaced as a whole, so that it is never half written; one that is damaged, of another log, or of
another boot where that matters, counts as none; a directory that cannot be written costs the cursor and nothing else.
When a cursor may move is its caller's affair: only once what was read before it has been handed on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["CursorFile", "FilePlace", "JournalPlace", "KmsgPlace", "LogCursor"]

_LOG = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class KmsgPlace(_Plain):
    """A record of the kernel's ring: the last one that was read. Means nothing in another boot."""

    kind: Literal["kmsg"] = "kmsg"
    seq: int = Field(ge=0)


class FilePlace(_Plain):
    """A place in a file that may have been rotated since.

    Attributes:
        device: of the file system.
        inode: of the file.
        offset: bytes of it that were read, up to the end of a line.
        tail: the last of these bytes in hexadecimal digits; they tell the file, or a copy of it, from another.
        base: bytes of earlier files that were read; with `offset`, the position of the next line.
    """

    kind: Literal["file"] = "file"
    device: int
    inode: int
    offset: int = Field(ge=0)
    tail: str = Field(max_length=256)
    base: int = Field(ge=0)


class JournalPlace(_Plain):
    """An entry of the journal, as the journal names it."""

    kind: Literal["journal"] = "journal"
    cursor: str = Field(min_length=1, max_length=1024)


class LogCursor(_Plain):
    """A place in a log, and what has to be known to go on from there as if nothing had happened.

    Attributes:
        log: the log's path or name.
        boot_id: the boot in which it was written.
        place: where the next line is.
        last_number: the last event's `kmsg_seq`.
        fold: of `EventFold.snapshot`.
        reader: of `KernelLogReader.snapshot`.
    """

    version: Literal[1] = 1
    log: str
    boot_id: str
    place: Annotated[KmsgPlace | FilePlace | JournalPlace, Field(discriminator="kind")]
    last_number: int = -1
    fold: dict[str, Any]
    reader: dict[str, Any]


class CursorFile:
    """The cursor of one log on disk.

    Args:
        path: the file; its directory is made when it is first written.
        log: the log that it is of.
        boot_id: this boot's name.
    """

    def __init__(self, path: str | Path, log: str, boot_id: str) -> None:
        self._path = Path(path)
        self._log = log
        self._boot_id = boot_id
        self._said = ""

    @classmethod
    def in_directory(cls, state_dir: str, name: str, log: str, boot_id: str) -> CursorFile | None:
        """The file of a source in the state directory; None if that is empty: no state is kept."""
        return cls(Path(state_dir) / f"{name}.cursor.json", log, boot_id) if state_dir else None

    def load(self) -> LogCursor | None:
        """The cursor, or None where there is none to go by."""
        try:
            with self._path.open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say(f"{self._path} cannot be read: {error.strerror or error}; the log is read from its start")
            return None
        try:
            cursor = LogCursor.model_validate_json(data)
        except ValidationError:
            self._say(f"{self._path} is no cursor; the log is read from its start")
            return None
        if cursor.log != self._log:
            return None
        if cursor.boot_id != self._boot_id and not isinstance(cursor.place, FilePlace):
            return None
        return cursor

    def save(self, cursor: LogCursor) -> bool:
        """Replace the file; whether that could be done. Why not is logged once."""
        name = None
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(cursor.model_dump_json().encode())
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, self._path)  # noqa: PTH105 - the name is a string from mkstemp
        except OSError as error:
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)  # noqa: PTH108 - as above
            self._say(f"{self._path} cannot be written: {error.strerror or error}; a restart reads the log again")
            return False
        self._said = ""
        return True

    def _say(self, text: str) -> None:
        if text != self._said:  # once, not once a tick
            self._said = text
            _LOG.warning("%s", text)

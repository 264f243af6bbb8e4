"""Files that are replaced whole: what is there is the old one or the new one, also when a process was killed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, *pieces: bytes) -> None:
    """Replace a file by one of these bytes, which are on the disk before it takes the place.

    What is there and is no file (a pipe, a device) is written to as it is; a link stays, and what it names is replaced.

    Raises:
        OSError: it cannot be written; what was there stands.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(b"".join(pieces))
        return
    path = path.resolve()
    fresh = path.with_name(path.name + ".partial")
    try:
        with fresh.open("wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)

"""What is there and cannot be made again: a command that writes a file asks first whether that is such a one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.archive_blocks import ZSTD_MAGIC, is_recorded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ARCHIVE_STARTS", "is_foreign", "is_recording"]

ARCHIVE_STARTS = (ZSTD_MAGIC, b'{"topic"')
"""How a plain archive of ours begins: with a frame of zstd, or with its first line."""


def is_recording(path: Path) -> bool:
    """Whether a file is there that `paceline record` wrote.

    Raises:
        OSError: what is there cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as there:
        return is_recorded(there.read(12))


def is_foreign(path: Path, *starts: bytes) -> bool:
    """Whether a file is there that holds something, and begins with none of these.

    Raises:
        OSError: what is there cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as there:
        start = there.read(max(map(len, starts)))
    return bool(start) and not start.startswith(starts)

"""What somebody recorded cannot be made again: a command that writes a file asks first whether that is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.archive_blocks import is_recorded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_recording"]


def is_recording(path: Path) -> bool:
    """Whether a file is there that `paceline record` wrote.

    Raises:
        OSError: what is there cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as there:
        return is_recorded(there.read(12))

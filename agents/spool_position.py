"""Up to which number a lane's entries are settled, in a file that is replaced whole.

A reader finds the old number or the new one, never a part. A file that does not check counts as missing: then entries
are sent again, which does no harm, where a wrong number would lose them. It is not synced, for the same reason.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

__all__ = ["read_position", "write_position"]


def read_position(path: Path) -> int | None:
    """The number in the file; None if there is none that can be trusted."""
    try:
        text, crc = path.read_text("ascii").split()
        return int(text) if int(crc, 16) == zlib.crc32(text.encode()) and int(text) >= 0 else None
    except (OSError, ValueError):
        return None


def write_position(path: Path, number: int) -> None:
    """Replace the number.

    Raises:
        OSError: it cannot be written; the old one stands.
    """
    text = str(number)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(f"{text} {zlib.crc32(text.encode()):08x}\n", "ascii")
    os.replace(fresh, path)  # noqa: PTH105 - says that it replaces

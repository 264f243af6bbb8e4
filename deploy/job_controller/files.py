"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_object", "sync_directory", "write_object", "write_whole"]

_LARGEST_BYTES = 8 << 20


def write_whole(path: Path, payload: bytes) -> None:
    """Put a file in place; it is on the disk, under its name, when the call returns."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def write_object(path: Path, value: dict[str, Any]) -> None:
    """Put a JSON object in place."""
    write_whole(path, json.dumps(value, sort_keys=True).encode() + b"\n")


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no such file, or no object in it."""
    try:
        with path.open("rb") as file:
            payload = file.read(_LARGEST_BYTES + 1)
        value = json.loads(payload)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and len(payload) <= _LARGEST_BYTES else None


def sync_directory(path: Path) -> None:
    """Have the names of a directory on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

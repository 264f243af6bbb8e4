"""Where a page goes: over another page, or where nothing is. What else is there may be a trace, or what somebody recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.recording_file import is_foreign

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PAGE_START", "NoPlaceError", "must_be_free"]

PAGE_START = b"<!doctype html>\n"
"""How every page of ours begins."""


class NoPlaceError(Exception):
    """Where a page was to go something else is, or nothing can be; the text says which."""


def must_be_free(output: Path) -> None:
    """Hold where to against what is there; to be asked before minutes are spent.

    Raises:
        OSError: what is there cannot be read.
        NoPlaceError: something else would be written over, or where to is in no directory.
    """
    if not output.parent.is_dir():
        raise NoPlaceError(f"{output}: {output.parent} is no directory")
    if output.is_dir():
        raise NoPlaceError(f"{output} is a directory: name a file")
    if is_foreign(output, PAGE_START):
        raise NoPlaceError(f"{output} is there already, and is no page: name another file")

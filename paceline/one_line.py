"""Text of an archive as it is said on a terminal: names are whatever a publisher called them."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    r"""The text as one line: control characters as `\n` or `\x1b`, so that a name neither moves the cursor nor begins a line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )

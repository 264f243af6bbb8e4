"""One thing that `paceline doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `needed` tells what fails without it from what is only left out."""

    name: str
    ok: bool
    needed: bool
    note: str

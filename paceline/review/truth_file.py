"""What was really wrong, as `paceline simulate --truth-file` writes it: a line of JSON for each fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agents.simulation.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NoTruthError", "truths_of"]


class NoTruthError(Exception):
    """A file of truth cannot be used; the text says which and why."""


def truths_of(path: Path) -> list[Truth]:
    """The faults of a file; none where only look-alikes were there.

    Raises:
        NoTruthError: it cannot be read, or holds something else.
    """
    try:
        return [_truth(orjson.loads(line)) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise NoTruthError(f"{path}: {error.strerror}") from None
    except (orjson.JSONDecodeError, TypeError, AttributeError):
        raise NoTruthError(f"{path}: a line is no truth as paceline simulate --truth-file writes it") from None


def _truth(fields: dict[str, Any]) -> Truth:
    typed: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
    return Truth(**typed)

"""What was really wrong, as `paceline simulate --truth-file` writes it: a line of JSON for each fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agents.simulation.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["NoTruthError", "stranger_of", "truths_of"]


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


def stranger_of(truths: Iterable[Truth], jobs: set[str], gpus: set[str | None]) -> str | None:
    """A job or GPU of the truth that a recording does not know, which is then of another run; null where all are known.

    Args:
        truths: the faults.
        jobs: all that are described; where none is, none is a stranger.
        gpus: UUIDs of all that are described; likewise.
    """
    for truth in truths:
        if jobs and truth.job_id and truth.job_id not in jobs:
            return truth.job_id
        for place in truth.culprits:
            gpu_uuid = place.get("gpu_uuid")
            if gpus and gpu_uuid is not None and gpu_uuid not in gpus:
                return str(gpu_uuid)
    return None

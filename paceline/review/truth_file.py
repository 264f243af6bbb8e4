"""What was really wrong, as `paceline simulate --truth-file` writes it: a line of JSON for each fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from agents.simulation.truth import Truth
from paceline.one_line import one_line
from schemas.fleet import Job, Node, RankPlacement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from schemas.base import Record

__all__ = ["Described", "NoTruthError", "of_another_run", "stranger_of", "truths_of"]

_TRUTH = TypeAdapter(Truth)


class NoTruthError(Exception):
    """A file of truth cannot be used; the text says which and why."""


def truths_of(path: Path) -> list[Truth]:
    """The faults of a file; none where only look-alikes were there.

    Raises:
        NoTruthError: it cannot be read, or holds something else.
    """
    try:
        return [_TRUTH.validate_json(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise NoTruthError(f"{path}: {error.strerror}") from None
    except ValidationError:
        raise NoTruthError(f"{path}: a line is no truth as paceline simulate --truth-file writes it") from None


@dataclass(slots=True)
class Described:
    """Jobs and GPUs that a recording describes.

    Attributes:
        jobs: ids of jobs.
        gpus: UUIDs of GPUs; null for one whose UUID nobody told.
    """

    jobs: set[str] = field(default_factory=set)
    gpus: set[str | None] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Note what a reference record describes; others describe nothing."""
        if isinstance(record, Job):
            self.jobs.add(record.job_id)
        elif isinstance(record, RankPlacement | Node):
            self.gpus.update(record.gpu_uuid)


def stranger_of(truths: Iterable[Truth], described: Described) -> str | None:
    """A job or GPU of the truth that a recording does not know, which is then of another run; null where all are known.

    Args:
        truths: the faults.
        described: what the recording describes; of jobs, or of GPUs, of which it describes none, none is a stranger.
    """
    for truth in truths:
        if described.jobs and truth.job_id and truth.job_id not in described.jobs:
            return truth.job_id
        for place in truth.culprits:
            gpu_uuid = place.get("gpu_uuid")
            if described.gpus and gpu_uuid is not None and gpu_uuid not in described.gpus:
                return str(gpu_uuid)
    return None


def of_another_run(source: object, stranger: str) -> str:
    """What is said of a truth that names a stranger."""
    return one_line(f"{source}: its truth names {stranger}, which is not in it: it is of another run")

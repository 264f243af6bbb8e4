"""The actuator's side of the spool that job controllers read: orders in, answers out, a directory a job.

An order appears whole, under the id of its command, and can be taken back until the controller has taken it: each is one rename or
unlink, and one of the two wins. What controllers write is the tenant's word: it is read within bounds, never followed through a
link, and costs at most the order that it answers. docs/job-controller.md has the contract.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.actuators.hands import ActFailedError, TargetAwayError
from agents.actuators.scontrol import plain_text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["CONTRACT", "Answer", "JobSheet", "JobSpool", "Move", "is_plain_name"]

CONTRACT = 1
_LARGEST_BYTES = 8 << 20
_MOST_JOBS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a name of a job can be the name of its directory."""
    return _NAME.fullmatch(name) is not None


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    contract: Literal[1]


class Move(BaseModel):
    """Ranks that have left a node."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    ranks: list[int] = Field(max_length=1_000_000)
    left: str = Field(alias="from", max_length=253)
    to: str = Field(max_length=253)


class JobSheet(_Written):
    """`job.json`: how a job is.

    `seats` are the ranks by node, `spares` nodes that wait, `out` nodes that the job was moved off; `since_ns` is when the epoch
    began, by the controller's clock.
    """

    job_id: str = Field(max_length=253)
    epoch: int = Field(ge=0)
    state: Literal["running", "ended", "failed"]
    seats: dict[str, list[int]]
    spares: list[str] = Field(default_factory=list)
    out: list[str] = Field(default_factory=list)
    since_ns: int = Field(ge=0)
    checkpoint_step: int | None = None


class Answer(_Written):
    """`answers/ID.json`: how an order stands."""

    command_id: str
    state: Literal["accepted", "checkpointing", "restarting", "done", "refused"]
    code: str = Field(default="", max_length=64)
    text: str = Field(default="", max_length=2000)
    epoch: int | None = None
    moved: list[Move] = Field(default_factory=list)
    checkpoint_step: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be said."""
        return self.state in {"done", "refused"}


class JobSpool:
    """The spool of all jobs of a site.

    Args:
        root: a directory for each job, made by whoever starts its controller.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def sheet(self, job_id: str) -> JobSheet | None:
        """How a job is; None when it has no controller here.

        Raises:
            TargetAwayError: what its controller wrote cannot be read, now.
        """
        if not is_plain_name(job_id):
            return None
        text = self._read(self._root / job_id / "job.json")
        if text is None:
            return None
        try:
            sheet = JobSheet.model_validate_json(text)
        except ValidationError as error:
            raise TargetAwayError(f"job.json of {job_id}: {_first(error)}") from None
        if sheet.job_id != job_id:
            raise TargetAwayError(f"job.json of {job_id} is of {plain_text(sheet.job_id)!r}")
        return sheet

    def jobs_of(self, node_id: str) -> list[str]:
        """Running jobs that say that they have ranks on a node, or have left it; one that cannot be read says nothing.

        Raises:
            TargetAwayError: the spool cannot be listed.
        """
        try:
            names = sorted(place.name for place in self._root.iterdir())[:_MOST_JOBS]
        except OSError as error:
            raise TargetAwayError(f"{self._root}: {error.strerror or error}") from None
        found = []
        for name in names:
            try:
                sheet = self.sheet(name)
            except TargetAwayError:
                continue
            if sheet is not None and sheet.state == "running" and (node_id in sheet.seats or node_id in sheet.out):
                found.append(name)
        return found

    def answer(self, job_id: str, command_id: str) -> Answer | None:
        """How an order stands; None as long as nothing is said, or nothing that can be read."""
        text = self._read(self._root / job_id / "answers" / f"{_checked(command_id)}.json")
        if text is None:
            return None
        try:
            answer = Answer.model_validate_json(text)
        except ValidationError:
            return None
        return answer if answer.command_id == command_id else None

    def is_taken(self, job_id: str, command_id: str) -> bool:
        """Whether the controller has an order that it has not brought to an end."""
        return (self._root / job_id / "taken" / f"{_checked(command_id)}.json").exists()

    def offer(self, job_id: str, command_id: str, fields: dict[str, Any]) -> None:
        """Put an order in the spool.

        Raises:
            TargetAwayError: it cannot be written.
        """
        place = self._root / job_id / "orders"
        path = place / f"{_checked(command_id)}.json"
        partial = place / f".{command_id}.partial"
        payload = json.dumps({"contract": CONTRACT, "command_id": command_id, **fields}).encode()
        try:
            partial.unlink(missing_ok=True)
            # The directory is the tenant's neighbourhood: a link that somebody has put there is not written through.
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, payload)
                os.fsync(file)
            finally:
                os.close(file)
            partial.rename(path)
            directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise TargetAwayError(f"orders of {job_id}: {error.strerror or error}") from None

    def take_back(self, job_id: str, command_id: str) -> bool:
        """Take an order back that the controller has not taken; false when there is none to take back.

        Raises:
            TargetAwayError: it cannot be taken back.
        """
        try:
            (self._root / job_id / "orders" / f"{_checked(command_id)}.json").unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TargetAwayError(f"orders of {job_id}: {error.strerror or error}") from None
        return True

    @staticmethod
    def _read(path: Path) -> bytes | None:
        """A plain file's bytes; None where there is none.

        Raises:
            TargetAwayError: it cannot be read, is no plain file, or too large.
        """
        try:
            # A pipe that somebody has put there must not hold the actuator up.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TargetAwayError(f"{path}: {error.strerror or error}") from None
        try:
            kind = os.fstat(file)
            if not stat.S_ISREG(kind.st_mode) or kind.st_size > _LARGEST_BYTES:
                raise TargetAwayError(f"{path}: no plain file of at most {_LARGEST_BYTES >> 20} MiB")
            return os.read(file, _LARGEST_BYTES)
        except OSError as error:
            raise TargetAwayError(f"{path}: {error.strerror or error}") from None
        finally:
            os.close(file)


def _checked(command_id: str) -> str:
    """The id of a command, as the name of a file.

    Raises:
        ActFailedError: it cannot be one.
    """
    if not _ID.fullmatch(command_id):
        raise ActFailedError(f"{plain_text(command_id)!r} cannot be the name of an order")
    return command_id


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return plain_text(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

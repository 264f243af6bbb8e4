"""The controller's side of the spool: orders are taken, answered and remembered, each by the id of its command.

Taking is a rename: an order is the actuator's, who may take it back, until it is the controller's. Guarantees: what is taken is
answered, also by the next controller; a second order of one id is dropped; an answer that ends is never changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploy.job_controller.files import read_object, sync_directory, write_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CONTRACT", "ENDS", "MOVES", "RESTARTS", "Order", "OrderSpool"]

CONTRACT = 1
ENDS = frozenset({"done", "refused"})
"""States after which nothing more is said."""

MOVES = frozenset({"swap_spare", "drain_node", "cordon_node"})
"""Kinds by which the job leaves a node."""

RESTARTS = MOVES | {"restart_job"}
"""Kinds that start the job anew."""

_KINDS = RESTARTS | {"collect_evidence", "uncordon_node"}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_KEEP = 1000
"""Answers that are kept: a command is valid for a day at most, and an actuator remembers what it offered."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an actuator asks of the job.

    Attributes:
        command_id: of the command behind it.
        kind: what is to be done.
        job_id: whose job it is.
        node_id: about which node; None when it is about the job.
        is_after_checkpoint: not before the next whole checkpoint.
        expected_epoch: the epoch in which the job was seen.
        expires_at_ns: when it must not be begun any more.
    """

    command_id: str
    kind: str
    job_id: str
    node_id: str | None
    is_after_checkpoint: bool
    expected_epoch: int
    expires_at_ns: int

    @classmethod
    def read(cls, command_id: str, fields: dict[str, Any] | None) -> Order | str:
        """The order in a file, or why it is none."""
        if fields is None:
            return "no JSON object"
        if fields.get("contract") != CONTRACT:
            return f"contract {str(fields.get('contract'))[:20]!r}, not {CONTRACT}"
        node_id, epoch, expires_at_ns = (fields.get(name) for name in ("node_id", "expected_epoch", "expires_at_ns"))
        if fields.get("command_id") != command_id:
            return "its name is not that of its command"
        if fields.get("kind") not in _KINDS:
            return f"no kind {str(fields.get('kind'))[:40]!r}"
        if not isinstance(fields.get("job_id"), str) or not isinstance(node_id, str | None):
            return "job_id or node_id is no name"
        if type(epoch) is not int or type(expires_at_ns) is not int:
            return "expected_epoch or expires_at_ns is no whole number"
        is_after = fields.get("when") == "after_checkpoint"
        return cls(command_id, fields["kind"], fields["job_id"], node_id, is_after, epoch, expires_at_ns)


class OrderSpool:
    """The spool of one job.

    Args:
        directory: of the job; what is missing in it is made.
        clock_ns: wall time.
    """

    def __init__(self, directory: Path, clock_ns: Callable[[], int]) -> None:
        self._directory, self._clock_ns = directory, clock_ns
        self._orders, self._taken, self._answers = (directory / name for name in ("orders", "taken", "answers"))
        for place in (self._orders, self._taken, self._answers):
            place.mkdir(parents=True, exist_ok=True)

    def say_job(self, sheet: dict[str, Any]) -> None:
        """Say how the job is, for actuators to judge by."""
        write_object(self._directory / "job.json", {"contract": CONTRACT, **sheet})

    def take(self) -> tuple[str, dict[str, Any] | None] | None:
        """The order that has waited longest, from here on the controller's; None without any."""
        for path in sorted(self._orders.glob("*.json"), key=_age):
            command_id = path.name.removesuffix(".json")
            if not _ID.fullmatch(command_id):
                # Nobody could be answered under such a name.
                path.unlink(missing_ok=True)
                continue
            try:
                path.rename(self._taken / path.name)
            except FileNotFoundError:
                continue
            sync_directory(self._taken)
            if self.has_ended(command_id):
                self._drop(command_id)
                continue
            return command_id, read_object(self._taken / path.name)
        return None

    def unanswered(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Orders that an earlier controller took and did not bring to an end, oldest first."""
        found = []
        for path in sorted(self._taken.glob("*.json"), key=_age):
            command_id = path.name.removesuffix(".json")
            if self.has_ended(command_id):
                self._drop(command_id)
            else:
                found.append((command_id, read_object(path)))
        return found

    def answer(self, command_id: str, state: str, **fields: Any) -> None:
        """Say how an order stands."""
        if self.has_ended(command_id):
            return
        at_ns = self._clock_ns()
        write_object(
            self._answers / f"{command_id}.json",
            {"contract": CONTRACT, "command_id": command_id, "state": state, "at_ns": at_ns, **fields},
        )
        if state in ENDS:
            self._drop(command_id)
            for path in sorted(self._answers.glob("*.json"), key=_age)[:-_KEEP]:
                path.unlink(missing_ok=True)

    def has_ended(self, command_id: str) -> bool:
        """Whether an order was done or refused."""
        answer = read_object(self._answers / f"{command_id}.json")
        return answer is not None and answer.get("state") in ENDS

    def _drop(self, command_id: str) -> None:
        (self._taken / f"{command_id}.json").unlink(missing_ok=True)


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name

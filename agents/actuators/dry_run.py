"""Hands that touch nothing: each command that would be carried out is said in one line of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agents.actuators.hands import Judgement, State
from schemas.remediation import COMMAND_KINDS, Command

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DryRunHands"]


class DryRunHands:
    """Says what it would do.

    Args:
        say: takes a line.
    """

    kinds = frozenset(COMMAND_KINDS)

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def look(self, command: Command) -> State:  # noqa: ARG002
        """Nothing is looked at."""
        return {}

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:  # noqa: ARG002
        """Everything would be done."""
        return Judgement("do")

    def act(self, command: Command, state: State) -> str:  # noqa: ARG002
        """Say it."""
        said = {
            "would": command.kind,
            "target": command.target.name(),
            "mode": command.mode,
            "when": command.when,
            "command_id": command.command_id,
            "incident_id": command.cause.incident_id,
            "reason": command.reason,
        }
        self._say(orjson.dumps(said).decode())
        return "said, and not done"

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:  # noqa: ARG002
        """It never has."""
        return False

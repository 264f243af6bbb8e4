"""What an actuator acts with: the protocol that Slurm, Kubernetes, webhooks and the dry run fulfil.

Hands look, judge and act; they remember nothing and check no signature. An act is judged against the state that was just
seen, and afterwards the two states tell whether it took effect, so that a crash in between need not repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from schemas.remediation import Command

__all__ = [
    "ActFailedError",
    "ActRefusedError",
    "Done",
    "Hands",
    "Judgement",
    "PartlyDoneError",
    "State",
    "TargetAwayError",
]

State = dict[str, Any]
"""What a target is like, as plain data that JSON can hold."""


class TargetAwayError(Exception):
    """Whom the act would go through does not answer: it may be tried again."""


class ActFailedError(Exception):
    """The act was refused or broke off; whether it took effect is seen by looking."""


class _ToldFailureError(ActFailedError):
    """What became of the act is known, and needs no look.

    Args:
        code: one word for why, of the result.
        text: one line for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ActRefusedError(_ToldFailureError):
    """Whom the act would go through does not want it, and has done nothing."""


class PartlyDoneError(_ToldFailureError):
    """The target is taken out and held from here, and what else was to be done was not."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, where one word of it decides what follows.

    Attributes:
        text: one line for people.
        code: the word, of the result.
    """

    text: str
    code: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be made of a command in a state.

    Attributes:
        verdict: `do`, `already_so` (what is wanted is so already, by whomever) or `refuse`.
        code: one word for a refusal.
        text: one line for people.
        takes: name of what is taken out, and owned from then on.
        gives_back: name of what is given back.
    """

    verdict: str
    code: str = ""
    text: str = ""
    takes: str | None = None
    gives_back: str | None = None


class Hands(Protocol):
    """Carries out commands of some kinds."""

    kinds: frozenset[str]

    def look(self, command: Command) -> State:
        """What the target is like now.

        Raises:
            TargetAwayError: nobody answers.
            ActFailedError: there is no such target, or the answer makes no sense.
        """
        ...

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:
        """Whether a command may be carried out in a state.

        Args:
            command: what is asked for.
            state: what `look` saw.
            owner: id of the command by which the target was taken out from here; None when it was not.
        """
        ...

    def act(self, command: Command, state: State) -> str | Done:
        """Carry a command out, and say in one line what was done.

        Raises:
            TargetAwayError: nobody answers; nothing was done.
            ActRefusedError: it is not wanted there; nothing was done.
            PartlyDoneError: the target is held from here, and the rest was not done.
            ActFailedError: it was refused, or broke off.
        """
        ...

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:
        """Whether an act that was begun took effect; None when the two states cannot tell."""
        ...

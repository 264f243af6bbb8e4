"""The gate that every command passes: the mode that the policy wants, and the guards that may hold it at `observe`.

What is not signed stays `observe`, whatever the policy says. What was wanted and what went out is remembered, also across
restarts, because guards count it. It makes no command and publishes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.decisions.acts import Act, Acts
from streams.decisions.guards import Circumstances, Hold, Proposal, holds
from streams.decisions.modes import Mode, wanted_mode

if TYPE_CHECKING:
    from schemas.remediation import Command
    from streams.core.roster import Roster
    from streams.decisions.signs import Signs

__all__ = ["Gate"]


class Gate:
    """Gives the commands of one site their mode."""

    def __init__(self) -> None:
        self._acts = Acts()

    def pass_through(
        self,
        command: Command,
        signs: Signs,
        roster: Roster,
        is_signed: bool,
        about: Circumstances | None = None,
    ) -> tuple[Command, Mode, list[Hold]]:
        """A command with its mode, the mode that the policy wanted, and why it did not get it.

        Args:
            command: as it was drafted.
            signs: evidence of its incident.
            roster: policy, nodes and jobs.
            is_signed: whether the command will be signed.
            about: when it is proposed, and what it would end.
        """
        act = act_of(command, roster)
        wanted = self.wanted(command.kind, act.node_id, act.jobs, roster, is_signed)
        proposal = Proposal(act, signs, self._acts, roster, about or Circumstances())
        found = holds(proposal, roster.policy) if wanted != "observe" else []
        self._acts.want(act)
        if wanted == "observe" or found:
            return command.model_copy(update={"mode": "observe"}), wanted, found
        self._acts.give(act)
        return command.model_copy(update={"mode": wanted}), wanted, []

    def replace(
        self, order: Command, waiting_id: str, signs: Signs, roster: Roster, is_signed: bool, about: Circumstances
    ) -> list[Hold]:
        """Put an order in the place of a command that waited for consent; why it cannot be, else nothing.

        Args:
            order: what would go out.
            waiting_id: the command that waited, which counts as given until then.
            signs: evidence of its incident.
            roster: policy, nodes and jobs.
            is_signed: whether the order will be signed.
            about: when it is proposed, and what it would end.
        """
        act = act_of(order, roster)
        if self.wanted(order.kind, act.node_id, act.jobs, roster, is_signed) == "observe":
            return [Hold("mode", "by now nobody may carry it out")]
        others = self._acts.without(waiting_id)
        found = holds(Proposal(act, signs, others, roster, about), roster.policy)
        if not found:
            others.give(act)
            self._acts = others
        return found

    def conclude(self, command_id: str, outcome: str, code: str | None) -> Act | None:
        """Take a result of a command; the act as it is by that, or None when it says nothing new."""
        return self._acts.conclude(command_id, outcome, code)

    def owner_of(self, target: str) -> str | None:
        """The command that took a target out and is known to have been carried out; None for what is not out by that."""
        return self._acts.owner_of(target)

    def outcome_of(self, command_id: str) -> str | None:
        """What came of a command: empty while there is no result, None for one that did not go out."""
        return self._acts.outcome_of(command_id)

    @staticmethod
    def wanted(kind: str, node_id: str | None, jobs: tuple[str, ...], roster: Roster, is_signed: bool) -> Mode:
        """The mode that the policy wants for a kind of command at a place."""
        if not is_signed:
            return "observe"
        return wanted_mode(roster.policy, kind, node_id, jobs, roster.nodes.get(node_id or ""))

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return self._acts.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._acts.restore(snapshot)


def act_of(command: Command, roster: Roster) -> Act:
    """A command as guards see it, with the place of its node and the jobs that run there."""
    target = command.target
    node = roster.nodes.get(target.node_id or "")
    jobs = {job_id for job_id, _ in roster.jobs_on(target.node_id)} if target.node_id is not None else set()
    if target.job_id is not None:
        jobs.add(target.job_id)
    return Act(
        command.kind,
        target.key(),
        target.node_id,
        node.rack if node is not None else None,
        node.leaf if node is not None else None,
        tuple(sorted(jobs)),
        command.decided_at_ns,
        command.expires_at_ns,
        command.command_id,
    )

"""Orders: what an incident asks for, as a command with the mode that policy and guards leave it.

One place through which every command of a site passes, whoever found the cause. It asks for a kind again only when the last
command of it has expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.decisions.commands import CommandDesk
from streams.decisions.gate import Gate
from streams.decisions.incidents import Asked
from streams.decisions.remedies import ADVICE

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import Command
    from streams.core.roster import Roster
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.remedies import Remedy

__all__ = ["Orders"]


class Orders:
    """Gives the orders of one site.

    Args:
        site_id: the site.
        roster: jobs, nodes and policy.
        book: the site's open incidents.
        journal: where it is said which guard held a command.
        key_id: the key that signs what is commanded; None when nothing does.
    """

    def __init__(
        self, site_id: str, roster: Roster, book: IncidentBook, journal: Journal, key_id: str | None = None
    ) -> None:
        self.key_id = key_id
        self._roster, self._book, self._journal = roster, book, journal
        self._desk = CommandDesk(site_id)
        self._gate = Gate()

    def may_go_out(self, kind: str, node_id: str) -> bool:
        """Whether a command of a kind on a node would be more than `observe`, if no guard held it."""
        jobs = tuple(job_id for job_id, _ in self._roster.jobs_on(node_id))
        return self._gate.wanted(kind, node_id, jobs, self._roster, self.key_id is not None) != "observe"

    def order(self, incident: OpenIncident, remedy: Remedy, at_ns: int) -> list[Record]:
        """Publish an incident as it is now, and the command that answers it, if it is not asked for already."""
        advice = ADVICE[remedy.cause_class]
        outputs: list[Record] = [
            self._book.record(incident, "open", at_ns, advice, self._desk.gpu_hours_lost(incident, at_ns, self._roster))
        ]
        if remedy.kind is None:
            return outputs
        asked = incident.commands.get(remedy.kind)
        if asked is not None and at_ns <= asked.expires_at_ns:
            return outputs
        attempt = asked.attempt + 1 if asked is not None else 1
        command = self._desk.command(incident, remedy, at_ns, self._roster, attempt, self.key_id)
        if command is not None:
            incident.commands[remedy.kind] = Asked(command.command_id, command.expires_at_ns, attempt)
            outputs += self._through_the_gate(command, incident, at_ns)
        return outputs

    def resolved(self, incident: OpenIncident, at_ns: int) -> Record:
        """The end of an incident, with what it has cost."""
        lost = self._desk.gpu_hours_lost(incident, at_ns, self._roster)
        return self._book.record(incident, "resolved", at_ns, "", lost)

    def _through_the_gate(self, draft: Command, incident: OpenIncident, at_ns: int) -> list[Record]:
        """A command with its mode; before it an entry of why it did not get the one that the policy wants."""
        command, wanted, found = self._gate.pass_through(draft, incident.signs, self._roster, self.key_id is not None)
        if not found:
            return [command]
        detail = {"wanted": wanted, "holds": [{"guard": hold.guard, "reason": hold.reason} for hold in found]}
        return [self._journal.entry("held", command.command_id, at_ns, detail=detail), command]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {"desk": self._desk.snapshot(), "gate": self._gate.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._desk.restore(snapshot["desk"])
        self._gate.restore(snapshot["gate"])

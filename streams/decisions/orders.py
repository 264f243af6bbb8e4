"""Orders: what an incident asks for, as a command with the mode that policy and guards leave it.

One place through which every command of a site passes, whoever found the cause. It asks for a kind again only when the last
command of it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schemas.remediation import Command
from streams.core.guard_limits import guard_limits
from streams.decisions.acts import COSTS_A_NODE, RUNGS, TAKES
from streams.decisions.advice import advice_of
from streams.decisions.commands import CommandDesk
from streams.decisions.gate import Gate
from streams.decisions.guards import Circumstances
from streams.decisions.incidents import Asked
from streams.decisions.remedies import in_force, remedy_for_class, restart_of

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.core.roster import Roster
    from streams.decisions.acts import Act
    from streams.decisions.consents import Consents
    from streams.decisions.guards import Hold
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.pause import PauseJudge
    from streams.decisions.recurrence import Recurrence
    from streams.decisions.remedies import Remedy

__all__ = ["Orders"]


@dataclass(frozen=True, slots=True)
class _Unpaid:
    """An act that waits until the loss has reached its cost: proposed again then, if its incident is still as it was."""

    due_ns: int
    component: str
    incident_id: str
    cause_class: str


class Orders:
    """Gives the orders of one site.

    Args:
        site_id: the site.
        roster: jobs, nodes and policy.
        book: the site's open incidents.
        journal: where it is said which guard held a command.
        pause: knows which nodes a pause storm stops.
        consents: keeps the commands that wait for a person.
        recurrence: knows what was acted on before.
        key_id: the key that signs what is commanded; None when nothing does.
    """

    def __init__(
        self,
        site_id: str,
        roster: Roster,
        book: IncidentBook,
        journal: Journal,
        pause: PauseJudge,
        consents: Consents,
        recurrence: Recurrence,
        key_id: str | None = None,
    ) -> None:
        self.key_id = key_id
        self.now_ns = -1
        """Event time that all sources have reached, as the reader of findings knows it."""
        self._pause, self._consents, self._recurrence = pause, consents, recurrence
        self._unpaid: list[_Unpaid] = []
        self._roster, self._book, self._journal = roster, book, journal
        self._desk = CommandDesk(site_id)
        self._gate = Gate()

    def may_go_out(self, kind: str, node_id: str) -> bool:
        """Whether a command of a kind on a node would be more than `observe`, if no guard held it."""
        jobs = tuple(job_id for job_id, _ in self._roster.jobs_on(node_id))
        return self._gate.wanted(kind, node_id, jobs, self._roster, self.key_id is not None) != "observe"

    def order(self, incident: OpenIncident, remedy: Remedy, at_ns: int) -> list[Record]:
        """Publish an incident as it is now, and the command that answers it, if it is not asked for already."""
        remedy = in_force(remedy, self._roster.policy)
        incident.advice = advice_of(remedy, incident)
        if not incident.is_published:
            seat = self._recurrence.of_seat(incident)
            known = seat[1] if seat is not None else self._recurrence.of_part(incident)
            incident.summary = f"{incident.summary}; {known}" if known is not None else incident.summary
        return [self.transition(incident, at_ns), *self._ask(incident, remedy, at_ns)]

    def decide(self, now_ns: int) -> list[Record]:
        """Acts whose cost the loss has reached, proposed again: their incidents stand as they were.

        Args:
            now_ns: event time up to which it is known that they stand; what no source has reached is not known.
        """
        now_ns = min(now_ns, self.now_ns)
        due = sorted((one for one in self._unpaid if one.due_ns <= now_ns), key=lambda one: (one.due_ns, one.component))
        self._unpaid = [one for one in self._unpaid if one.due_ns > now_ns]
        outputs: list[Record] = []
        for one in due:
            incident = self._book.on(one.component)
            if incident is None or (incident.incident_id, incident.cause_class) != (one.incident_id, one.cause_class):
                continue
            if incident.mended_by:
                # What came of that act is followed up, and not asked for once more.
                continue
            remedy = remedy_for_class(one.cause_class, self._roster.policy)
            news = "it goes on, and has cost what the act would"
            followed = [
                self.transition(incident, one.due_ns, news),
                *self._ask(incident, remedy, one.due_ns, anew=True),
            ]
            outputs += self._journal.decided(followed, one.due_ns)
        return outputs

    def rename(self, known: str, better: str) -> None:
        """A component goes on under another name."""
        self._unpaid = [replace(one, component=better) if one.component == known else one for one in self._unpaid]

    def _ask(self, incident: OpenIncident, remedy: Remedy, at_ns: int, anew: bool = False) -> list[Record]:
        """The command of a remedy, and the restart that follows it, as far as they are not asked for already."""
        outputs = self._command(incident, remedy, at_ns, None, anew)
        first = next((record for record in outputs if isinstance(record, Command)), None)
        takes_out = remedy.kind in COSTS_A_NODE
        if remedy.restarts_job and (first is not None or not takes_out):
            # Who stays where it is would meet the job again.
            held = first.kind if first is not None and takes_out and first.mode == "observe" else None
            outputs += self._command(incident, restart_of(remedy), at_ns, held, anew)
        return outputs

    def _command(
        self, incident: OpenIncident, remedy: Remedy, at_ns: int, held: str | None, anew: bool
    ) -> list[Record]:
        if remedy.kind is None:
            return []
        asked = incident.commands.get(remedy.kind)
        if asked is not None and at_ns <= asked.expires_at_ns and not anew:
            return []
        attempt = asked.attempt + 1 if asked is not None else 1
        command = self._desk.command(incident, remedy, at_ns, self._roster, attempt, self.key_id)
        if command is None:
            return []
        incident.commands[remedy.kind] = Asked(command.command_id, command.expires_at_ns, attempt)
        return self._through_the_gate(command, incident, at_ns, held)

    def transition(self, incident: OpenIncident, at_ns: int, news: str = "") -> Record:
        """An incident as it is now.

        Args:
            incident: it.
            at_ns: event time of the change.
            news: what made it change, for people.
        """
        lost = self._desk.gpu_hours_lost(incident, incident.lost_until_ns(at_ns), self._roster)
        record = self._book.record(incident, incident.state, at_ns, incident.advice, lost)
        return record.model_copy(update={"summary": f"{record.summary}; {news}"}) if news else record

    def supersede(
        self, waiting: Command, incident: OpenIncident, at_ns: int, expires_at_ns: int, approver: str
    ) -> tuple[list[Record], list[Hold]]:
        """The order that takes the place of a command to which somebody consented; or why it does not go out now.

        Args:
            waiting: the command, of mode `approve`.
            incident: which it answers.
            at_ns: event time of the consent.
            expires_at_ns: until when the order may be carried out.
            approver: who consented.
        """
        attempt = waiting.attempt + 1
        draft = self._desk.superseding(waiting, at_ns, expires_at_ns, attempt, approver, self.key_id, self._roster)
        about = self._circumstances(draft, incident, at_ns, self._unmet(draft, incident))
        found = self._gate.replace(
            draft, waiting.command_id, incident.signs, self._roster, self.key_id is not None, about
        )
        if found:
            return [], found
        incident.commands[draft.kind] = Asked(draft.command_id, expires_at_ns, attempt)
        if incident.check_id == waiting.command_id:
            incident.check_id = draft.command_id
        if incident.return_id == waiting.command_id:
            incident.return_id = draft.command_id
        return [draft, *self._acting(draft, incident, at_ns)], []

    def follow_up(self, incident: OpenIncident, remedy: Remedy, at_ns: int, news: str) -> tuple[list[Record], str]:
        """Ask for what follows from an act of an incident, anew if it was asked for before.

        Args:
            incident: it.
            remedy: what is asked for.
            at_ns: event time.
            news: why, for people.

        Returns:
            What is to be published, and the id of the command; empty where nobody may carry it out.
        """
        followed = [self.transition(incident, at_ns, news), *self._command(incident, remedy, at_ns, None, anew=True)]
        command = next((record for record in followed if isinstance(record, Command)), None)
        return followed, command.command_id if command is not None and command.mode != "observe" else ""

    def is_out(self, incident: OpenIncident) -> bool:
        """Whether the node of an incident is known to have been taken out from here."""
        node_id = incident.culprit.node_id if incident.culprit is not None else None
        return node_id is not None and self._gate.owner_of(node_id) is not None

    def takes_out(self, incident: OpenIncident) -> bool:
        """Whether an act of an incident that takes its node out went out and may have been, or may still be, carried out."""
        if incident.mended_by and self.is_out(incident):
            return True
        acts = [incident.commands[kind].command_id for kind in TAKES if kind in incident.commands]
        return any(self._outcome_of(command_id) in {"", "applied"} for command_id in acts)

    def expires_at_ns(self, incident: OpenIncident) -> int:
        """Until when an act of an incident that has no result may be carried out; -1 when there is none."""
        waiting = [
            asked.expires_at_ns
            for kind, asked in incident.commands.items()
            if kind in RUNGS and self._outcome_of(asked.command_id) == ""
        ]
        return max(waiting, default=-1)

    def give_up(self, incident: OpenIncident) -> None:
        """Nobody has said what came of the acts of an incident, and nobody may carry them out any more."""
        for kind, asked in incident.commands.items():
            if kind in RUNGS and self._outcome_of(asked.command_id) == "":
                self.conclude(asked.command_id, "expired", None)

    def closed(self, incident: OpenIncident, at_ns: int, news: str) -> Record:
        """The end of an incident that is taken out of the book, with what it has cost."""
        self._book.close(incident.component)
        record = self.resolved(incident, at_ns)
        return record.model_copy(update={"summary": f"{incident.summary}; {news}"})

    def conclude(self, command_id: str, outcome: str, code: str | None) -> Act | None:
        """Take a result of a command; the act as it is by that, or None when it says nothing new."""
        return self._gate.conclude(command_id, outcome, code)

    def outcomes(self, incident: OpenIncident) -> set[str]:
        """What came of the acts of an incident that may mend anything; empty text for one that is under way."""
        acts = [asked.command_id for kind, asked in incident.commands.items() if kind in RUNGS]
        return {outcome for outcome in map(self._outcome_of, acts) if outcome is not None}

    def resolved(self, incident: OpenIncident, at_ns: int) -> Record:
        """The end of an incident, with what it has cost."""
        lost = self._desk.gpu_hours_lost(incident, incident.lost_until_ns(at_ns), self._roster)
        return self._book.record(incident, "resolved", at_ns, "", lost)

    def _unmet(self, draft: Command, incident: OpenIncident) -> str | None:
        """The act that takes the node out from under a job that is to be restarted, where it has not gone out itself."""
        if draft.kind != "restart_job":
            return None
        acts = [kind for kind in incident.commands if kind in COSTS_A_NODE]
        return next((kind for kind in acts if self._outcome_of(incident.commands[kind].command_id) is None), None)

    def _outcome_of(self, command_id: str) -> str | None:
        """What came of an order: empty while it is under way, None for a command that is none, or waits for consent."""
        return None if self._consents.has_waiting(command_id) else self._gate.outcome_of(command_id)

    def _through_the_gate(
        self, draft: Command, incident: OpenIncident, at_ns: int, held: str | None = None
    ) -> list[Record]:
        """A command with its mode; before it an entry of why it did not get the one that the policy wants."""
        about = self._circumstances(draft, incident, at_ns, held)
        command, wanted, found = self._gate.pass_through(
            draft, incident.signs, self._roster, self.key_id is not None, about
        )
        if command.mode == "approve":
            self._consents.wait(command)
        if not found:
            return [command, *self._acting(command, incident, at_ns)]
        if any(hold.guard == "ski_rental" for hold in found):
            due_ns = self._desk.lost_by_ns(incident, guard_limits(self._roster.policy, "ski_rental")["cost_ns"])
            again = _Unpaid(due_ns or 0, incident.component, incident.incident_id, incident.cause_class)
            if due_ns is not None and again not in self._unpaid:
                self._unpaid.append(again)
        detail = {"wanted": wanted, "holds": [{"guard": hold.guard, "reason": hold.reason} for hold in found]}
        return [self._journal.entry("held", command.command_id, at_ns, detail=detail), command]

    def _circumstances(
        self, draft: Command, incident: OpenIncident, at_ns: int, held: str | None = None
    ) -> Circumstances:
        paid_ns, is_victim = (
            self._desk.time_lost_ns(incident, at_ns),
            self._pause.is_victim(draft.target.node_id, at_ns),
        )
        return Circumstances(self.now_ns, paid_ns, is_victim, held, self._recurrence.of_seat(incident))

    def _acting(self, command: Command, incident: OpenIncident, at_ns: int) -> list[Record]:
        """An incident whose order is on its way, where that order may mend anything."""
        if command.mode != "auto" or command.kind not in RUNGS or incident.state == "acting":
            return []
        incident.state = "acting"
        return [self.transition(incident, at_ns, f"{command.kind} of {command.target.key()} is ordered")]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        unpaid = [[one.due_ns, one.component, one.incident_id, one.cause_class] for one in self._unpaid]
        return {"desk": self._desk.snapshot(), "gate": self._gate.snapshot(), "unpaid": unpaid}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._desk.restore(snapshot["desk"])
        self._gate.restore(snapshot["gate"])
        self._unpaid = [_Unpaid(*entry) for entry in snapshot.get("unpaid", [])]

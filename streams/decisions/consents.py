"""Consent to commands that wait for a person: an approval makes a superseding command, which actuators take.

Whether its signature holds was judged where it was read, by a ring and a clock that are not here; the word for it comes with it.
A consent is to one command, which must still stand: not expired, not approved before, and its incident still asks for it. Guards
are asked again. Each refusal has a code. A command that was not let out by guards waits on, and may be approved again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import Approval, Command
    from streams.decisions.incidents import IncidentBook
    from streams.decisions.orders import Orders

__all__ = ["Consents", "Verdict"]

_KEEP_NS = 24 * 3_600_000_000_000
"""How long a command that expired is remembered, so that it can be said why it cannot be approved any more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an approval.

    Attributes:
        code: why it was refused, in a word; empty for one that was taken.
        text: the same for people.
        followed: what is to be published.
    """

    code: str
    text: str = ""
    followed: tuple[Record, ...] = ()


class Consents:
    """Commands of one site that wait, and who approved which.

    Args:
        site_id: the site.
        book: its open incidents.
    """

    def __init__(self, site_id: str, book: IncidentBook) -> None:
        self._site_id, self._book = site_id, book
        self._waiting: dict[str, Command] = {}
        self._approved: dict[str, str] = {}

    def wait(self, command: Command) -> None:
        """Remember a command that waits for consent; what expired long before it is forgotten."""
        self._waiting[command.command_id] = command
        oldest_ns = command.decided_at_ns - _KEEP_NS
        for name in [name for name, waiting in self._waiting.items() if waiting.expires_at_ns < oldest_ns]:
            del self._waiting[name]
            self._approved.pop(name, None)

    def has_waiting(self, command_id: str) -> bool:
        """Whether a command waits for consent, or waited in vain."""
        return command_id in self._waiting and command_id not in self._approved

    def take(self, approval: Approval, signature: str | None, at_ns: int, orders: Orders) -> Verdict:
        """Take an approval.

        Args:
            approval: consent to one command.
            signature: why its signature does not count, in a word; None for one that holds.
            at_ns: event time at which it is taken.
            orders: gives the superseding command.
        """
        if signature is not None:
            return Verdict(signature, "its signature does not count")
        command = self._waiting.get(approval.command_id)
        refusal = self._refusal(approval, command, at_ns)
        if refusal is not None or command is None:
            return refusal or Verdict("unknown_command")
        incident = self._book.that_asked_for(command.command_id)
        if incident is None:
            return Verdict("no_longer_asked_for", "its incident is over, or asks for something else by now")
        expires_at_ns = min(command.expires_at_ns, approval.expires_at_ns)
        followed, found = orders.supersede(command, incident, at_ns, expires_at_ns, approval.approver)
        if found:
            return Verdict("held", "; ".join(f"{hold.guard}: {hold.reason}" for hold in found))
        self._approved[command.command_id] = approval.approver
        return Verdict("", followed=tuple(followed))

    def _refusal(self, approval: Approval, command: Command | None, at_ns: int) -> Verdict | None:
        if approval.site_id != self._site_id:
            return Verdict("wrong_site", f"it is for site {approval.site_id!r}")
        if command is None:
            return Verdict("unknown_command", "no command of this id waits for consent")
        if command.command_id in self._approved:
            return Verdict("already_approved", f"{self._approved[command.command_id]} approved it before")
        if at_ns > command.expires_at_ns:
            return Verdict("expired", f"the command expired {(at_ns - command.expires_at_ns) / 1e9:.0f} s before")
        if at_ns > approval.expires_at_ns:
            return Verdict("approval_expired", f"it held until {(at_ns - approval.expires_at_ns) / 1e9:.0f} s before")
        return None

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {"waiting": list(self._waiting.values()), "approved": dict(sorted(self._approved.items()))}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._waiting = {command.command_id: command for command in snapshot.get("waiting", [])}
        self._approved = dict(snapshot.get("approved", {}))

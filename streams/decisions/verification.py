"""After an act was carried out: is the part fit again, does the fault come back, and what follows from either.

Only a positive word counts. That nothing is heard of a node which does no work says nothing about it, so a node is given back
after a pre-flight that was asked for after the act, ran and passed (code `fit`), if it was taken out from here and its fault did
not show meanwhile. Climbed is on a pre-flight that failed (`unfit`), or on the same fault anew where the act left the part in
service. All of it are commands like any other: mode and guards hold for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.decisions.acts import RUNGS
from streams.decisions.remedies import Remedy

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import ActionResult, CommandKind
    from streams.decisions.incidents import IncidentBook, OpenIncident
    from streams.decisions.journal import Journal
    from streams.decisions.orders import Orders

__all__ = ["CHECK_AFTER_NS", "GRACE_NS", "Verification"]

CHECK_AFTER_NS = 600_000_000_000
"""From an act to the pre-flight: a reboot is over by then, and so is the end of a job that was told to go. A judgement."""

GRACE_NS = 300_000_000_000
"""How long after its expiry an act may still have a result on its way."""

_HOUR_NS = 3_600_000_000_000

_CHECKED = frozenset({"reset_gpu", "drain_node", "cordon_node", "reboot_node"})
"""Acts after which a pre-flight tells whether the node is fit."""

_LEFT_IN_SERVICE = frozenset({"reset_gpu", "reboot_node"})
"""Acts that are to mend a part where it is: the same fault after them stays with the part."""

_NEXT: dict[str, tuple[CommandKind, int]] = {
    "reset_gpu": ("cordon_node", _HOUR_NS),
    "drain_node": ("reboot_node", _HOUR_NS),
    "cordon_node": ("reboot_node", _HOUR_NS),
    "reboot_node": ("replace_hardware", 24 * _HOUR_NS),
}
"""The ladder from what did not mend a part, with the term of the next act; after it, and beside it, people."""


class Verification:
    """Follows up the acts of one site.

    Args:
        book: the site's open incidents.
        orders: gives the commands.
        journal: where it is said what changed.
    """

    def __init__(self, book: IncidentBook, orders: Orders, journal: Journal) -> None:
        self._book, self._orders, self._journal = book, orders, journal

    @staticmethod
    def begin(incident: OpenIncident, kind: str, at_ns: int) -> None:
        """An act of an incident was carried out; what is on a lower rung than one before it is followed up with that one."""
        if RUNGS[kind] < RUNGS.get(incident.mended_by, 0):
            return
        incident.mended_by, incident.shows_from_ns = kind, at_ns
        incident.check_id, incident.again_ns = "", -1
        incident.check_due_ns = at_ns + CHECK_AFTER_NS if kind in _CHECKED else -1

    def nothing_under_way(self, incident: OpenIncident, at_ns: int, news: str) -> list[Record]:
        """The last act of an incident has come to its end: what was carried out is verified, else it is as it was before.

        Args:
            incident: it.
            at_ns: event time.
            news: what became of that act, for people.
        """
        incident.state = "verifying" if incident.mended_by else "open"
        if incident.state == "open" and incident.recovered_ns >= 0:
            return [self._orders.closed(incident, at_ns, "the rank keeps pace again, and nothing was done")]
        return [self._orders.transition(incident, at_ns, news)]

    def decide(self, now_ns: int) -> list[Record]:
        """What is due by a time.

        Args:
            now_ns: event time.
        """
        due = []
        for incident in self._book.moving():
            at_ns = self._due_ns(incident)
            if 0 <= at_ns <= now_ns:
                due.append((at_ns, incident.component))
        outputs: list[Record] = []
        for at_ns, component in sorted(due):
            incident = self._book.of_component(component)
            followed = self._expired(incident, at_ns) if incident.state == "acting" else self._verify(incident, at_ns)
            outputs += self._journal.decided(followed, at_ns)
        return outputs

    def take(self, incident: OpenIncident, result: ActionResult, at_ns: int) -> list[Record]:
        """What a pre-flight or the return of a node came to; empty for one that was not asked for after the act."""
        if result.command_id == incident.return_id:
            return self._returned(incident, result, at_ns)
        if result.command_id != incident.check_id or incident.state != "verifying":
            return []
        incident.check_id = ""
        if result.code == "unfit":
            incident.signs.observe("preflight")
            return self._climb(incident, at_ns, "it failed pre-flight: the fault stays with the part")
        if result.outcome != "applied" or result.code != "fit":
            # Handed over, not run, or nothing that could be said: no word about the node.
            return []
        if incident.again_ns >= 0:
            incident.state = "open"
            return [
                self._orders.transition(incident, at_ns, "it passed pre-flight, and its fault came again meanwhile")
            ]
        if not self._orders.is_out(incident):
            return [self._orders.closed(incident, at_ns, "it passed pre-flight")]
        other = self._other_on_its_node(incident)
        if other is not None:
            incident.state = "open"
            news = f"it passed pre-flight, and {other.component} of its node has an incident of its own"
            return [self._orders.transition(incident, at_ns, news)]
        remedy = Remedy(incident.cause_class, "uncordon_node", "now", _HOUR_NS)
        followed, incident.return_id = self._orders.follow_up(incident, remedy, at_ns, "it passed pre-flight")
        return followed

    def _other_on_its_node(self, incident: OpenIncident) -> OpenIncident | None:
        """Another incident of the same node: whoever gives the node back for one would give it back for both."""
        node_id = incident.culprit.node_id if incident.culprit is not None else None
        for other in self._book.open_ones():
            if other is not incident and other.culprit is not None and other.culprit.node_id == node_id:
                return other
        return None

    def _due_ns(self, incident: OpenIncident) -> int:
        """When something is to be done about an incident; below 0 for not by itself."""
        if incident.state == "acting":
            last_ns = self._orders.expires_at_ns(incident)
            return last_ns + GRACE_NS if last_ns >= 0 else -1
        if incident.again_ns >= 0 and incident.mended_by in _LEFT_IN_SERVICE:
            return incident.again_ns
        return incident.check_due_ns

    def _expired(self, incident: OpenIncident, at_ns: int) -> list[Record]:
        """Nobody said what came of an act, and nobody may carry it out any more."""
        self._orders.give_up(incident)
        last = " last" if incident.mended_by else ""
        return self.nothing_under_way(incident, at_ns, f"nobody carried out what was ordered{last}")

    def _verify(self, incident: OpenIncident, at_ns: int) -> list[Record]:
        if incident.again_ns >= 0 and incident.mended_by in _LEFT_IN_SERVICE:
            incident.again_ns = -1
            return self._climb(
                incident, at_ns, f"its fault came again after {incident.mended_by}: it stays with the part"
            )
        # What showed before the pre-flight is what that is to judge.
        incident.check_due_ns, incident.shows_from_ns, incident.again_ns = -1, at_ns, -1
        remedy = Remedy(incident.cause_class, "run_preflight", "after_checkpoint", 24 * _HOUR_NS)
        followed, incident.check_id = self._orders.follow_up(
            incident, remedy, at_ns, "it is to be seen whether it is fit"
        )
        return followed

    def _climb(self, incident: OpenIncident, at_ns: int, news: str) -> list[Record]:
        incident.check_due_ns = -1
        following = _NEXT.get(incident.mended_by)
        if following is None:
            incident.state = "open"
            return [self._orders.transition(incident, at_ns, news)]
        kind, term_ns = following
        remedy = Remedy(incident.cause_class, kind, "now", term_ns)
        followed, _ = self._orders.follow_up(incident, remedy, at_ns, news)
        return followed

    def _returned(self, incident: OpenIncident, result: ActionResult, at_ns: int) -> list[Record]:
        incident.return_id = ""
        if result.outcome == "applied":
            return [self._orders.closed(incident, at_ns, "the node is back in service")]
        if result.code == "not_ours":
            incident.state = "open"
            return [self._orders.transition(incident, at_ns, "somebody else has taken the node over")]
        return []

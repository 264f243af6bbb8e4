"""What came of commands: results of actuators close the loop that an order opened.

When no act of an incident is under way any more, it is `verifying` if one of them was carried out, else `open` again. Results
are not signed: they come from whom the brokers let write that topic, and what follows from them can cost nobody a node that
guards would not let go. A result of a command that did not go out from here, and one that says nothing new, changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import ActionResult
    from streams.decisions.incidents import IncidentBook
    from streams.decisions.orders import Orders
    from streams.decisions.recurrence import Recurrence
    from streams.decisions.verification import Verification

__all__ = ["Outcomes"]


class Outcomes:
    """Takes results.

    Args:
        book: the site's open incidents.
        orders: what was ordered.
        verification: what follows from acts that were carried out.
        recurrence: remembers what was acted on.
    """

    def __init__(self, book: IncidentBook, orders: Orders, verification: Verification, recurrence: Recurrence) -> None:
        self._book, self._orders = book, orders
        self._verification, self._recurrence = verification, recurrence

    def take(self, result: ActionResult, at_ns: int) -> tuple[list[Record], bool]:
        """Take a result, and return what follows, and whether it was news.

        Args:
            result: of any command.
            at_ns: event time at which it is taken.
        """
        act = self._orders.conclude(result.command_id, result.outcome, result.code)
        if act is None:
            return [], False
        incident = self._book.that_asked_for(result.command_id)
        if incident is None:
            return [], True
        if act.rung == 0:
            return self._verification.take(incident, result, at_ns), True
        if act.outcome == "applied":
            self._verification.begin(incident, act.kind, at_ns)
            if act.costs_a_node:
                self._recurrence.take(incident, act.kind, at_ns)
        why = f" ({result.code})" if result.code else ""
        news = f"{act.kind} of {act.target} {_SAID[act.outcome]}{why}"
        if "" not in self._orders.outcomes(incident):
            return self._verification.nothing_under_way(incident, at_ns, news), True
        incident.state = "acting"
        return [self._orders.transition(incident, at_ns, news)], True


_SAID = {"applied": "was carried out", "refused": "was refused", "failed": "failed", "expired": "expired"}

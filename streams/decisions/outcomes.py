"""What came of commands: results of actuators close the loop that an order opened.

When no act of an incident is under way any more, it is `verifying` if one of them was carried out, else `open` again. Results come from whom the brokers let write them: they are not signed, and can close no
incident, order nothing and give nobody back a node that was not ordered out. A result of a command that did not go out from
here, and one that says nothing new, changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import ActionResult
    from streams.decisions.incidents import IncidentBook
    from streams.decisions.orders import Orders

__all__ = ["Outcomes"]


class Outcomes:
    """Takes results.

    Args:
        book: the site's open incidents.
        orders: what was ordered.
    """

    def __init__(self, book: IncidentBook, orders: Orders) -> None:
        self._book, self._orders = book, orders

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
        # Looking at something mends nothing, and is no act under way.
        if incident is None or act.rung == 0:
            return [], True
        outcomes = self._orders.outcomes(incident)
        if "" in outcomes:
            incident.state = "acting"
        else:
            incident.state = "verifying" if "applied" in outcomes else "open"
        why = f" ({result.code})" if result.code else ""
        return [self._orders.transition(incident, at_ns, f"{act.kind} of {act.target} {_SAID[act.outcome]}{why}")], True


_SAID = {"applied": "was carried out", "refused": "was refused", "failed": "failed", "expired": "expired"}

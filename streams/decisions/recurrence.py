"""Did the fault stay with the part or with the seat? What was taken out for which rank, remembered for a week.

A GPU that shows a fault again after it was acted on keeps it: the fault is the part's. A rank that is slow again on another
device carries it along: the fault is the seat's (its code, its data), and the first device was not at fault. Plain data; it
judges nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.decisions.incidents import OpenIncident

__all__ = ["Recurrence"]

_KEEP_NS = 7 * 24 * 3_600_000_000_000
_MOST = 512


@dataclass(frozen=True, slots=True)
class _Taken:
    """A part that was acted on, and who ran on it."""

    component: str
    node_id: str
    job_id: str | None
    rank: int | None
    kind: str
    incident_id: str
    at_ns: int


class Recurrence:
    """What was acted on at one site."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []

    def take(self, incident: OpenIncident, kind: str, at_ns: int) -> None:
        """An act that costs a node was carried out for an incident."""
        culprit = incident.culprit
        if culprit is None or culprit.node_id is None:
            return
        seat = (culprit.job_id, culprit.rank) if incident.slowdown is not None else (None, None)
        self._taken.append(_Taken(incident.component, culprit.node_id, *seat, kind, incident.incident_id, at_ns))
        self._taken = [one for one in self._taken if one.at_ns > at_ns - _KEEP_NS][-_MOST:]

    def of_seat(self, incident: OpenIncident) -> tuple[int, str] | None:
        """When another node was taken out for the slowness of the same rank, and that in words; None when none was."""
        culprit = incident.culprit
        if incident.slowdown is None or culprit is None or culprit.job_id is None or culprit.rank is None:
            return None
        for one in reversed(self._taken):
            if (one.job_id, one.rank) == (culprit.job_id, culprit.rank) and one.node_id != culprit.node_id:
                return one.at_ns, (
                    f"rank {one.rank} of {one.job_id} was slow on {one.node_id} too, which had a {one.kind} for it "
                    f"({one.incident_id}): the fault goes with the seat, not with the part"
                )
        return None

    def of_part(self, incident: OpenIncident) -> str | None:
        """That the same part was acted on before, in words; None when it was not."""
        for one in reversed(self._taken):
            if one.component == incident.component and one.incident_id != incident.incident_id:
                return f"the same part had a {one.kind} before ({one.incident_id}): the fault stays with it"
        return None

    def snapshot(self) -> list[Any]:
        """Plain data that `restore` takes."""
        return [asdict(one) for one in self._taken]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace the state by a snapshot's."""
        self._taken = [_Taken(**fields) for fields in snapshot]

"""Jobs without step timings: which of their ranks sit on which node, and which nodes are alike.

A job is one where its record says so (`step_timings` false); no rule guesses it from silence. What is remembered follows
from the roster alone, so it is no state and stands in no snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.core.roster import Roster

__all__ = ["UntimedJobs", "UntimedSeats"]


@dataclass(frozen=True, slots=True)
class UntimedSeats:
    """A job's ranks on one node.

    Attributes:
        job_id, epoch: the job.
        sku: the part of the node's devices; nodes of one job and part are alike.
        devices: UUIDs and PCI addresses of the ranks' devices; empty where none is known.
    """

    job_id: str
    epoch: int
    sku: str | None
    devices: frozenset[str]

    @property
    def group(self) -> tuple[str, int, str]:
        """What nodes have in common that are alike."""
        return self.job_id, self.epoch, self.sku or ""

    def holds(self, *names: str | None) -> bool:
        """Whether a device of these names is a rank's, or may be because no rank's device is known."""
        return not self.devices or any(name in self.devices for name in names)


class UntimedJobs:
    """Looks nodes up, and works the answer out anew when the roster has changed."""

    def __init__(self) -> None:
        self._version = -1
        self._by_node: dict[str, UntimedSeats] = {}

    def on(self, node_id: str | None, roster: Roster) -> UntimedSeats | None:
        """The running job without step timings that has ranks on a node, or None; of several the last by name."""
        if roster.version != self._version:
            self._version, self._by_node = roster.version, _by_node(roster)
        return self._by_node.get(node_id) if node_id is not None else None


def _by_node(roster: Roster) -> dict[str, UntimedSeats]:
    newest: dict[str, int] = {}
    for (job_id, epoch), known in roster.jobs.items():
        if known.job is not None:
            newest[job_id] = max(epoch, newest.get(job_id, 0))
    found: dict[str, UntimedSeats] = {}
    for job_id, epoch in sorted(newest.items()):
        known = roster.jobs[job_id, epoch]
        if known.job is None or known.job.step_timings or known.job.state == "ended":
            continue
        devices: dict[str, set[str]] = {}
        parts: dict[str, str | None] = {}
        for seat in known.seats.values():
            names = devices.setdefault(seat.node_id, set())
            names.update(name for name in (seat.gpu_uuid, seat.pci_bus_id) if name is not None)
            parts.setdefault(seat.node_id, seat.sku)
        for node_id, names in devices.items():
            found[node_id] = UntimedSeats(job_id, epoch, parts[node_id], frozenset(names))
    return found

"""Who runs where: jobs, the devices of their ranks by epoch, nodes and the policy in force.

Reference records come from topics that every worker reads whole. A later version of a record replaces an earlier one;
what it replaces stays in the topic for replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from schemas.fleet import Job, Node, Policy, RankPlacement

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from schemas.base import Record
    from schemas.findings import Evidence

T = TypeVar("T")

__all__ = ["JobRoster", "Roster", "Seat"]

_MOST_RANKS = 4_194_304


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank runs; null device when its mapping is unknown."""

    rank: int
    node_id: str
    gpu_uuid: str | None = None
    pci_bus_id: str | None = None
    sku: str | None = None
    stage: int | None = None
    role: str | None = None


@dataclass(slots=True)
class JobRoster:
    """One epoch of one job: its description, and its ranks' seats."""

    job: Job | None = None
    placements: dict[str, RankPlacement] = field(default_factory=dict)
    version: int = 0
    """Counts changes, so that readers know when to rebuild what they derived."""
    _seats: dict[int, Seat] | None = None
    _members: frozenset[int] | None = None
    _derived: dict[str, tuple[NDArray[np.int64], Any]] = field(default_factory=dict)

    def derived(self, name: str, ranks: NDArray[np.int64], make: Callable[[NDArray[np.int64], JobRoster], T]) -> T:
        """What follows from the seats of these ranks alone: made once, and again when the ranks or the roster change."""
        known = self._derived.get(name)
        if known is None or not (known[0] is ranks or np.array_equal(known[0], ranks)):
            known = self._derived[name] = (ranks, make(ranks, self))
        elif known[0] is not ranks:
            # Nearly always the next step has this very array.
            known = self._derived[name] = (ranks, known[1])
        result: T = known[1]
        return result

    @property
    def expected(self) -> int | None:
        """How many ranks report each step."""
        if self.job is None:
            return None
        return self.job.reporting_ranks or self.job.world_size

    @property
    def seats(self) -> dict[int, Seat]:
        """Seats by rank."""
        if self._seats is None:
            self._seats = {}
            for node_id in sorted(self.placements):
                placement = self.placements[node_id]
                for index, rank in enumerate(placement.rank):
                    self._seats[rank] = Seat(
                        rank,
                        node_id,
                        placement.gpu_uuid[index],
                        placement.pci_bus_id[index] if placement.pci_bus_id else None,
                        (placement.sku[index] if placement.sku else None) or (self.job.sku if self.job else None),
                        placement.stage[index] if placement.stage else self.stage_of(rank),
                        placement.role[index] if placement.role else None,
                    )
        return self._seats

    @property
    def members(self) -> frozenset[int]:
        """Ranks that are expected to report, as far as they are known by number."""
        if self._members is None:
            # Beyond any fleet the size is a slip of the pen, and to count it out would be the end of the process.
            all_report = (
                self.job is not None and self.job.reporting_ranks is None and self.job.world_size <= _MOST_RANKS
            )
            self._members = frozenset(range(self.job.world_size)) if self.job and all_report else frozenset(self.seats)
        return self._members

    @property
    def placed_ns(self) -> int:
        """Time from which the latest of its placements holds; -1 without any."""
        return max((placement.effective_from_ns for placement in self.placements.values()), default=-1)

    def stage_of(self, rank: int) -> int | None:
        """Pipeline stage of a rank by the layout, or None when the layout does not fill the world."""
        if self.job is None:
            return None
        layout = self.job.layout
        if layout.tensor * layout.context * layout.data * layout.pipeline != self.job.world_size:
            return None
        return rank // (layout.tensor * layout.context * layout.data)

    def changed(self) -> None:
        """Forget what was derived."""
        self.version += 1
        self._seats = None
        self._members = None
        self._derived = {}


class Roster:
    """Jobs, nodes and policy as registered so far."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, int], JobRoster] = {}
        self.nodes: dict[str, Node] = {}
        self.policy: Policy | None = None
        self.version = 0
        """Counts changes, so that readers know when to rebuild what they derived."""
        self.taken_up_to: dict[str, int] = {}
        """By `topic/partition`, one past the offset of the last record that changed something, where it was told.

        What is known follows from these alone: of one key the records come in the order of their partition, and in which
        order partitions are read makes no difference.
        """
        self._by_device: dict[str, dict[str, tuple[str, int, int]]] | None = None

    def take(self, record: Record, place: Evidence | None = None) -> bool:
        """Take a reference record; false when it changes nothing (a repeat, or older than what is known).

        Args:
            record: of a family of reference records; others change nothing.
            place: where it stands in its topic, if that is known.
        """
        if isinstance(record, Job):
            roster = self.jobs.setdefault((record.job_id, record.epoch), JobRoster())
            if roster.job is not None and record.version <= roster.job.version:
                return False
            roster.job = record
            roster.changed()
        elif isinstance(record, RankPlacement):
            roster = self.jobs.setdefault((record.job_id, record.epoch), JobRoster())
            known = roster.placements.get(record.node_id)
            if known is not None and record.version <= known.version:
                return False
            roster.placements[record.node_id] = _with_known_devices(record, known)
            roster.changed()
        elif isinstance(record, Node):
            known_node = self.nodes.get(record.node_id)
            if known_node is not None and record.version <= known_node.version:
                return False
            self.nodes[record.node_id] = record
        elif isinstance(record, Policy):
            if self.policy is not None and not _takes_its_place(record, self.policy):
                return False
            self.policy = record
        else:
            return False
        self._by_device = None
        self.version += 1
        if place is not None:
            self.taken_up_to[f"{place.topic}/{place.partition}"] = place.offset + 1
        return True

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "jobs": [
                [job_id, epoch, known.version, known.job, list(known.placements.values())]
                for (job_id, epoch), known in self.jobs.items()
            ],
            "nodes": list(self.nodes.values()),
            "policy": self.policy,
            "version": self.version,
            "taken_up_to": dict(self.taken_up_to),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace what is known by a snapshot's."""
        self.jobs = {
            (job_id, epoch): JobRoster(job, {placement.node_id: placement for placement in placements}, version)
            for job_id, epoch, version, job, placements in snapshot["jobs"]
        }
        self.nodes = {node.node_id: node for node in snapshot["nodes"]}
        self.policy = snapshot["policy"]
        self.version = snapshot["version"]
        self.taken_up_to = dict(snapshot["taken_up_to"])
        self._by_device = None

    def job(self, job_id: str, epoch: int) -> JobRoster:
        """What is registered of one epoch of a job; empty when nothing is."""
        return self.jobs.get((job_id, epoch)) or JobRoster()

    def jobs_on(self, node_id: str) -> list[tuple[str, int]]:
        """(job id, epoch) of the newest epoch of each job with ranks on a node."""
        newest: dict[str, int] = {}
        for (job_id, epoch), roster in self.jobs.items():
            if node_id in roster.placements and not (roster.job is not None and roster.job.state == "ended"):
                newest[job_id] = max(epoch, newest.get(job_id, 0))
        # A job whose newest epoch has left the node no longer runs there.
        for job_id in list(newest):
            if any(name == job_id and epoch > newest[job_id] for name, epoch in self.jobs):
                del newest[job_id]
        return sorted(newest.items())

    def rank_of(self, node_id: str, gpu_uuid: str | None, pci_bus_id: str | None) -> tuple[str, int, int] | None:
        """(job id, epoch, rank) that runs on a device of a node, or None."""
        if self._by_device is None:
            self._by_device = {}
            # The later epoch, and of equal ones the job that was placed last, whatever was read first.
            for (job_id, epoch), roster in sorted(
                self.jobs.items(), key=lambda item: (item[0][1], item[1].placed_ns, item[0])
            ):
                for seat in roster.seats.values():
                    devices = self._by_device.setdefault(seat.node_id, {})
                    for name in (seat.gpu_uuid, seat.pci_bus_id):
                        if name is not None:
                            devices[name] = (job_id, epoch, seat.rank)
        devices = self._by_device.get(node_id, {})
        for name in (gpu_uuid, pci_bus_id):
            if name is not None and name in devices:
                return devices[name]
        return None


def _takes_its_place(policy: Policy, known: Policy) -> bool:
    """Whether a policy that came later holds from now on: never a repeat, and a thrown kill switch whatever its date says."""
    if policy == known:
        return False
    return policy.kill_switch or policy.effective_from_ns >= known.effective_from_ns


def _with_known_devices(placement: RankPlacement, known: RankPlacement | None) -> RankPlacement:
    """A placement whose unknown devices are those that were known before: not knowing one is no news about it."""
    if known is None or None not in placement.gpu_uuid:
        return placement
    devices = {
        rank: (known.gpu_uuid[index], known.pci_bus_id[index] if known.pci_bus_id is not None else None)
        for index, rank in enumerate(known.rank)
    }
    addresses = placement.pci_bus_id or (None,) * len(placement.rank)
    named = [
        (gpu_uuid, address) if gpu_uuid is not None or address is not None else devices.get(rank, (None, None))
        for rank, gpu_uuid, address in zip(placement.rank, placement.gpu_uuid, addresses, strict=True)
    ]
    return placement.model_copy(
        update={"gpu_uuid": tuple(pair[0] for pair in named), "pci_bus_id": tuple(pair[1] for pair in named)}
    )

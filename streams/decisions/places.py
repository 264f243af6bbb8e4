"""Whether several suspects are one fault of a place: the smallest place that explains them, by a stated test.

Places are those that nodes are registered with: rack, then zone. A place is named when nearly all suspects are in it and
so many of them would be there by chance with a probability below 0.001, all places of its kind taken together
(hypergeometric tail over the registered nodes' GPUs; Bonferroni). Suspects on one node are that node's matter. Several
suspects of many nodes in a fleet that has but one place of a kind are that place's: chance cannot be told from it,
and faults of three devices at once by chance are rarer still.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from schemas.findings import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schemas.findings import Finding
    from schemas.fleet import Node
    from streams.core.roster import Roster

__all__ = ["SharedPlace", "place_of_heat", "place_of_ranks", "shared_place"]

_LEAST_SUSPECTS = 3
"""Three devices of a rack or zone within minutes: from there on no device is to blame (a judgement, with the test)."""
_LEAST_NODES = 2
_PROBABILITY = 1e-3
_COVERED = 0.9
_WHOLE_NODE = 0.75
"""Share of a node's GPUs from which on its own fans are the likelier cause (a judgement)."""
_GPUS_UNKNOWN = 8
"""GPUs of a node that is registered without them."""


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A place that explains several suspects.

    Attributes:
        kind: `node`, `rack` or `zone`.
        name: of the place.
        suspects: how many of them are in it.
        devices: how many devices it has.
        probability: of as many suspects in some place of its kind by chance; 1 where there is but one place.
    """

    kind: str
    name: str
    suspects: int
    devices: int
    probability: float

    def subject(self) -> Subject:
        """The place as the culprit of an incident."""
        if self.kind == "node":
            return Subject(level="node", node_id=self.name)
        return Subject(level="zone", zone=self.name)


def shared_place(suspect_nodes: Iterable[str], nodes: Mapping[str, Node]) -> SharedPlace | None:
    """The smallest place that explains the suspects, or None where they have none in common.

    Args:
        suspect_nodes: the node of each suspect device, once per device.
        nodes: registered nodes by id.
    """
    suspects = Counter(suspect_nodes)
    total = suspects.total()
    if total < _LEAST_SUSPECTS or len(suspects) < _LEAST_NODES:
        return None
    sizes = {node_id: len(node.gpu_uuid) or _GPUS_UNKNOWN for node_id, node in nodes.items()}
    fleet = sum(sizes.values())
    for kind in ("rack", "zone"):
        members: dict[str, list[str]] = {}
        for node_id, node in nodes.items():
            name = getattr(node, kind)
            if name is not None:
                members.setdefault(name, []).append(node_id)
        inside = {name: sum(suspects[node_id] for node_id in ids) for name, ids in members.items()}
        if not inside:
            continue
        name = min(inside, key=lambda place: (-inside[place], place))
        if inside[name] < _COVERED * total:
            continue
        devices = sum(sizes[node_id] for node_id in members[name])
        if len(members) == 1:
            return SharedPlace(kind, name, inside[name], devices, 1.0)
        probability = min(1.0, _tail(inside[name], total, devices, fleet) * len(members))
        if probability < _PROBABILITY:
            return SharedPlace(kind, name, inside[name], devices, probability)
    return None


def place_of_heat(hot_nodes: Iterable[str], nodes: Mapping[str, Node]) -> SharedPlace | None:
    """The place whose cooling fails, as far as several GPUs that slow themselves for heat tell it.

    That is a cooling zone that has nearly all of them; or a node of which several GPUs are hot and others are not, which no
    part of the node explains: its fans would heat all of them, one GPU's own fault only that one. Chance needs no test
    here: Llama 3's fleet lost 0.007 GPUs per 1,000 GPU-days to their thermal interface, so three within minutes are not
    three faults.

    Args:
        hot_nodes: the node of each hot GPU, once per GPU.
        nodes: registered nodes by id.
    """
    hot = Counter(hot_nodes)
    if len(hot) == 1:
        ((node_id, count),) = hot.items()
        size = len(nodes[node_id].gpu_uuid) if node_id in nodes else 0
        if _LEAST_SUSPECTS <= count < _WHOLE_NODE * (size or _GPUS_UNKNOWN):
            return SharedPlace("node", node_id, count, size or _GPUS_UNKNOWN, 1.0)
    if hot.total() < _LEAST_SUSPECTS or len(hot) < _LEAST_NODES:
        return None
    zones = Counter(nodes[node_id].zone if node_id in nodes else None for node_id in hot.elements())
    del zones[None]
    name, count = min(zones.items(), key=lambda entry: (-entry[1], entry[0] or ""), default=(None, 0))
    if name is None or count < _COVERED * hot.total():
        return None
    devices = sum(len(node.gpu_uuid) or _GPUS_UNKNOWN for node in nodes.values() if node.zone == name)
    return SharedPlace("zone", name, count, devices, 0.0)


def place_of_ranks(finding: Finding, roster: Roster) -> SharedPlace | None:
    """The place whose ranks of a job became slow together, as a finding's `ranks` lists them; None for any other set.

    Nearly all of the changed ranks must be in the place, and nearly all of the job's ranks there must have changed: a rack
    of which some ranks keep their pace has no fault of its own.
    """
    seats = roster.job(finding.job_id or "", finding.epoch or 0).seats
    told = finding.values.get("ranks")
    changed = {int(rank) for rank in told} if isinstance(told, list) else set()
    place = shared_place([seats[rank].node_id for rank in sorted(changed) if rank in seats], roster.nodes)
    if place is None:
        return None
    there = [
        seat.rank
        for seat in seats.values()
        if (node := roster.nodes.get(seat.node_id)) is not None and getattr(node, place.kind) == place.name
    ]
    return place if len(changed.intersection(there)) >= _COVERED * len(there) else None


def _tail(inside: int, suspects: int, devices: int, fleet: int) -> float:
    """Probability that at least `inside` of `suspects` drawn from `fleet` fall among `devices`."""
    suspects = min(suspects, fleet)
    ways = sum(
        comb(devices, count) * comb(fleet - devices, suspects - count)
        for count in range(inside, min(suspects, devices) + 1)
        if suspects - count <= fleet - devices
    )
    return ways / comb(fleet, suspects)

"""Where nodes stand and what their NICs hang on: two shapes of fabric, racks, cooling zones, pods.

Places are of slots: a slot is where a node's hardware sits, and spare hardware that takes over takes the slot's place too.
Names depend on the place alone. Spines are named as peers and publish nothing. Leaf sizes of large `lingjun` fleets follow
the 119 (aggregation, leaf) pairs of a published inventory, groups its 362 : 306 : 179 hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agents.simulation.errors import ScenarioError

if TYPE_CHECKING:
    from agents.simulation.benchmark.case import FleetPlan

__all__ = ["UPLINKS", "IndexArray", "Topology"]

IndexArray = NDArray[np.int64]

UPLINKS = 2
"""Ports of each switch towards the spines."""

_LEAF_SIZES = ((8, 68), (7, 23), (6, 15), (5, 7), (4, 2), (3, 1), (2, 3))
_GROUP_HOSTS = (362, 306, 179)
_LARGE_FLEET = 128


@dataclass(frozen=True)
class Topology:
    """Places by slot, cabling by (slot, NIC).

    Attributes:
        pods, racks, zones: names by slot.
        switch_ids: names of the switches that nodes hang on.
        switch_of, port_of: switch index and its port's number, shape (slots, NICs).
        ports: node ports of each switch; its uplinks follow them.
        is_rail: whether a switch is one rail of a pod rather than a leaf of whole nodes.
    """

    pods: tuple[str, ...]
    racks: tuple[str, ...]
    zones: tuple[str, ...]
    switch_ids: tuple[str, ...]
    switch_of: IndexArray
    port_of: IndexArray
    ports: tuple[int, ...]
    is_rail: bool

    @classmethod
    def of(cls, plan: FleetPlan) -> Topology:
        """Lay a fleet's slots out.

        Raises:
            ScenarioError: a size is not positive.
        """
        sizes = (plan.nodes, plan.gpus_per_node, plan.nodes_per_pod, plan.nodes_per_leaf, plan.nodes_per_rack)
        if min(*sizes, plan.racks_per_zone) < 1:
            raise ScenarioError("a fleet needs nodes, GPUs, pods, leaves, racks and zones of at least one each")
        slots = plan.nodes
        racks = [slot // plan.nodes_per_rack for slot in range(slots)]
        nics = plan.gpus_per_node
        if plan.shape == "rail":
            pods = [slot // plan.nodes_per_pod for slot in range(slots)]
            names = [f"pod-{pod:02d}-rail-{nic}" for pod in range(pods[-1] + 1) for nic in range(nics)]
            switch_of = np.array([[pod * nics + nic for nic in range(nics)] for pod in pods])
            port_of = np.array([[slot % plan.nodes_per_pod] * nics for slot in range(slots)])
        else:
            leaves = _leaves(plan)
            count = leaves[-1] + 1
            names = [f"leaf-{leaf:03d}" for leaf in range(count)]
            bounds = np.cumsum(_GROUP_HOSTS) / sum(_GROUP_HOSTS)
            pods = [int(np.searchsorted(bounds, (leaf + 0.5) / count)) for leaf in leaves]
            first = {leaf: leaves.index(leaf) for leaf in set(leaves)}
            switch_of = np.array([[leaf] * nics for leaf in leaves])
            port_of = np.array(
                [[(slot - first[leaf]) * nics + nic for nic in range(nics)] for slot, leaf in enumerate(leaves)]
            )
        ports = [int(port_of[switch_of == switch].max()) + 1 for switch in range(len(names))]
        return cls(
            pods=tuple(f"pod-{pod:02d}" for pod in pods),
            racks=tuple(f"rack-{rack:03d}" for rack in racks),
            zones=tuple(f"zone-{rack // plan.racks_per_zone:02d}" for rack in racks),
            switch_ids=tuple(names),
            switch_of=switch_of,
            port_of=port_of,
            ports=tuple(ports),
            is_rail=plan.shape == "rail",
        )

    def port_name(self, slot: int, nic: int) -> str:
        """Name of the switch port that a NIC is cabled to."""
        return f"Ethernet{int(self.port_of[slot, nic])}"


def _leaves(plan: FleetPlan) -> list[int]:
    if plan.nodes >= _LARGE_FLEET:
        sizes = chain.from_iterable(repeat(size, count) for size, count in _LEAF_SIZES)
        published = list(sizes)
    else:
        published = [plan.nodes_per_leaf]
    leaves: list[int] = []
    leaf = 0
    while len(leaves) < plan.nodes:
        leaves += [leaf] * published[leaf % len(published)]
        leaf += 1
    return leaves[: plan.nodes]

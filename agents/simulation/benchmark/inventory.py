"""The fleet's hardware by name: nodes, GPUs, NICs, and spare hardware that comes under an old node's name.

Identifiers depend on the seed, the name and the generation alone. Hardware index and slot are the same but for spare
hardware that takes over a slot: it comes after all others and brings GPUs, boot and agent session of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agents.simulation.benchmark.topology import Topology
from agents.simulation.noise import entity_keys
from schemas.fleet import Node

if TYPE_CHECKING:
    from agents.simulation.benchmark.case import FleetPlan
    from agents.simulation.noise import KeyArray, Noise

__all__ = ["Inventory", "Machine"]

# PCI buses of an HGX board's eight GPUs as several vendors wire it.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)


@dataclass(frozen=True)
class Machine:
    """One node's hardware. `generation` is 1 for hardware that replaced another one in its slot."""

    node_id: str
    slot: int
    generation: int
    gpu_uuids: tuple[str, ...]
    boot_id: str
    session: str
    sku: str
    is_other_sku: bool


@dataclass(frozen=True)
class Inventory:
    """All hardware of a case."""

    plan: FleetPlan
    topology: Topology
    machines: tuple[Machine, ...]
    pci_bus_ids: tuple[str, ...]
    nics: tuple[str, ...]
    nic_port: str = "1"

    @classmethod
    def of(cls, plan: FleetPlan, noise: Noise) -> Inventory:
        """The hardware that a plan names.

        Raises:
            ScenarioError: a size is not positive.
        """
        gpus = range(plan.gpus_per_node)
        return cls(
            plan=plan,
            topology=Topology.of(plan),
            machines=tuple(_machine(plan, noise, slot, 0) for slot in range(plan.nodes)),
            pci_bus_ids=tuple(f"0000:{_BUSES[gpu] if gpu < len(_BUSES) else 2 + gpu:02x}:00" for gpu in gpus),
            nics=tuple(f"mlx5_{gpu}" for gpu in gpus),
        )

    def with_replacement(self, slot: int, noise: Noise) -> Inventory:
        """The inventory with one more machine, which takes over a slot and its node's name."""
        machines = (*self.machines, _machine(self.plan, noise, slot, 1))
        return Inventory(self.plan, self.topology, machines, self.pci_bus_ids, self.nics, self.nic_port)

    @cached_property
    def slots(self) -> list[int]:
        """Slot of each machine."""
        return [machine.slot for machine in self.machines]

    @cached_property
    def machine_keys(self) -> KeyArray:
        """Noise keys, shape (machines,)."""
        return entity_keys([_entity(machine) for machine in self.machines])

    @cached_property
    def gpu_keys(self) -> KeyArray:
        """Noise keys of GPUs (and of the NICs beside them), shape (machines, GPUs)."""
        names = [f"{_entity(machine)}/gpu/{gpu}" for machine in self.machines for gpu in range(self.plan.gpus_per_node)]
        return entity_keys(names).reshape(len(self.machines), self.plan.gpus_per_node)

    @cached_property
    def switch_keys(self) -> KeyArray:
        """Noise keys, shape (switches,)."""
        return entity_keys(self.topology.switch_ids)

    def peer_of(self, slot: int, nic: int) -> str:
        """What a NIC's port is cabled to: `switch_id/port`."""
        switch = self.topology.switch_ids[int(self.topology.switch_of[slot, nic])]
        return f"{switch}/{self.topology.port_name(slot, nic)}"

    def node_record(self, machine: Machine, effective_from_ns: int, version: int = 1) -> Node:
        """The registration of a machine: its devices and its place."""
        topology, slot = self.topology, machine.slot
        switches = [topology.switch_ids[index] for index in topology.switch_of[slot].tolist()]
        return Node(
            node_id=machine.node_id,
            version=version,
            effective_from_ns=effective_from_ns,
            sku=machine.sku,
            gpu_uuid=machine.gpu_uuids,
            pci_bus_id=self.pci_bus_ids,
            rack=topology.racks[slot],
            leaf=None if topology.is_rail else switches[0],
            rail=tuple(switches) if topology.is_rail else (),
            zone=topology.zones[slot],
            pod=topology.pods[slot],
        )


def _entity(machine: Machine) -> str:
    return machine.node_id if machine.generation == 0 else f"{machine.node_id}+{machine.generation}"


def _machine(plan: FleetPlan, noise: Noise, slot: int, generation: int) -> Machine:
    node_id = f"node-{slot:04d}"
    entity = node_id if generation == 0 else f"{node_id}+{generation}"
    is_other = slot >= plan.nodes - plan.other_sku_nodes
    return Machine(
        node_id=node_id,
        slot=slot,
        generation=generation,
        gpu_uuids=tuple("GPU-" + noise.identifier("gpu-uuid", f"{entity}/{gpu}") for gpu in range(plan.gpus_per_node)),
        boot_id=noise.identifier("boot-id", entity),
        session=noise.identifier("session", entity)[:18],
        sku=plan.other_sku if is_other else plan.sku,
        is_other_sku=is_other,
    )

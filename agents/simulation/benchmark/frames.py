"""Frames and heartbeats of a window of time, as drafts: what node and switch agents publish at their ticks.

Each node samples at its own moment within the tick. A machine that is not there publishes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.benchmark.activity import activity_at
from agents.simulation.benchmark.drafts import Draft, rows
from agents.simulation.benchmark.gpu_signals import GpuSignals
from agents.simulation.benchmark.host_load import HostLoads
from agents.simulation.benchmark.port_signals import RATE_GBPS, HostPorts, PortRates, SwitchPorts
from agents.simulation.benchmark.topology import UPLINKS
from schemas.events import NodeStatus
from schemas.frames import FabricFrame, GpuFrame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from agents.simulation.benchmark.activity import Activity, Lifetimes
    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.drafts import Clocks
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.job_steps import StepBlock
    from agents.simulation.noise import FloatArray, Noise

__all__ = ["FramePublisher"]

_PRIORITY = 3
"""The lossless traffic class; 3 is the usual choice for RoCE."""

_FRAME_DELAY_NS = 2_000_000
_DRIVER = "570.124.06"
_MOST_TICKS = 32
_MOST_GPU_TICKS = 250_000


class FramePublisher:
    """Makes all frames and heartbeats of a run, window by window. Windows follow each other without gaps."""

    def __init__(
        self,
        case: BenchmarkCase,
        inventory: Inventory,
        faults: Sequence[PlacedFault],
        lifetimes: Lifetimes,
        clocks: Clocks,
        noise: Noise,
        math_us: dict[str, float],
    ) -> None:
        self._case, self._inventory, self._lifetimes = case, inventory, lifetimes
        self._clocks, self._noise, self._math_us = clocks, noise, math_us
        rates = PortRates(case, inventory, faults, noise)
        self._gpus = GpuSignals(case, inventory, faults, noise)
        self._hosts = HostPorts(case, inventory, rates, noise)
        self._switches = SwitchPorts(case, inventory, rates, faults, noise)
        self._loads = HostLoads(case, inventory, faults, noise)
        self._publishers = [f"{machine.node_id}/{machine.session}" for machine in inventory.machines]
        self._next_tick = {"gpu": 0, "fabric": 0, "switch": 0, "heartbeat": 0}
        self._phases = {
            name: noise.uniform(f"phase-{name}", keys) * 0.96
            for name, keys in (
                ("gpu", inventory.machine_keys),
                ("fabric", inventory.machine_keys),
                ("heartbeat", inventory.machine_keys),
                ("switch", inventory.switch_keys),
            )
        }
        self._gpu_templates = [self._gpu_template(index) for index in range(len(inventory.machines))]
        self._host_templates = [self._host_template(index) for index in range(len(inventory.machines))]
        self._switch_templates = [self._switch_template(index) for index in range(len(inventory.topology.switch_ids))]
        self._beats = [self._status_template(index) for index in range(len(inventory.machines))]

    def window(self, until_us: float, blocks: Sequence[StepBlock]) -> Iterator[Draft]:
        """Drafts of all ticks that end at or before a moment, not yet in order of time.

        Args:
            until_us: how far the jobs' steps are known.
            blocks: blocks that cover the time since the last window.
        """
        sampling = self._case.sampling
        for at_us in self._ticks("gpu", sampling.gpu_s, until_us):
            yield from self._gpu_frames(at_us, self._activity(at_us, blocks))
        for at_us in self._ticks("fabric", sampling.fabric_s, until_us):
            yield from self._host_frames(at_us, self._activity(at_us, blocks))
        for at_us in self._ticks("switch", sampling.switch_s, until_us):
            moments = np.broadcast_to(at_us.mean(axis=1, keepdims=True), (len(at_us), len(self._inventory.machines)))
            yield from self._switch_frames(at_us, self._activity(moments, blocks))
        for at_us in self._ticks("heartbeat", sampling.heartbeat_s, until_us):
            yield from self._heartbeats(at_us, self._activity(at_us, blocks))

    def status(self, machine: int, at_us: float, state: str) -> Draft:
        """A change of state of a machine's agent."""
        at_ns = round(at_us * 1000)
        fields = {"event_time_ns": self._clocks.stamp(machine, at_ns), "state": state}
        return Draft(at_ns, self._publishers[machine], "node-status", self._beats[machine], fields)

    def _activity(self, at_us: FloatArray, blocks: Sequence[StepBlock]) -> Activity:
        return activity_at(at_us, blocks, self._inventory, self._math_us)

    def _ticks(self, name: str, period_s: float, until_us: float) -> Iterator[FloatArray]:
        """Moments of whole ticks, (moments, publishers), in pieces of bounded size."""
        period_us = period_s * 1e6
        first, stop = self._next_tick[name], int(until_us // period_us)
        self._next_tick[name] = max(first, stop)
        size = max(1, min(_MOST_TICKS, _MOST_GPU_TICKS // self._inventory.gpu_keys.size))
        for start in range(first, stop, size):
            ticks = np.arange(start, min(start + size, stop))
            yield (ticks[:, None] + self._phases[name][None, :]) * period_us

    def _gpu_frames(self, at_us: FloatArray, activity: Activity) -> Iterator[Draft]:
        columns = {name: rows(values) for name, values in self._gpus.read(at_us, activity).items()}
        yield from self._drafts(at_us, columns, None, self._gpu_templates, "gpu-frames")

    def _host_frames(self, at_us: FloatArray, activity: Activity) -> Iterator[Draft]:
        columns, named = self._hosts.read(at_us, activity)
        yield from self._drafts(at_us, _rows(columns), _rows(named), self._host_templates, "fabric-frames")

    def _drafts(
        self,
        at_us: FloatArray,
        columns: dict[str, list[Any]],
        named: dict[str, list[Any]] | None,
        templates: Sequence[GpuFrame] | Sequence[FabricFrame],
        topic: str,
    ) -> Iterator[Draft]:
        alive = self._lifetimes.alive(at_us)
        moments = np.rint(at_us * 1000).astype(np.int64).tolist()
        for tick, machine in np.argwhere(alive).tolist():
            at_ns = moments[tick][machine]
            fields: dict[str, Any] = {name: column[tick][machine] for name, column in columns.items()}
            if named is not None:
                fields["counters"] = {name: column[tick][machine] for name, column in named.items()}
            fields["event_time_ns"] = self._clocks.stamp(machine, at_ns)
            yield Draft(at_ns + _FRAME_DELAY_NS, self._publishers[machine], topic, templates[machine], fields)

    def _switch_frames(self, at_us: FloatArray, activity: Activity) -> Iterator[Draft]:
        plain, counted = self._switches.read(at_us, activity)
        columns, named = _rows(plain), _rows(counted)
        moments = np.rint(at_us * 1000).astype(np.int64).tolist()
        for tick in range(len(at_us)):
            for switch, template in enumerate(self._switch_templates):
                width = len(template.device)
                at_ns = moments[tick][switch]
                fields: dict[str, Any] = {name: column[tick][switch][:width] for name, column in columns.items()}
                fields["counters"] = {name: column[tick][switch][:width] for name, column in named.items()}
                fields["event_time_ns"] = self._clocks.start_ns + at_ns
                yield Draft(at_ns + _FRAME_DELAY_NS, str(template.switch_id), "fabric-frames", template, fields)

    def _heartbeats(self, at_us: FloatArray, activity: Activity) -> Iterator[Draft]:
        alive = self._lifetimes.alive(at_us)
        moments = np.rint(at_us * 1000).astype(np.int64).tolist()
        loads = self._loads.read(at_us, activity)
        for tick, machine in np.argwhere(alive).tolist():
            at_ns = moments[tick][machine]
            stamp = self._clocks.stamp(machine, at_ns)
            fields = {"event_time_ns": stamp, "host": self._loads.record(loads, tick, machine, stamp)}
            yield Draft(at_ns, self._publishers[machine], "node-status", self._beats[machine], fields)

    def _gpu_template(self, index: int) -> GpuFrame:
        machine, count = self._inventory.machines[index], self._inventory.plan.gpus_per_node
        return GpuFrame(
            node_id=machine.node_id,
            agent_session=machine.session,
            seq=0,
            event_time_ns=0,
            boot_id=machine.boot_id,
            driver_version=_DRIVER,
            gpu_uuid=machine.gpu_uuids,
            gpu_index=tuple(range(count)),
            pci_bus_id=self._inventory.pci_bus_ids,
            sku=(machine.sku,) * count,
        )

    def _host_template(self, index: int) -> FabricFrame:
        inventory, machine = self._inventory, self._inventory.machines[index]
        count = len(inventory.nics)
        return FabricFrame(
            view="host",
            node_id=machine.node_id,
            agent_session=machine.session,
            seq=0,
            event_time_ns=0,
            device=inventory.nics,
            port=(inventory.nic_port,) * count,
            peer=tuple(inventory.peer_of(machine.slot, nic) for nic in range(count)),
            link_state=("active",) * count,
            **_pause_rows(count),
        )

    def _switch_template(self, switch: int) -> FabricFrame:
        inventory, topology = self._inventory, self._inventory.topology
        count = topology.ports[switch] + UPLINKS
        peers: list[str | None] = [None] * count
        for slot, nic in np.argwhere(topology.switch_of == switch).tolist():
            node_id = inventory.machines[slot].node_id
            peers[int(topology.port_of[slot, nic])] = f"{node_id}/{inventory.nics[nic]}/{inventory.nic_port}"
        for uplink in range(UPLINKS):
            peers[count - UPLINKS + uplink] = f"spine-{uplink}/Ethernet{switch}"
        return FabricFrame(
            view="switch",
            switch_id=topology.switch_ids[switch],
            agent_session=self._noise.identifier("session", topology.switch_ids[switch])[:18],
            seq=0,
            event_time_ns=0,
            device=(None,) * count,
            port=tuple(f"Ethernet{port}" for port in range(count)),
            peer=tuple(peers),
            link_state=tuple("active" if peer is not None else "down" for peer in peers),
            **_pause_rows(count),
        )

    def _status_template(self, index: int) -> NodeStatus:
        machine = self._inventory.machines[index]
        return NodeStatus(
            node_id=machine.node_id,
            agent_session=machine.session,
            seq=0,
            event_time_ns=0,
            state="heartbeat",
            boot_id=machine.boot_id,
            agent_version="simulated",
        )


def _rows(columns: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
    return {name: rows(values) for name, values in columns.items()}


def _pause_rows(count: int) -> dict[str, Any]:
    return {
        "rate_gbps": (RATE_GBPS,) * count,
        "pfc_port": tuple(range(count)),
        "pfc_priority": (_PRIORITY,) * count,
        "rx_pause_frames": (None,) * count,
        "tx_pause_frames": (None,) * count,
    }

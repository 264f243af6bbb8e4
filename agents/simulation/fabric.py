"""Port counters of NICs and leaf switches, one tick at a time.

Each cable has two ends: what a NIC transmits its leaf's port receives, in frames and in pause time. Counters are
cumulative from a random base of each end. A leaf's uplinks are ports too; spines publish nothing. Deliberately no
packet model: rates are given, and a storm's pause time follows from its frames at the link's speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.fleet import PFC_PRIORITY, UPLINKS_PER_LEAF

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.simulation.faults import FaultEffects, PlacedFault
    from agents.simulation.fleet import Fleet
    from agents.simulation.job_run import JobRun
    from agents.simulation.look_alikes import PlacedLookAlike
    from agents.simulation.noise import FloatArray, KeyArray, Noise

__all__ = ["VICTIM_PAUSE_RATE", "FabricTelemetry"]

_RATE_GBPS = 400.0
_PAUSE_US_PER_FRAME = 65_535 * 512 / (_RATE_GBPS * 1e3)
"""The longest pause that one frame can ask for (65,535 quanta of 512 bit times): 84 us at 400 Gb/s."""

VICTIM_PAUSE_RATE = (150.0, 1_500.0)
"""Pause frames a second that a storm's victims receive."""

_TRICKLE_RATE = 20.0
_LOADED_BYTES_S, _IDLE_BYTES_S = 3.0e9, 2.0e5
_STORM_BYTES_FACTOR = 0.4


@dataclass
class _Counters:
    """Cumulative counters of one kind of end, floats that hold whole numbers when they are read."""

    rx_bytes: FloatArray
    tx_bytes: FloatArray
    rx_frames: FloatArray
    tx_frames: FloatArray
    rx_us: FloatArray
    tx_us: FloatArray

    @classmethod
    def based(cls, noise: Noise, keys: KeyArray, purpose: str) -> _Counters:
        """Counters of ends that have been up for weeks; most of them have seen a few pauses."""
        frames = [np.floor(noise.uniform(f"{purpose}-{name}", keys) ** 4 * 5e5) for name in ("rx", "tx")]
        sent = [np.floor(noise.uniform(f"{purpose}-{name}-bytes", keys) * 1e15) for name in ("rx", "tx")]
        return cls(sent[0], sent[1], frames[0], frames[1], np.floor(frames[0] * 30), np.floor(frames[1] * 30))

    def restart(self, place: int) -> None:
        """Begin one publisher's counters anew."""
        for column in vars(self).values():
            column[place] = 0.0

    def columns(self) -> dict[str, list[list[int]]]:
        """Columns of a frame by name, per publisher and port."""
        names = {
            "rx_data_bytes": self.rx_bytes,
            "tx_data_bytes": self.tx_bytes,
            "rx_pause_frames": self.rx_frames,
            "tx_pause_frames": self.tx_frames,
            "rx_pause_us": self.rx_us,
            "tx_pause_us": self.tx_us,
        }
        return {name: np.floor(values).astype(np.int64).tolist() for name, values in names.items()}


class FabricTelemetry:
    """Counters of all NICs, shape (nodes, NICs), and all leaf ports, shape (leaves, ports)."""

    def __init__(
        self, fleet: Fleet, noise: Noise, effects: FaultEffects, look_alikes: dict[str, PlacedLookAlike]
    ) -> None:
        self._fleet, self._noise, self._effects = fleet, noise, effects
        self._trickle = look_alikes.get("pause_trickle")
        scenario = fleet.scenario
        self._ports = scenario.nodes_per_leaf * scenario.nics_per_node + UPLINKS_PER_LEAF
        leaf_ports = np.arange(self._ports, dtype=np.uint64)[None, :] + fleet.leaf_keys[:, None]
        self._host = _Counters.based(noise, fleet.nic_keys, "host")
        self._switch = _Counters.based(noise, leaf_ports, "switch")
        self._leaf_ports = leaf_ports
        self._host_ns: NDArray[np.int64] | None = None
        self._switch_ns: NDArray[np.int64] | None = None

    def restart_counters(self, node: int) -> None:
        """Begin the counters of a node's NICs anew; the switch's end keeps counting."""
        self._host.restart(node)

    def read_hosts(self, tick: int, sampled_ns: NDArray[np.int64], jobs: list[JobRun]) -> dict[str, list[list[int]]]:
        """Columns of host-view frames, per node and NIC, at each node's moment."""
        last_ns = self._host_ns if self._host_ns is not None else sampled_ns - 1
        rates = self._rates(tick, last_ns, sampled_ns, jobs)
        self._add(self._host, _seconds(sampled_ns - last_ns), rates)
        self._host_ns = sampled_ns
        return self._host.columns()

    def read_leaves(self, tick: int, sampled_ns: NDArray[np.int64], jobs: list[JobRun]) -> dict[str, list[list[int]]]:
        """Columns of switch-view frames, per leaf and port, at each switch's moment."""
        last_ns = self._switch_ns if self._switch_ns is not None else sampled_ns - 1
        scenario = self._fleet.scenario
        leaf_of = np.array([self._fleet.leaf_of(node) for node in range(scenario.nodes)])
        host = self._rates(tick, last_ns[leaf_of], sampled_ns[leaf_of], jobs)
        ports = np.zeros((4, *self._leaf_ports.shape))
        slots = len(self._fleet.leaf_ids) * scenario.nodes_per_leaf
        for row, rates in enumerate((host[1], host[0], host[3], host[2])):  # the other end of the cable
            padded = np.zeros((slots, scenario.nics_per_node))
            padded[: scenario.nodes] = rates
            ports[row, :, :-UPLINKS_PER_LEAF] = padded.reshape(len(self._fleet.leaf_ids), -1)
        uplinks = ports[:2, :, :-UPLINKS_PER_LEAF].sum(axis=2, keepdims=True) * 0.1 / UPLINKS_PER_LEAF
        ports[:2, :, -UPLINKS_PER_LEAF:] = uplinks
        for fault in self._effects.of_kind("pause_storm"):
            leaf = self._fleet.leaf_of(fault.node)
            share = _active_share(fault, int(last_ns[leaf]), int(sampled_ns[leaf]))
            keys = self._leaf_ports[leaf, -UPLINKS_PER_LEAF:]
            if len(self._fleet.leaf_ids) > 1:  # others send through the spines, and are paused there
                ports[3, leaf, -UPLINKS_PER_LEAF:] += share * self._victim_rate(keys, tick)
        self._add(self._switch, _seconds(sampled_ns - last_ns), ports)
        self._switch_ns = sampled_ns
        return self._switch.columns()

    def port_rows(self, publisher: int, *, switch: bool) -> dict[str, Any]:
        """What a frame says about its ports besides counters."""
        fleet = self._fleet
        if not switch:
            count = len(fleet.nics)
            leaf = fleet.leaf_ids[fleet.leaf_of(publisher)]
            rows: dict[str, Any] = {
                "device": fleet.nics,
                "port": ("1",) * count,
                "peer": tuple(f"{leaf}/{fleet.leaf_port(publisher, nic)}" for nic in range(count)),
            }
        else:
            count = self._ports
            peers: list[str | None] = [None] * count
            names = [f"Ethernet{index}" for index in range(count)]
            for node in fleet.nodes_of_leaf(publisher):
                first = (node % fleet.scenario.nodes_per_leaf) * len(fleet.nics)
                peers[first : first + len(fleet.nics)] = [f"{fleet.node_ids[node]}/{nic}/1" for nic in fleet.nics]
            for uplink in range(UPLINKS_PER_LEAF):
                peers[count - UPLINKS_PER_LEAF + uplink] = f"spine-{uplink}/Ethernet{publisher}"
            rows = {"device": (None,) * count, "port": tuple(names), "peer": tuple(peers)}
        rows["link_state"] = tuple("active" if peer is not None else "down" for peer in rows["peer"])
        rows["rate_gbps"] = (_RATE_GBPS,) * count
        rows["pfc_port"] = tuple(range(count))
        rows["pfc_priority"] = (PFC_PRIORITY,) * count
        return rows

    def _rates(
        self, tick: int, last_ns: NDArray[np.int64], sampled_ns: NDArray[np.int64], jobs: list[JobRun]
    ) -> FloatArray:
        """Per NIC and second between two samples, host's view: bytes rx, bytes tx, pause frames rx, pause frames tx."""
        keys = self._fleet.nic_keys
        rates = np.zeros((4, *keys.shape))
        loaded = np.zeros((keys.shape[0], 1), dtype=np.bool_)
        for run in jobs:
            nodes = slice(run.job.first_node, run.job.stop_node)
            moments = sampled_ns[nodes]
            held = (moments >= run.starts_ns) & (moments < run.ends_ns)
            if run.stands_from_ns is not None:
                held &= moments < run.stands_from_ns
            loaded[nodes, 0] = held
        traffic = np.where(loaded, _LOADED_BYTES_S, _IDLE_BYTES_S)
        for row in (0, 1):
            rates[row] = traffic * np.exp(0.05 * self._noise.normal(f"traffic-{row}", keys, tick))
        if self._trickle is not None:
            rates[3, self._trickle.node, self._trickle.nic] += _TRICKLE_RATE
        for fault in self._effects.of_kind("pause_storm"):
            share = _active_share(fault, int(last_ns[fault.node]), int(sampled_ns[fault.node]))
            if share:
                swing = 1 + 0.1 * (2 * self._noise.draw("storm-rate", fault.fault_id, tick) - 1)
                rates[3, fault.node, fault.nic] += fault.strength * swing * share
                rates[0, fault.node, fault.nic] *= 1 - (1 - _STORM_BYTES_FACTOR) * share
            for node in self._effects.nodes_paused_by(fault):
                share = _active_share(fault, int(last_ns[node]), int(sampled_ns[node]))
                if share:
                    rates[2, node] += share * self._victim_rate(keys[node], tick)
                    rates[1, node] *= 1 - (1 - _STORM_BYTES_FACTOR) * share
        return rates

    def _victim_rate(self, keys: KeyArray, tick: int) -> FloatArray:
        low, high = np.log(VICTIM_PAUSE_RATE)
        # Each port has its own level, and stays inside the range with its swing from second to second.
        level = low + 0.05 + (high - low - 0.1) * self._noise.uniform("victim-rate", keys)
        result: FloatArray = np.exp(level + 0.05 * (2 * self._noise.uniform("victim-swing", keys, tick) - 1))
        return result

    @staticmethod
    def _add(counters: _Counters, elapsed_s: FloatArray, rates: FloatArray) -> None:
        counters.rx_bytes += rates[0] * elapsed_s
        counters.tx_bytes += rates[1] * elapsed_s
        counters.rx_frames += rates[2] * elapsed_s
        counters.tx_frames += rates[3] * elapsed_s
        # A port cannot be paused for longer than the time that passed.
        counters.rx_us += np.minimum(rates[2] * _PAUSE_US_PER_FRAME, 1e6) * elapsed_s
        counters.tx_us += np.minimum(rates[3] * _PAUSE_US_PER_FRAME, 1e6) * elapsed_s


def _active_share(fault: PlacedFault, since_ns: int, until_ns: int) -> float:
    return fault.overlap_s(since_ns, until_ns) * 1e9 / max(1, until_ns - since_ns)


def _seconds(span_ns: NDArray[np.int64]) -> FloatArray:
    return span_ns[:, None].astype(np.float64) * 1e-9

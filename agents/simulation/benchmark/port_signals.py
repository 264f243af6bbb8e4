"""Counters of NICs and switch ports over a window of time: traffic, pause, marks, errors, link speeds.

Both ends of a cable are told: what a NIC transmits its switch's port receives. Counters are cumulative from random bases.
Deliberately no packets: rates are given, and pause time follows from frames at the link's speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.benchmark.activity import strength_at
from agents.simulation.benchmark.topology import UPLINKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agents.simulation.benchmark.activity import Activity
    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.noise import FloatArray, KeyArray, Noise

__all__ = ["RATE_GBPS", "HostPorts", "PortRates", "SwitchPorts"]

RATE_GBPS = 400.0
_PAUSE_US_PER_FRAME = 65_535 * 512 / (RATE_GBPS * 1e3)
"""The longest pause that one frame can ask for (65,535 quanta of 512 bit times): 84 us at 400 Gb/s."""

_LOADED_BYTES_S, _IDLE_BYTES_S = 3.0e9, 2.0e5

# Pause frames a second: of a NIC that pauses without end, of a slow receiver, and what their victims are sent (chosen;
# victims then stand still for 6 to 30 % of the time).
_STORM_RATE, _SLOW_RATE, _VICTIM_RATE = (9_000.0, 11_500.0), (2_000.0, 5_000.0), (700.0, 3_500.0)
_TRICKLE_RATE = 15.0

_HOST_NAMES = {
    "roce": {
        "errors": ("rx_crc_errors_phy", "rx_symbol_err_phy"),
        "resent": ("out_of_sequence", "packet_seq_err"),
        "marks": ("np_ecn_marked_roce_packets", "rp_cnp_handled"),
        "discards": ("rx_discards_phy",),
    },
    "infiniband": {
        "errors": ("symbol_error", "port_rcv_errors"),
        "resent": ("out_of_sequence", "packet_seq_err"),
        "marks": ("port_xmit_wait",),
        "discards": ("port_xmit_discards",),
    },
}
_SWITCH_NAMES = {
    "errors": ("SAI_PORT_STAT_IF_IN_ERRORS",),
    "discards": ("SAI_PORT_STAT_IF_OUT_DISCARDS",),
    "marks": ("SAI_PORT_STAT_ECN_MARKED_PACKETS",),
}
_KINDS = ("rx", "tx", "rx_pause", "tx_pause", "errors", "resent", "marks", "discards", "downs")


class PortRates:
    """Rates per second at each NIC, host's view, of a window. Arrays have shape (moments, machines, NICs)."""

    def __init__(self, case: BenchmarkCase, inventory: Inventory, faults: Sequence[PlacedFault], noise: Noise) -> None:
        self._case, self._inventory, self._faults, self._noise = case, inventory, faults, noise
        self._keys = inventory.gpu_keys
        members = {pair for fault in faults if fault.is_local for pair in fault.members}
        free = [pair for pair in np.ndindex(*self._keys.shape) if pair not in members] or [(0, 0)]
        self._trickle = free[noise.pick("pause-trickle", len(free))]

    def at(self, activity: Activity, ticks: NDArray[np.int64], purpose: str) -> dict[str, FloatArray]:
        """Rates by kind, and `speed`, the links' speed in Gb/s."""
        shape = (*activity.step.shape, self._keys.shape[1])
        draw = self._noise.normal_steps
        pace = activity.pace[..., None]
        base = np.where(pace > 0, _LOADED_BYTES_S * pace, _IDLE_BYTES_S)
        rates = {kind: np.zeros(shape) for kind in _KINDS}
        rates["rx"] = base * np.exp(0.05 * draw(f"{purpose}-rx", self._keys, ticks))
        rates["tx"] = base * np.exp(0.05 * draw(f"{purpose}-tx", self._keys, ticks))
        rates["marks"] = np.where(pace > 0, 40.0, 0.0) * np.exp(0.5 * draw(f"{purpose}-marks", self._keys, ticks))
        rates["speed"] = np.full(shape, RATE_GBPS)
        if "pause_trickle" in self._case.look_alikes:
            rates["tx_pause"][:, self._trickle[0], self._trickle[1]] += _TRICKLE_RATE
        for fault in self._faults:
            strength = strength_at(fault, activity)
            if strength.any():
                self._apply(fault, strength, rates, ticks)
        return rates

    def _apply(
        self, fault: PlacedFault, strength: FloatArray, rates: dict[str, FloatArray], ticks: NDArray[np.int64]
    ) -> None:
        mask = np.zeros(self._keys.shape)
        for pair in fault.members:
            mask[pair] = 1.0
        held, visible = strength[..., None] * mask, float(fault.plan.counters_visible)
        place = (slice(None), fault.machine, fault.gpu)
        if fault.kind == "nic_speed":
            rates["speed"] = np.where(held > 0, RATE_GBPS * fault.plan.speed_share, rates["speed"])
        elif fault.kind == "link_loss":
            swing = np.exp(0.3 * self._noise.normal_steps(f"loss-{fault.index}", self._keys, ticks))
            rates["errors"] += visible * 150.0 * held * swing
            rates["resent"] += visible * 90.0 * held * swing
            rates["downs"] += visible * held / 90.0  # and now and then it is lost for a moment
        elif fault.kind == "switch_degraded":
            rates["resent"] += visible * 60.0 * held
            rates["discards"] += visible * 25.0 * held
            rates["marks"] += visible * 2_000.0 * held
        elif fault.kind in ("pause_storm", "slow_receiver"):
            low, high = _STORM_RATE if fault.kind == "pause_storm" else _SLOW_RATE
            share = strength[:, fault.machine]
            rates["tx_pause"][place] += share * self._noise.between(f"storm-{fault.index}", low, high)
            rates["rx"][place] *= 1.0 - (0.85 if fault.kind == "pause_storm" else 0.6) * share
            victims = held.copy()
            victims[place] = 0.0
            level = np.exp(
                np.log(_VICTIM_RATE[0])
                + np.log(_VICTIM_RATE[1] / _VICTIM_RATE[0]) * self._noise.uniform("victim", self._keys)
            )
            level = level if fault.kind == "pause_storm" else 0.5 * level
            rates["rx_pause"] += victims * level
            rates["tx"] *= 1.0 - 0.4 * victims


class _Counters:
    """Cumulative counters of one kind of end."""

    def __init__(self, noise: Noise, keys: KeyArray, purpose: str) -> None:
        self._totals = {}
        for kind in _KINDS:
            uniform = noise.uniform(f"{purpose}-{kind}-base", keys)
            scale = 1e15 if kind in ("rx", "tx") else 1e6 if kind == "marks" else 50.0
            self._totals[kind] = np.floor(uniform * scale)
        for kind in ("rx_pause", "tx_pause"):
            frames = np.floor(noise.uniform(f"{purpose}-{kind}-base", keys) ** 4 * 1e4)
            self._totals[kind] = frames
            self._totals[kind + "_us"] = np.floor(frames * 30)
        self._totals["downs"] = np.zeros(keys.shape)

    def grow(self, rates: dict[str, FloatArray], elapsed_s: FloatArray) -> dict[str, NDArray[np.int64]]:
        """Readings of each counter, (moments, publishers, ports)."""
        readings = {}
        for kind in self._totals:
            if kind.endswith("_us"):
                # A port cannot be paused for longer than the time that passed.
                rate = np.minimum(rates[kind.removesuffix("_us")] * _PAUSE_US_PER_FRAME, 1e6)
            else:
                rate = rates[kind]
            total = self._totals[kind] + np.cumsum(rate * elapsed_s, axis=0)
            self._totals[kind] = total[-1]
            readings[kind] = np.floor(total).astype(np.int64)
        return readings


def _elapsed(at_us: FloatArray, last_us: FloatArray | None, period_s: float) -> FloatArray:
    before = at_us[:1] - period_s * 1e6 if last_us is None else last_us[None]
    result: FloatArray = np.diff(at_us, axis=0, prepend=before)[..., None] * 1e-6
    return result


def _frame_columns(readings: dict[str, NDArray[np.int64]], speed: FloatArray) -> dict[str, NDArray[Any]]:
    return {
        "rate_gbps": speed,
        "rx_data_bytes": readings["rx"],
        "tx_data_bytes": readings["tx"],
        "link_down_events": readings["downs"],
        "rx_pause_frames": readings["rx_pause"],
        "tx_pause_frames": readings["tx_pause"],
        "rx_pause_us": readings["rx_pause_us"],
        "tx_pause_us": readings["tx_pause_us"],
    }


class HostPorts:
    """Host-view columns of all machines' NICs."""

    def __init__(self, case: BenchmarkCase, inventory: Inventory, rates: PortRates, noise: Noise) -> None:
        self._case, self._rates = case, rates
        self._counters = _Counters(noise, inventory.gpu_keys, "host")
        self._last_us: FloatArray | None = None
        self._ticks = 0

    def read(self, at_us: FloatArray, activity: Activity) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """(columns, named counters) by name, (moments, machines, NICs)."""
        ticks = np.arange(self._ticks, self._ticks + len(at_us))
        self._ticks += len(at_us)
        rates = self._rates.at(activity, ticks, "host")
        readings = self._counters.grow(rates, _elapsed(at_us, self._last_us, self._case.sampling.fabric_s))
        self._last_us = at_us[-1]
        names = _HOST_NAMES[self._case.fleet.transport]
        named = {name: readings[kind] for kind, names_of in names.items() for name in names_of}
        return _frame_columns(readings, rates["speed"]), named


class SwitchPorts:
    """Switch-view columns of all switches' ports, padded to the widest; uplinks come after the node ports."""

    def __init__(
        self,
        case: BenchmarkCase,
        inventory: Inventory,
        rates: PortRates,
        faults: Sequence[PlacedFault],
        noise: Noise,
    ) -> None:
        self._case, self._inventory, self._rates, self._faults = case, inventory, rates, faults
        self.width = max(inventory.topology.ports) + UPLINKS
        ports = np.arange(self.width, dtype=np.uint64)[None, :]
        self._counters = _Counters(noise, inventory.switch_keys[:, None] + ports, "switch")
        self._last_us: FloatArray | None = None
        self._ticks = 0

    def read(self, at_us: FloatArray, activity: Activity) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """(columns, named counters) by name, (moments, switches, ports).

        Args:
            at_us: moments of all switches alike, (moments, switches).
            activity: what the machines do at these moments.
        """
        ticks = np.arange(self._ticks, self._ticks + len(at_us))
        self._ticks += len(at_us)
        topology, slots = self._inventory.topology, self._inventory.slots
        host = self._rates.at(activity, ticks, "switch")
        other_end = {"rx": "tx", "tx": "rx", "rx_pause": "tx_pause", "tx_pause": "rx_pause"}
        shape = (len(at_us), len(topology.switch_ids), self.width)
        rates = {kind: np.zeros(shape) for kind in _KINDS}
        speed = np.full(shape, RATE_GBPS)
        switches, ports = topology.switch_of[slots], topology.port_of[slots]
        cabling: Any = (slice(None), switches, ports)
        for kind in _KINDS:
            np.add.at(rates[other_end.get(kind, kind)], cabling, host[kind])
        rates["resent"][:] = 0.0
        np.minimum.at(speed, cabling, host["speed"])
        counts = np.array(topology.ports)
        for uplink in range(UPLINKS):
            place = (slice(None), np.arange(len(counts)), counts + uplink)
            for kind in ("rx", "tx"):
                rates[kind][place] = 0.1 * rates[kind].sum(axis=2) / UPLINKS
            # Who sends through the spines to a paused port is paused there.
            rates["tx_pause"][place] = 0.02 * rates["tx_pause"].sum(axis=2)
        readings = self._counters.grow(rates, _elapsed(at_us, self._last_us, self._case.sampling.switch_s))
        self._last_us = at_us[-1]
        named = {name: readings[kind] for kind, names in _SWITCH_NAMES.items() for name in names}
        return _frame_columns(readings, speed), named

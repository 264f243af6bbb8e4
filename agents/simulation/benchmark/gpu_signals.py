"""Readings of all GPUs over a window of time: load, clocks, power, heat, errors, with faults and healthy look-alikes.

Load follows the job. Temperatures lag, violation times and error counts are cumulative from a base as of a node that has
been up for weeks. Deliberately no airflow: nodes do not heat each other but through a zone's fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.benchmark.activity import strength_at
from agents.simulation.benchmark.fault_places import STANDING_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agents.simulation.benchmark.activity import Activity
    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.noise import FloatArray, Noise

__all__ = ["POWER_LIMIT_W", "GpuSignals"]

# Bits of the clock event reasons (DCGM field 112).
_IDLE, _POWER_CAP, _HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80

# H100 SXM5 as its driver reports it.
_MAX_CLOCK, _IDLE_CLOCK, _MEMORY_MIB = 1980, 345, 81_559
POWER_LIMIT_W = 700.0
_CAPPED_LIMIT_W = 600.0
_HOT_C = 88.5
"""Where a throttled GPU settles: just above the temperature at which the part slows itself down."""

_LAG_S, _HEAT_LAG_S = 12.0, 15.0
_VIOLATION_SHARE = 0.6
_CAPPED_SHARE = 0.35
"""Share of GPUs at their power limit under full load where that look-alike is asked for (chosen)."""


class GpuSignals:
    """Columns of GPU frames; state is what accumulates from window to window, arrays of shape (machines, GPUs)."""

    def __init__(self, case: BenchmarkCase, inventory: Inventory, faults: Sequence[PlacedFault], noise: Noise) -> None:
        self._case, self._inventory, self._faults, self._noise = case, inventory, faults, noise
        keys = self._keys = inventory.gpu_keys
        members = {pair for fault in faults if fault.is_local for pair in fault.members}
        capped = noise.uniform("power-cap", keys) < (_CAPPED_SHARE if "power_cap" in case.look_alikes else 0.0)
        for pair in members:
            capped[pair] = False
        self._capped = capped
        free = [pair for pair in np.ndindex(*keys.shape) if pair not in members] or [(0, 0)]
        self._corrected_place = free[noise.pick("corrected-ecc", len(free))]
        self._brief_place = free[noise.pick("brief-thermal", len(free))]
        self._cooling = 2.0 * noise.normal("cooling", keys)
        self._temperature = 60.0 + self._cooling
        self._heat = np.zeros(keys.shape)
        self._thermal_ns = np.floor(10.0 ** (9.0 + 3.0 * noise.uniform("thermal-base", keys)))
        self._power_ns = np.floor(10.0 ** (11.0 + 3.0 * noise.uniform("power-base", keys)))
        self._corrected = np.floor(noise.uniform("ecc-base", keys) * 40.0)
        self._replays = np.floor(noise.uniform("replay-base", keys) * 3.0)
        self._nvlink = np.zeros(keys.shape)
        self._energy_mj = np.floor(1e11 + 1e12 * noise.uniform("energy-base", keys))
        self._last_us: FloatArray | None = None
        self._ticks = 0

    def read(self, at_us: FloatArray, activity: Activity) -> dict[str, NDArray[Any]]:
        """Columns by name, shape (moments, machines, GPUs); float columns are rounded as agents publish them.

        Args:
            at_us: moments of each machine since the start, (moments, machines), following those of the last call.
            activity: what the GPUs do at these moments.
        """
        ticks = np.arange(self._ticks, self._ticks + len(at_us))
        self._ticks += len(at_us)
        before = at_us[:1] - self._case.sampling.gpu_s * 1e6 if self._last_us is None else self._last_us[None]
        elapsed_s = np.diff(at_us, axis=0, prepend=before)[..., None] * 1e-6
        self._last_us = at_us[-1]
        draw = {name: self._noise.normal_steps(name, self._keys, ticks) for name in ("power", "clock", "activity")}
        held, work = activity.held, activity.work
        occupied = held | activity.stands[..., None]
        self._values = {
            "clock": np.where(occupied, _MAX_CLOCK - 15.0 * (draw["clock"] > 1.0), _IDLE_CLOCK),
            "mask": np.where(held, 0, _IDLE),
            "power": np.where(occupied, 150.0 + 250.0 * work + 330.0 * activity.math, 90.0)
            * (1 + 0.012 * draw["power"]),
            "limit": np.full(held.shape, POWER_LIMIT_W),
            "util": np.where(held, 100.0 * np.clip(1.0 - np.maximum(activity.idle_host - 0.04, 0.0), 0, 1), 0.0),
            "heat": np.zeros(held.shape),
            "thermal_s": np.zeros(held.shape),
            "power_s": np.zeros(held.shape),
            "width": np.full(held.shape, 16),
            "memory": 66_000.0 + 1_500.0 * self._noise.uniform("memory", self._keys) + np.zeros(held.shape),
            "tensor": np.clip(0.62 * activity.math * (1 + 0.01 * draw["activity"]), 0, 1),
            "sm": np.clip(0.93 * work + 0.14 * np.clip(held - work, 0, 1), 0, 1),
            "nvlink": np.where(held, 2.2e10 * activity.pace[..., None], 0.0) * (1 + 0.02 * draw["activity"]),
            "dbe": np.zeros(held.shape),
            "pending": np.zeros(held.shape),
        }
        self._cap(elapsed_s, held & (work > 0.5), draw["power"])
        self._replay_rate = np.zeros(held.shape)
        self._nvlink_rate = np.zeros(held.shape)
        for fault in self._faults:
            self._apply(fault, activity, elapsed_s)
        return self._columns(at_us, elapsed_s, ticks, held)

    def _cap(self, elapsed_s: FloatArray, loaded: NDArray[np.bool_], swing: FloatArray) -> None:
        values = self._values
        capped = self._capped & loaded
        values["power"] = np.where(capped, POWER_LIMIT_W - 1.5 + 0.8 * swing, values["power"])
        values["clock"] = np.where(capped, 1935 + 15 * np.rint(np.clip(swing, -1, 1)), values["clock"])
        values["mask"] = values["mask"] | np.where(capped, _POWER_CAP, 0)
        values["power_s"] += np.where(capped, 0.15 * elapsed_s, 0.0)

    def _apply(self, fault: PlacedFault, activity: Activity, elapsed_s: FloatArray) -> None:
        strength = strength_at(fault, activity)
        if not strength.any():
            return
        kind, values = fault.kind, self._values
        mask = np.zeros(self._keys.shape)
        for pair in fault.members:
            mask[pair] = 1.0
        held = strength[..., None] * mask
        slow = 1.0 + fault.plan.severity * held
        if kind in ("thermal", "zone_throttle"):
            hot = held > 0
            values["clock"] = np.where(hot, np.floor(_MAX_CLOCK / slow / 15) * 15, values["clock"])
            values["mask"] = values["mask"] | np.where(hot, _SW_THERMAL, 0) | np.where(held >= 0.3, _HW_THERMAL, 0)
            values["heat"] = np.maximum(values["heat"], held)
            values["thermal_s"] += _VIOLATION_SHARE * held * elapsed_s
            values["power"] *= 1.0 - 0.3 * np.clip(1.0 - 1.0 / slow, 0, 1)
        elif kind == "power_brake":
            braked = held > 0
            values["clock"] = np.where(braked, np.floor(_MAX_CLOCK / slow / 15) * 15, values["clock"])
            values["mask"] = values["mask"] | np.where(braked, _HW_SLOWDOWN | _POWER_BRAKE, 0)
            values["power_s"] += 0.8 * held * elapsed_s
            values["power"] *= np.where(braked, 1.0 / slow, 1.0)
        elif kind == "fleet_power_cap":
            capped = (held > 0) & activity.held
            values["clock"] = np.where(capped, np.floor(1950 / slow / 15) * 15, values["clock"])
            values["mask"] = values["mask"] | np.where(capped, _POWER_CAP, 0)
            values["limit"] = np.where(held > 0, _CAPPED_LIMIT_W, values["limit"])
            values["power"] = np.where(capped, np.minimum(values["power"], _CAPPED_LIMIT_W - 2.0), values["power"])
            values["power_s"] += 0.5 * held * elapsed_s
        elif kind == "pcie_downgrade":
            values["width"] = np.where(held > 0, max(1, round(16 * fault.plan.speed_share)), values["width"])
            self._replay_rate += 0.05 * held
        elif kind == "memory_fragmentation":
            values["memory"] = np.where(
                held > 0, values["memory"] + (80_900 - values["memory"]) * held, values["memory"]
            )
        elif kind in STANDING_KINDS:
            self._stand(fault, held)

    def _stand(self, fault: PlacedFault, held: FloatArray) -> None:
        """The culprit's kernels are gone; its peers spin in a collective."""
        values, failed = self._values, held > 0
        values["util"] = np.where(failed, 0.0, values["util"])
        values["power"] = np.where(failed, 0.6 * values["power"], values["power"])
        values["sm"] = np.where(failed, 0.0, values["sm"])
        values["mask"] = np.where(failed, _IDLE, values["mask"])
        if fault.kind == "gpu_memory_error":
            values["dbe"] += failed
            values["pending"] += failed
        elif fault.kind == "nvlink_error":
            self._nvlink_rate += 40.0 * held

    def _columns(
        self, at_us: FloatArray, elapsed_s: FloatArray, ticks: NDArray[np.int64], held: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        values, noise = self._values, self._noise
        power = np.clip(values["power"], 60.0, POWER_LIMIT_W + 4.0)
        temperature = self._warm(power, values["heat"], elapsed_s) + 0.4 * noise.normal_steps(
            "temperature", self._keys, ticks
        )
        thermal = 1e9 * values["thermal_s"]
        if "brief_thermal" in self._case.look_alikes:
            middle = 0.25 * self._case.steps * self._case.jobs[0].step_s * 1e6
            machine, gpu = self._brief_place
            once = (at_us[:, machine] >= middle) & (at_us[:, machine] - elapsed_s[:, machine, 0] * 1e6 < middle)
            thermal[:, machine, gpu] += 30e6 * once
        corrected = np.zeros(held.shape)
        if "corrected_ecc" in self._case.look_alikes:
            machine, gpu = self._corrected_place
            key = self._keys[machine : machine + 1, gpu]
            corrected[:, machine, gpu] = noise.uniform_steps("corrected", key, ticks)[:, 0] < 0.1
        thermal_ns = self._grow("_thermal_ns", thermal)
        power_ns = self._grow("_power_ns", 1e9 * values["power_s"])
        idle_bus = ~held if "pcie_idle" in self._case.look_alikes else np.zeros(held.shape, dtype=np.bool_)
        zero = np.zeros(held.shape, dtype=np.int64)
        return {
            "sm_clock_mhz": _whole(values["clock"]),
            "mem_clock_mhz": np.full(held.shape, 2619),
            "gpu_temp_c": _whole(temperature),
            "mem_temp_c": _whole(temperature + 9.0 + 0.5 * self._cooling),
            "power_w": np.round(power, 1),
            "power_limit_w": values["limit"],
            "energy_millijoules": _whole(self._grow("_energy_mj", 1e3 * power * elapsed_s)),
            "gpu_util_pct": _whole(values["util"]),
            "fb_used_mib": _whole(np.minimum(values["memory"], _MEMORY_MIB)),
            "clock_event_reasons_mask": _whole(values["mask"]),
            "power_violation_ns": _whole(power_ns),
            "thermal_violation_ns": _whole(thermal_ns),
            "ecc_sbe_volatile_count": _whole(self._grow("_corrected", corrected)),
            "ecc_dbe_volatile_count": _whole(values["dbe"]),
            "ecc_dbe_aggregate_count": _whole(values["dbe"]),
            "row_remap_pending": _whole(values["pending"]),
            "row_remap_failure": zero,
            "nvlink_crc_errors": _whole(self._grow("_nvlink", self._nvlink_rate * elapsed_s)),
            "nvlink_replay_errors": zero,
            "nvlink_recovery_errors": zero,
            "pcie_link_gen": np.where(idle_bus, 1, 5),
            "pcie_link_width": _whole(values["width"]),
            "pcie_max_link_gen": np.full(held.shape, 5),
            "pcie_max_link_width": np.full(held.shape, 16),
            "pcie_replay_count": _whole(self._grow("_replays", self._replay_rate * elapsed_s)),
            "sm_active_ratio": np.round(values["sm"], 3),
            "tensor_active_ratio": np.round(values["tensor"], 3),
            "dram_active_ratio": np.round(np.clip(0.68 * values["tensor"] + 0.03 * held, 0, 1), 3),
            "nvlink_tx_bytes_per_s": np.round(np.maximum(values["nvlink"], 0.0), -3),
            "nvlink_rx_bytes_per_s": np.round(np.maximum(values["nvlink"], 0.0), -3),
        }

    def _warm(self, power: FloatArray, heat: FloatArray, elapsed_s: FloatArray) -> FloatArray:
        readings = np.empty_like(power)
        for tick in range(len(power)):
            settled = 31.0 + 0.05 * power[tick] + self._cooling
            self._temperature += (settled - self._temperature) * (1.0 - np.exp(-elapsed_s[tick] / _LAG_S))
            target = (_HOT_C - self._temperature) * np.minimum(heat[tick] * 2.0, 1.0) * (heat[tick] > 0)
            self._heat += (target - self._heat) * (1.0 - np.exp(-elapsed_s[tick] / _HEAT_LAG_S))
            readings[tick] = self._temperature + self._heat
        return readings

    def _grow(self, name: str, increments: FloatArray) -> FloatArray:
        total: FloatArray = getattr(self, name) + np.cumsum(increments, axis=0)
        setattr(self, name, total[-1])
        return np.floor(total)


def _whole(values: NDArray[Any]) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.rint(values).astype(np.int64)
    return whole

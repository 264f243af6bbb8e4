"""What NVML and DCGM would read from the fleet's GPUs, one tick at a time.

Load follows the job: clocks, power, temperature and activity come from each rank's share of own work in its last step,
with faults and look-alikes on top. Temperatures lag; violation counters are cumulative from a large base, as on a node
that has been up for weeks. Each node is sampled at its own moment within the tick. Deliberately no model of airflow:
nodes do not heat each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.look_alikes import power_capped_gpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.simulation.faults import FaultEffects, PlacedFault
    from agents.simulation.fleet import Fleet
    from agents.simulation.job_run import JobRun
    from agents.simulation.look_alikes import PlacedLookAlike
    from agents.simulation.noise import FloatArray, Noise

__all__ = ["LOST_TEXT", "GpuTelemetry"]

LOST_TEXT = "GPU is lost"
"""What NVML answers for a GPU that has fallen off the bus."""

# Bits of the clock event reasons (DCGM field 112).
_IDLE, _APPLICATION_CLOCKS, _POWER_CAP, _SW_THERMAL, _HW_THERMAL = 0x1, 0x2, 0x4, 0x20, 0x40

# H100 SXM5: maximum and idle SM clock, memory clock, board power limit.
_MAX_CLOCK, _IDLE_CLOCK, _MEMORY_CLOCK, _POWER_LIMIT_W, _IDLE_POWER_W = 1980, 345, 2619, 700.0, 72.0
_THROTTLED_CLOCK = 1050
_APPLICATION_CLOCK = 1845
_THERMAL_VIOLATION_SHARE = 0.6
"""Of a throttled second; the counter grows by about 600 ms a second."""
_POWER_VIOLATION_SHARE = 0.15
_TEMPERATURE_LAG_S, _HEAT_LAG_S = 8.0, 1.2
_THROTTLE_TEMPERATURE_C = 88.5
"""Where a hot GPU settles: just above the temperature at which the part slows itself down."""


class GpuTelemetry:
    """Readings of all GPUs; the state is temperatures and cumulative counters, arrays of shape (nodes, GPUs)."""

    def __init__(
        self, fleet: Fleet, noise: Noise, effects: FaultEffects, look_alikes: dict[str, PlacedLookAlike]
    ) -> None:
        self._fleet, self._noise, self._effects, self._look_alikes = fleet, noise, effects, look_alikes
        keys = self._keys = fleet.gpu_keys
        self._capped = power_capped_gpus(fleet, noise, effects.placed, look_alikes)
        self._cooling = noise.normal("cooling", keys) * 2.0
        self._temperature = 34.0 + self._cooling
        self._heat = np.zeros(keys.shape)
        self._thermal_ns = np.floor(10.0 ** (11.0 + 2.5 * noise.uniform("thermal-base", keys)))
        self._power_ns = np.floor(10.0 ** (12.0 + 2.5 * noise.uniform("power-base", keys)))
        self._corrected = np.floor(noise.uniform("ecc-base", keys) * 40.0)
        self._sampled_ns: NDArray[np.int64] | None = None

    def restart_counters(self, node: int) -> None:
        """Begin a node's violation counters anew, as a restarted collector does."""
        self._thermal_ns[node] = 0.0
        self._power_ns[node] = 0.0

    def read(self, tick: int, sampled_ns: NDArray[np.int64], jobs: list[JobRun]) -> dict[str, list[list[Any]]]:
        """Columns by name, per node and GPU. `sampled_ns` is each node's moment, in time since the start of the run."""
        shape = self._keys.shape
        last_ns = self._sampled_ns if self._sampled_ns is not None else sampled_ns - 1
        elapsed_s = (sampled_ns - last_ns)[:, None].astype(np.float64) * 1e-9
        busy, work, launched = self._load(sampled_ns, jobs)
        draw = self._noise.normal
        loaded = busy > 0

        mask = np.where(loaded, 0, _IDLE)
        clock = np.where(loaded, _MAX_CLOCK - 15 * (draw("clock", self._keys, tick) > 1.0), _IDLE_CLOCK)
        power = np.where(loaded, 150.0 + 600.0 * work, _IDLE_POWER_W) * (1 + 0.012 * draw("power", self._keys, tick))
        capped = self._capped & loaded & (work > 0.5)
        power = np.where(capped, _POWER_LIMIT_W - 1.5 + 0.8 * draw("power", self._keys, tick), power)
        clock = np.where(capped, 1935 + 15 * np.rint(draw("capped", self._keys, tick)), clock)
        mask |= np.where(capped, _POWER_CAP, 0)
        self._power_ns += np.where(capped, _POWER_VIOLATION_SHARE * elapsed_s * 1e9, 0.0)

        clocked = self._look_alikes.get("application_clocks")
        if clocked is not None and loaded[clocked.node, clocked.gpu]:
            mask[clocked.node, clocked.gpu] |= _APPLICATION_CLOCKS
            clock[clocked.node, clocked.gpu] = _APPLICATION_CLOCK
            power[clocked.node, clocked.gpu] *= 0.93

        target_heat = np.zeros(shape)
        for fault in self._effects.of_kind("thermal"):
            self._throttle(fault, sampled_ns, last_ns, target_heat, (mask, clock, power))
        self._brief_violation(sampled_ns, last_ns)
        self._corrected_errors(tick, elapsed_s)

        power = np.clip(power, 60.0, _POWER_LIMIT_W + 4.0)
        self._heat += (target_heat - self._heat) * (1.0 - np.exp(-elapsed_s / _HEAT_LAG_S))
        settled = 31.0 + 0.05 * power + self._cooling
        self._temperature += (settled - self._temperature) * (1.0 - np.exp(-elapsed_s / _TEMPERATURE_LAG_S))
        temperature = self._temperature + self._heat + 0.4 * draw("temperature", self._keys, tick)
        self._sampled_ns = sampled_ns

        zeros = [[0] * shape[1]] * shape[0]
        sm_active = np.clip(0.93 * work + 0.12 * np.clip(busy - work, 0, 1), 0, 1)
        jitter = 1 + 0.01 * draw("activity", self._keys, tick)
        width = [[16] * shape[1]] * shape[0]
        columns = {
            "sm_clock_mhz": _integers(clock),
            "mem_clock_mhz": [[_MEMORY_CLOCK] * shape[1]] * shape[0],
            "gpu_temp_c": _integers(temperature),
            "mem_temp_c": _integers(temperature + 9.0 + 0.5 * self._cooling),
            "power_w": np.round(power, 1).tolist(),
            "power_limit_w": [[_POWER_LIMIT_W] * shape[1]] * shape[0],
            "gpu_util_pct": _integers(100.0 * np.clip(busy * launched, 0, 1)),
            "clock_event_reasons_mask": _integers(mask),
            "power_violation_ns": _integers(self._power_ns),
            "thermal_violation_ns": _integers(self._thermal_ns),
            "ecc_sbe_volatile_count": _integers(self._corrected),
            "ecc_dbe_volatile_count": zeros,
            "ecc_dbe_aggregate_count": zeros,
            "row_remap_pending": zeros,
            "row_remap_failure": zeros,
            "pcie_link_gen": _integers(np.where(loaded, 5, 1)),
            "pcie_link_width": width,
            "pcie_max_link_gen": [[5] * shape[1]] * shape[0],
            "pcie_max_link_width": width,
            "pcie_replay_count": zeros,
            "sm_active_ratio": np.round(np.clip(sm_active * jitter, 0, 1), 3).tolist(),
            "tensor_active_ratio": np.round(np.clip(0.55 * work * jitter, 0, 1), 3).tolist(),
            "dram_active_ratio": np.round(np.clip((0.42 * work + 0.03 * busy) * jitter, 0, 1), 3).tolist(),
        }
        return self._without_lost(columns, sampled_ns)

    def lost_gpus(self, node: int, at_ns: int) -> list[int]:
        """GPUs of a node that have fallen off the bus by this moment."""
        return [fault.gpu for fault in self._effects.of_kind("xid79") if fault.node == node and fault.active(at_ns)]

    def _load(self, sampled_ns: NDArray[np.int64], jobs: list[JobRun]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Per GPU: whether a job holds it (0 or 1), the share of time in own compute, the share with a kernel running.

        A rank that waits runs a communication kernel, so a victim looks busy; a rank that its host starves does not.
        """
        shape = self._keys.shape
        busy, work, launched = np.zeros(shape), np.zeros(shape), np.ones(shape)
        for run in jobs:
            job = run.job
            nodes = slice(job.first_node, job.stop_node)
            moments = sampled_ns[nodes]
            held = ((moments >= run.starts_ns) & (moments < run.ends_ns))[:, None]
            stands = np.zeros_like(held)
            if run.stands_from_ns is not None:
                stands = held & (moments >= run.stands_from_ns)[:, None]
            own_work, covered = np.full((len(moments), shape[1]), 0.6), np.ones((len(moments), shape[1]))
            if run.last is not None:
                step_us = np.maximum(run.last.step_us, 1)
                own_work = (run.last.compute_us / step_us).reshape(own_work.shape)
                idle = (run.last.host_us + run.last.data_us) / step_us
                # A few per cent of host time hide behind queued kernels.
                covered = (1.0 - np.clip(idle - 0.04, 0, 1)).reshape(own_work.shape)
            busy[nodes] = held
            work[nodes] = np.where(stands, 0.0, own_work * held)
            launched[nodes] = np.where(stands, 1.0, covered)
        return busy, work, launched

    def _throttle(
        self,
        fault: PlacedFault,
        sampled_ns: NDArray[np.int64],
        last_ns: NDArray[np.int64],
        heat: FloatArray,
        readings: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    ) -> None:
        mask, clock, power = readings
        place = (fault.node, fault.gpu)
        moment = int(sampled_ns[fault.node])
        overlap_s = fault.overlap_s(int(last_ns[fault.node]), moment)
        self._thermal_ns[place] += _THERMAL_VIOLATION_SHARE * overlap_s * 1e9
        progress = fault.progress(moment)
        if progress == 0.0:
            return
        heat[place] = (_THROTTLE_TEMPERATURE_C - self._temperature[place]) * progress
        mask[place] |= _SW_THERMAL | (_HW_THERMAL if progress >= 0.3 else 0)
        clock[place] -= round(progress * (_MAX_CLOCK - _THROTTLED_CLOCK) / 15) * 15
        power[place] *= 1.0 - 0.35 * progress

    def _brief_violation(self, sampled_ns: NDArray[np.int64], last_ns: NDArray[np.int64]) -> None:
        brief = self._look_alikes.get("brief_thermal_violation")
        if brief is not None and last_ns[brief.node] < brief.at_ns <= sampled_ns[brief.node]:
            self._thermal_ns[brief.node, brief.gpu] += 30e6

    def _corrected_errors(self, tick: int, elapsed_s: FloatArray) -> None:
        rising = self._look_alikes.get("corrected_ecc")
        if rising is not None:
            chance = 0.25 * float(elapsed_s[rising.node, 0])
            if self._noise.draw("corrected-ecc", self._fleet.node_ids[rising.node], tick) < chance:
                self._corrected[rising.node, rising.gpu] += 1

    def _without_lost(
        self, columns: dict[str, list[list[Any]]], sampled_ns: NDArray[np.int64]
    ) -> dict[str, list[list[Any]]]:
        lost = [fault for fault in self._effects.of_kind("xid79") if fault.active(int(sampled_ns[fault.node]))]
        if not lost:
            return columns
        for name, column in columns.items():
            rows = list(column)
            for fault in lost:
                row: list[Any] = list(rows[fault.node])
                row[fault.gpu] = None
                rows[fault.node] = row
            columns[name] = rows
        return columns


def _integers(values: NDArray[Any]) -> list[list[Any]]:
    result: list[list[Any]] = np.rint(values).astype(np.int64).tolist()
    return result

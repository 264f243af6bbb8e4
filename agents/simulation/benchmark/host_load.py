"""How busy the nodes' processors, memory and disks are: what heartbeats tell beside a node's life.

A healthy training node is a quarter busy (loaders, launchers, checkpoint writers). Contention fills it, a loader that waits
for its storage raises pressure and waiting for disks, a job that stands leaves its culprit's processors idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.benchmark.activity import strength_at
from agents.simulation.benchmark.drafts import derive
from agents.simulation.benchmark.fault_places import STANDING_KINDS
from schemas.events import HostLoad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.benchmark.activity import Activity
    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.fault_places import PlacedFault
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.noise import FloatArray, Noise

__all__ = ["HostLoads"]

_CPUS = 192
_MEMORY_BYTES = 2 << 40


class HostLoads:
    """Loads of all machines; state is how many ticks were read."""

    def __init__(self, case: BenchmarkCase, inventory: Inventory, faults: Sequence[PlacedFault], noise: Noise) -> None:
        self._case, self._inventory, self._faults, self._noise = case, inventory, faults, noise
        self._ticks = 0

    def read(self, at_us: FloatArray, activity: Activity) -> dict[str, list[list[Any]]]:
        """Figures by name, per moment and machine."""
        ticks = np.arange(self._ticks, self._ticks + len(at_us))
        self._ticks += len(at_us)
        keys = self._inventory.machine_keys
        runs = activity.step >= 0
        level = 0.24 + 0.04 * self._noise.uniform("cpu-level", keys)
        busy = np.where(runs, level, 0.02) + 0.01 * self._noise.normal_steps("cpu", keys, ticks)
        waiting = np.full(at_us.shape, 0.003)
        cpu_pressure, io_pressure = np.full(at_us.shape, 0.4), np.full(at_us.shape, 0.6)
        for fault in self._faults:
            strength = strength_at(fault, activity)
            hit = np.zeros(len(self._inventory.machines))
            hit[sorted({machine for machine, _ in fault.members})] = 1.0
            held = strength * hit
            if fault.kind == "host_contention":
                busy = np.maximum(busy, 0.97 * (held > 0) + 0.0 * busy)
                cpu_pressure += held * (25.0 + 40.0 * min(1.0, fault.plan.severity))
            elif fault.kind in ("loader_stall", "storage_stall"):
                waiting += held * (0.05 + 0.1 * min(1.0, fault.plan.severity))
                io_pressure += held * (15.0 + 50.0 * min(1.0, fault.plan.severity))
            elif fault.kind in STANDING_KINDS:
                busy = np.where(held > 0, 0.6 * busy, busy)
        busy = np.clip(busy, 0.0, 1.0)
        waiting = np.minimum(waiting, 1.0 - busy)
        return {
            "cpu_busy_ratio": np.round(busy, 4).tolist(),
            "cpu_iowait_ratio": np.round(waiting, 4).tolist(),
            "load_1min": np.round(_CPUS * (busy + waiting) * (1 + cpu_pressure / 100), 2).tolist(),
            "cpu_pressure_some_pct": np.round(np.clip(cpu_pressure, 0, 100), 2).tolist(),
            "io_pressure_some_pct": np.round(np.clip(io_pressure, 0, 100), 2).tolist(),
        }

    def record(self, loads: dict[str, list[list[Any]]], tick: int, machine: int, observed_ns: int) -> HostLoad:
        """The load that a heartbeat of a machine carries."""
        figures = {name: values[tick][machine] for name, values in loads.items()}
        return derive(_TEMPLATE, {"observed_ns": observed_ns, **figures})


_TEMPLATE = HostLoad(
    observed_ns=0,
    cpu_count=_CPUS,
    cpu_span_s=2.0,
    cpu_steal_ratio=0.0,
    cpu_pressure_full_pct=0.0,
    memory_pressure_some_pct=0.0,
    memory_pressure_full_pct=0.0,
    memory_total_bytes=_MEMORY_BYTES,
    memory_available_bytes=_MEMORY_BYTES * 3 // 4,
    disk_free_ratio={"/": 0.61},
    core_throttle_count=0,
    package_throttle_count=0,
)

"""Rows A of the catalogue: plain faults, each at several severities and shapes.

Rows about hangs (A12 to A17) are not here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agents.simulation.benchmark.case import BenchmarkCase, FaultPlan, NoisePlan, SamplingPlan
from agents.simulation.benchmark.shapes import ONSET, SHAPES, STEPS, healthy_case, one_fault, slow_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GRID", "plain_cases"]

GRID = (0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Severities."""

_END = STEPS - 10
_TIGHT = SamplingPlan(gpu_s=5.0, fabric_s=1.0, switch_s=1.0)
_SMALL, _LARGE = ("tp8-dp8", "tp4-pp4-dp4"), ("tp8-pp8-dp8", "tp4-pp4-ep4-dp32")


def _percent(severity: float) -> str:
    return f"{round(100 * severity)}pct"


def plain_cases() -> Iterator[BenchmarkCase]:
    """All rows A, in order."""
    yield from _compute()
    yield from _network()
    yield from _heat_and_power()
    yield from _host_and_software()


def _compute() -> Iterator[BenchmarkCase]:
    for severity in GRID:
        for name in (*_SMALL, "dp64"):
            yield one_fault("A1", _percent(severity), SHAPES[name], slow_gpu(severity), "the slow GPU")
    for severity, name in (
        (0.05, "tp8-pp8-dp8"),
        (0.1, "tp4-pp4-ep4-dp32"),
        (0.2, "tp8-dp64"),
        (0.2, "tp8-pp4x2-dp16"),
        (0.5, "tp8-pp8-dp8"),
    ):
        yield one_fault("A1", _percent(severity), SHAPES[name], slow_gpu(severity), "the slow GPU")
    for severity in (0.05, 0.1, 0.2, 0.5):
        for reported in (True, False):
            shape = SHAPES["tp8-dp8"]
            case = one_fault(
                "A1",
                f"variable-{'lengths' if reported else 'blind'}-{_percent(severity)}",
                shape,
                slow_gpu(severity, end=140),
                "the slow GPU; without lengths a small one cannot be told",
                steps=150,
                jobs=(shape.job(lengths="variable", lengths_reported=reported),),
            )
            yield case
    shape = SHAPES["tp8-dp8"]
    for placement in ("rank_order", "random"):
        yield one_fault(
            "A1",
            f"{placement}-20pct",
            SHAPES["tp8-pp2-dp4"],
            slow_gpu(0.2),
            "the slow GPU",
            jobs=(SHAPES["tp8-pp2-dp4"].job(placement=placement),),
        )
    for severity in GRID[1:]:
        fault = FaultPlan("host_contention", severity, ONSET, _END)
        yield one_fault("A2", _percent(severity), shape, fault, "the node")
    yield one_fault("A2", "20pct", SHAPES["tp8-pp8-dp8"], FaultPlan("host_contention", 0.2, ONSET, _END), "the node")


def _network() -> Iterator[BenchmarkCase]:
    for share, word in ((0.5, "half"), (0.25, "quarter")):
        fault = FaultPlan("nic_speed", 0.0, ONSET, _END, speed_share=share)
        for name in (*_SMALL, "tp8-dp64"):
            yield one_fault("A3", word, SHAPES[name], fault, "the NIC's port", tags={"speed_share": share})
    for share, word in ((0.5, "x8"), (0.25, "x4"), (0.0625, "x1")):
        fault = FaultPlan("pcie_downgrade", 0.0, ONSET, _END, speed_share=share)
        yield one_fault("A4", word, SHAPES["tp8-dp8"], fault, "the GPU", tags={"speed_share": share})
    fault = FaultPlan("pcie_downgrade", 0.0, ONSET, _END, speed_share=0.25)
    yield one_fault("A4", "x4", SHAPES["tp8-pp8-dp8"], fault, "the GPU")
    for severity in (0.05, 0.2, 1.0):
        for name in ("tp8-dp8", "tp4-pp4-dp4"):
            shape = SHAPES[name]
            fault = FaultPlan("link_loss", severity, ONSET, _END)
            yield one_fault("A5", _percent(severity), shape, fault, "the NIC's port", sampling=_TIGHT)
        shape = SHAPES["tp8-dp8"]
        infiniband = shape.fleet(transport="infiniband")
        fault = FaultPlan("link_loss", severity, ONSET, _END)
        yield one_fault("A5", f"infiniband-{_percent(severity)}", shape, fault, "the NIC's port", fleet=infiniband)
        fault = FaultPlan("switch_degraded", severity, ONSET, _END)
        yield one_fault(
            "A6", f"leaf-{_percent(severity)}", shape, fault, "the leaf", fleet=shape.fleet(shape="lingjun")
        )
    large = SHAPES["tp8-dp64"]
    fault = FaultPlan("switch_degraded", 0.2, ONSET, _END)
    yield one_fault(
        "A6",
        "leaf-random-20pct",
        large,
        fault,
        "the leaf",
        fleet=large.fleet(shape="lingjun"),
        jobs=(large.job(placement="random"),),
    )
    for severity in (0.3, 1.0):
        fault = FaultPlan("pause_storm", severity, ONSET, _END)
        for fabric in ("rail", "lingjun"):
            shape = SHAPES["tp8-dp8"]
            yield one_fault(
                "A10",
                f"{fabric}-{_percent(severity)}",
                shape,
                fault,
                "the port that pauses",
                fleet=shape.fleet(shape=fabric),
                sampling=_TIGHT,
            )
        fault = FaultPlan("slow_receiver", severity / 2, ONSET, _END)
        yield one_fault("A11", _percent(severity / 2), SHAPES["tp8-dp8"], fault, "the receiver's port", sampling=_TIGHT)


def _heat_and_power() -> Iterator[BenchmarkCase]:
    for severity in GRID[1:]:
        # Heat comes over five minutes: 120 steps.
        fault = FaultPlan("thermal", severity, ONSET, 190, pattern="ramp", ramp_steps=120)
        yield one_fault("A7", _percent(severity), SHAPES["tp8-dp8"], fault, "the GPU", steps=200)
    fault = FaultPlan("thermal", 0.3, ONSET, 190, pattern="ramp", ramp_steps=120)
    yield one_fault("A7", "30pct", SHAPES["tp8-pp8-dp8"], fault, "the GPU", steps=200)
    for severity, count, name in (
        (0.2, 3, "tp8-dp8"),
        (0.3, 8, "tp8-dp8"),
        (0.3, 12, "tp4-pp4-dp4"),
        (0.3, 40, "tp8-dp64"),
    ):
        fault = FaultPlan("zone_throttle", severity, ONSET, 130, pattern="ramp", ramp_steps=30, count=count)
        yield one_fault("A8", f"{count}gpus", SHAPES[name], fault, "the zone, no node", steps=140)
    for severity in (0.2, 0.5, 1.0):
        fault = FaultPlan("power_brake", severity, ONSET, _END)
        yield one_fault("A9", _percent(severity), SHAPES["tp8-dp8"], fault, "the node")


def _host_and_software() -> Iterator[BenchmarkCase]:
    shape = SHAPES["tp8-dp8"]
    for severity in GRID[1:]:
        yield one_fault("A18", _percent(severity), shape, FaultPlan("loader_stall", severity, ONSET, _END), "the host")
        fault = FaultPlan("storage_stall", severity, ONSET, _END)
        yield one_fault("A19", _percent(severity), shape, fault, "storage: the job, no node")
    for name in (*_SMALL, "tp8-dp64"):
        for period in (40, 100):
            fault = FaultPlan("garbage_collection", 0.1, ONSET, _END, period_steps=period)
            quiet = NoisePlan(gc_every_steps=0)
            yield one_fault("A20", f"every-{period}", SHAPES[name], fault, "the job: no node", noise=quiet)
    for severity in (0.1, 0.3):
        fault = FaultPlan("memory_fragmentation", severity, 30, 190, pattern="drift")
        yield one_fault("A21", _percent(severity), SHAPES["tp8-dp8"], fault, "the rank; restart, no node", steps=200)
    fault = FaultPlan("silent_corruption", 0.0, ONSET, _END)
    yield one_fault("A22", "silent", shape, fault, "nothing: no rule can place it")
    for name in (*_SMALL, *_LARGE):
        yield replace(healthy_case("A0", "healthy", SHAPES[name], "nothing"), tags={"shape": name})

"""Fleets and jobs that scenarios are made of: parallel shapes by size, and a healthy case around a fault.

A case has about a hundred steps of 2.5 s: warm-up, a healthy prelude with look-alikes, the fault, a quiet end. Sizes of
512 ranks and more tell nodes and ports less often where ports are not what the case is about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agents.simulation.benchmark.case import (
    BenchmarkCase,
    DeliveryPlan,
    FaultPlan,
    FleetPlan,
    JobPlan,
    LookAlike,
    NoisePlan,
    PhasePlan,
    SamplingPlan,
)

__all__ = ["ONSET", "PRELUDE", "SHAPES", "STEPS", "Shape", "healthy_case", "one_fault", "slow_gpu"]

ONSET, STEPS = 40, 100
"""First faulty step and number of steps of an ordinary case; the fault ends ten steps before the end."""

PRELUDE: tuple[LookAlike, ...] = (
    "power_cap",
    "corrected_ecc",
    "pcie_idle",
    "application_xid",
    "brief_thermal",
    "pause_trickle",
)

_LARGE = 256


@dataclass(frozen=True)
class Shape:
    """A parallel shape and its size."""

    name: str
    nodes: int
    tensor: int
    pipeline: int = 1
    expert: int = 1
    microbatches: int = 8
    virtual_pipeline: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return 8 * self.nodes

    def job(self, **changes: Any) -> JobPlan:
        """The job of this shape, with other fields."""
        plan = JobPlan(
            job_id="job-0",
            nodes=self.nodes,
            tensor=self.tensor,
            pipeline=self.pipeline,
            expert=self.expert,
            microbatches=self.microbatches,
            virtual_pipeline=self.virtual_pipeline,
            phases=PhasePlan(checkpoint_every=25, evaluation_every=0),
        )
        return replace(plan, **changes)

    def fleet(self, **changes: Any) -> FleetPlan:
        """The fleet that the job fills, with other fields."""
        small = self.nodes <= 16
        plan = FleetPlan(
            nodes=self.nodes,
            nodes_per_pod=4 if small else 8,
            nodes_per_leaf=4 if small else 8,
            nodes_per_rack=2 if small else 4,
            racks_per_zone=1 if small else 2,
        )
        return replace(plan, **changes)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("dp64", 8, tensor=1, microbatches=4),
        Shape("tp8-dp8", 8, tensor=8),
        Shape("tp4-pp4-dp4", 8, tensor=4, pipeline=4, microbatches=16),
        Shape("tp8-pp2-dp4", 8, tensor=8, pipeline=2),
        Shape("tp4-pp2-ep4-dp8", 8, tensor=4, pipeline=2, expert=4),
        Shape("tp8-dp64", 64, tensor=8),
        Shape("tp8-pp8-dp8", 64, tensor=8, pipeline=8, microbatches=24),
        Shape("tp4-pp4-ep4-dp32", 64, tensor=4, pipeline=4, expert=4, microbatches=16),
        Shape("tp8-pp4x2-dp16", 64, tensor=8, pipeline=4, microbatches=16, virtual_pipeline=2),
    )
}


def healthy_case(scenario: str, variant: str, shape: Shape, expect: str, **changes: Any) -> BenchmarkCase:
    """A case without a fault.

    Args:
        scenario: row of the catalogue.
        variant: tells cases of a row apart.
        shape: parallel shape.
        expect: what is right.
        **changes: other fields of the case.
    """
    large = shape.ranks >= _LARGE
    ports_s, node_s = (15.0, 10.0) if large else (5.0, 5.0)
    case = BenchmarkCase(
        case_id=f"{scenario}/{variant}/{shape.name}",
        suite="ci",
        scenario=scenario,
        fleet=shape.fleet(),
        jobs=(shape.job(),),
        steps=STEPS,
        look_alikes=PRELUDE,
        noise=NoisePlan(gc_every_steps=4000 if large else 500),
        sampling=SamplingPlan(gpu_s=node_s, fabric_s=ports_s, switch_s=ports_s, heartbeat_s=node_s, progress_s=node_s),
        delivery=DeliveryPlan(),
        expect=expect,
    )
    return replace(case, **changes)


def one_fault(
    scenario: str, variant: str, shape: Shape, fault: FaultPlan, expect: str, **changes: Any
) -> BenchmarkCase:
    """A case with one fault; its severity is a tag."""
    tags = {"severity": fault.severity, "shape": shape.name, **changes.pop("tags", {})}
    return healthy_case(scenario, variant, shape, expect, faults=(fault,), tags=tags, **changes)


def slow_gpu(severity: float, onset: int = ONSET, end: int = STEPS - 10, **changes: Any) -> FaultPlan:
    """One GPU that computes slowly."""
    return FaultPlan("gpu_compute", severity, onset, end, **changes)

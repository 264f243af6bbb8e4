"""Registrations of a job: what it computes, and where its ranks run in one epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.simulation.benchmark.step_records import tokens_per_replica
from schemas.fleet import Job, Layout, Model, RankPlacement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.layout import Segment

__all__ = ["job_record", "placement_records"]


def job_record(
    case: BenchmarkCase, segment: Segment, effective_from_ns: int, version: int = 1, *, ended: bool = False
) -> Job:
    """The registration of a job in one epoch, or its end."""
    plan = segment.plan
    return Job(
        job_id=plan.job_id,
        version=version,
        effective_from_ns=effective_from_ns,
        epoch=segment.epoch,
        state="ended" if ended else "running",
        world_size=segment.world,
        step_timings=plan.timings_reported,
        model=Model(parameters=plan.parameters),
        layout=Layout(
            tensor=plan.tensor,
            data=segment.replicas,
            pipeline=plan.pipeline,
            expert=plan.expert,
            virtual_pipeline=plan.virtual_pipeline,
        ),
        tokens_per_step=tokens_per_replica(case, segment) * segment.replicas,
        sku=case.fleet.sku,
        peak_tflops=case.fleet.peak_tflops,
    )


def placement_records(
    segment: Segment, inventory: Inventory, effective_from_ns: int, version: int = 1
) -> Iterator[RankPlacement]:
    """Where the ranks run, a record a node."""
    width = segment.gpus_per_node
    for place, node in enumerate(segment.nodes):
        machine = inventory.machines[node]
        ranks = range(place * width, (place + 1) * width)
        yield RankPlacement(
            job_id=segment.plan.job_id,
            version=version,
            effective_from_ns=effective_from_ns,
            epoch=segment.epoch,
            node_id=machine.node_id,
            rank=tuple(ranks),
            gpu_uuid=machine.gpu_uuids,
            pci_bus_id=inventory.pci_bus_ids,
            sku=(machine.sku,) * width,
            stage=tuple(segment.coordinates(rank)[0] for rank in ranks),
        )

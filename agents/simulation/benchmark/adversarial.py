"""Rows B of the catalogue: cases that break one naive rule each.

Rows about hangs (B18 to B21) and about what is done with verdicts (B28 to B30) are not here; there are no B17 and B27.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agents.simulation.benchmark.case import (
    BenchmarkCase,
    DeliveryPlan,
    FaultPlan,
    NoisePlan,
    PhasePlan,
    ResizePlan,
    SamplingPlan,
)
from agents.simulation.benchmark.shapes import ONSET, SHAPES, STEPS, healthy_case, one_fault, slow_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["adversarial_cases"]

_END = STEPS - 10
_PERFECT = DeliveryPlan(delay_p50_ms=20.0, delay_p99_ms=200.0, duplicates=0.0, out_of_order=0.0, loss=0.0)


def adversarial_cases() -> Iterator[BenchmarkCase]:
    """All rows B, in order."""
    yield from _stages_and_lengths()
    yield from _several_and_intermittent()
    yield from _streams()
    yield from _membership()
    yield from _network()
    yield from _no_fault()


def _stages_and_lengths() -> Iterator[BenchmarkCase]:
    for severity in (0.05, 0.2, 0.5):
        for name in ("tp8-dp8", "dp64"):
            yield one_fault("B1", f"{round(100 * severity)}pct", SHAPES[name], slow_gpu(severity), "the slow GPU")
        for name in ("tp4-pp4-dp4", "tp8-pp8-dp8"):
            fault = slow_gpu(severity, stage=0)
            yield one_fault("B2", f"{round(100 * severity)}pct", SHAPES[name], fault, "the rank of stage 0 alone")
    for factor in (1.06, 1.5, 2.07):
        for name in ("tp4-pp4-dp4", "tp8-pp8-dp8"):
            shape = SHAPES[name]
            job = shape.job(last_stage_factor=factor)
            case = healthy_case("B3", f"x{factor}", shape, "advice on the partition, no node", jobs=(job,))
            yield replace(case, tags={"factor": factor})
    for name in ("tp8-dp8", "tp4-pp4-dp4"):
        for reported in (True, False):
            shape = SHAPES[name]
            variant = "lengths" if reported else "blind"
            job = shape.job(lengths="variable", lengths_reported=reported)
            yield healthy_case("B4", variant, shape, "nothing", jobs=(job,), steps=150)


def _several_and_intermittent() -> Iterator[BenchmarkCase]:
    shape = SHAPES["tp8-dp8"]
    for name in ("tp8-dp8", "tp8-dp64"):
        for kind in ("fleet_power_cap", "fleet_code"):
            fault = FaultPlan(kind, 0.05, ONSET, _END)
            yield one_fault("B5", kind.removeprefix("fleet_"), SHAPES[name], fault, "the job, no node")
    for severity in (0.1, 0.2, 0.5):
        two = (slow_gpu(severity), slow_gpu(severity, same_peers_as=0))
        variant = f"same-peers-{round(100 * severity)}pct"
        for name in ("tp8-dp8", "tp4-pp4-dp4"):
            yield healthy_case("B6", variant, SHAPES[name], "both GPUs", faults=two)
        pair = (slow_gpu(severity, stage=1), slow_gpu(severity, next_stage_to=0))
        variant = f"same-pair-{round(100 * severity)}pct"
        yield healthy_case("B6", variant, SHAPES["tp4-pp4-dp4"], "both GPUs", faults=pair)
    for severity in (0.1, 0.2, 0.5):
        rack = FaultPlan("rack_slow", severity, ONSET, _END)
        fleet = shape.fleet(nodes_per_rack=5)
        yield one_fault("B7", f"{round(100 * severity)}pct", shape, rack, "the rack", fleet=fleet)
    large = SHAPES["tp8-pp8-dp8"]
    yield one_fault(
        "B7",
        "20pct",
        large,
        FaultPlan("rack_slow", 0.2, ONSET, _END),
        "the rack",
        fleet=large.fleet(nodes_per_rack=6),
        jobs=(large.job(placement="rank_order"),),
    )
    for severity in (0.2, 0.5):
        for pattern in ("three_of_ten", "every_37", "bursts"):
            fault = slow_gpu(severity, end=ONSET + 120, pattern=pattern)
            variant = f"{pattern}-{round(100 * severity)}pct"
            yield one_fault("B8", variant, shape, fault, "the slow GPU within 100 steps", steps=ONSET + 130)


def _streams() -> Iterator[BenchmarkCase]:
    shape = SHAPES["tp8-dp8"]
    for share in (0.01, 0.05, 0.3):
        job = shape.job(missing_share=share, missing_from_step=0)
        variant = f"{round(100 * share)}pct-missing"
        yield one_fault("B10", variant, shape, slow_gpu(0.2), "the slow GPU, or insufficient", jobs=(job,))
        healthy = healthy_case("B10", variant + "-healthy", shape, "nothing", jobs=(job,))
        yield healthy
    for offset_ms in (0.0, 10.0, 100.0):
        noise = NoisePlan(clock_offset_ms=offset_ms)
        yield one_fault("B11", f"{offset_ms:g}ms", shape, slow_gpu(0.2), "the slow GPU", noise=noise)
    noise = NoisePlan(clock_step_s=5.0)
    yield one_fault("B11", "5s-step", shape, slow_gpu(0.2), "the slow GPU", noise=noise)
    deliveries = {
        "clean": _PERFECT,
        "duplicates": replace(_PERFECT, duplicates=1.0, duplicate_copies=9),
        "reversed": replace(_PERFECT, reverse_window_s=60.0),
        "both": replace(_PERFECT, duplicates=0.5, duplicate_copies=9, reverse_window_s=60.0),
    }
    for variant, delivery in deliveries.items():
        yield one_fault("B12", variant, shape, slow_gpu(0.2), "what the clean stream gives", delivery=delivery)


def _membership() -> Iterator[BenchmarkCase]:
    middle = ONSET + 25
    for name in ("tp8-dp8", "tp4-pp4-dp4"):
        shape = SHAPES[name]
        for severity in (0.2, 0.5):
            job = shape.job(resize=ResizePlan(middle, "shrink_and_renumber"))
            variant = f"{round(100 * severity)}pct"
            yield one_fault("B13", variant, shape, slow_gpu(severity), "the same GPU under both numbers", jobs=(job,))
            job = shape.job(resize=ResizePlan(middle, "swap_spare"))
            fault = slow_gpu(severity, end=middle)
            expect = "the old GPU until the swap, the spare never"
            yield one_fault("B14", variant, shape, fault, expect, jobs=(job,), steps=150)


def _network() -> Iterator[BenchmarkCase]:
    tight = SamplingPlan(fabric_s=1.0, switch_s=1.0)
    shape = SHAPES["tp8-dp8"]
    for severity in (0.1, 0.2, 0.5):
        variant = f"{round(100 * severity)}pct"
        silent = FaultPlan("link_slow", severity, ONSET, _END, counters_visible=False)
        yield one_fault("B15", variant, shape, silent, "the link, or network without a place")
        for visible in (True, False):
            rail = FaultPlan("switch_degraded", severity, ONSET, _END, counters_visible=visible)
            told = variant if visible else variant + "-silent"
            yield one_fault("B16", told, shape, rail, "the rail's switch")
        both = FaultPlan("switch_degraded", severity, ONSET, _END)
        fleet = shape.fleet(nodes=12, shape="lingjun", nodes_per_leaf=4)
        jobs = tuple(shape.job(job_id=f"job-{index}", nodes=6) for index in range(2))
        yield one_fault("B31", variant, shape, both, "the leaf that both jobs share", fleet=fleet, jobs=jobs)
    large = SHAPES["tp8-dp64"]
    storm = FaultPlan("pause_storm", 0.5, ONSET, ONSET + 25, count=220)
    yield one_fault(
        "B24", "220-victims", large, storm, "the port that pauses", steps=ONSET + 35, sampling=SamplingPlan()
    )
    storm = FaultPlan("pause_storm", 0.5, ONSET, _END, count=60)
    yield one_fault("B24", "60-victims", shape, storm, "the port that pauses", sampling=tight)
    for severity in (0.1, 0.2, 0.5):
        for view in ("folded", "folded_recorded", "separated"):
            job = shape.job(tensor_view=view)
            variant = f"{view}-{round(100 * severity)}pct"
            expect = "the tensor group or its node; the member where the group's waits are told"
            yield one_fault("B32", variant, shape, slow_gpu(severity), expect, jobs=(job,))


def _no_fault() -> Iterator[BenchmarkCase]:
    shape = SHAPES["tp8-dp8"]
    phases = PhasePlan(warmup_steps=10, checkpoint_every=20, evaluation_every=33, compile_at=(45, 46, 70))
    for name in ("tp8-dp8", "tp4-pp4-dp4", "tp8-pp8-dp8"):
        busy = SHAPES[name].job(phases=phases)
        yield healthy_case("B9", "phases", SHAPES[name], "nothing", jobs=(busy,), noise=NoisePlan(gc_every_steps=300))
    for name in ("tp8-dp64", "tp8-pp8-dp8"):
        for severity in (0.2, 1.0):
            blip = slow_gpu(severity, end=ONSET + 1, is_look_alike=True)
            variant = f"{round(100 * severity)}pct"
            yield healthy_case("B22", variant, SHAPES[name], "nothing", faults=(blip,))
    for name in ("tp8-dp8", "tp8-dp64"):
        frequent = SHAPES[name].job(phases=PhasePlan(checkpoint_every=10, checkpoint_steps=4.0))
        yield healthy_case("B23", "bits", SHAPES[name], "nothing", jobs=(frequent,))
    experts = SHAPES["tp4-pp2-ep4-dp8"]
    for period, steps in ((200, 460), (50, 200)):
        hot = FaultPlan("hot_expert", 0.2, ONSET, steps - 10, period_steps=period)
        yield one_fault("B25", f"every-{period}", experts, hot, "the workload, no node", steps=steps)
    for count in (2, 4):
        yield healthy_case("B26", f"{count}-of-8", shape, "nothing", fleet=shape.fleet(other_sku_nodes=count))

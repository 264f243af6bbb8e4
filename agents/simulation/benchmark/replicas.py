"""Sets that follow published studies, fault-free soaks, and one very large barrier.

Protocol-comparable only: none of the studies released its labelled faults. What a study does not tell is drawn here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from agents.simulation.benchmark.case import (
    BenchmarkCase,
    DeliveryPlan,
    FaultKind,
    FaultPlan,
    FleetPlan,
    JobPlan,
    NoisePlan,
    PhasePlan,
    SamplingPlan,
    TransferShares,
)
from agents.simulation.benchmark.shapes import PRELUDE, SHAPES, healthy_case
from agents.simulation.noise import Noise

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "barrier_cases",
    "greyhound_cases",
    "greyhound_detection_cases",
    "greyhound_slow_cases",
    "minder_cases",
    "resihp_cases",
    "soak_cases",
    "what_if_cases",
]

Pairs = list[tuple[BenchmarkCase, int]]

_MINDER_FAULTS = 150
_MINDER_SHARES: tuple[tuple[FaultKind, float], ...] = (
    ("gpu_memory_error", 0.257),
    ("cuda_error", 0.15),
    ("gpu_execution_error", 0.10),
    ("pcie_downgrade", 0.086),
    ("nvlink_error", 0.08),
    ("machine_unreachable", 0.08),
    ("link_loss", 0.08),
    ("nic_speed", 0.06),
    ("host_contention", 0.06),
    ("thermal", 0.047),
)
"""Published for the first four; the rest is spread over kinds that the study names (chosen)."""


def minder_cases(seeds: Sequence[int]) -> Pairs:
    """150 faults on 4 to 1,500 machines; no step timings, counters every second, four minutes."""
    pairs: Pairs = []
    for index in range(_MINDER_FAULTS):
        seed = seeds[index % len(seeds)]
        noise = Noise(seed)
        entity = f"minder-{index}"
        machines = round(4 * (1500 / 4) ** noise.draw("machines", entity))
        kind = _by_share((index + 0.5) / _MINDER_FAULTS)
        fault = FaultPlan(
            kind, 0.3, 20, 60, speed_share=0.25, pattern="ramp" if kind == "thermal" else "constant", ramp_steps=10
        )
        case = BenchmarkCase(
            case_id=f"C1/{index:03d}-{kind}/{machines}",
            suite="minder",
            scenario="C1",
            fleet=FleetPlan(nodes=machines, shape="lingjun"),
            jobs=(JobPlan("job-0", machines, tensor=8, microbatches=2, step_s=4.0, timings_reported=False),),
            steps=60,
            faults=(fault,),
            look_alikes=PRELUDE,
            sampling=SamplingPlan(gpu_s=1.0, fabric_s=1.0, switch_s=10.0, heartbeat_s=1.0),
            expect="the machine",
            tags={"machines": machines, "kind": kind},
        )
        pairs.append((case, seed))
    return pairs


def _by_share(place: float) -> FaultKind:
    reached = 0.0
    for kind, share in _MINDER_SHARES:
        reached += share
        if place < reached:
            return kind
    return _MINDER_SHARES[-1][0]


def greyhound_cases(seeds: Sequence[int]) -> Pairs:
    """One run a seed: 256 ranks, twelve episodes (ten compute, two network), gaps of mean 240 s and a rest of 60 s.

    The study tells neither the length of a step nor how long measurements travel; both are chosen. It verifies over at
    least ten steps and reacts within 10.56 s on average, so its steps take a second or less. It measures beside its jobs:
    records take as long as they did from the agent's publisher to a finding through a broker of the same place, with a
    longer tail. `greyhound_slow` is the same under longer steps and the slow way that the other suites have.
    """
    return _greyhound_runs(seeds, "greyhound", 1.0, DeliveryPlan(delay_p50_ms=70.0, delay_p99_ms=500.0))


def greyhound_slow_cases(seeds: Sequence[int]) -> Pairs:
    """As `greyhound_cases` with steps of 2.5 s and a way on which one record in a hundred takes 5 s and more.

    A step of 32 nodes is whole 7.6 s after its end on such a way, on average: there is no reaction within 10.56 s then.
    """
    return _greyhound_runs(seeds, "greyhound_slow", 2.5, DeliveryPlan())


def _greyhound_runs(seeds: Sequence[int], suite: str, step_s: float, delivery: DeliveryPlan) -> Pairs:
    pairs: Pairs = []
    for seed in seeds:
        noise = Noise(seed)
        faults = []
        step = 30
        for episode in range(12):
            step += round((60.0 - 240.0 * math.log(noise.draw("gap", "greyhound", episode))) / step_s)
            normal = math.sqrt(-2 * math.log(noise.draw("length", "greyhound", episode)))
            normal *= math.cos(2 * math.pi * noise.draw("length-angle", "greyhound", episode))
            end = step + max(10, round((120.0 + 20.0 * normal) / step_s))
            severity = noise.between("severity", 0.15, 0.6, "greyhound", episode)
            network = episode in (4, 9)
            kind: FaultKind = "link_loss" if network else "gpu_compute"
            faults.append(FaultPlan(kind, severity, step, end))
            step = end
        shape = replace(SHAPES["tp8-pp8-dp8"], name="tp8-pp4-dp8", nodes=32, pipeline=4, microbatches=16)
        job = shape.job(step_s=step_s, phases=PhasePlan(checkpoint_every=round(60 / step_s), evaluation_every=0))
        case = healthy_case(
            "C3",
            f"seed{seed}",
            shape,
            "twelve of twelve",
            suite=suite,
            steps=step + 40,
            jobs=(job,),
            faults=tuple(faults),
            sampling=SamplingPlan(gpu_s=10.0, fabric_s=10.0, switch_s=10.0),
            delivery=delivery,
        )
        pairs.append((case, seed))
    return pairs


def greyhound_detection_cases(seeds: Sequence[int]) -> Pairs:
    """392 single-node jobs of which 6 are slow in compute, 107 of four nodes of which 42 are slow in communication."""
    pairs: Pairs = []
    for index in range(392 + 107):
        single = index < 392
        number = index if single else index - 392
        slow = (
            number * 6 // 392 != (number + 1) * 6 // 392 if single else number * 42 // 107 != (number + 1) * 42 // 107
        )
        nodes = 1 if single else 4
        seed = seeds[index % len(seeds)] + 1000 * (index // len(seeds))
        severity = Noise(seed).between("severity", 0.12, 0.6, f"detection-{index}")
        kinds: tuple[FaultKind, ...] = ("nic_speed", "link_loss", "link_slow", "switch_degraded")
        kind: FaultKind = "gpu_compute" if single else kinds[number % 4]
        fault = FaultPlan(kind, severity, 40, 90, speed_share=0.25)
        case = BenchmarkCase(
            case_id=f"C2/{index:03d}-{'slow' if slow else 'healthy'}/{8 * nodes}",
            suite="greyhound_detection",
            scenario="C2",
            fleet=FleetPlan(nodes=nodes, nodes_per_pod=2),
            jobs=(JobPlan("job-0", nodes, tensor=1 if single else 8, microbatches=4),),
            steps=100,
            faults=(fault,) if slow else (),
            look_alikes=PRELUDE,
            expect="slow" if slow else "nothing",
            tags={"slow": float(slow), "nodes": nodes},
        )
        pairs.append((case, seed))
    return pairs


_WHAT_IF_JOBS = 3_079


def what_if_cases(seeds: Sequence[int]) -> Pairs:
    """3,079 jobs of which 42.5 % are slowed by 10 % and more: a worker 1.7 %, the last stage 39.3 %, lengths 21.4 %, others."""
    pairs: Pairs = []
    shape = SHAPES["tp4-pp4-dp4"]
    for index in range(_WHAT_IF_JOBS):
        seed = seeds[index % len(seeds)] + 1000 * (index // len(seeds))
        noise, entity = Noise(seed), f"what-if-{index}"
        cause, place = "healthy", noise.draw("cause", entity)
        if noise.draw("straggles", entity) < 0.425:
            cause = (
                "worker" if place < 0.017 else "last_stage" if place < 0.41 else "lengths" if place < 0.624 else "other"
            )
        job = shape.job()
        faults: tuple[FaultPlan, ...] = ()
        if cause == "worker":
            faults = (FaultPlan("gpu_compute", noise.between("d", 1.5, 4.5, entity), 20, 80),)
        elif cause == "last_stage":
            job = shape.job(last_stage_factor=noise.between("factor", 1.3, 2.1, entity))
        elif cause == "lengths":
            job = shape.job(lengths="variable", lengths_reported=noise.draw("told", entity) < 0.5)
        elif cause == "other":
            kinds: tuple[FaultKind, ...] = ("storage_stall", "link_loss", "switch_degraded", "host_contention")
            faults = (FaultPlan(kinds[index % 4], noise.between("d", 0.2, 0.6, entity), 20, 80),)
        case = healthy_case(
            "C4",
            f"{index:04d}-{cause}",
            shape,
            cause,
            suite="what_if",
            steps=85,
            jobs=(job,),
            faults=faults,
            tags={"cause": cause},
        )
        pairs.append((case, seed))
    return pairs


def resihp_cases(seeds: Sequence[int]) -> Pairs:
    """Variable lengths over 10,000 steps without a fault, with and without lengths told."""
    pairs: Pairs = []
    shape = SHAPES["tp8-dp8"]
    for seed in seeds:
        for reported in (True, False):
            job = shape.job(lengths="variable", lengths_reported=reported, phases=PhasePlan(checkpoint_every=500))
            case = healthy_case(
                "C8",
                "lengths" if reported else "blind",
                shape,
                "nothing",
                suite="resihp",
                steps=10_000,
                jobs=(job,),
                sampling=SamplingPlan(gpu_s=60.0, fabric_s=60.0, switch_s=60.0, heartbeat_s=15.0, progress_s=15.0),
            )
            pairs.append((case, seed))
    return pairs


def soak_cases(seeds: Sequence[int]) -> Pairs:
    """Fault-free, closed form, steps of 10 s, 16,384 ranks in eight stages and 4,096 in one in turn; `gpu_days` are a tag.

    Each seed has a long run of whole steps, about 3,034 GPU-days, so that ten seeds have 30,000; and a short one with every
    message, device counters and look-alikes with them, about 76 GPU-days.
    """
    pairs: Pairs = []
    for number, seed in enumerate(seeds):
        nodes, steps, told_steps = ((2048, 1600, 40), (512, 6400, 160))[number % 2]
        pairs.append((_soak_case(nodes, steps, "whole_steps"), seed))
        pairs.append((_soak_case(nodes, told_steps, "records"), seed))
    return pairs


def _soak_case(nodes: int, steps: int, form: Literal["records", "whole_steps"]) -> BenchmarkCase:
    job = JobPlan(
        "job-0",
        nodes,
        tensor=8,
        pipeline=8 if nodes > 1000 else 1,
        microbatches=8,
        step_s=10.0,
        phases=PhasePlan(checkpoint_every=100),
    )
    return BenchmarkCase(
        case_id=f"soak/{steps}-{form.replace('_', '-')}/{8 * nodes}",
        suite="soak",
        scenario="soak",
        fleet=FleetPlan(nodes=nodes, shape="lingjun"),
        jobs=(job,),
        steps=steps,
        look_alikes=PRELUDE,
        noise=NoisePlan(gc_every_steps=4000, blocks=2),
        sampling=SamplingPlan(gpu_s=30.0, fabric_s=60.0, switch_s=60.0, heartbeat_s=15.0, progress_s=15.0),
        level="L2",
        form=form,
        expect="nothing",
        tags={"gpu_days": round(nodes * 8 * steps * 10.0 / 86_400, 1)},
    )


_QUIET = NoisePlan(
    microbatch_forward=0.004,
    microbatch_backward=0.006,
    block=0.002,
    device=0.001,
    common=0.002,
    walk=0.001,
    diurnal=0.0,
    loader=0.2,
)
"""So little that the slowest of 2,048 healthy ranks does not lower the MFU by itself."""


def barrier_cases(seeds: Sequence[int]) -> Pairs:
    """2,048 ranks of which one makes the others spend 70 % of a step in the all-reduce: MFU falls from 52 to 19 %.

    With a share h of transfer and a step stretched by 52/19, the others' own time is 30 % of the long step; that leaves
    h = 1 - 0.3 x 52/19 = 0.179, and the culprit's own time is 2.558 over 0.821 of the healthy step.
    """
    stretch = 52.0 / 19.0
    own = 0.3 * stretch
    transfer = 1.0 - own
    severity = (stretch - transfer) / own - 1.0
    job = JobPlan(
        "job-0",
        256,
        tensor=1,
        microbatches=2,
        step_s=2.0,
        mfu=0.52,
        parameters=8e9,
        transfers=TransferShares(data=transfer),
        host_share=0.01,
        data_share=0.002,
    )
    case = BenchmarkCase(
        case_id="barrier/one-of-2048/2048",
        suite="barrier",
        scenario="barrier",
        fleet=FleetPlan(nodes=256, shape="lingjun"),
        jobs=(job,),
        steps=60,
        faults=(FaultPlan("gpu_compute", severity, 35, 55),),
        look_alikes=PRELUDE,
        noise=_QUIET,
        sampling=SamplingPlan(gpu_s=5.0, fabric_s=15.0, switch_s=15.0),
        expect="the one GPU",
        tags={"severity": round(severity, 3)},
    )
    return [(case, seed) for seed in seeds]

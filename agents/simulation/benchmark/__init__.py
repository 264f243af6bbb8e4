"""The benchmark's generator: labelled telemetry of simulated fleets, from plain cases and a seed.

    for case, seed in cases("ci", TUNING_SEEDS[:1]):
        run = generate(case, seed)
        for arrival_ns, record in run:      # what a reader of the topics sees, by arrival
            ...
        run.truths                          # what is wrong in it, never published

A run is a pure function of (case, seed): same arguments, same records in the same order. Random numbers are hashes of
(seed, purpose, entity, step), so that an entity more changes nobody else's draws. Every record is what a node agent, a
switch agent, the trainer hook or the registry would publish. Written without knowledge of the rules that read it.

Deliberately not: hangs (scenarios A12 to A17, B18 to B21), incident policy (B28 to B30) and the judging itself.
"""

from agents.simulation.benchmark.case import (
    BenchmarkCase,
    DeliveryPlan,
    FaultPlan,
    FleetPlan,
    JobPlan,
    NoisePlan,
    PhasePlan,
    SamplingPlan,
)
from agents.simulation.benchmark.catalogue import HELD_OUT_SEEDS, SUITES, TUNING_SEEDS, cases
from agents.simulation.benchmark.labels import CAUSE_CLASSES, NODE_COSTING_KINDS, Place, Truth
from agents.simulation.benchmark.run import GeneratedRun, generate
from agents.simulation.benchmark.whole_steps import Membership, WholeStep

__all__ = [
    "CAUSE_CLASSES",
    "HELD_OUT_SEEDS",
    "NODE_COSTING_KINDS",
    "SUITES",
    "TUNING_SEEDS",
    "BenchmarkCase",
    "DeliveryPlan",
    "FaultPlan",
    "FleetPlan",
    "GeneratedRun",
    "JobPlan",
    "Membership",
    "NoisePlan",
    "PhasePlan",
    "Place",
    "SamplingPlan",
    "Truth",
    "WholeStep",
    "cases",
    "generate",
]

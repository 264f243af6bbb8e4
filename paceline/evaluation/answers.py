"""What the engine's words mean in the benchmark's: classes of incidents and kinds of job-level findings.

One table each, so that nothing is matched by accident. A class of the engine that stands in no table and is no class of
the benchmark is told as unmapped and is never right.
"""

from __future__ import annotations

from agents.simulation.benchmark.labels import CAUSE_CLASSES

__all__ = ["CLASSES_OF_INCIDENT", "CLASSES_OF_JOB_FINDING", "UNLOCALISED_KINDS", "classes_of_incident"]

CLASSES_OF_INCIDENT: dict[str, tuple[str, ...]] = {
    "thermal": ("thermal",),
    # A clock below the peers' without a thermal bit: brake or cap. A slow GPU with its clocks as they should be is `compute`.
    "clock": ("power",),
    "power": ("power",),
    # Several GPUs of one place throttle together; ranks of one place became slow together and no counter says why.
    "cooling": ("thermal",),
    "shared_place": ("compute", "power"),
    "host": ("host",),
    "data": ("data",),
    "compute": ("compute",),
    "gpu_lost": ("gpu_error",),
    # Of jobs without step timings: a GPU that stands still alone, a machine that is not heard any more.
    "gpu_stalled": ("gpu_error",),
    "node_lost": ("machine",),
    "gpu_memory": ("gpu_memory",),
    "row_remap_pending": ("gpu_memory",),
    "ecc_rate": ("gpu_memory",),
    "ecc_rate_confirmed": ("gpu_memory",),
    # A code of the application that came again on one GPU: still the one or the other.
    "suspect_device": ("gpu_error", "software"),
    # Told of jobs and places, about nobody: what their findings mean, below.
    "whole_job": ("power", "thermal", "software"),
    "partition": ("partition",),
    "workload": ("workload",),
    "storage": ("storage",),
    "facility": ("software", "machine", "power"),
    # The catalogue's word for a code; which part it is of stands in the code alone.
    "catalogue": ("gpu_error", "gpu_memory", "nvlink", "pcie"),
    # A hang's class is how it shows; what may show so is any of these.
    "hang": ("gpu_error", "software", "machine", "nvlink", "link"),
    "hang_rank": ("software", "host", "data", "machine"),
    "hang_device": ("gpu_error", "nvlink"),
    "hang_mismatch": ("software",),
    "hang_network": ("link", "nic", "switch"),
    # Many nodes at once: a rollout, a feed, cooling.
    "common_mode": ("software", "power", "thermal"),
    "pause_storm": ("pause_storm", "slow_receiver"),
    "pause_storm_unlocalised": ("pause_storm", "slow_receiver"),
}
"""Classes of the benchmark that an incident's `cause_class` may mean; one of them must be the truth's."""

CLASSES_OF_JOB_FINDING: dict[str, tuple[str, ...]] = {
    "job_slowdown": ("power", "thermal", "software"),
    "network_slowdown": ("link", "nic", "switch", "pause_storm", "slow_receiver"),
    "storage_slowdown": ("storage",),
    "scattered_pauses": ("software",),
    "stage_imbalance": ("partition",),
    "length_imbalance": ("workload",),
    "expert_imbalance": ("workload",),
    "token_imbalance": ("workload",),
}
"""Findings that are an answer although they blame no rank, node or device: "job-level" or "network, unlocalised"."""

UNLOCALISED_KINDS = frozenset({"insufficient"})
"""Findings that say nothing but that too little is known to name anybody."""


def classes_of_incident(cause_class: str) -> tuple[str, ...]:
    """The benchmark's classes that an incident's class may mean; itself where both use the word, else none."""
    known = CLASSES_OF_INCIDENT.get(cause_class)
    if known is not None:
        return known
    return (cause_class,) if cause_class in CAUSE_CLASSES else ()

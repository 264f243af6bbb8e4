"""Ablations: the engine without one of its parts, by taking away what that part reads.

Nothing in the engine is switched: records lose columns on their way in or do not come, or the policy sets thresholds. So
an ablation measures exactly what the part contributes, and a part that reads nothing is shown to.

- `peer_key`: everybody is everybody's peer (no stages, parts or roles).
- `persistence`: one slow step, reading or transfer is enough, and one without is the end of it.
- `covariates`: no tokens and no sums of squared lengths.
- `wait_edges`: no waits and no times in communicators: who waited for whom is not known, nor what a transfer took.
- `device_evidence`: no frames, no kernel lines, no load of hosts: the tenant's steps alone.

Persistence that is a constant of a rule stays (`job_pace`, `changed_ranks`, `scattered_pauses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, Layout, Policy, RankPlacement, RulePolicy
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["PARTS", "policy_without", "record_without"]

PARTS = ("peer_key", "persistence", "covariates", "wait_edges", "device_evidence")

_AT_ONCE = {
    "straggler": {
        "fast_hits": 1.0,
        "fast_steps": 1.0,
        "slow_steps": 2.0,
        "slow_share": 0.0,
        "burst_hits": 1.0,
        "quiet_steps": 1.0,
        "burst_quiet_steps": 1.0,
        "gather_steps": 1.0,
    },
    "slow_network": {"steps": 1.0, "gather_steps": 1.0, "quiet_steps": 1.0},
    "sm_clock": {"hits": 1.0},
    "power": {"hits": 1.0},
    "nvlink_errors": {"hits": 1.0},
    "pcie_link": {"width_hits": 1.0, "generation_hits": 1.0},
    "pfc_pause": {"hits": 1.0},
    "port_errors": {"hits": 1.0},
    "congestion": {"hits": 1.0},
    "congestion_own": {"pieces": 1.0},
}


def policy_without(without: frozenset[str], site_id: str) -> Policy | None:
    """The policy that takes the parts away that a policy can; null where the defaults will do."""
    if "persistence" not in without:
        return None
    rules = {name: RulePolicy(thresholds=dict(thresholds)) for name, thresholds in _AT_ONCE.items()}
    return Policy(policy_version="ablation", site_id=site_id, effective_from_ns=0, rules=rules)


def record_without(record: Record, without: frozenset[str]) -> Record | None:
    """The record as an engine without these parts would see it; null for one that it would not."""
    if isinstance(record, Policy):
        # The case's own policy would undo the ablation's.
        return None if "persistence" in without else record
    if isinstance(record, StepTiming):
        cut: dict[str, object] = {}
        if "covariates" in without:
            cut |= {"tokens": None, "sum_squared_lengths": None}
        if "wait_edges" in without:
            cut |= {"wait_us": None, "collectives": ()}
        return record.model_copy(update=cut) if cut else record
    if "device_evidence" in without:
        if isinstance(record, GpuFrame | FabricFrame | KernelEvent):
            return None
        if isinstance(record, NodeStatus):
            return record.model_copy(update={"host": None})
    if "peer_key" in without:
        if isinstance(record, RankPlacement):
            return record.model_copy(update={"stage": None, "role": None, "sku": None})
        if isinstance(record, Job):
            layout = record.layout
            flat = Layout(tensor=layout.tensor, context=layout.context, data=layout.data * layout.pipeline)
            return record.model_copy(update={"layout": flat, "sku": None})
    return record

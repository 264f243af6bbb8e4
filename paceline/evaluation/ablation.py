"""Ablations: the engine without one of its parts, by taking away what that part reads.

Nothing in the engine is switched: records lose columns on their way in, or the policy sets thresholds and rules. So an
ablation measures exactly what the part contributes, and a part that reads nothing is shown to.

- `peer_key`: everybody is everybody's peer (no stages, parts or roles).
- `persistence`: the fast chart speaks at one slow step, the slow one at two, a straggler is cleared after one quiet step.
- `covariates`: no tokens and no sums of squared lengths.
- `wait_edges`: no waits and no collectives: who waited for whom is not known.
- `device_evidence`: device rules that only explain (clocks, thermal, power, PCIe) are off, and the tenant's steps decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.fleet import Job, Layout, Policy, RankPlacement, RulePolicy
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["PARTS", "policy_without", "record_without"]

PARTS = ("peer_key", "persistence", "covariates", "wait_edges", "device_evidence")

_AT_ONCE = {"fast_hits": 1.0, "fast_steps": 1.0, "slow_steps": 2.0, "slow_share": 0.0, "quiet_steps": 1.0}
_EXPLAINING_RULES = ("sm_clock", "thermal_violation", "power", "pcie_link")


def policy_without(without: frozenset[str], site_id: str) -> Policy | None:
    """The policy that takes the parts away that a policy can; null where the defaults will do."""
    rules: dict[str, RulePolicy] = {}
    if "persistence" in without:
        rules["straggler"] = RulePolicy(thresholds=dict(_AT_ONCE))
    if "device_evidence" in without:
        rules.update({rule: RulePolicy(enabled=False) for rule in _EXPLAINING_RULES})
    if not rules:
        return None
    return Policy(policy_version="ablation", site_id=site_id, effective_from_ns=0, rules=rules)


def record_without(record: Record, without: frozenset[str]) -> Record | None:
    """The record as an engine without these parts would see it; null for one that it would not."""
    if isinstance(record, Policy) and without & {"persistence", "device_evidence"}:
        # The case's own policy would undo the ablation's.
        return None
    if isinstance(record, StepTiming):
        cut: dict[str, object] = {}
        if "covariates" in without:
            cut |= {"tokens": None, "sum_squared_lengths": None}
        if "wait_edges" in without:
            cut |= {"wait_us": None, "collectives": ()}
        return record.model_copy(update=cut) if cut else record
    if "peer_key" in without:
        if isinstance(record, RankPlacement):
            return record.model_copy(update={"stage": None, "role": None, "sku": None})
        if isinstance(record, Job):
            layout = record.layout
            flat = Layout(tensor=layout.tensor, context=layout.context, data=layout.data * layout.pipeline)
            return record.model_copy(update={"layout": flat, "sku": None})
    return record

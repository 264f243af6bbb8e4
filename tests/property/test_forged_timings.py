"""A tenant who forges step timings costs nobody a node, even under a policy that would take one for every word of his.

Timings are drawn as a tenant could write them who knows the rules: any rank slow by any factor, always or now and then, with any
part of it called host or data time. The policy is the worst there can be: every class that he can bring about asks for a cordon,
and every command goes out.
"""

from __future__ import annotations

from typing import Any

from factories import SITE, START_NS, at, job, placement, policy, step_timing
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.findings import Finding, ProgressMark
from schemas.fleet import FailurePolicy, Node, RulePolicy
from schemas.remediation import Command
from streams.core.position import Position
from streams.core.roster import Roster
from streams.decisions.acts import COSTS_A_NODE
from streams.engines.decisions import DecisionsEngine
from streams.engines.jobs import JobsEngine

RANKS, NODES, STEPS = 8, 2, 40
GREEDY = {
    name: FailurePolicy(act="cordon_node", when="now")
    for name in ("compute", "host", "data", "hang_rank", "hang_device")
}


def roster(**fields: Any) -> Roster:
    told = Roster()
    # Nothing is waited for: what holds is the evidence alone.
    guards = {"ski_rental": RulePolicy(enabled=False), **fields}
    told.policy = policy(mode="auto", failures=GREEDY, guards=guards)
    told.take(job(RANKS * NODES))
    for node in range(NODES):
        told.take(Node(node_id=f"node-{node}", effective_from_ns=START_NS))
        told.take(placement(range(RANKS * node, RANKS * (node + 1)), node_id=f"node-{node}"))
    return told


def costly(told: Roster, slow: dict[int, float], every: int, part: str | None) -> list[Command]:
    """Orders that cost somebody a node, after a run in which some ranks say that they are slow."""
    jobs, decisions = JobsEngine(SITE, 0, told), DecisionsEngine(SITE, told, "ed25519-1")
    offset, said = 0, []
    for step in range(STEPS):
        for node in range(NODES):
            ranks = range(RANKS * node, RANKS * (node + 1))
            factors = [slow.get(rank, 1.0) if step >= 12 and step % every == 0 else 1.0 for rank in ranks]
            excess = [round(100_000 * (factor - 1)) for factor in factors]
            columns = {f"{part}_us": [1_000 + more for more in excess]} if part is not None else {}
            compute = [100_000 + (0 if part is not None else more) for more in excess]
            record = step_timing(
                step,
                step,
                compute,
                node_id=f"node-{node}",
                first_rank=ranks[0],
                step_us=round(110_000 * max(slow.values(), default=1.0)),
                **columns,
            )
            offset += 1
            for found in jobs.on_record(record, Position("paceline.step-timings.v1", 0, offset, at(step) // 10**6)):
                if isinstance(found, Finding):
                    said += decisions.on_record(found)
    for mark_s in (STEPS + 60, STEPS + 120):
        said += decisions.on_record(ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(mark_s)))
    said += decisions.flush()
    return [
        record
        for record in said
        if isinstance(record, Command) and record.mode != "observe" and record.kind in COSTS_A_NODE
    ]


SLOW = st.dictionaries(st.integers(0, RANKS * NODES - 1), st.floats(1.05, 50.0), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(SLOW, st.sampled_from([1, 2, 3]), st.sampled_from([None, "host", "data"]))
def test_whatever_a_tenant_writes_no_node_is_taken(slow: dict[int, float], every: int, part: str | None) -> None:
    assert costly(roster(), slow, every, part) == []


def test_without_the_guard_of_evidence_the_same_words_would_take_one() -> None:
    assert costly(roster(evidence=RulePolicy(enabled=False)), {3: 2.0}, 1, None)

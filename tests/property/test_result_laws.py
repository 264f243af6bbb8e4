"""Results and approvals beside findings: a restart at any split changes nothing that is said, and nothing is given back unproved."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from deciding import APPROVALS, FINDINGS, RESULTS, approval, engine_of, lost, mark, orders, result
from hypothesis import event, given
from hypothesis import strategies as st
from laws import LAW, assert_engine_restart_changes_nothing

from schemas.codec import encode
from schemas.remediation import ActionResult, Approval
from streams.core.position import Position

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.remediation import Command
    from streams.engines.decisions import DecisionsEngine


WORDS = ("lost", "applied", "applied", "fit", "unfit", "refused", "consent", "consent", "forged", "nothing")


def said(engine: DecisionsEngine, record: Record, position: Position) -> list[Record]:
    if isinstance(record, Approval):
        return engine.on_approval(record, "bad_signature" if record.approver == "forger" else None, position)
    return engine.on_record(record, position)


@LAW
@given(
    st.sampled_from(["auto", "approve"]),
    st.lists(st.sampled_from(WORDS), min_size=8, max_size=40),
    st.randoms(use_true_random=False),
    st.integers(0, 10_000),
)
def test_a_restart_at_any_split_changes_nothing(mode: str, acts: list[str], rng: random.Random, split: int) -> None:
    """Results answer what was ordered last, as actuators do; minutes pass in between, so that pre-flights come due."""
    living, given_out = engine_of(mode=mode), ["cmd-of-nobody"]
    known: dict[str, Command] = {}
    was_done: set[tuple[str, str | None]] = set()
    passed: set[str | None] = set()
    arriving: list[tuple[Record, Position]] = []
    ends = {FINDINGS: -1, RESULTS: -1, APPROVALS: -1}

    def come(record: Record, topic: str) -> None:
        ends[topic] += 1
        arriving.append((record, Position(topic, 0, ends[topic], 0)))
        if isinstance(record, ActionResult) and record.command_id in known and record.outcome == "applied":
            answered = known[record.command_id]
            was_done.add((answered.kind, answered.target.node_id))
            if answered.kind == "run_preflight" and record.code == "fit":
                passed.add(answered.target.node_id)
        for order in orders(said(living, *arriving[-1])):
            given_out.append(order.command_id)
            known[order.command_id] = order
            assert mode == "auto" or order.mode == "approve" or order.approved_by == "ada"
            if order.kind == "uncordon_node" and order.supersedes is None:
                # Nothing is given back but what was taken out and has passed since.
                assert ("cordon_node", order.target.node_id) in was_done
                assert order.target.node_id in passed
                passed.discard(order.target.node_id)

    for number, word in enumerate(["lost", *acts]):
        second = 200 * number
        if word == "lost":
            come(lost(second, rng.choice([0, 0, 40])), FINDINGS)
        elif word in {"consent", "forged"}:
            come(approval(second, given_out[-1], "ada" if word == "consent" else "forger"), APPROVALS)
        elif word != "nothing":
            about = given_out[-1] if rng.random() < 0.8 else rng.choice(given_out)
            outcome, code = {"fit": ("applied", "fit"), "unfit": ("failed", "unfit")}.get(word, (word, None))
            come(result(second, about, outcome, code), RESULTS)
        come(mark(second + 50), FINDINGS)

    def decided(engine: DecisionsEngine, record: Record, position: Position) -> list[bytes]:
        return [encode(output) for output in said(engine, record, position)]

    assert_engine_restart_changes_nothing(lambda: engine_of(mode=mode), decided, arriving, split)
    event(f"by consent: {any(order.approved_by is not None for order in known.values())}")
    event(f"given back: {any(order.kind == 'uncordon_node' for order in known.values())}")
    event(f"orders: {min(8, len(given_out) - 1)}")

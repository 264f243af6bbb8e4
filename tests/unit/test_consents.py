"""Approvals: what a consent makes, when it comes too late or twice, and that guards are asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deciding import APPROVALS, FINDINGS, RESULTS, approval, engine_of, fed, lost, mark, of, orders, result
from factories import SITE, at, job, placement, policy

from schemas.fleet import RulePolicy
from schemas.remediation import Approval, Command, Decision, Incident
from streams.core.position import Position
from streams.core.snapshot_codec import pack, unpack

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.engines.decisions import DecisionsEngine


def waiting(**fields: Any) -> tuple[DecisionsEngine, Command]:
    """An engine with a cordon of second 6, valid for ten minutes, that waits for consent; four records of findings are read."""
    engine = engine_of(**{"mode": "approve", **fields})
    [command] = of(fed(engine, [mark(0), lost(1, 7), mark(5), mark(6)]), Command)
    assert command.mode == "approve"
    return engine, command


def consent(engine: DecisionsEngine, given: Approval, word: str | None = None, offset: int = 0) -> None:
    assert engine.on_approval(given, word, Position(APPROVALS, 0, offset, 0)) == []


def said_of(outputs: list[Record]) -> list[tuple[str, str]]:
    entries = [entry for entry in of(outputs, Decision) if entry.action.startswith("approval")]
    return [(entry.action, entry.detail.get("code", "")) for entry in entries]


def test_a_consent_makes_an_order_in_the_place_of_the_command() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id))
    assert fed(engine, [mark(69)], 4) == []
    outputs = fed(engine, [mark(70)], 5)
    [order] = of(outputs, Command)
    assert (order.mode, order.kind, order.target, order.key_id) == ("auto", command.kind, command.target, "ed25519-1")
    assert (order.supersedes, order.approved_by) == (command.command_id, "ada")
    assert order.command_id != command.command_id
    assert (order.sequence, order.attempt) == (command.sequence + 1, command.attempt + 1)
    assert (order.decided_at_ns, order.expires_at_ns) == (at(60), command.expires_at_ns)
    assert [incident.state for incident in of(outputs, Incident)] == ["acting"]
    [entry] = [entry for entry in of(outputs, Decision) if entry.action == "approval_taken"]
    assert entry.source is not None
    assert (entry.source.topic, entry.subject_id) == (APPROVALS, command.command_id)
    assert entry.detail == {"approver": "ada", "signature": "holds", "taken_at": 5}
    assert order.command_id in entry.followed
    engine.on_record(result(75, order.command_id), Position(RESULTS, 0, 0, 0))
    assert [incident.state for incident in of(fed(engine, [mark(90)], 6), Incident)] == ["verifying"]


def test_a_consent_that_holds_for_less_bounds_the_order() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id, minutes=1))
    [order] = orders(fed(engine, [mark(80)], 4))
    assert order.expires_at_ns == at(120)


@pytest.mark.parametrize(
    ("given", "word", "code"),
    [
        (lambda name: approval(60, name), "bad_signature", "bad_signature"),
        (lambda name: approval(60, name), "no_keyring", "no_keyring"),
        (lambda name: approval(60, name, site="another"), None, "wrong_site"),
        (lambda name: approval(60, "cmd-of-nobody"), None, "unknown_command"),
        (lambda name: approval(607, name), None, "expired"),
        (lambda name: approval(60, name, minutes=-0.5), None, "approval_expired"),
    ],
)
def test_a_consent_that_does_not_count_is_refused_and_said(given: Any, word: str | None, code: str) -> None:
    engine, command = waiting()
    consent(engine, given(command.command_id), word)
    outputs = fed(engine, [mark(700)], 4)
    assert said_of(outputs) == [("approval_refused", code)]
    assert of(outputs, Command) == []


def test_the_last_moment_is_not_too_late() -> None:
    engine, command = waiting()
    consent(engine, approval(596, command.command_id))
    assert len(orders(fed(engine, [mark(606)], 4))) == 1
    engine, command = waiting()
    consent(engine, approval(596, command.command_id))
    # By the time that it could be ordered nobody may carry it out any more.
    assert said_of(fed(engine, [mark(607)], 4)) == [("approval_refused", "held")]


def test_one_consent_is_enough_and_the_second_is_refused() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id))
    consent(engine, approval(61, command.command_id, "grace"), offset=1)
    outputs = fed(engine, [mark(100)], 4)
    assert said_of(outputs) == [("approval_taken", ""), ("approval_refused", "already_approved")]
    assert len(orders(outputs)) == 1


def test_a_forged_consent_does_not_stand_in_the_way_of_a_true_one() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id), "bad_signature")
    consent(engine, approval(60, command.command_id), offset=1)
    outputs = fed(engine, [mark(100)], 4)
    assert said_of(outputs) == [("approval_refused", "bad_signature"), ("approval_taken", "")]


def test_what_nobody_waits_for_cannot_be_approved() -> None:
    for mode in ("auto", "observe"):
        engine = engine_of(mode=mode)
        [command] = of(fed(engine, [mark(0), lost(1, 7), mark(6)]), Command)
        consent(engine, approval(60, command.command_id))
        outputs = fed(engine, [mark(100)], 3)
        assert said_of(outputs) == [("approval_refused", "unknown_command")]
        assert of(outputs, Command) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mode": "approve", "kill_switch": True}, "kill_switch"),
        ({"mode": "observe"}, "mode"),
        ({"mode": "approve", "guards": {"common_mode": RulePolicy(thresholds={"count": 1})}}, "common_mode"),
    ],
)
def test_guards_and_the_policy_are_asked_again_and_a_held_command_waits_on(fields: dict[str, Any], reason: str) -> None:
    engine, command = waiting()
    before = engine._roster.policy
    engine._roster.policy = policy(**fields)
    consent(engine, approval(60, command.command_id))
    outputs = fed(engine, [mark(100)], 4)
    assert said_of(outputs) == [("approval_refused", "held")]
    [entry] = [entry for entry in of(outputs, Decision) if entry.action == "approval_refused"]
    assert entry.detail["text"].startswith(reason)
    assert of(outputs, Command) == []
    engine._roster.policy = before
    consent(engine, approval(110, command.command_id), offset=1)
    assert len(orders(fed(engine, [mark(130)], 5))) == 1


def test_the_command_in_whose_place_it_stands_does_not_hold_it_and_an_order_after_it_is_held() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id))
    [order] = orders(fed(engine, [mark(80)], 4))
    given_out = engine.snapshot()["gate"]["given"]
    assert [act["command_id"] for act in given_out] == [order.command_id]


def test_a_job_is_not_restarted_by_consent_before_the_act_that_it_follows() -> None:
    engine = engine_of(mode="approve")
    engine._roster.take(job(8, job_id="job-1"))
    engine._roster.take(placement(range(8), node_id="node-7", job_id="job-1"))
    cordon, restart = of(fed(engine, [mark(0), lost(1, 7), mark(5), mark(6)]), Command)
    assert [(cordon.kind, cordon.mode), (restart.kind, restart.mode)] == [
        ("cordon_node", "approve"),
        ("restart_job", "approve"),
    ]
    consent(engine, approval(30, restart.command_id))
    outputs = fed(engine, [mark(50)], 4)
    [entry] = [entry for entry in of(outputs, Decision) if entry.action == "approval_refused"]
    assert entry.detail["text"].startswith("follows")
    consent(engine, approval(60, cordon.command_id), offset=1)
    consent(engine, approval(61, restart.command_id), offset=2)
    assert [order.kind for order in orders(fed(engine, [mark(80)], 5))] == ["cordon_node", "restart_job"]


def test_without_a_key_nothing_is_ordered_whoever_consents() -> None:
    engine, command = waiting()
    engine.key_id = None
    consent(engine, approval(60, command.command_id))
    assert said_of(fed(engine, [mark(100)], 4)) == [("approval_refused", "held")]


def test_a_command_waits_over_a_restart_and_a_consent_that_is_read_again_counts_once() -> None:
    engine, command = waiting()
    consent(engine, approval(60, command.command_id))
    packed = pack(engine.snapshot())
    assert engine.resume_offsets() == {APPROVALS: 0}
    restarted = engine_of(mode="approve")
    restarted.restore(unpack(packed.chunks, packed.digest), {FINDINGS: 3, APPROVALS: 0})
    consent(restarted, approval(60, command.command_id))
    assert len(orders(fed(restarted, [mark(80)], 4))) == 1
    consent(restarted, approval(60, command.command_id))
    assert said_of(fed(restarted, [mark(100)], 5)) == []


def test_a_waiting_command_is_told_as_one_of_the_site() -> None:
    _, command = waiting()
    assert (command.site_id, command.supersedes, command.approved_by) == (SITE, None, None)

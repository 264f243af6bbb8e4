"""The account of the chaos campaign sees each kind of broken promise, and holds nothing against what was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factories import SITE, at
from signed_commands import command

from schemas.remediation import ActionResult
from tests.faults.act_account import Account, account

if TYPE_CHECKING:
    from schemas.base import Record

ORDER = command(10.0, expires_at_ns=at(100.0))


def result(outcome: str, code: str | None = None, order_id: str = ORDER.command_id) -> ActionResult:
    return ActionResult(
        command_id=order_id, site_id=SITE, actuator_id="slurm", event_time_ns=at(20.0), outcome=outcome, code=code
    )  # type: ignore[arg-type]


def line(word: str, second: float, order_id: str = ORDER.command_id) -> dict[str, Any]:
    return {"word": word, "at_ns": at(second), "node": "node-1", "reason": f"paceline {order_id}: Xid 79"}


DONE = [line("came", 20.0), line("done", 21.0)]


def of(records: list[Record], lines: list[dict[str, Any]]) -> Account:
    return account(records, lines, ["node-1"])


def test_an_order_that_took_effect_once_and_was_told_holds_however_often_it_was_published() -> None:
    found = of([ORDER, ORDER, result("applied"), result("refused", "reused_id")], DONE)
    assert found.holds
    assert (found.commands, found.messages, found.effects, found.refused_again) == (1, 2, 1, 1)


def test_an_expiry_that_was_told_holds() -> None:
    assert of([ORDER, result("expired", "expired")], []).holds


def test_a_fault_that_was_known_too_late_needs_no_order_but_a_word() -> None:
    told = ORDER.model_copy(update={"mode": "observe"})
    found = account([told], [], [], ["node-1"])
    assert (found.holds, found.never_ordered) == (True, 1)
    assert account([], [], [], ["node-1"]).without_order
    assert of([told], []).without_order


def test_each_broken_promise_is_seen() -> None:
    assert of([ORDER, result("applied")], [*DONE, *DONE]).repeated
    assert of([ORDER], DONE).lost
    assert of([ORDER, result("failed", "target_away")], []).lost
    assert of([ORDER, result("applied")], [line("came", 102.0), line("done", 102.5)]).late
    assert of([ORDER, result("expired", "expired")], DONE).told_wrongly
    assert of([ORDER, result("applied")], []).told_wrongly
    assert of([], DONE).unordered
    assert of([], []).without_order
    assert of([ORDER, command(number=1), result("applied")], DONE).without_order

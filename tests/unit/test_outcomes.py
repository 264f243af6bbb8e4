"""Results of actuators: what they change in incidents and guards, in which order they are taken, and what they cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deciding import RESULTS, engine_of, fed, lost, mark, of, orders, result
from factories import at, finding

from schemas.findings import Subject
from schemas.remediation import ActionResult, Command, Decision, Incident
from streams.core.position import Position

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.engines.decisions import DecisionsEngine


def ordered(**fields: Any) -> tuple[DecisionsEngine, Command]:
    """An engine that has ordered a cordon at second 6, and the order; four records of findings are read."""
    engine = engine_of(**fields)
    [order] = orders(fed(engine, [mark(0), lost(1, 7), mark(5), mark(6)]))
    return engine, order


def told(engine: DecisionsEngine, *results: ActionResult, first: int = 0) -> None:
    for offset, one in enumerate(results, first):
        assert engine.on_record(one, Position(RESULTS, 0, offset, 0)) == []


def states(outputs: list[Record]) -> list[str]:
    return [incident.state for incident in of(outputs, Incident)]


def entries(outputs: list[Record]) -> list[Decision]:
    return [entry for entry in of(outputs, Decision) if entry.action == "result_taken"]


def test_a_result_is_taken_when_its_time_has_settled_and_says_which_it_was() -> None:
    engine, order = ordered()
    told(engine, result(8, order.command_id))
    assert fed(engine, [mark(17)], 4) == []
    outputs = fed(engine, [mark(18)], 5)
    [entry] = entries(outputs)
    assert (entry.subject_id, entry.event_time_ns) == (order.command_id, at(8))
    assert entry.source is not None
    assert (entry.source.topic, entry.source.offset) == (RESULTS, 0)
    assert entry.detail == {
        "outcome": "applied",
        "code": None,
        "actuator_id": "slurm",
        "is_news": True,
        "taken_at": 5,
    }
    [incident] = of(outputs, Incident)
    assert (incident.state, incident.event_time_ns) == ("verifying", at(8))
    assert incident.summary.endswith("cordon_node of node-7 was carried out")
    assert entry.followed == (incident.incident_id,)


def test_a_result_never_counts_from_before_the_brokers_had_it() -> None:
    engine, order = ordered()
    engine.on_record(result(2, order.command_id), Position(RESULTS, 0, 0, at(30) // 1_000_000))
    assert fed(engine, [mark(39)], 4) == []
    [entry] = entries(fed(engine, [mark(40)], 5))
    assert entry.event_time_ns == at(30)


@pytest.mark.parametrize("outcome", ["refused", "failed", "expired"])
def test_an_incident_whose_act_was_not_done_is_open_again(outcome: str) -> None:
    engine, order = ordered()
    told(engine, result(8, order.command_id, outcome, "kill_switch"))
    [incident] = of(fed(engine, [mark(20)], 4), Incident)
    assert incident.state == "open"
    assert "cordon_node of node-7" in incident.summary
    assert incident.summary.endswith("(kill_switch)")
    assert incident.advice


def test_one_actuator_that_did_it_counts_for_more_than_one_that_refused() -> None:
    for words in (("refused", "applied"), ("applied", "refused")):
        engine, order = ordered()
        told(engine, *(result(8 + n, order.command_id, word, actuator_id=word) for n, word in enumerate(words)))
        assert states(fed(engine, [mark(30)], 4))[-1] == "verifying"


def test_repeats_change_nothing_and_neither_do_results_of_commands_that_nobody_gave() -> None:
    engine, order = ordered()
    told(engine, result(8, order.command_id))
    fed(engine, [mark(20)], 4)
    before = engine.snapshot()
    told(engine, result(8, order.command_id), result(9, "cmd-of-nobody"), result(9, "unverified-1"), first=1)
    outputs = fed(engine, [mark(40)], 5)
    assert [entry.detail["is_news"] for entry in entries(outputs)] == [False, False]
    assert of(outputs, Incident) == of(outputs, Command) == []
    after = engine.snapshot()
    assert {name: after[name] for name in ("book", "gate")} == {name: before[name] for name in ("book", "gate")}


def test_a_command_that_may_not_be_carried_out_has_no_results() -> None:
    engine = engine_of(mode="observe")
    [command] = of(fed(engine, [mark(0), lost(1, 7)]), Command)
    told(engine, result(8, command.command_id))
    assert of(fed(engine, [mark(20)], 2), Incident) == []


def test_looking_at_a_node_is_no_act_under_way() -> None:
    engine = engine_of()
    rank = Subject(level="rank", job_id="job-1", rank=1, node_id="node-3", gpu_uuid="GPU-3")
    slow = finding("straggler", 5, rank, slowdown=1.4, job_id="job-1", values={"excess_us": 9, "step_time_us": 30})
    outputs = fed(engine, [mark(0), slow, mark(40)])
    [look] = of(outputs, Command)
    assert (look.kind, look.mode, states(outputs)) == ("collect_evidence", "auto", ["open"])
    told(engine, result(41, look.command_id))
    outputs = fed(engine, [mark(60)], 3)
    assert len(entries(outputs)) == 1
    assert states(outputs) == []

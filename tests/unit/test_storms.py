"""Many nodes at once: one incident without a culprit and no act, whatever the order; and faults that are no storm."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from deciding import FINDINGS, engine_of, fed, lost, mark, of, orders
from factories import SITE, at, finding, xid_event
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.findings import Finding, Subject
from schemas.fleet import RulePolicy
from schemas.remediation import Command, Decision, Incident
from streams.core.position import Position
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack, unpack
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from schemas.base import Record


def test_ten_thousand_lines_of_one_rollout_are_one_incident_and_no_cordon() -> None:
    """200 nodes write 50 lines each within a minute: codes for which each alone is taken out at once, and all that come along."""
    rng = random.Random(5)
    codes = (79, 95, 119, 48, 63, 92, 94, 154, 13, 31, 43, 45)
    lines = sorted((rng.uniform(0, 60), node, rng.choice(codes)) for node in range(200) for _ in range(50))
    engine = engine_of()
    telemetry = TelemetryEngine(SITE, 0, Roster())
    findings: list[Record] = []
    for offset, (second, node, code) in enumerate(lines):
        event = xid_event(second, code, node_id=f"node-{node}", seq=offset)
        findings += telemetry.on_record(event, Position("paceline.kernel-events.v1", 0, offset, 0))
    findings += [mark(second) for second in range(61, 90)]
    assert len(lines) == 10_000
    assert len([record for record in findings if isinstance(record, Finding) and record.urgent]) >= 200
    outputs = fed(engine, findings)
    assert of(outputs, Command) == []
    [incident] = of(outputs, Incident)
    assert (incident.cause_class, incident.culprit, incident.state) == ("common_mode", None, "open")
    assert "nodes fail within minutes of each other" in incident.summary
    assert incident.advice
    [held] = [entry for entry in of(outputs, Decision) if entry.action == "held"]
    assert held.subject_id == incident.incident_id
    [hold] = held.detail["holds"]
    assert hold["guard"] == "common_mode"
    assert "one cause is behind them" in hold["reason"]


def test_without_the_breaker_the_same_storm_would_cost_nodes() -> None:
    records = [mark(-1), *(lost(node / 10, node) for node in range(20)), mark(30)]
    off = {"common_mode": RulePolicy(enabled=False)}
    assert len(orders(fed(engine_of(guards=off), records))) == 3, "the limit of their leaf is left"
    assert orders(fed(engine_of(), records)) == []


def test_a_single_lost_gpu_is_cordoned_once_its_neighbours_had_time_to_speak() -> None:
    engine = engine_of()
    assert orders(fed(engine, [mark(0), lost(1, 7), mark(5)])) == []
    outputs = fed(engine, [mark(6)], 3)
    [order] = orders(outputs)
    assert (order.kind, order.target.node_id, order.mode, order.key_id) == (
        "cordon_node",
        "node-7",
        "auto",
        "ed25519-1",
    )
    assert order.decided_at_ns == at(6)
    told = [(incident.cause_class, incident.state) for incident in of(outputs, Incident)]
    assert told == [("gpu_lost", "open"), ("gpu_lost", "acting")]


def test_where_nobody_may_act_a_fault_is_told_at_once() -> None:
    for engine in (engine_of(key_id=None), engine_of(mode="observe")):
        outputs = fed(engine, [lost(1, 7)])
        assert [command.mode for command in of(outputs, Command)] == ["observe"]
        assert len(of(outputs, Incident)) == 1


def test_four_nodes_within_ten_minutes_are_no_storm_yet_and_the_fifth_makes_one() -> None:
    engine = engine_of()
    outputs = fed(engine, [mark(0), *(lost(1 + 100 * n, 40 * n) for n in range(4)), mark(400)])
    assert [order.target.node_id for order in orders(outputs)] == ["node-0", "node-40", "node-80", "node-120"]
    outputs = fed(engine, [lost(401, 160), mark(410)], 9)
    assert orders(outputs) == []
    assert [incident.cause_class for incident in of(outputs, Incident)] == ["common_mode"]


def test_a_storm_is_over_when_it_has_been_quiet_and_the_next_fault_counts_for_itself() -> None:
    engine = engine_of()
    fed(engine, [mark(0), *(lost(1, node) for node in range(9)), mark(10)])
    assert of(fed(engine, [lost(500, 30), mark(1100)], 11), Incident) == []
    [over] = of(fed(engine, [mark(1101)], 13), Incident)
    assert (over.cause_class, over.state, over.event_time_ns) == ("common_mode", "resolved", at(1100))
    assert len(over.suppressed) == 9
    assert len(orders(fed(engine, [lost(1200, 50), mark(1300)], 14))) == 1


def test_a_restart_in_the_middle_of_the_wait_loses_no_fault() -> None:
    for faults, expected in ((1, 1), (9, 0)):
        engine = engine_of()
        outputs = fed(engine, [mark(0), *(lost(1, node) for node in range(faults))])
        packed = pack(engine.snapshot())
        restarted = engine_of()
        restarted.restore(unpack(packed.chunks, packed.digest), {FINDINGS: faults})
        outputs += fed(restarted, [mark(10)], faults + 1)
        assert len(orders(outputs)) == expected
        assert len({incident.incident_id for incident in of(outputs, Incident)}) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 12), st.randoms(use_true_random=False))
def test_the_order_in_which_faults_were_read_makes_no_difference(count: int, rng: random.Random) -> None:
    faults = [lost(1 + node / 7, node) for node in range(count)]
    shuffled = rng.sample(faults, count)
    plain, other = (of(fed(engine_of(), [mark(0), *some, mark(20)]), Incident) for some in (faults, shuffled))
    assert plain == other


def test_every_reason_to_hold_is_in_the_journal_with_its_command() -> None:
    engine = engine_of()
    slow = Subject(level="rank", job_id="job-1", rank=1, node_id="node-3", gpu_uuid="GPU-3")
    figures = {"excess_us": 90_000, "step_time_us": 300_000}
    hot = Subject(level="gpu", node_id="node-3", gpu_uuid="GPU-3")
    straggler = finding("straggler", 5, slow, slowdown=1.4, job_id="job-1", values=figures)
    alone = fed(engine, [mark(0), straggler, mark(40)])
    # Nobody loses a node to a rank that is slow by its own word: nothing but evidence is asked for, and that costs nothing.
    assert [(order.kind, order.mode) for order in of(alone, Command)] == [("collect_evidence", "auto")]
    heat = finding("thermal_violation", 6, hot, onset_s=3)
    both = fed(engine_of(), [mark(0), straggler, heat, mark(40)])
    # A third of the step is lost: it is borne for 1000 s, until the job has lost the 300 s that the act costs it.
    assert [(order.kind, order.mode) for order in of(both, Command)] == [("drain_node", "observe")]
    late = fed(engine_of(), [mark(0), straggler, heat, mark(40), mark(1016)])
    assert [(order.kind, order.mode, order.attempt, order.decided_at_ns) for order in of(late, Command)] == [
        ("drain_node", "observe", 1, at(10)),
        ("drain_node", "auto", 2, at(1005)),
    ]
    memory = finding("uncorrectable_ecc", 5, hot, urgent=True)
    outputs = fed(engine_of(), [mark(0), memory, mark(40)])
    [order] = of(outputs, Command)
    [held] = [entry for entry in of(outputs, Decision) if entry.action == "held"]
    assert (order.kind, order.mode, held.subject_id) == ("cordon_node", "observe", order.command_id)
    assert held.detail["wanted"] == "auto"
    assert [hold["guard"] for hold in held.detail["holds"]] == ["evidence"]

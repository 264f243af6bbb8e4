"""Node silence: heartbeats that stop while others' go on, and what is nobody's fault."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.events import NodeStatus
from schemas.findings import Evidence, Finding
from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.node_silence import NodeSilence
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def status(second: float, node: int, state: str = "heartbeat", session: str = "s1") -> NodeStatus:
    return NodeStatus(node_id=f"node-{node}", agent_session=session, seq=0, event_time_ns=at(second), state=state)


def beats(node: int, from_s: float, to_s: float) -> list[NodeStatus]:
    """Heartbeats every 5 s, at the node's own phase, from a second on and before another."""
    first = from_s + (0.3 * node) % 5
    return [status(first + 5 * n, node) for n in range(max(0, int((to_s - first) / 5) + 1)) if first + 5 * n < to_s]


def switched_off(rule: str) -> Roster:
    roster = Roster()
    roster.policy = without(rule)
    return roster


def heard(
    statuses: Iterable[NodeStatus], until_s: float, roster: Roster | None = None, flush: bool = False
) -> list[Finding]:
    """Findings when statuses come as they were sent, and the partition's time is that of the newest."""
    rule = NodeSilence(SITE)
    findings: list[Finding] = []
    told = roster or Roster()
    for number, one in enumerate(sorted(statuses, key=lambda s: s.event_time_ns)):
        rule.on_status(one, Evidence(topic="t", partition=0, offset=number))
        findings += rule.on_time(one.event_time_ns, told)
    findings += rule.on_time(at(until_s), told)
    return findings + (list(rule.flush(told)) if flush else [])


def fleet(nodes: int, until_s: float, stops: dict[int, float] | None = None) -> list[NodeStatus]:
    """Heartbeats of nodes, some of which fall silent at a time."""
    return [b for node in range(nodes) for b in beats(node, 0, (stops or {}).get(node, until_s))]


def brief(findings: Sequence[Finding]) -> list[tuple[str, str, str | None]]:
    return [(finding.kind, finding.state, finding.subject.node_id) for finding in findings]


def test_a_node_is_silent_after_thirty_seconds_of_others_time() -> None:
    (finding,) = heard(fleet(6, 200, {2: 100}), 200)
    assert (finding.kind, finding.severity, finding.state) == ("node_silent", "warning", "open")
    assert (finding.subject.level, finding.subject.node_id) == ("node", "node-2")
    assert (finding.onset_ns, finding.event_time_ns) == (at(95.6), at(125.6))
    assert finding.evidence


@pytest.mark.parametrize("nodes", [1, 2, 6, 40])
def test_nodes_that_speak_are_not_silent(nodes: int) -> None:
    assert heard(fleet(nodes, 300), 300, flush=True) == []


def test_it_is_cleared_by_the_next_heartbeat() -> None:
    opened, cleared = heard([*fleet(6, 300, {2: 100}), *beats(2, 200, 300)], 300)
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(200.6))


def test_a_heartbeat_that_comes_in_the_last_moment_counts() -> None:
    spoke = [status(0, 0), status(30, 0), *beats(1, 0, 50)]
    assert heard(spoke, 60) == []
    assert brief(heard([status(0, 0), status(30.001, 0), *beats(1, 0, 50)], 60)) == [
        ("node_silent", "open", "node-0"),
        ("node_silent", "cleared", "node-0"),
    ]


@pytest.mark.parametrize("state", ["stop", "maintenance"])
def test_a_node_that_said_so_is_not_silent(state: str) -> None:
    assert heard([*fleet(6, 600, {2: 100}), status(101, 2, state)], 600) == []


def test_after_a_stop_a_start_or_a_heartbeat_counts_again() -> None:
    for state in ("start", "heartbeat"):
        told = [*fleet(6, 600, {2: 100}), status(101, 2, "stop"), status(300, 2, state, "s2")]
        assert [f.event_time_ns for f in heard(told, 600)] == [at(330)]


def test_heartbeats_do_not_end_a_maintenance_before_an_hour_and_a_start_does() -> None:
    going_on = [*fleet(6, 700, {2: 400}), status(101, 2, "maintenance")]
    assert heard(going_on, 700) == []
    ended = [*going_on, status(200, 2, "start")]
    assert brief(heard(ended, 700)) == [("node_silent", "open", "node-2")]
    forgotten = [*fleet(3, 4000, {2: 3800}), status(101, 2, "maintenance")]
    assert brief(heard(forgotten, 4000)) == [("node_silent", "open", "node-2")]


def test_a_stop_ends_a_silence_in_words_of_its_own() -> None:
    findings = heard([*fleet(6, 600, {2: 100}), status(300, 2, "stop")], 600)
    assert brief(findings) == [("node_silent", "open", "node-2"), ("node_silent", "cleared", "node-2")]
    assert findings[1].explanation == "said stop"


def test_many_at_once_are_nobodys_fault() -> None:
    (finding,) = heard(fleet(10, 300, {1: 100, 4: 102, 7: 98}), 300)
    assert (finding.kind, finding.severity, finding.subject.level) == ("nodes_silent", "info", "facility")
    assert finding.values["nodes"] == ["node-1", "node-4", "node-7"]
    assert (finding.values["silent_nodes"], finding.values["watched_nodes"]) == (3, 10)


def test_two_of_ten_and_three_of_twenty_are_named_one_by_one() -> None:
    assert brief(heard(fleet(10, 300, {1: 100, 4: 102}), 300)) == [
        ("node_silent", "open", "node-1"),
        ("node_silent", "open", "node-4"),
    ]
    findings = heard(fleet(20, 300, {1: 100, 4: 102, 7: 98}), 300)
    assert {finding.kind for finding in findings} == {"node_silent"}
    assert len(findings) == 3


def test_three_that_fall_silent_one_after_another_are_named_one_by_one() -> None:
    findings = heard(fleet(10, 600, {1: 100, 4: 250, 7: 400}), 600)
    assert [finding.kind for finding in findings] == ["node_silent"] * 3


def test_all_at_once_is_a_collector_and_who_stays_away_is_named_then() -> None:
    away = dict.fromkeys(range(8), 100.0)
    back = [b for node in range(8) if node != 5 for b in beats(node, 400, 600)]
    findings = heard([*fleet(8, 600, away), *back], 600)
    assert brief(findings) == [
        ("nodes_silent", "open", None),
        ("nodes_silent", "cleared", None),
        ("node_silent", "open", "node-5"),
    ]
    assert findings[1].finding_id == findings[0].finding_id
    assert findings[2].onset_ns == at(96.5)


def test_a_pause_of_the_recording_is_nobodys_silence() -> None:
    for nodes in (1, 2, 8):
        told = [b for node in range(nodes) for b in [*beats(node, 0, 100), *beats(node, 90_000, 90_100)]]
        assert [f for f in heard(told, 90_100) if f.kind == "node_silent"] == []


def test_of_two_nodes_the_one_that_does_not_come_back_after_a_pause_is_named() -> None:
    told = [*fleet(2, 100), *beats(1, 5000, 5200)]
    assert brief(heard(told, 5200)) == [("node_silent", "open", "node-0")]


def test_a_node_that_was_never_seen_is_not_silent() -> None:
    assert list(NodeSilence(SITE).on_time(at(1000), Roster())) == []


def test_a_spool_that_is_replayed_and_a_clock_that_is_behind_are_signs_of_life() -> None:
    rule = NodeSilence(SITE)
    findings: list[Finding] = []
    for second in range(0, 600, 5):
        rule.on_status(status(second, 0))
        rule.on_status(status(second - 500, 1))
        findings += rule.on_time(at(second), Roster())
    assert findings == []


def test_a_repeat_is_no_sign_of_life() -> None:
    rule = NodeSilence(SITE)
    findings: list[Finding] = []
    for second in range(0, 300, 5):
        rule.on_status(status(second, 0))
        rule.on_status(status(min(second, 50), 1))
        findings += rule.on_time(at(second), Roster())
    assert brief(findings) == [("node_silent", "open", "node-1")]


def test_it_opens_at_most_once_a_minute() -> None:
    flapping = [status(35 * n, 0) for n in range(20)]
    findings = heard([*flapping, *beats(1, 0, 700)], 700)
    opened = [finding.event_time_ns for finding in findings if finding.state == "open"]
    assert len(opened) > 2
    assert all(later - earlier >= at(60) - at(0) for earlier, later in pairwise(opened))


def test_a_node_that_is_gone_for_a_day_is_watched_no_longer() -> None:
    roster = Roster()
    roster.policy = policy({"node_silence": RulePolicy(thresholds={"forget_ns": 300e9})})
    findings = heard([*fleet(4, 900, {2: 100})], 900, roster)
    assert brief(findings) == [("node_silent", "open", "node-2"), ("node_silent", "cleared", "node-2")]
    assert "no longer watched" in findings[1].explanation
    gone = heard(fleet(10, 900, {1: 100, 4: 102, 7: 98}), 900, roster)
    assert brief(gone) == [("nodes_silent", "open", None), ("nodes_silent", "cleared", None)]


def test_the_end_of_the_input_is_judged_by_its_newest_heartbeat() -> None:
    told = fleet(3, 140, {2: 105})
    assert heard(told, 130) == []
    assert brief(heard(told, 130, flush=True)) == [("node_silent", "open", "node-2")]


def test_a_site_sets_the_limit() -> None:
    roster = Roster()
    roster.policy = policy({"node_silence": RulePolicy(thresholds={"silent_ns": 120e9})})
    assert heard(fleet(6, 200, {2: 100}), 200, roster) == []


def test_what_is_held_for_many_nodes_stays_bounded() -> None:
    rule = NodeSilence(SITE)
    order = random.Random(1)
    for tick in range(40):
        nodes = list(range(200))
        order.shuffle(nodes)
        for node in nodes:
            rule.on_status(status(5 * tick + 0.01 * node, node))
            assert list(rule.on_time(at(5 * tick), Roster())) == []
    snapshot = rule.snapshot()
    assert len(snapshot["due"]) == 200
    assert len(snapshot["held"]) <= 200 * 4


def test_the_engine_runs_it_on_statuses_unless_it_is_switched_off() -> None:
    for roster, expected in ((Roster(), ["node_silent"]), (switched_off("node_silence"), [])):
        engine, records = TelemetryEngine(SITE, 0, roster), []
        sent: dict[str, int] = {}
        for one in sorted(fleet(12, 200, {2: 100}), key=lambda s: s.event_time_ns):
            seq = sent[one.node_id] = sent.get(one.node_id, -1) + 1
            records += engine.on_record(one.model_copy(update={"seq": seq}), position_of(one))
        assert [record.kind for record in records if isinstance(record, Finding)] == expected


def time_after(statuses: Iterable[NodeStatus]) -> int:
    """A partition's time, in seconds, after all statuses have come as they were sent."""
    engine, sent = TelemetryEngine(SITE, 0, Roster()), dict[str, int]()
    for one in sorted(statuses, key=lambda s: s.event_time_ns):
        seq = sent[one.node_id] = sent.get(one.node_id, -1) + 1
        engine.on_record(one.model_copy(update={"seq": seq}), position_of(one))
    return (engine.time_ns - at(0)) // 1_000_000_000


def test_a_node_that_is_called_silent_holds_back_the_time_of_a_small_partition_no_more() -> None:
    assert 95 <= time_after(fleet(5, 130, {2: 100})) < 100
    assert 135 <= time_after(fleet(5, 145, {2: 100})) < 145


def test_a_node_that_lags_and_is_not_silent_holds_it_back() -> None:
    assert time_after([*fleet(5, 145, {2: 120})]) < 120


def test_a_node_that_is_back_holds_it_back_again() -> None:
    back = [status(150, 2), status(155, 2)]
    assert 150 <= time_after([*fleet(5, 175, {2: 100}), *back]) <= 156

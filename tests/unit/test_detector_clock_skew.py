"""Clock skew: the lowest difference between append and event time, and what only looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factories import SITE, START_NS, gpu_frame, policy, position_of, without
from msgspec.structs import replace

from schemas.findings import Evidence, Finding
from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.clock_skew import ClockSkew
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


FIRST_S = START_NS // 10**9 // 30 * 30
"""The beginning of a half minute."""


def at(seconds: float) -> int:
    return round((FIRST_S + seconds) * 1e9)


def switched_off(rule: str) -> Roster:
    roster = Roster()
    roster.policy = without(rule)
    return roster


def heard(records: Iterable[tuple[str, float, float]], roster: Roster | None = None) -> list[Finding]:
    """Findings of (publisher, event, append), in seconds, in order of arrival."""
    rule = ClockSkew(SITE)
    findings: list[Finding] = []
    for number, (publisher, event, append) in enumerate(records):
        place = Evidence(topic="t", partition=0, offset=number)
        findings += rule.on_record(publisher, at(event), at(append) // 10**6, roster or Roster(), place)
    return findings + list(rule.flush(roster or Roster()))


def node(
    seconds: int, skew: Callable[[int], float], delay: Callable[[int], float] = lambda _: 0.05, name: str = "node-1"
) -> list[tuple[str, float, float]]:
    """A record every 5 s whose clock differs by `skew` (positive: behind) and which arrives after `delay`."""
    return [(name, second - skew(second), second + delay(second)) for second in range(0, seconds, 5)]


def mixed(*streams: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    return sorted((record for stream in streams for record in stream), key=lambda record: record[2])


def test_a_clock_that_is_behind_is_told_when_it_was_so_in_eight_half_minutes() -> None:
    (finding,) = heard(node(600, lambda _: 30.0))
    assert (finding.kind, finding.severity, finding.state) == ("clock_skew", "warning", "open")
    assert (finding.subject.level, finding.subject.node_id) == ("node", "node-1")
    assert finding.event_time_ns == at(240)
    assert finding.onset_ns == at(0)
    assert finding.values["skew_s"] == pytest.approx(30.05, abs=0.002)
    assert "30.0 s behind" in finding.explanation
    assert finding.evidence


def test_a_clock_that_is_ahead_is_told_after_two_half_minutes() -> None:
    (finding,) = heard(node(120, lambda _: -10.0))
    assert finding.event_time_ns == at(60)
    assert finding.values["skew_s"] == pytest.approx(-9.95, abs=0.002)
    assert "ahead" in finding.explanation


@pytest.mark.parametrize("skew", [0.0, 1.9, -1.9, 0.5])
def test_a_clock_within_two_seconds_is_fine(skew: float) -> None:
    assert heard(node(900, lambda _: skew)) == []


def test_slow_delivery_now_and_then_is_no_skew() -> None:
    assert heard(node(900, lambda _: 0.0, lambda s: 20.0 if s % 30 else 0.1)) == []


def test_a_stretch_of_slow_delivery_is_no_skew() -> None:
    assert heard(node(900, lambda _: 0.0, lambda s: 25.0 if 300 < s < 520 else 0.1)) == []


@pytest.mark.parametrize("speed", [1.5, 2, 10, 100])
def test_a_spool_that_is_replayed_is_no_skew(speed: float) -> None:
    # Away from 300 to 900 s; what was kept comes from 900 s on, faster than it was made, then fresh ones.
    backlog = [
        ("node-1", float(event), 900 + (event - 300) / speed)
        for event in range(300, 900 + int(600 / (speed - 1)) + 1, 5)
    ]
    backlog = [record for record in backlog if record[2] >= record[1]]
    caught_up = backlog[-1][1]
    fresh = [("node-1", float(second), second + 0.1) for second in range(int(caught_up) + 5, int(caught_up) + 900, 5)]
    assert heard(mixed(node(300, lambda _: 0.0), backlog, fresh)) == []


def test_a_spool_that_is_replayed_beside_fresh_records_is_no_skew() -> None:
    old = [("node-1", float(second), 1000.0 + second) for second in range(0, 600, 5)]
    assert heard(mixed(old, node(1700, lambda _: 0.0))) == []


def test_a_clock_that_jumps_back_is_told_once_it_has_been_so_for_minutes_and_cleared_when_set_right() -> None:
    opened, cleared = heard(node(1500, lambda s: 60.0 if 300 <= s < 900 else 0.0))
    assert (opened.event_time_ns, opened.onset_ns) == (at(600), at(300))
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert at(900) < cleared.event_time_ns <= at(1020)


def test_a_clock_that_jumps_ahead_is_told_soon_and_cleared_when_the_window_has_passed() -> None:
    opened, cleared = heard(node(1500, lambda s: -20.0 if 300 <= s < 600 else 0.0))
    assert opened.event_time_ns == at(360)
    assert at(900) <= cleared.event_time_ns <= at(1000)


def test_one_record_from_the_future_is_no_clock() -> None:
    assert heard([*node(600, lambda _: 0.0), ("node-1", 640.0, 600.0)]) == []


def test_nodes_are_told_apart_and_silence_says_nothing() -> None:
    findings = heard(mixed(node(600, lambda _: 5.0, name="node-2"), node(3600, lambda _: 0.0)))
    assert [(finding.subject.node_id, finding.state) for finding in findings] == [("node-2", "open")]


def test_a_pause_of_a_day_is_passed_over() -> None:
    late = [(name, event + 86_400, append + 86_400) for name, event, append in node(600, lambda _: 7.0)]
    findings = heard([*node(200, lambda _: 0.0), *late])
    assert [finding.event_time_ns for finding in findings] == [at(86_400 + 240)]


def test_an_unknown_append_time_says_nothing() -> None:
    rule = ClockSkew(SITE)
    assert [f for s in range(0, 900, 5) for f in rule.on_record("node-1", at(s), 0, Roster())] == []


def test_a_switch_is_named_as_one() -> None:
    rule, roster = ClockSkew(SITE), Roster()
    records = [(at(s - 9), at(s) // 10**6) for s in range(0, 300, 5)]
    (finding,) = [
        f for event, append in records for f in rule.on_record("leaf-1", event, append, roster, level="switch")
    ]
    assert (finding.subject.level, finding.subject.switch_id) == ("switch", "leaf-1")


def test_a_topic_that_is_read_far_behind_changes_nothing() -> None:
    fresh = node(900, lambda _: 0.0)
    assert heard([*fresh, *node(300, lambda _: 0.0, name="node-2"), *node(300, lambda _: 30.0)]) == []


def test_a_site_sets_the_limit() -> None:
    roster = Roster()
    roster.policy = policy({"clock_skew": RulePolicy(thresholds={"skew_ns": 40e9})})
    assert heard(node(600, lambda _: 30.0), roster) == []


def test_the_engine_runs_it_on_frames_unless_it_is_switched_off() -> None:
    for roster, expected in ((Roster(), ["clock_skew"]), (switched_off("clock_skew"), [])):
        engine = TelemetryEngine(SITE, 0, roster)
        frames = [gpu_frame(5 * n, gpus=1, seq=n) for n in range(120)]
        records = [
            record
            for one in frames
            for record in engine.on_record(one, replace(position_of(one), append_ms=one.event_time_ns // 10**6 + 9_000))
        ]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected

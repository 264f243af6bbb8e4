"""Thermal violation: cumulative nanoseconds, more than 100 ms of them in the trailing minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factories import SITE, at, gpu_frame, policy, uuid_of

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.thermal import ThermalViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.findings import Finding
    from schemas.fleet import Policy

MS = 1_000_000


def said(counts: Mapping[int, int | None], told: Policy | None = None) -> list[Finding]:
    """Findings of one GPU whose counter stands at `counts` nanoseconds by second."""
    rule, roster = ThermalViolation(SITE), Roster()
    roster.policy = told
    frames = [gpu_frame(second, gpus=1, thermal_violation_ns=[count]) for second, count in counts.items()]
    return [finding for frame in frames for finding in rule.on_frame(frame, roster)]


def test_it_fires_at_the_first_frame_at_which_the_minute_is_above_the_limit() -> None:
    (finding,) = said({0: 0, 10: 60 * MS, 20: 100 * MS, 30: 101 * MS, 31: 102 * MS})
    assert (finding.kind, finding.state, finding.severity, finding.urgent) == (
        "thermal_violation",
        "open",
        "info",
        False,
    )
    assert finding.event_time_ns == at(30)
    assert finding.values["violation_ns_in_minute"] == 101 * MS
    assert finding.subject.gpu_uuid == uuid_of("node-1", 0)


def test_growth_that_is_older_than_a_minute_does_not_count() -> None:
    assert said({0: 0, 10: 60 * MS, 40: 60 * MS, 70: 120 * MS, 100: 120 * MS, 130: 180 * MS}) == []


def test_the_first_count_is_a_baseline_however_large() -> None:
    assert said({0: 10**15, 1: 10**15, 2: 10**15 + 50 * MS}) == []


def test_it_is_cleared_when_the_counter_has_not_grown_for_a_minute() -> None:
    growing = {second: min(second, 20) * 20 * MS for second in range(100)}
    opened, cleared = said(growing)
    assert (opened.state, cleared.state) == ("open", "cleared")
    assert cleared.event_time_ns == at(80)
    assert cleared.finding_id == opened.finding_id
    assert cleared.onset_ns == opened.onset_ns


def test_a_trickle_keeps_it_open() -> None:
    trickling = {second: min(second, 10) * 20 * MS + second // 30 * MS for second in range(300)}
    assert [finding.state for finding in said(trickling)] == ["open"]


def test_a_counter_in_another_unit_is_not_believed() -> None:
    assert said({second: second * 3_000_000_000 for second in range(10)}) == []


def test_an_unknown_count_says_nothing() -> None:
    assert said({0: 0, 1: None, 2: 99 * MS, 3: None}) == []


def test_a_frame_without_the_column_says_nothing() -> None:
    rule = ThermalViolation(SITE)
    assert list(rule.on_frame(gpu_frame(0), Roster())) == []


def test_a_restarted_agent_makes_a_baseline() -> None:
    rule, roster = ThermalViolation(SITE), Roster()
    frames = [
        gpu_frame(0, gpus=1, thermal_violation_ns=[0]),
        gpu_frame(1, gpus=1, session="s2", seq=0, thermal_violation_ns=[900 * MS]),
    ]
    assert [finding for frame in frames for finding in rule.on_frame(frame, roster)] == []


def test_a_site_sets_the_limit_by_part() -> None:
    told = policy({"thermal_violation": RulePolicy(per_sku={"H100": {"violation_ns": 300 * MS}})})
    assert said({0: 0, 1: 200 * MS}, told) == []
    assert len(said({0: 0, 1: 301 * MS}, told)) == 1

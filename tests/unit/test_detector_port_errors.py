"""Ports: links that go down or flap, and counters that grow too fast, stop at their highest value or begin anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.port_errors import PortErrors
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Sequence


RATES = [("symbol_error", 10), ("port_rcv_errors", 10), ("port_xmit_discards", 100), ("local_ack_timeout_err", 1)]


def switched_off(rule: str) -> Roster:
    roster = Roster()
    roster.policy = without(rule)
    return roster


def heard(frames: Sequence[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = PortErrors(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def frame(
    second: float, state: str | None = "active", *, view: str = "host", session: str = "s1", **columns: Any
) -> FabricFrame:
    """One tick of a node's or a switch's only port; what is no column of a frame is a counter."""
    known = {name: (columns.pop(name),) for name in list(columns) if name in FabricFrame.model_fields}
    return FabricFrame(
        view=view,
        node_id="node-1" if view == "host" else None,
        switch_id="leaf-1" if view == "switch" else None,
        agent_session=session,
        seq=round(second),
        event_time_ns=at(second),
        device=("mlx5_0",),
        port=("1",),
        link_state=(state,),
        counters={name: (count,) for name, count in columns.items()},
        **known,
    )


def counting(second: float, name: str, count: int | None, session: str = "s1") -> FabricFrame:
    given: dict[str, Any] = {name: count}
    return frame(second, session=session, **given)


def of_states(states: str) -> list[FabricFrame]:
    """A letter a second: active, down, init, or unknown."""
    words = {"a": "active", "d": "down", "i": "init", "?": None}
    return [frame(second, words[letter]) for second, letter in enumerate(states)]


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.state) for finding in findings]


def test_a_link_that_goes_down_is_told_at_once() -> None:
    (finding,) = heard(of_states("aaddd"))
    assert (finding.kind, finding.severity, finding.state) == ("link_down", "warning", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(2), at(2))
    assert (finding.subject.node_id, finding.subject.device, finding.subject.port) == ("node-1", "mlx5_0", "1")
    assert finding.values["found_at_start"] is False


def test_a_link_in_training_is_not_active() -> None:
    assert kinds(heard(of_states("aai"))) == [("link_down", "open")]


def test_it_is_cleared_after_a_minute_of_activity_and_unknown_is_neither() -> None:
    opened, cleared = heard(of_states("ad" + "a" * 80))
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(61))
    assert kinds(heard(of_states("ad" + "?" * 80))) == [("link_down", "open")]


def test_a_hosts_port_that_was_never_active_is_found_at_start_and_a_switchs_is_passed_over() -> None:
    (finding,) = heard(of_states("?ddd"))
    assert (finding.kind, finding.severity, finding.values["found_at_start"]) == ("link_down", "info", True)
    assert heard([frame(s, "down", view="switch") for s in range(5)]) == []
    switch = [frame(s, "active" if s < 3 else "down", view="switch") for s in range(5)]
    assert [(f.kind, f.subject.switch_id) for f in heard(switch)] == [("link_down", "leaf-1")]


def test_a_dip_between_two_frames_is_told_by_the_counter() -> None:
    (finding,) = heard([frame(s, link_down_events=40 + (s > 2)) for s in range(6)])
    assert (finding.kind, finding.event_time_ns) == ("link_down", at(3))
    assert "went down" in finding.explanation
    without_state = [frame(s, None, link_down_events=40 + (s > 2)) for s in range(6)]
    assert kinds(heard(without_state)) == [("link_down", "open")]


def test_old_events_a_reset_and_a_new_session_are_baselines() -> None:
    assert heard([frame(s, link_down_events=200) for s in range(5)]) == []
    assert heard([frame(s, link_down_events=200 if s < 3 else 0) for s in range(5)]) == []
    assert heard([frame(s, session=f"s{s}", link_down_events=5 * s) for s in range(5)]) == []


def test_two_returns_in_five_minutes_are_a_flap_and_one_is_not() -> None:
    assert ("link_flapping", "open") not in kinds(heard(of_states("aaddaaaa" + "a" * 300)))
    findings = heard(of_states("aaddaaaa" + "a" * 200 + "dda"))
    assert [f.event_time_ns for f in findings if f.kind == "link_flapping"] == [at(210)]
    apart = of_states("aaddaaaa" + "a" * 320 + "dda")
    assert [f for f in heard(apart) if f.kind == "link_flapping"] == []


def test_a_port_that_was_down_since_first_sight_and_comes_up_has_not_flapped() -> None:
    assert ("link_flapping", "open") not in kinds(heard(of_states("ddddadda")))
    assert ("link_flapping", "open") in kinds(heard(of_states("ddddaddadda")))


def test_a_link_that_stays_down_has_not_flapped() -> None:
    assert kinds(heard(of_states("ad" + "d" * 100))) == [("link_down", "open")]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_counter_and_state_of_one_outage_are_one_outage(late: int) -> None:
    frames = [frame(s, "down" if 3 <= s < 5 else "active", link_down_events=int(s >= 3 + late)) for s in range(30)]
    assert kinds(heard(frames)) == [("link_down", "open")]


def test_two_dips_that_only_the_counter_saw_are_a_flap() -> None:
    frames = [frame(s, link_down_events=(s > 2) + (s > 9)) for s in range(20)]
    assert kinds(heard(frames)) == [("link_down", "open"), ("link_flapping", "open")]
    at_once = [frame(s, link_down_events=2 * (s > 2)) for s in range(20)]
    assert kinds(heard(at_once)) == [("link_down", "open"), ("link_flapping", "open")]


@pytest.mark.parametrize(("name", "limit"), RATES)
def test_a_counter_above_its_rate_fires_at_the_third_sample(name: str, limit: int) -> None:
    (finding,) = heard([counting(s, name, (limit + 1) * s) for s in range(8)])
    assert (finding.kind, finding.severity) == (name, "warning")
    assert (finding.event_time_ns, finding.onset_ns) == (at(3), at(1))
    assert finding.values[f"{name}_per_s"] == limit + 1
    assert heard([counting(s, name, limit * s) for s in range(60)]) == []


@pytest.mark.parametrize("every_s", [2, 5, 15, 30])
def test_a_source_that_is_read_seldom_is_told_at_its_third_sample_too(every_s: int) -> None:
    (finding,) = heard([counting(every_s * n, "symbol_error", 100 * every_s * n) for n in range(8)])
    assert finding.event_time_ns == at(3 * every_s)


@pytest.mark.parametrize(("name", "limit"), RATES)
def test_a_burst_an_old_count_a_reset_and_a_restart_say_nothing(name: str, limit: int) -> None:
    assert heard([counting(s, name, 40_000 * (s > 3)) for s in range(20)]) == []
    assert heard([counting(s, name, 60_000) for s in range(20)]) == []
    assert heard([counting(s, name, 60_000 if s < 9 else 0) for s in range(20)]) == []
    assert heard([counting(s, name, 1000 * s, f"s{s}") for s in range(20)]) == []
    assert heard([counting(s, name, None) for s in range(20)]) == []


def test_recoveries_count_over_the_trailing_minute() -> None:
    assert heard([frame(10 * n, link_error_recovery=min(n, 5)) for n in range(20)]) == []
    (finding,) = [f for f in heard([frame(8 * n, link_error_recovery=n) for n in range(12)]) if f.state == "open"]
    assert (finding.kind, finding.event_time_ns) == ("link_error_recovery", at(48))
    assert finding.values["link_error_recovery_per_min"] == 6


def test_a_counter_that_has_reached_its_end_is_said_and_clears_nothing() -> None:
    counts = [65_000 + 200 * s for s in range(3)]
    frames = [frame(s, symbol_error=min(65_535, (counts[s] if s < 3 else 65_535))) for s in range(150)]
    findings = heard(frames)
    assert kinds(findings) == [("symbol_error", "open"), ("symbol_error_saturated", "open")]
    reset = [frame(s, symbol_error=0) for s in range(150, 230)]
    assert kinds(heard(frames + reset))[2:] == [("symbol_error", "cleared"), ("symbol_error_saturated", "cleared")]


def test_an_extended_counter_passes_the_old_end_without_a_word() -> None:
    assert heard([frame(s, symbol_error=65_530 + s) for s in range(40)]) == []
    assert [f.kind for f in heard([frame(s, local_ack_timeout_err=65_535) for s in range(40)])] == []


def test_statements_of_one_port_at_one_moment_have_ids_of_their_own() -> None:
    findings = heard([frame(s, symbol_error=500 * s, port_rcv_errors=500 * s) for s in range(5)])
    assert len({finding.finding_id for finding in findings}) == 2


def test_a_site_sets_the_limits() -> None:
    roster = Roster()
    roster.policy = policy({"port_errors": RulePolicy(thresholds={"symbol_errors_per_s": 100, "flaps": 3})})
    assert heard([frame(s, symbol_error=90 * s) for s in range(9)], roster) == []
    assert ("link_flapping", "open") not in kinds(heard(of_states("adadaaa"), roster))


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    for roster, expected in ((Roster(), ["link_down"]), (switched_off("port_errors"), [])):
        engine = TelemetryEngine(SITE, 0, roster)
        records = [record for one in of_states("aaddd") for record in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected

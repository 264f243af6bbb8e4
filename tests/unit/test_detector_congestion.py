"""Congestion: one port of a node against its other ports, never against a number alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.congestion import Congestion
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Sequence


ROCE = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")


def switched_off(rule: str) -> Roster:
    roster = Roster()
    roster.policy = without(rule)
    return roster


def heard(frames: Sequence[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = Congestion(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def frames_of(
    rates: dict[str, Sequence[int | None]], seconds: int = 8, states: Sequence[str] | None = None
) -> list[FabricFrame]:
    """A node whose ports' counters grow by so much a second; None is a port that has not the counter."""
    ports = len(next(iter(rates.values())))
    return [
        FabricFrame(
            view="host",
            node_id="node-1",
            agent_session="s1",
            seq=second,
            event_time_ns=at(second),
            device=tuple(f"mlx5_{port}" for port in range(ports)),
            port=("1",) * ports,
            link_state=tuple(states) if states is not None else None,
            counters={
                name: tuple(rate * second if rate is not None else None for rate in column)
                for name, column in rates.items()
            },
        )
        for second in range(seconds)
    ]


@pytest.mark.parametrize("name", ROCE)
def test_a_port_far_above_the_others_is_told_at_the_third_sample(name: str) -> None:
    (finding,) = heard(frames_of({name: [500, 400, 6_000, 500]}))
    assert (finding.kind, finding.severity, finding.state) == (f"congestion_{name}", "info", "open")
    assert (finding.subject.device, finding.event_time_ns, finding.onset_ns) == ("mlx5_2", at(3), at(1))
    assert (finding.values[f"{name}_per_s"], finding.values["peer_median_per_s"]) == (6000, 500)


def test_waiting_has_a_floor_of_its_own() -> None:
    assert heard(frames_of({"port_xmit_wait": [1_000_000, 0, 0, 0]})) == []
    (finding,) = heard(frames_of({"port_xmit_wait": [1_000_001, 0, 0, 0]}))
    assert finding.kind == "congestion_port_xmit_wait"


def test_what_all_ports_share_is_the_fabrics_level() -> None:
    assert heard(frames_of({"np_cnp_sent": [90_000, 80_000, 100_000, 70_000]})) == []


def test_ten_times_the_median_is_not_above_it() -> None:
    assert heard(frames_of({"np_cnp_sent": [5_000, 500, 500, 500]})) == []
    assert len(heard(frames_of({"np_cnp_sent": [5_001, 500, 500, 500]}))) == 1


def test_one_peer_is_too_few() -> None:
    assert heard(frames_of({"np_cnp_sent": [90_000, 0]})) == []
    assert len(heard(frames_of({"np_cnp_sent": [90_000, 0, 0]}))) == 1


def test_ports_that_are_down_or_of_another_link_layer_are_no_peers() -> None:
    assert heard(frames_of({"np_cnp_sent": [90_000, 0, 0]}, states=["active", "down", "active"])) == []
    mixed: dict[str, Sequence[int | None]] = {
        "port_xmit_wait": [90_000_000, 0, 0, 0],
        "np_cnp_sent": [0, None, None, 0],
    }
    assert heard(frames_of(mixed)) == []


def test_a_burst_and_an_old_count_say_nothing() -> None:
    burst = frames_of({"np_cnp_sent": [0, 0, 0, 0]}, 20)
    burst = [f.model_copy(update={"counters": {"np_cnp_sent": (10**6 * (f.seq > 5), 0, 0, 0)}}) for f in burst]
    assert heard(burst) == []
    assert heard([f.model_copy(update={"counters": {"np_cnp_sent": (10**9, 0, 0, 0)}}) for f in burst]) == []


def test_a_switchs_frames_say_nothing() -> None:
    told = frames_of({"np_cnp_sent": [90_000, 0, 0, 0]})
    switch = {"view": "switch", "node_id": None, "switch_id": "leaf-1"}
    assert heard([frame.model_copy(update=switch) for frame in told]) == []


def test_it_is_cleared_a_minute_after_the_last_hit() -> None:
    told = frames_of({"np_cnp_sent": [9_000, 0, 0, 0]}, 90)
    told = [f.model_copy(update={"counters": {"np_cnp_sent": (9_000 * min(f.seq, 5), 0, 0, 0)}}) for f in told]
    opened, cleared = heard(told)
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert at(65) <= cleared.event_time_ns <= at(70)


def test_a_site_sets_the_factor() -> None:
    roster = Roster()
    roster.policy = policy({"congestion": RulePolicy(thresholds={"factor": 100, "peers": 3})})
    assert heard(frames_of({"np_cnp_sent": [40_000, 500, 500, 500]}), roster) == []
    assert heard(frames_of({"np_cnp_sent": [90_000, 0, 0]}), roster) == []


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    for roster, expected in ((Roster(), ["congestion_np_cnp_sent"]), (switched_off("congestion"), [])):
        engine = TelemetryEngine(SITE, 0, roster)
        told = frames_of({"np_cnp_sent": [90_000, 0, 0, 0]})
        records = [record for one in told for record in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected


def every_five_seconds(rates: Sequence[int]) -> list[FabricFrame]:
    """A node of four ports that is read every five seconds; the third port's counter grows at these rates in between."""
    (first, *_), marked, frames = frames_of({"np_cnp_sent": [500] * 4}, seconds=1), 0, []
    for tick, rate in enumerate((0, *rates)):
        marked += 5 * rate
        column = tuple(marked if port == 2 else 2500 * tick for port in range(4))
        frames.append(first.model_copy(update={"event_time_ns": at(5 * tick), "counters": {"np_cnp_sent": column}}))
    return frames


def test_a_node_that_is_read_seldom_is_told_at_its_third_reading_and_not_at_two() -> None:
    (finding,) = heard(every_five_seconds([500, 6_000, 6_000, 6_000]))
    assert (finding.event_time_ns, finding.onset_ns) == (at(20), at(10))
    assert heard(every_five_seconds([6_000, 6_000, 500, 500] * 4)) == []

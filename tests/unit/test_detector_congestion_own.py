"""Congestion against a port's own past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.congestion_own import CongestionOwn
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PACKETS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "SAI_PORT_STAT_ECN_MARKED_PACKETS")


def frames_of(
    rate: Callable[[int], float],
    seconds: int = 200,
    *,
    name: str = "np_cnp_sent",
    every_s: int = 1,
    view: str = "host",
    session: Callable[[int], str] = lambda _: "s1",
    bytes_per_s: Callable[[int], int] | None = None,
) -> list[FabricFrame]:
    """A port whose counter grows by the rate of each second."""
    frames, count, carried = [], 5_000.0, 0
    for second in range(seconds):
        count += rate(second)
        carried += bytes_per_s(second) if bytes_per_s is not None else 0
        columns: dict[str, Any] = {} if bytes_per_s is None else {"rx_data_bytes": (carried,), "tx_data_bytes": (0,)}
        frames.append(
            FabricFrame(
                view=view,
                node_id="node-1" if view == "host" else None,
                switch_id="leaf-1" if view == "switch" else None,
                agent_session=session(second),
                seq=second,
                event_time_ns=at(second),
                device=("mlx5_0",),
                port=("1",),
                peer=("other-end",),
                counters={name: (round(count),)},
                **columns,
            )
        )
    return frames[::every_s]


def rising(before: float, after: float, at_s: int = 100, to_s: int = 10**6) -> Callable[[int], float]:
    return lambda second: after if at_s <= second < to_s else before


def heard(frames: Iterable[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = CongestionOwn(SITE)
    return [finding for one in frames for finding in rule.on_frame(one, roster or Roster())]


@pytest.mark.parametrize("name", PACKETS)
def test_fifty_times_as_much_as_before_is_told_after_three_pieces(name: str) -> None:
    (finding,) = heard(frames_of(rising(40, 2_000), name=name))
    assert (finding.kind, finding.severity, finding.state) == (f"congestion_own_{name}", "info", "open")
    assert at(115) <= finding.event_time_ns <= at(120)
    assert at(95) <= finding.onset_ns <= at(100)
    assert finding.values[f"{name}_per_s"] == 2_000
    assert finding.values["own_median_per_s"] == pytest.approx(40, rel=0.06)
    assert (finding.values["limit_per_s"], finding.values["factor"]) == (1_000, 8)
    assert (finding.values["view"], finding.values["peer"]) == ("host", "other-end")


@pytest.mark.parametrize("every_s", [2, 5, 15])
def test_a_source_that_is_read_seldom_is_told_too(every_s: int) -> None:
    (finding,) = heard(frames_of(rising(40, 2_000, 300), 400, every_s=every_s))
    assert finding.event_time_ns <= at(300 + 4 * max(every_s, 5))


def test_waiting_has_a_floor_of_its_own() -> None:
    assert heard(frames_of(rising(1_000, 900_000), name="port_xmit_wait")) == []
    assert len(heard(frames_of(rising(1_000, 1_100_000), name="port_xmit_wait"))) == 1


def test_a_switchs_port_is_told_by_the_switch() -> None:
    frames = frames_of(rising(40, 2_000), name="SAI_PORT_STAT_ECN_MARKED_PACKETS", view="switch")
    (finding,) = heard(frames)
    assert (finding.subject.level, finding.subject.switch_id, finding.values["view"]) == ("port", "leaf-1", "switch")


def test_it_is_cleared_a_minute_after_the_level_fell_and_stands_until_then() -> None:
    opened, cleared = heard(frames_of(rising(40, 2_000, 100, 1_500), 1_700))
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert at(1_560) <= cleared.event_time_ns <= at(1_570)


def test_a_level_that_stays_for_more_than_an_hour_is_the_new_norm() -> None:
    findings = heard(frames_of(rising(40, 2_000), 4_500, every_s=5))
    assert [finding.state for finding in findings] == ["open", "cleared"]
    assert at(3_700) <= findings[1].event_time_ns <= at(3_800)


@pytest.mark.parametrize(
    "rate",
    [
        lambda _: 80_000,
        rising(1_000, 7_900),
        rising(40, 1_000),
        rising(40, 90_000, 100, 105),
        lambda second: 90_000 if second % 40 < 5 else 40,
        lambda second: 300 * 1.004**second,
    ],
    ids=["from the start", "eight times", "below the floor", "a burst", "bursts", "slowly"],
)
def test_what_is_no_sudden_lasting_rise_says_nothing(rate: Callable[[int], float]) -> None:
    assert heard(frames_of(rate, 600)) == []


def test_a_job_that_begins_is_no_congestion_and_idle_time_is_no_reference() -> None:
    working: Callable[[int], bool] = lambda second: second >= 200  # noqa: E731
    frames = frames_of(
        lambda second: 3_000 if working(second) else 0,
        500,
        bytes_per_s=lambda second: 3 * 10**9 if working(second) else 200_000,
    )
    assert heard(frames) == []
    told_as_busy = frames_of(lambda second: 3_000 if working(second) else 0, 500)
    assert len(heard(told_as_busy)) == 1


def test_a_pause_of_a_job_leaves_its_reference_as_it_was_and_a_long_one_ends_it() -> None:
    def after(idle_s: int) -> list[Finding]:
        begins = 100 + idle_s
        return heard(
            frames_of(
                lambda s: 40 if s < 100 else 0 if s < begins else 2_000,
                begins + 100,
                bytes_per_s=lambda s: 0 if 100 <= s < begins else 10**9,
            )
        )

    assert len(after(120)) == 1
    assert after(400) == []


def test_a_new_session_makes_a_baseline_and_keeps_the_reference() -> None:
    frames = frames_of(rising(40, 2_000), session=lambda second: "s1" if second < 60 else "s2")
    assert len(heard(frames)) == 1


def test_all_ports_of_a_node_at_once_are_told_each() -> None:
    told = [
        one.model_copy(
            update={
                "device": ("mlx5_0", "mlx5_1"),
                "port": ("1", "1"),
                "peer": None,
                "counters": {"np_cnp_sent": one.counters["np_cnp_sent"] * 2},
            }
        )
        for one in frames_of(rising(40, 2_000))
    ]
    assert [finding.subject.device for finding in heard(told)] == ["mlx5_0", "mlx5_1"]


def test_a_site_sets_the_limits() -> None:
    roster = Roster()
    for looser in ({"factor_own": 60}, {"packets_per_s": 3_000}, {"pieces": 30}, {"pieces_to_learn": 60}):
        roster.policy = policy({"congestion_own": RulePolicy(thresholds=looser)})
        assert heard(frames_of(rising(40, 2_000)), roster) == []


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    off = Roster()
    off.policy = without("congestion_own")
    for roster, expected in ((Roster(), ["congestion_own_np_cnp_sent"]), (off, [])):
        engine = TelemetryEngine(SITE, 0, roster)
        records = [r for one in frames_of(rising(40, 2_000)) for r in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected

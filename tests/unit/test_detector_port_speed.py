"""Link speed: a port against its own highest rate, and against ports like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.port_speed import PortSpeed
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def frame(
    second: float, rates: Sequence[float | None], *, view: str = "host", session: str = "s1", **columns: Any
) -> FabricFrame:
    ports = len(rates)
    given: dict[str, Any] = {"port": ("1",) * ports, "link_state": ("active",) * ports} | columns
    return FabricFrame(
        view=view,
        node_id="node-1" if view == "host" else None,
        switch_id="leaf-1" if view == "switch" else None,
        agent_session=session,
        seq=round(second),
        event_time_ns=at(second),
        device=tuple(f"mlx5_{port}" for port in range(ports)),
        rate_gbps=tuple(rates),
        **given,
    )


def heard(frames: Iterable[FabricFrame], roster: Roster | None = None, rule: PortSpeed | None = None) -> list[Finding]:
    rule = rule or PortSpeed(SITE)
    return [finding for one in frames for finding in rule.on_frame(one, roster or Roster())]


def falling(
    seconds: int = 20, at_s: int = 5, to: float = 200.0, every_s: float = 1, **columns: Any
) -> list[FabricFrame]:
    """A port that runs at 400 and then slower."""
    return [frame(every_s * n, [400.0 if n < at_s else to], **columns) for n in range(seconds)]


def test_a_link_that_falls_below_its_own_rate_is_told_at_the_third_sample() -> None:
    (finding,) = heard(falling(peer=("leaf-3/Ethernet5",)))
    assert (finding.kind, finding.severity, finding.state) == ("port_speed", "info", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(7), at(5))
    assert (finding.subject.level, finding.subject.node_id, finding.subject.device) == ("port", "node-1", "mlx5_0")
    assert finding.values == {
        "rate_gbps": 200.0,
        "expected_gbps": 400.0,
        "compared_with": "itself",
        "peers": None,
        "found_at_start": False,
        "view": "host",
        "peer": "leaf-3/Ethernet5",
    }


@pytest.mark.parametrize("every_s", [1, 5, 15, 30])
def test_a_source_that_is_read_seldom_is_told_at_its_third_sample_too(every_s: int) -> None:
    (finding,) = heard(falling(every_s=every_s))
    assert finding.event_time_ns == at(7 * every_s)


def test_it_is_cleared_a_minute_after_the_rate_is_back() -> None:
    opened, cleared = heard([frame(s, [200.0 if 5 <= s < 20 else 400.0]) for s in range(100)])
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(79))


def test_a_switchs_port_is_told_by_the_switch() -> None:
    (finding,) = heard(falling(view="switch", port=("Ethernet0",), peer=("node-1",)))
    assert (finding.subject.switch_id, finding.subject.port) == ("leaf-1", "Ethernet0")
    assert (finding.values["view"], finding.values["peer"]) == ("switch", "node-1")


def test_while_a_link_is_down_its_rate_says_nothing() -> None:
    down = [frame(s, [10.0], link_state=("down",)) for s in range(5, 90)]
    assert heard([*(frame(s, [400.0]) for s in range(5)), *down]) == []
    training = [frame(s, [10.0], link_state=("init",)) for s in range(9, 90)]
    again = [frame(s, [200.0]) for s in range(90, 95)]
    assert [finding.state for finding in heard([*falling(9), *training, *again])] == ["open"]


def test_a_rate_that_is_not_told_neither_opens_nor_clears() -> None:
    assert heard([*(frame(s, [400.0]) for s in range(5)), *(frame(s, [None]) for s in range(5, 90))]) == []
    assert [f.state for f in heard([*falling(9), *(frame(s, [None]) for s in range(9, 90))])] == ["open"]


def test_a_source_that_tells_no_state_is_judged_by_its_rate() -> None:
    assert len(heard(falling(link_state=None))) == 1


def test_two_slow_readings_and_a_faster_link_are_no_fall() -> None:
    assert heard([frame(s, [200.0 if s in {5, 6} else 400.0]) for s in range(40)]) == []
    assert heard([frame(s, [200.0 if s < 5 else 400.0]) for s in range(40)]) == []
    assert heard([frame(s, [400.0 if s % 2 else 398.0]) for s in range(40)]) == []


def test_a_new_session_forgets_the_rate_unless_a_fall_stands() -> None:
    other_card = [frame(s, [200.0], session="s2") for s in range(5, 40)]
    assert heard([*(frame(s, [400.0]) for s in range(5)), *other_card]) == []
    findings = heard([*falling(9), *(frame(s, [200.0], session="s2") for s in range(9, 200))])
    assert [finding.state for finding in findings] == ["open"]
    back = heard([*falling(9), *(frame(s, [200.0 if s < 20 else 400.0], session="s2") for s in range(9, 200))])
    assert [finding.state for finding in back] == ["open", "cleared"]


def test_a_port_that_was_always_slower_than_seven_others_is_said_once_and_is_no_change() -> None:
    rates = [400.0] * 7 + [100.0]
    frames = [frame(s, rates, session="s1" if s < 100 else "s2") for s in range(200)]
    (finding,) = heard(frames)
    assert (finding.subject.device, finding.severity) == ("mlx5_7", "info")
    assert finding.values["found_at_start"] is True
    assert (finding.values["compared_with"], finding.values["peers"]) == ("peers", 7)
    assert (finding.values["rate_gbps"], finding.values["expected_gbps"]) == (100.0, 400.0)


def test_it_may_fall_below_its_own_rate_besides() -> None:
    frames = [frame(s, [400.0] * 4 + [200.0 if s < 20 else 100.0]) for s in range(40)]
    first, second = heard(frames)
    assert (first.values["found_at_start"], second.values["found_at_start"]) == (True, False)
    assert (second.values["expected_gbps"], second.event_time_ns) == (200.0, at(22))
    assert first.finding_id != second.finding_id


def test_who_was_slower_and_comes_up_to_the_others_is_cleared() -> None:
    states = [f.state for f in heard([frame(s, [400.0] * 4 + [200.0 if s < 20 else 400.0]) for s in range(120)])]
    assert states == ["open", "cleared"]


@pytest.mark.parametrize(
    "rates",
    [
        [400.0, 400.0, 400.0, 200.0, 200.0],
        [400.0, 200.0, 100.0, 25.0],
        [400.0, 400.0, 200.0],
        [200.0],
        [400.0, 400.0, 400.0, None],
    ],
)
def test_unlike_cards_and_too_few_of_them_are_no_peers(rates: list[float | None]) -> None:
    assert heard([frame(s, rates) for s in range(40)]) == []


def test_ports_of_another_link_layer_are_no_peers() -> None:
    infiniband_and_roce = {"np_cnp_sent": (None, None, None, None, 0)}
    assert heard([frame(s, [400.0] * 4 + [200.0], counters=infiniband_and_roce) for s in range(20)]) == []
    interface: tuple[str | None, ...] = ("1", "1", "1", "1", None)
    assert heard([frame(s, [400.0] * 4 + [25.0], port=interface) for s in range(20)]) == []


def test_a_card_that_two_sources_name_has_one_vote_among_either() -> None:
    ports: tuple[str | None, ...] = ("1",) * 4 + (None,) * 4
    rates = [400.0, 400.0, 400.0, 200.0] * 2
    columns: dict[str, Any] = {"port": ports, "counters": {"np_cnp_sent": (0,) * 4 + (None,) * 4}}
    findings = heard([frame(s, rates, **columns) for s in range(20)])
    assert [finding.subject.device for finding in findings] == ["mlx5_3", "mlx5_7"]


def test_peers_that_fall_do_not_change_what_others_were_expected_to_run_at() -> None:
    frames = [frame(s, [400.0] * 4 if s < 5 else [200.0, 200.0, 200.0, 400.0]) for s in range(30)]
    assert {finding.subject.device for finding in heard(frames)} == {"mlx5_0", "mlx5_1", "mlx5_2"}


def test_a_site_sets_the_limits() -> None:
    roster = Roster()
    roster.policy = policy({"port_speed": RulePolicy(thresholds={"share": 0.4, "peers": 9})})
    assert heard(falling(), roster) == []
    assert heard([frame(s, [400.0] * 7 + [100.0]) for s in range(20)], roster) == []


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    off = Roster()
    off.policy = without("port_speed")
    for roster, expected in ((Roster(), ["port_speed"]), (off, [])):
        engine = TelemetryEngine(SITE, 0, roster)
        records = [record for one in falling() for record in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected

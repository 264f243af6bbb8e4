"""PFC pause: more than 100 frames a second in 3 of 5 s, received and transmitted apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factories import SITE, at, nic_frame, policy, switch_frame

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.pfc import PfcPause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.frames import FabricFrame


def heard(frames: Sequence[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = PfcPause(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def of_rates(rx: Sequence[int], tx: Sequence[int] = ()) -> list[FabricFrame]:
    """Frames of a NIC whose counters grow by so many frames in each second."""
    frames, got, sent = [nic_frame(0, 0, 0)], 0, 0
    for second, rate in enumerate(rx, 1):
        got += rate
        sent += tx[second - 1] if tx else 0
        frames.append(nic_frame(second, got, sent))
    return frames


def test_it_fires_at_the_third_second_above_and_began_with_the_first() -> None:
    (finding,) = heard(of_rates([0, 101, 101, 101, 101]))
    assert (finding.kind, finding.severity, finding.state) == ("pfc_pause", "warning", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(4), at(2))
    assert (finding.subject.node_id, finding.subject.device, finding.subject.port) == ("node-1", "mlx5_0", "1")


def test_exactly_the_limit_is_not_above_it() -> None:
    assert heard(of_rates([100] * 20)) == []


def test_three_of_five_need_not_be_in_a_row_and_two_of_five_are_not_enough() -> None:
    assert len(heard(of_rates([500, 0, 500, 0, 500]))) == 1
    assert heard(of_rates([500, 0, 0, 500, 0, 0] * 5)) == []


def test_transmitting_is_another_statement_than_receiving() -> None:
    (finding,) = heard(of_rates([0] * 5, [9000] * 5))
    assert (finding.kind, finding.severity) == ("pfc_pause_transmit", "info")
    assert finding.values["tx_pause_frames_per_s"] == 9000
    assert finding.values["rx_pause_frames_per_s"] == 0


def test_priorities_of_a_port_add_up() -> None:
    frames = [
        nic_frame(second, 0, 0).model_copy(
            update={
                "pfc_port": (0, 0),
                "pfc_priority": (3, 4),
                "rx_pause_frames": (60 * second, 60 * second),
                "tx_pause_frames": (0, 0),
            }
        )
        for second in range(5)
    ]
    assert [finding.values["rx_pause_frames_per_s"] for finding in heard(frames)] == [120]


def test_link_level_pause_counts_as_well() -> None:
    frames = [
        nic_frame(second, None, None).model_copy(update={"rx_global_pause_frames": (300 * second,)})
        for second in range(5)
    ]
    assert [finding.kind for finding in heard(frames)] == ["pfc_pause"]


def test_ports_of_a_switch_are_told_apart() -> None:
    frames = [switch_frame(s, ["Ethernet0", "Ethernet4"], [4000 * s, 0], [0, 700 * s]) for s in range(5)]
    assert [(f.kind, f.subject.port, f.subject.switch_id, f.subject.node_id) for f in heard(frames)] == [
        ("pfc_pause", "Ethernet0", "leaf-1", None),
        ("pfc_pause_transmit", "Ethernet4", "leaf-1", None),
    ]


def test_an_old_count_and_a_reset_are_no_rate() -> None:
    assert heard([nic_frame(s, 10**9, 0) for s in range(6)]) == []
    assert heard([nic_frame(s, 10**9 if s < 3 else 0, 0) for s in range(6)]) == []


def test_an_unknown_counter_is_not_zero() -> None:
    assert heard([nic_frame(s, None, None) for s in range(6)]) == []
    assert len(heard([nic_frame(s, None if s == 3 else 500 * s, 0) for s in range(6)])) == 1


def test_a_slower_tick_is_read_as_a_rate() -> None:
    frames = [nic_frame(second, 150 * second, 0, seq=number) for number, second in enumerate(range(0, 10, 2))]
    assert [finding.values["rx_pause_frames_per_s"] for finding in heard(frames)] == [150]


def test_it_is_cleared_after_ten_quiet_seconds() -> None:
    opened, cleared = heard(of_rates([500] * 6 + [0] * 20))
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert cleared.event_time_ns - at(6) <= 15_000_000_000
    assert cleared.values["peak_frames_per_s"] == 500


def test_a_site_sets_the_rate() -> None:
    roster = Roster()
    roster.policy = policy({"pfc_pause": RulePolicy(thresholds={"frames_per_s": 1000})})
    assert heard(of_rates([900] * 6), roster) == []
    assert len(heard(of_rates([1001] * 6), roster)) == 1


def at_pace(tick_s: int, rates: Sequence[int]) -> list[FabricFrame]:
    """Frames of a NIC that is read every so many seconds and receives so many frames a second in between."""
    frames, got = [nic_frame(0, 0, 0)], 0
    for tick, rate in enumerate(rates, 1):
        got += rate * tick_s
        frames.append(nic_frame(tick * tick_s, got, 0))
    return frames


@pytest.mark.parametrize("tick_s", [5, 15])
def test_a_source_that_is_read_seldom_fires_at_its_third_reading_above(tick_s: int) -> None:
    (finding,) = heard(at_pace(tick_s, [0, 500, 500, 500, 500]))
    assert (finding.kind, finding.event_time_ns, finding.onset_ns) == ("pfc_pause", at(4 * tick_s), at(2 * tick_s))


def test_two_readings_of_a_slow_source_are_not_enough() -> None:
    assert heard(at_pace(5, [500, 500, 0, 0, 0] * 4)) == []

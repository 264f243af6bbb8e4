"""PCIe: lanes that are missing, a speed that is low at work, replays beyond what a bit error rate explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, gpu_frame, policy

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.pcie_link import PcieLink, gigabytes_per_s, replays_per_minute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.frames import GpuFrame

HEALTHY = {"pcie_link_gen": 5, "pcie_link_width": 16, "pcie_max_link_gen": 5, "pcie_max_link_width": 16}


def heard(frames: Sequence[GpuFrame], roster: Roster | None = None) -> list[Finding]:
    rule = PcieLink(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def frame(second: float, **columns: Any) -> GpuFrame:
    return gpu_frame(second, gpus=1, **{**HEALTHY, "gpu_util_pct": 99, **columns})


@pytest.mark.parametrize(
    ("generation", "lanes", "carries"),
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.76), (4, 16, 31.504), (5, 16, 63.008), (6, 16, 121.008), (5, 8, 31.504)],
)
def test_what_a_link_carries_follows_from_generation_and_lanes(generation: int, lanes: int, carries: float) -> None:
    assert gigabytes_per_s(generation, lanes) == pytest.approx(carries)


@pytest.mark.parametrize(("generation", "lanes"), [(None, 16), (5, None), (0, 16), (5, 63), (0, 63), (9, 16), (5, 0)])
def test_what_is_not_known_or_gone_carries_nothing_that_could_be_a_number(
    generation: int | None, lanes: int | None
) -> None:
    assert gigabytes_per_s(generation, lanes) is None
    assert replays_per_minute(generation, lanes) is None


@pytest.mark.parametrize(
    ("generation", "lanes", "limit"),
    [(1, 16, 3), (1, 20, 3), (2, 16, 5), (3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (4, 8, 8), (3, 1, 1)],
)
def test_replays_that_the_bit_error_rate_explains_follow_from_generation_and_lanes(
    generation: int, lanes: int, limit: int
) -> None:
    assert replays_per_minute(generation, lanes) == limit


@pytest.mark.parametrize("util", [0, 99])
def test_a_narrow_link_is_told_at_the_second_sample_at_work_or_not(util: int) -> None:
    frames = [frame(0), *(frame(s, pcie_link_width=8, gpu_util_pct=util) for s in range(1, 5))]
    (finding,) = heard(frames)
    assert (finding.kind, finding.severity, finding.state) == ("pcie_link", "warning", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(2), at(1))
    assert finding.values["gb_per_s_lost"] == pytest.approx(31.504)
    assert finding.values["width_is_low"] is True
    assert finding.values["generation_is_low"] is False


def test_the_loss_of_a_narrow_idle_link_is_reckoned_at_its_full_speed() -> None:
    frames = [frame(s, pcie_link_width=4, pcie_link_gen=1, gpu_util_pct=0) for s in range(3)]
    (finding,) = heard(frames)
    assert finding.values["gb_per_s_lost"] == pytest.approx(12 * 3.938)


def test_one_misread_width_says_nothing() -> None:
    assert heard([frame(s, pcie_link_width=8 if s == 3 else 16) for s in range(20)]) == []


def test_a_low_speed_at_work_is_told_at_the_third_sample_and_at_rest_is_normal() -> None:
    (finding,) = heard([frame(s, pcie_link_gen=3) for s in range(6)])
    assert (finding.event_time_ns, finding.values["generation_is_low"]) == (at(2), True)
    assert finding.values["gb_per_s_lost"] == pytest.approx(16 * (3.938 - 0.985))
    assert heard([frame(s, pcie_link_gen=1, gpu_util_pct=0) for s in range(60)]) == []
    assert heard([frame(s, pcie_link_gen=1, clock_event_reasons_mask=0x1) for s in range(60)]) == []


def test_training_down_at_the_end_of_work_says_nothing() -> None:
    frames = [frame(s, pcie_link_gen=5 if s < 10 else 1, gpu_util_pct=99 if s < 12 else 0) for s in range(60)]
    assert heard(frames) == []


@pytest.mark.parametrize(
    "lost", [{"pcie_link_width": 63, "pcie_link_gen": 0}, {"pcie_link_width": 63}, {"pcie_link_gen": 0}]
)
def test_a_device_that_is_gone_has_no_link_and_clears_nothing(lost: dict[str, int]) -> None:
    assert heard([frame(s, **(lost if s > 3 else {})) for s in range(30)]) == []
    narrow = [frame(s, pcie_link_width=8) for s in range(5)]
    gone = [frame(s, **lost, pcie_replay_count=10**6) for s in range(5, 120)]
    assert [finding.state for finding in heard(narrow + gone)] == ["open"]


def test_what_a_part_could_do_at_most_must_be_known() -> None:
    assert heard([frame(s, pcie_link_width=8, pcie_max_link_width=None) for s in range(5)]) == []
    assert heard([frame(s, pcie_link_gen=3, pcie_max_link_gen=None) for s in range(5)]) == []
    assert heard([frame(s, pcie_link_width=8, pcie_max_link_width=63) for s in range(5)]) == []


def test_it_is_cleared_a_minute_after_the_link_is_back_and_not_by_idling() -> None:
    slow = [frame(s, pcie_link_gen=3) for s in range(5)]
    idle = [frame(s, pcie_link_gen=1, gpu_util_pct=0) for s in range(5, 100)]
    back = [frame(s) for s in range(100, 165)]
    opened, cleared = heard(slow + idle + back)
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(100))
    narrow = [frame(s, pcie_link_width=8) for s in range(5)]
    assert [f.event_time_ns for f in heard(narrow + [frame(s) for s in range(5, 80)])][1:] == [at(67)]


def replaying(per_s: float, seconds: int = 90, **columns: Any) -> list[GpuFrame]:
    return [frame(s, pcie_replay_count=int(per_s * s), **columns) for s in range(seconds)]


def test_replays_above_the_limit_of_the_trailing_minute_are_told() -> None:
    (finding,) = heard(replaying(1.0))
    assert (finding.kind, finding.severity) == ("pcie_replay", "info")
    assert (finding.event_time_ns, finding.values["limit_replays_in_minute"]) == (at(32), 31)
    assert heard(replaying(0.5)) == []


def test_the_limit_follows_the_generation_at_work_and_the_part_at_rest() -> None:
    assert [f.kind for f in heard(replaying(0.2, pcie_link_gen=3, pcie_max_link_gen=3))] == ["pcie_replay"]
    assert heard(replaying(0.2, pcie_link_gen=1, gpu_util_pct=0)) == []


def test_old_replays_a_reset_and_a_restart_are_baselines() -> None:
    assert heard([frame(s, pcie_replay_count=10**6) for s in range(10)]) == []
    assert heard([frame(s, pcie_replay_count=10**6 if s < 5 else 3) for s in range(10)]) == []
    assert heard([frame(s, session=f"s{s}", seq=0, pcie_replay_count=500 * s) for s in range(10)]) == []


def test_a_site_sets_the_limits() -> None:
    roster = Roster()
    roster.policy = policy(
        {"pcie_link": RulePolicy(thresholds={"width_hits": 4}, per_sku={"H100": {"replay_factor": 2}})}
    )
    assert heard([frame(s, pcie_link_width=8) for s in range(3)], roster) == []
    assert heard(replaying(1.0), roster) == []


@pytest.mark.parametrize("tick_s", [5, 15])
def test_a_node_that_is_read_seldom_is_told_at_its_second_narrow_and_its_third_low_frame(tick_s: int) -> None:
    (narrow,) = heard([frame(0), *(frame(tick_s * tick, pcie_link_width=4) for tick in range(1, 6))])
    (low,) = heard([frame(0), *(frame(tick_s * tick, pcie_link_gen=3) for tick in range(1, 6))])
    assert (narrow.event_time_ns, narrow.onset_ns) == (at(2 * tick_s), at(tick_s))
    assert (low.event_time_ns, low.onset_ns) == (at(3 * tick_s), at(tick_s))


def test_one_misread_of_a_node_that_is_read_seldom_is_nothing() -> None:
    assert heard([frame(5 * tick, pcie_link_width=4 if tick % 3 == 1 else 16) for tick in range(20)]) == []

"""SM clock: busy and below base or peers, and below the ceiling; what looks like it and is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import A100, H100, SITE, at, gpu_frame, job, placement, policy

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.sm_clock import SmClock

if TYPE_CHECKING:
    from schemas.findings import Finding


def said(seconds: int = 5, roster: Roster | None = None, gpus: int = 4, **columns: Any) -> list[Finding]:
    """Findings of a node whose columns stand still."""
    rule, known = SmClock(SITE), roster or Roster()
    columns = {"gpu_util_pct": 97, **columns}
    frames = [gpu_frame(second, gpus=gpus, **columns) for second in range(seconds)]
    return [finding for frame in frames for finding in rule.on_frame(frame, known)]


def positions(findings: list[Finding]) -> list[str]:
    return [str(finding.subject.gpu_uuid).rpartition("-")[2] for finding in findings]


def test_it_fires_at_the_third_low_second_and_began_with_the_first() -> None:
    (finding,) = said(sm_clock_mhz=[1755, 1755, 1050, 1755])
    assert (finding.kind, finding.severity, finding.state) == ("sm_clock", "info", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(2), at(0))
    assert finding.values["peer_median_mhz"] == 1755


def test_three_low_seconds_of_five_need_not_be_in_a_row() -> None:
    rule, roster, found = SmClock(SITE), Roster(), []
    for second, clock in enumerate([1050, 1755, 1050, 1755, 1050]):
        frame = gpu_frame(second, gpus=3, gpu_util_pct=97, sm_clock_mhz=[clock, 1755, 1755])
        found += list(rule.on_frame(frame, roster))
    assert [finding.event_time_ns for finding in found] == [at(4)]


@pytest.mark.parametrize(
    ("clock_mhz", "fires"),
    [(1147, True), (1148, False)],
)
def test_where_the_base_clock_is_known_nine_tenths_of_it_is_the_limit(clock_mhz: int, fires: bool) -> None:
    assert bool(said(sku=[A100] * 4, sm_clock_mhz=[clock_mhz, 1410, 1410, 1410])) is fires


@pytest.mark.parametrize(("clock_mhz", "fires"), [(1199, True), (1200, False), (1500, False)])
def test_it_never_fires_at_or_above_the_ceiling(clock_mhz: int, fires: bool) -> None:
    assert bool(said(sm_clock_mhz=[clock_mhz, 1755, 1755, 1755])) is fires


def test_the_ceiling_is_set_by_part() -> None:
    roster = Roster()
    roster.policy = policy({"sm_clock": RulePolicy(per_sku={"H100": {"ceiling_mhz": 1000}})})
    assert said(roster=roster, sm_clock_mhz=[1050, 1755, 1755, 1755]) == []
    assert positions(said(roster=roster, sm_clock_mhz=[950, 1755, 1755, 1755])) == ["0"]


@pytest.mark.parametrize(
    "columns",
    [
        {"gpu_util_pct": [3, 97, 97, 97]},
        {"clock_event_reasons_mask": [0x1, 0, 0, 0]},
        {"clock_event_reasons_mask": [0x2, 0, 0, 0]},
        {"gpu_util_pct": [None, 97, 97, 97]},
        {"gpu_util_pct": None, "sm_active_ratio": [0.05, 0.9, 0.9, 0.9]},
    ],
    ids=["idle by use", "idle by bit", "application clocks", "use unknown", "idle by activity"],
)
def test_a_low_clock_that_is_meant_is_passed_over(columns: dict[str, Any]) -> None:
    assert said(sm_clock_mhz=[1050, 1755, 1755, 1755], **columns) == []


def test_activity_stands_in_for_utilisation() -> None:
    columns: dict[str, Any] = {"gpu_util_pct": None, "sm_active_ratio": 0.8}
    assert positions(said(sm_clock_mhz=[1755, 1050, 1755, 1755], **columns)) == ["1"]


def test_a_fall_of_all_alike_singles_out_nobody() -> None:
    assert said(sku=[A100] * 4, sm_clock_mhz=1000) == []


def test_idle_neighbours_are_no_peers() -> None:
    assert said(sm_clock_mhz=[1050, 345, 345, 345], gpu_util_pct=[97, 0, 0, 0]) == []


def test_peers_are_of_the_same_part_and_job() -> None:
    assert said(sku=[H100, A100, A100, A100], sm_clock_mhz=[1050, 1410, 1410, 1410]) == []
    roster = Roster()
    for record in (
        job(1),
        placement([0], devices=[0]),
        job(3, job_id="j2"),
        placement([0, 1, 2], job_id="j2", devices=[1, 2, 3]),
    ):
        roster.take(record)
    assert said(roster=roster, sm_clock_mhz=[1050, 1755, 1755, 1755]) == []


def test_an_unknown_clock_says_nothing() -> None:
    assert said(sm_clock_mhz=[None, 1755, 1755, 1755]) == []
    assert said() == []


def test_it_is_cleared_after_a_minute_at_its_clock() -> None:
    rule, roster, found = SmClock(SITE), Roster(), []
    for second in range(90):
        clock = 1050 if second < 10 else 1755
        frame = gpu_frame(second, gpus=3, gpu_util_pct=97, sm_clock_mhz=[clock, 1755, 1755])
        found += list(rule.on_frame(frame, roster))
    assert [finding.state for finding in found] == ["open", "cleared"]
    assert found[0].finding_id == found[1].finding_id
    assert at(69) <= found[1].event_time_ns <= at(75)


def test_a_gpu_without_a_uuid_is_named_by_its_address() -> None:
    (finding,) = said(gpu_uuid=[None, "GPU-b", "GPU-c", "GPU-d"], sm_clock_mhz=[1050, 1755, 1755, 1755])
    assert (finding.subject.gpu_uuid, finding.subject.pci_bus_id) == (None, "0000:10:00")


def of_clocks(clocks: list[int], tick_s: int) -> list[Finding]:
    rule, roster = SmClock(SITE), Roster()
    frames = [
        gpu_frame(tick_s * tick, gpus=3, gpu_util_pct=97, sm_clock_mhz=[clock, 1755, 1755])
        for tick, clock in enumerate(clocks)
    ]
    return [finding for frame in frames for finding in rule.on_frame(frame, roster)]


@pytest.mark.parametrize("tick_s", [5, 15])
def test_a_node_that_is_read_seldom_is_slow_at_its_third_low_frame(tick_s: int) -> None:
    (finding,) = of_clocks([1755, 1755, 1050, 1050, 1050], tick_s)
    assert (finding.event_time_ns, finding.onset_ns) == (at(4 * tick_s), at(2 * tick_s))


def test_low_frames_that_lie_far_apart_are_no_slow_clock() -> None:
    assert of_clocks([1050, 1755, 1755, 1755] * 5, 5) == []
    assert of_clocks([1050] * 4, 61) == []


def test_a_snapshot_of_before_the_pace_was_kept_is_taken() -> None:
    rule, roster = SmClock(SITE), Roster()
    frames = [gpu_frame(tick, gpus=3, gpu_util_pct=97, sm_clock_mhz=[1050, 1755, 1755]) for tick in range(3)]
    assert list(rule.on_frame(frames[0], roster)) == list(rule.on_frame(frames[1], roster)) == []
    older = {key: state[:2] for key, state in rule.snapshot().items()}  # type: ignore[index]
    again = SmClock(SITE)
    again.restore(older)
    assert len(list(again.on_frame(frames[2], roster))) == 1

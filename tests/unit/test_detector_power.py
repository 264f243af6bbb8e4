"""Power: a slowdown bit at work, and a cap that stands longer than on equal GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import A100, H100, SITE, at, gpu_frame, job, placement, policy

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.power import Power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.frames import GpuFrame

MS = 1_000_000


def heard(frames: Sequence[GpuFrame], roster: Roster | None = None) -> list[Finding]:
    rule = Power(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def of_masks(masks: Sequence[int | None], **columns: Any) -> list[GpuFrame]:
    """One GPU at work, a mask a second."""
    return [
        gpu_frame(second, gpus=1, clock_event_reasons_mask=[mask], **{"gpu_util_pct": 99, **columns})
        for second, mask in enumerate(masks)
    ]


def minutes(count: int, capped: Sequence[float], **columns: Any) -> list[GpuFrame]:
    """GPUs at work whose cap stands for a share of each ten seconds, one frame a second."""
    return [
        gpu_frame(
            second,
            gpus=len(capped),
            clock_event_reasons_mask=[0x4 if second % 10 < 10 * share else 0 for share in capped],
            **{"gpu_util_pct": 99, **columns},
        )
        for second in range(60 * count)
    ]


@pytest.mark.parametrize("mask", [0x8, 0x80, 0x8C, 0xC8])
def test_a_slowdown_bit_fires_at_the_third_sample_and_began_with_the_first(mask: int) -> None:
    (finding,) = heard(of_masks([0, mask, mask, mask, mask]))
    assert (finding.kind, finding.severity, finding.state) == ("power_slowdown", "warning", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(3), at(1))
    assert finding.subject.gpu_uuid == "GPU-node-1-0"


@pytest.mark.parametrize("mask", [0x4, 0x1, 0x2, 0x10, 0x20, 0x40, 0x48, 0x68, 0x100])
def test_other_bits_and_a_slowdown_for_heat_are_not_power(mask: int) -> None:
    assert heard(of_masks([mask] * 20)) == []


def test_two_of_five_samples_are_not_enough_and_three_need_not_be_in_a_row() -> None:
    assert heard(of_masks([0x80, 0x80, 0, 0, 0] * 5)) == []
    assert len(heard(of_masks([0x80, 0, 0x80, 0, 0x80]))) == 1


def test_an_idle_gpu_and_an_unknown_mask_say_nothing() -> None:
    assert heard(of_masks([0x80] * 10, gpu_util_pct=3)) == []
    assert heard(of_masks([0x81] * 10)) == []
    assert heard(of_masks([None] * 10)) == []
    assert heard([gpu_frame(second, gpu_util_pct=99) for second in range(10)]) == []


def test_violation_time_is_evidence_and_alone_no_reason() -> None:
    counter = [[400 * MS * second] for second in range(10)]
    frames = [
        gpu_frame(s, gpus=1, gpu_util_pct=99, clock_event_reasons_mask=[0x80], power_violation_ns=counter[s])
        for s in range(10)
    ]
    (finding,) = heard(frames)
    assert finding.values["power_violation_ns_in_minute"] == 800 * MS
    assert finding.values["power_violation_is_high"] is True
    assert heard([frame.model_copy(update={"clock_event_reasons_mask": (0,)}) for frame in frames]) == []
    in_another_unit = [
        frame.model_copy(update={"power_violation_ns": (5_000 * MS * s,)}) for s, frame in enumerate(frames)
    ]
    assert heard(in_another_unit)[0].values["power_violation_ns_in_minute"] == 0


def test_it_is_cleared_a_minute_after_the_last_hit() -> None:
    opened, cleared = heard(of_masks([0x80] * 5 + [0] * 80))
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert at(60) < cleared.event_time_ns < at(70)


def test_a_cap_far_above_the_peers_is_told_after_enough_work() -> None:
    (finding,) = heard(minutes(5, [0.0, 0.1, 1.0, 0.1]))
    assert (finding.kind, finding.severity, finding.subject.gpu_uuid) == ("power_cap", "info", "GPU-node-1-2")
    assert finding.event_time_ns == at(240)
    assert finding.values["capped_share"] == 1
    assert finding.values["peer_median_share"] == 0.1


@pytest.mark.parametrize("capped", [[1.0] * 8, [1.0, 1.0, 0.9, 0.8, 1.0], [0.3, 0.2, 0.2, 0.2], [1.0, 0.0], [1.0]])
def test_a_cap_on_all_a_small_difference_and_too_few_peers_say_nothing(capped: list[float]) -> None:
    assert heard(minutes(6, capped)) == []


def test_idle_peers_and_peers_of_another_part_are_none() -> None:
    assert heard(minutes(6, [1.0, 0.0, 0.0], gpu_util_pct=[99, 3, 3])) == []
    assert heard(minutes(6, [1.0, 0.0, 0.0], sku=(H100, A100, A100))) == []


def test_peers_are_of_the_same_job() -> None:
    roster = Roster()
    roster.take(job(4, job_id="a"))
    roster.take(placement([0], job_id="a", devices=[0]))
    roster.take(job(2, job_id="b"))
    roster.take(placement([0, 1], job_id="b", devices=[1, 2]))
    assert heard(minutes(6, [1.0, 0.0, 0.0]), roster) == []
    assert len(heard(minutes(6, [1.0, 0.0, 0.0]))) == 1


def test_a_slow_tick_and_a_gap_are_weighed_by_time() -> None:
    slow = [
        gpu_frame(10 * tick, gpus=3, seq=tick, gpu_util_pct=99, clock_event_reasons_mask=[0x4, 0, 0])
        for tick in range(40)
    ]
    assert [finding.event_time_ns for finding in heard(slow)] == [at(240)]
    apart = [frame.model_copy(update={"event_time_ns": at(70 * frame.seq)}) for frame in slow]
    assert heard(apart) == []


def test_a_site_sets_the_limits_by_part() -> None:
    roster = Roster()
    roster.policy = policy({"power": RulePolicy(per_sku={"H100": {"hits": 5, "cap_share_above": 0.95}})})
    assert heard(of_masks([0x80] * 4), roster) == []
    assert heard(minutes(5, [1.0, 0.1, 0.1]), roster) == []


def at_pace(seconds: int, masks: Sequence[int]) -> list[GpuFrame]:
    return [
        gpu_frame(seconds * tick, gpus=1, gpu_util_pct=99, clock_event_reasons_mask=[mask])
        for tick, mask in enumerate(masks)
    ]


@pytest.mark.parametrize("seconds", [5, 15, 60])
def test_a_node_that_is_read_seldom_is_braked_at_its_third_frame(seconds: int) -> None:
    (finding,) = heard(at_pace(seconds, [0, 0x80, 0x80, 0x80, 0x80]))
    assert (finding.event_time_ns, finding.onset_ns) == (at(3 * seconds), at(seconds))


def test_two_frames_of_a_slow_node_and_frames_over_a_minute_apart_are_no_brake() -> None:
    assert heard(at_pace(5, [0, 0x80, 0x80, 0] * 5)) == []
    assert heard(at_pace(61, [0x80] * 5)) == []

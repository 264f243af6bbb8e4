"""NVLink: CRC errors at a rate, not a total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factories import SITE, at, gpu_frame, policy

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.nvlink import NvlinkErrors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.frames import GpuFrame


def heard(frames: Sequence[GpuFrame], roster: Roster | None = None) -> list[Finding]:
    rule = NvlinkErrors(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def of_counts(counts: Sequence[int | None], **columns: Any) -> list[GpuFrame]:
    return [gpu_frame(s, gpus=1, nvlink_crc_errors=[count], **columns) for s, count in enumerate(counts)]


def of_rates(rates: Sequence[int]) -> list[GpuFrame]:
    return of_counts([sum(rates[:second]) for second in range(len(rates) + 1)])


def test_it_fires_at_the_third_second_above_and_began_with_the_first() -> None:
    (finding,) = heard(of_rates([0, 11, 11, 11, 11]))
    assert (finding.kind, finding.severity, finding.state) == ("nvlink_errors", "warning", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(4), at(2))
    assert finding.values["crc_errors_per_s"] == 11
    assert finding.values["replays_per_s"] is None


def test_exactly_the_limit_is_not_above_it() -> None:
    assert heard(of_rates([10] * 30)) == []


def test_a_single_burst_and_two_seconds_of_five_say_nothing() -> None:
    assert heard(of_rates([0, 100_000, 0, 0, 0, 0])) == []
    assert heard(of_rates([50, 50, 0, 0, 0] * 5)) == []


def test_an_old_count_a_reset_and_a_new_session_are_baselines() -> None:
    assert heard(of_counts([10**9] * 10)) == []
    assert heard(of_counts([10**9, 10**9, 0, 0, 0, 0])) == []
    restarted = [gpu_frame(s, gpus=1, session=f"s{s}", seq=0, nvlink_crc_errors=[500 * s]) for s in range(20)]
    assert heard(restarted) == []


def test_an_unknown_count_is_not_zero_and_what_follows_is_a_rate_over_the_gap() -> None:
    assert heard(of_counts([None] * 10)) == []
    assert len(heard(of_counts([0, 20, None, 60, 80]))) == 1
    assert heard(of_counts([0, None, None, None, 40, 50, 60, 70])) == []


def test_a_slower_tick_is_read_as_a_rate() -> None:
    frames = [
        gpu_frame(2 * n, gpus=1, seq=n, nvlink_crc_errors=[24 * n], nvlink_replay_errors=[6 * n]) for n in range(5)
    ]
    (finding,) = heard(frames)
    assert (finding.values["crc_errors_per_s"], finding.values["replays_per_s"]) == (12, 3)


def test_replays_alone_say_nothing() -> None:
    assert heard(of_counts([0] * 10, nvlink_replay_errors=5)) == []
    frames = [gpu_frame(s, gpus=1, nvlink_crc_errors=[0], nvlink_replay_errors=[900 * s]) for s in range(10)]
    assert heard(frames) == []


def test_gpus_are_told_apart_and_it_is_cleared_after_a_quiet_minute() -> None:
    frames = [gpu_frame(s, gpus=2, nvlink_crc_errors=[3 * s, 40 * min(s, 10)]) for s in range(80)]
    opened, cleared = heard(frames)
    assert opened.subject.gpu_uuid == cleared.subject.gpu_uuid == "GPU-node-1-1"
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert cleared.values["peak_crc_errors_per_s"] == 40


def test_a_site_sets_the_rate_by_part() -> None:
    roster = Roster()
    roster.policy = policy({"nvlink_errors": RulePolicy(per_sku={"H100": {"crc_errors_per_s": 50}})})
    assert heard(of_rates([50] * 6), roster) == []
    assert len(heard(of_rates([51] * 6), roster)) == 1


def test_a_node_that_is_read_every_five_seconds_fires_at_its_third_frame_above_and_not_at_two() -> None:
    def every_five(rates: Sequence[int]) -> list[Finding]:
        counts = [5 * sum(rates[:tick]) for tick in range(len(rates) + 1)]
        return heard([gpu_frame(5 * tick, gpus=1, nvlink_crc_errors=[count]) for tick, count in enumerate(counts)])

    (finding,) = every_five([0, 11, 11, 11])
    assert (finding.event_time_ns, finding.onset_ns) == (at(20), at(10))
    assert every_five([11, 11, 0, 0] * 4) == []

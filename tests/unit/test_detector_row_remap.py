"""Row remapping: the driver's flags, said once, and as found at start when they stood before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, gpu_frame, policy

from schemas.fleet import RulePolicy
from streams.core.roster import Roster
from streams.detectors.row_remap import RowRemap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.findings import Finding
    from schemas.frames import GpuFrame

CASES = [
    ("row_remap_pending", "row_remap_pending", 0, 1, "warning"),
    ("row_remap_failure", "row_remap_failure", 0, 1, "critical"),
    ("row_remap_exhausting", "uncorrectable_remapped_rows", 511, 512, "warning"),
]


def heard(frames: Sequence[GpuFrame], roster: Roster | None = None) -> list[Finding]:
    rule = RowRemap(SITE)
    return [finding for frame in frames for finding in rule.on_frame(frame, roster or Roster())]


def of(column: str, readings: Sequence[int | None]) -> list[GpuFrame]:
    columns: list[dict[str, Any]] = [{column: [reading]} for reading in readings]
    return [gpu_frame(second, gpus=1, **given) for second, given in enumerate(columns)]


@pytest.mark.parametrize(("kind", "column", "healthy", "faulty", "severity"), CASES)
def test_a_flag_that_comes_up_is_said_once_and_is_not_urgent(
    kind: str, column: str, healthy: int, faulty: int, severity: str
) -> None:
    (finding,) = heard(of(column, [healthy, healthy, faulty, faulty, faulty]))
    assert (finding.kind, finding.severity, finding.state, finding.urgent) == (kind, severity, "open", False)
    assert (finding.event_time_ns, finding.onset_ns) == (at(2), at(2))
    assert finding.values["found_at_start"] is False
    assert finding.values[column] == faulty


@pytest.mark.parametrize(("kind", "column", "healthy", "faulty", "severity"), CASES)
def test_a_flag_that_stood_at_first_sight_is_found_at_start(
    kind: str, column: str, healthy: int, faulty: int, severity: str
) -> None:
    (finding,) = heard(of(column, [None, faulty, faulty]))
    assert (finding.kind, finding.event_time_ns) == (kind, at(1))
    assert finding.values["found_at_start"] is True
    assert "found at start" in finding.explanation


@pytest.mark.parametrize(("kind", "column", "healthy", "faulty", "severity"), CASES)
def test_an_unknown_flag_changes_nothing(kind: str, column: str, healthy: int, faulty: int, severity: str) -> None:
    assert heard(of(column, [None] * 5)) == []
    assert [f.state for f in heard(of(column, [healthy, faulty, *[None] * 100]))] == ["open"]


@pytest.mark.parametrize(("kind", "column", "healthy", "faulty", "severity"), CASES)
def test_it_is_cleared_a_minute_after_the_flag_is_gone(
    kind: str, column: str, healthy: int, faulty: int, severity: str
) -> None:
    opened, cleared = heard(of(column, [healthy, faulty, *[healthy] * 70]))
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(61))


def test_three_statements_of_one_gpu_have_three_ids() -> None:
    frames = [gpu_frame(0, gpus=1, row_remap_pending=1, row_remap_failure=1, uncorrectable_remapped_rows=600)]
    findings = heard(frames)
    assert [finding.kind for finding in findings] == ["row_remap_pending", "row_remap_failure", "row_remap_exhausting"]
    assert len({finding.finding_id for finding in findings}) == 3


def test_an_agent_that_restarts_finds_nothing_anew() -> None:
    frames = [gpu_frame(s, gpus=1, session=f"s{s // 3}", seq=s % 3, row_remap_pending=[1]) for s in range(9)]
    assert len(heard(frames)) == 1


def test_a_site_sets_the_count_by_part() -> None:
    roster = Roster()
    roster.policy = policy({"row_remap": RulePolicy(per_sku={"H100": {"uncorrectable_rows": 64}})})
    assert len(heard(of("uncorrectable_remapped_rows", [63, 64]), roster)) == 1
    assert len(heard(of("row_remap_pending", [0, 1]), roster)) == 1

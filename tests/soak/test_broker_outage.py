"""Five minutes without a broker under load: nothing critical is lost, and of bulk only what the cap costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.broker_outage import Plan, run

if TYPE_CHECKING:
    from pathlib import Path


def test_five_minutes_without_a_broker_cost_what_the_cap_says_and_nothing_critical(tmp_path: Path) -> None:
    report = run(Plan(before_s=10.0, outage_s=300.0, after_s=20.0, bulk_kbytes=4096), tmp_path)
    assert report.taken["NodeStatus"] == report.arrived["NodeStatus"] >= 26_000
    assert report.taken["KernelEvent"] == report.arrived["KernelEvent"] >= 26_000
    assert report.bulk_missing > 0, "the cap was not reached"
    assert report.newest_missing_is_older_than_oldest_kept, report
    assert report.holds, report

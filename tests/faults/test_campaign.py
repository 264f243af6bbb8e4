"""The long campaign, at the size that `make faults` runs: fifty kills, ten rebalances, two broker restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.campaign import Plan, run

if TYPE_CHECKING:
    from pathlib import Path


def test_fifty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    report = run(Plan(), tmp_path)
    assert report.kills >= 50
    assert report.rebalances == 10
    assert report.broker_stops == 2
    assert report.holds, f"missing {report.missing}, more {report.more}"

"""Fifty kills of a publishing process, at the size that `make faults` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.agent_kills import run

if TYPE_CHECKING:
    from pathlib import Path


def test_fifty_kills_lose_and_invent_no_critical_record(tmp_path: Path) -> None:
    report = run(50, tmp_path)
    assert report.kills == 50
    assert report.acknowledged > 1000
    assert report.torn > 0
    assert report.holds, report

"""Workers killed at random moments change nothing of what is said: the short form of `make faults`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.faults.campaign import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_kafka


def test_kills_and_rebalances_lose_and_double_nothing(kafka: object, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    report = run(
        Plan(75.0, nodes=6, kills=4, rebalances=1, late_kills=1, broker_stops=0, snapshot_every_s=12.0, seed=seed),
        tmp_path,
    )
    assert report.kills >= 4
    assert report.expected["findings"] > 5
    assert report.expected["commands"] > 0
    assert report.holds, f"seed {seed}: missing {report.missing}, more {report.more}"

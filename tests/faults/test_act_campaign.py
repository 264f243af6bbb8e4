"""The chaos on the loop of acts, in a short form that `make faults` runs; in full: `python -m tests.faults.act_campaign`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.act_campaign import Plan, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.needs_kafka
def test_kills_of_worker_actuator_and_broker_double_and_lose_no_act(tmp_path: Path) -> None:
    plan = Plan(duration_s=90.0, incidents=40, kills=8, long_absences=1, controller_absences=2)
    report = run(plan, tmp_path)
    assert sum(report.kills.values()) == plan.kills
    assert report.account.commands + report.account.never_ordered == plan.incidents
    assert report.holds, report

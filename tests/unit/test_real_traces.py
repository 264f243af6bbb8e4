"""Recorded jobs, and variants of them with a known culprit: exactly the culprits are named (tests/real_traces.py)."""

from __future__ import annotations

from functools import cache

import pytest

from tests.real_traces import NAMES, Case, answer_to, cases
from tests.trace_variants import Trace, is_there, load, records_of, replay_error

CASES = {f"{case.base} {case.name} {case.severity:.0%}": case for case in cases()}
SHORT = (
    "AR as recorded, waits anew 136%",
    "AR without its slow worker 0%",
    "SE as recorded, waits anew 0%",
    "AR rank 40 10%",
    "AR rank 60 5%",
    "AR ranks (4, 8) 10%",
    "AR rank 8 beside the slow one 10%",
    "AR rank 20 in 3 of 10 steps 10%",
    "AR rank 20 in 10 of 37 steps 10%",
    "AR rank 20 from 20 to 60, then healed 20%",
    "AR rank 20, 30% of reports lost 10%",
    "AR all ranks from step 44 10%",
    "AR data group of stage 1 x4 from 44 300%",
    "AR hand-over of stage 1 +0.1 s from 44 0%",
    "SE rank 64 50%",
    "SE data group of stage 0 x4 from 43 300%",
)
"""One of each kind; `python -m tests.real_traces` runs all."""


@cache
def trace(name: str) -> Trace:
    if not is_there(name):
        pytest.skip(f"reference data absent: trace {name}")
    return load(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_replay_of_recorded_own_durations_gives_the_recorded_step(name: str) -> None:
    middle, high = replay_error(trace(name))
    assert middle < 0.01
    assert high < 0.02


@pytest.mark.parametrize("name", SHORT)
def test_exactly_the_culprits_of_a_variant_are_named(name: str) -> None:
    case: Case = CASES[name]
    made = case.make(trace(case.base))
    answer = answer_to(made, records_of(made, case.is_lost))
    assert case.wrong(answer) == ""

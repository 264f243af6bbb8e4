"""Bytes of collectives on their way from a training loop to a step timing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from agents.step_join import step_columns
from agents.trainer_messages import StepReport
from paceline_trainer.collective_timers import _larger_bytes
from paceline_trainer.stopwatch import Stopwatch
from schemas.steps import CollectiveTiming, StepTiming


def tensor(elements: int, width: int = 2) -> Any:
    return SimpleNamespace(numel=lambda: elements, element_size=lambda: width)


def test_the_larger_buffer_of_a_call_counts() -> None:
    assert _larger_bytes((tensor(8), None, False)) == 16
    assert _larger_bytes(([tensor(8)] * 4, tensor(8), "group")) == 64
    assert _larger_bytes((tensor(8), [tensor(8)] * 4)) == 64
    assert _larger_bytes(SimpleNamespace(buffer=lambda: tensor(5, 4))) == 20
    assert _larger_bytes((None, 3)) is None


def test_a_step_adds_bytes_up_and_one_unknown_leaves_none() -> None:
    watch = Stopwatch(lambda: 0)
    watch.begin()
    for size in (100, 200):
        watch.add_collective("dp", 0.001, None, "all_reduce", overlapped=True, size_bytes=size)
    watch.add_collective("tp", 0.001, None, "all_gather", overlapped=True, size_bytes=7)
    watch.add_collective("tp", 0.001, None, "all_gather", overlapped=True)
    fields = watch.end()
    assert fields is not None
    assert [one.get("size_bytes") for one in fields["collectives"]] == [300, None]
    assert "size_bytes" not in fields["collectives"][1]


def report(*collectives: dict[str, Any]) -> StepReport:
    told = {"v": 1, "type": "step", "step": 1, "event_time_ns": 5, "step_us": 10, "collectives": collectives}
    return StepReport.model_validate(told)


def spent(group: str, duration_us: int, **more: int) -> dict[str, Any]:
    return {"group": group, "op": "all_reduce", "duration_us": duration_us, **more}


def test_a_node_s_timing_has_the_bytes_of_each_rank() -> None:
    columns = step_columns(
        {
            0: report(spent("dp", 5, size_bytes=64), spent("dp", 5, size_bytes=36), spent("tp", 1)),
            1: report(spent("dp", 9), spent("tp", 1)),
        }
    )
    dp, tp = columns["collectives"]
    assert (dp.duration_us, dp.size_bytes) == ((10, 9), (100, None))
    assert (tp.duration_us, tp.size_bytes) == ((1, 1), None)


def test_the_column_of_bytes_is_as_long_as_the_ranks() -> None:
    collective = CollectiveTiming(group="dp", duration_us=(1, 2), size_bytes=(5,))
    with pytest.raises(ValidationError, match="size_bytes"):
        StepTiming(
            job_id="j",
            node_id="n",
            agent_session="s",
            seq=0,
            event_time_ns=1,
            step=0,
            rank=(0, 1),
            step_us=(1, 1),
            collectives=(collective,),
        )

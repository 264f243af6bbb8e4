"""The pipeline over every scenario: shuffled within the lateness and partly doubled it says the same, in order of time.

All output lines are equal where no urgent finding is among them. Urgent ones are decided on in the order of the log, so
there the findings are compared, and kernel lines of one node keep their order.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from factories import SITE
from scenario_runner import Scenario, load, outputs_of

from schemas.codec import encode
from schemas.events import KernelEvent
from schemas.findings import Finding
from schemas.fleet import Job, RankPlacement
from schemas.remediation import Command
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.core.position import Position

LATENESS_NS = 10_000_000_000
FILES = [path for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.toml")) if "512" not in path.stem]


@cache
def scenario(path: Path) -> Scenario:
    return load(path)


def shuffled(scenario: Scenario, seed: int) -> list[tuple[Record, Position]]:
    """Registrations first; then everything by event time plus less than the lateness, one in twenty twice."""
    rng = random.Random(seed)
    arrivals: list[tuple[float, int, Record, Position]] = []
    last_line: dict[str, float] = {}
    for record, position in scenario.records:
        for _ in range(1 + (rng.random() < 0.05)):
            if isinstance(record, Job | RankPlacement):
                arrival = 0.0
            else:
                # By arrival: a clock that is wrong does not make its records come earlier.
                arrival = position.append_ms * 1_000_000 + rng.random() * (LATENESS_NS - 1)
            if isinstance(record, KernelEvent):
                arrival = last_line[record.node_id] = max(arrival, last_line.get(record.node_id, 0.0))
            arrivals.append((arrival, len(arrivals), record, position))
    return [(record, position) for _, _, record, position in sorted(arrivals, key=lambda entry: entry[:2])]


def run(scenario: Scenario, stream: list[tuple[Record, Position]]) -> list[Record]:
    pipeline = Pipeline(SITE, scenario.policy)
    outputs = [record for item in stream for record in pipeline.on_record(*item)] + pipeline.flush()
    assert pipeline.counts["late"] == 0
    return outputs


def comparable(outputs: list[Record]) -> list[bytes]:
    urgent = any(isinstance(record, Finding) and record.urgent for record in outputs)
    return [encode(record) for record in outputs if not urgent or isinstance(record, Finding)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_order_and_repeats_of_the_input_change_no_byte_of_the_output(path: Path) -> None:
    told = scenario(path)
    expected = comparable(outputs_of(told))
    for seed in (1, 2):
        assert comparable(run(told, shuffled(told, seed))) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_outputs_come_in_order_of_event_time(path: Path) -> None:
    times = [
        record.decided_at_ns if isinstance(record, Command) else record.event_time_ns  # type: ignore[attr-defined]
        for record in outputs_of(scenario(path))
    ]
    assert times == sorted(times)


def test_a_record_far_ahead_of_its_arrival_is_refused_whatever_comes_with_it() -> None:
    told = scenario(next(path for path in FILES if path.stem == "sm_clock_below_peers"))
    (record, position), *rest = told.records
    ahead = record.model_copy(update={"event_time_ns": position.append_ms * 1_000_000 + 61_000_000_000, "seq": 99})
    pipeline = Pipeline(SITE)
    outputs = pipeline.on_record(record, position) + pipeline.on_record(ahead, position)
    outputs += [output for item in rest for output in pipeline.on_record(*item)] + pipeline.flush()
    assert pipeline.counts["refused_future"] == 1
    assert [encode(output) for output in outputs] == [encode(output) for output in outputs_of(told)]

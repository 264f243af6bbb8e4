"""Bytes for the benchmarks: what a simulated fleet would put on its topics, made before any clock starts.

The same arguments give the same bytes. Fleets are healthy unless told otherwise, since that is what a fleet is nearly
all of the time. Nothing here is timed, and nothing is delayed, repeated or lost on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.simulation import FaultPlan, JobPlan, Scenario, simulate
from schemas.codec import message
from schemas.fleet import Job, Model, Node, RankPlacement
from schemas.frames import GpuFrame
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.codec import Message

__all__ = ["GPUS_PER_NODE", "START_NS", "FrameLoad", "StepLoad", "StepTemplate", "frames", "step_timings", "templates"]

GPUS_PER_NODE = 8
START_NS = 1_700_000_000_000_000_000
"""In the past of every clock: records ahead of their arrival are refused."""
_TENSOR, _PIPELINE = 8, 4
_MODEL = Model(parameters=70.55e9, layers=80, hidden=8192, heads=64, head_dim=128, kv_heads=8, ffn_hidden=28672)
_TIMED = re.compile(rb'^(.*?"seq":)\d+(,"event_time_ns":)(\d+)(,"step":)(\d+)(,.*)$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class FrameLoad:
    """GPU frames of a fleet: messages by time, and the time at which each was sent."""

    messages: tuple[Message, ...]
    sent_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Step timings of one or more jobs of equal size.

    Attributes:
        reference: jobs, placements and nodes, which the processors read first.
        messages: step timings by time.
        sent_ns: when each was sent.
        steps: whole steps of all jobs together.
    """

    reference: tuple[Record, ...]
    messages: tuple[Message, ...]
    sent_ns: tuple[int, ...]
    steps: int

    @property
    def rank_steps(self) -> int:
        """Entries of all messages: ranks times steps."""
        return len(self.messages) * GPUS_PER_NODE


class StepTemplate:
    """A step timing whose number, sequence and event time can be set without encoding it again.

    Attributes:
        key: of the message.
        sent_after_ns: when it is sent, after the first report of its step.
        event_after_ns: its event time, after the moment at which the first report of its step is sent.
    """

    __slots__ = ("_parts", "event_after_ns", "key", "sent_after_ns")

    def __init__(self, wire: Message, sent_ns: int, first_sent_ns: int) -> None:
        found = _TIMED.match(wire.value)
        assert found is not None, "the fields of a step timing stand in another order"
        before, time_name, event_time, step_name, _, rest = found.groups()
        self._parts = before, time_name, step_name, rest
        self.key = wire.key
        self.sent_after_ns = sent_ns - first_sent_ns
        self.event_after_ns = int(event_time) - first_sent_ns

    def at(self, step: int, event_time_ns: int) -> bytes:
        """The payload for one step of one time."""
        before, time_name, step_name, rest = self._parts
        return b"%b%d%b%d%b%d%b" % (before, step, time_name, event_time_ns, step_name, step, rest)


def frames(nodes: int, ticks: int) -> FrameLoad:
    """One frame of eight GPUs per node and tick; all nodes run a job."""
    scenario = Scenario(
        name="frames",
        nodes=nodes,
        duration_s=float(ticks),
        jobs=(JobPlan(job_id="pretrain", tensor=_TENSOR, model=_MODEL, starts_s=0.0),),
    )
    found = [(at_ns, record) for at_ns, record in simulate(scenario, START_NS) if isinstance(record, GpuFrame)]
    return FrameLoad(tuple(message(record) for _, record in found), tuple(at_ns for at_ns, _ in found))


_SLOW_EVERY_S, _SLOW_FOR_S = 8.0, 5.0
"""A rank is named at its third or fourth slow step, and cleared within the minute."""


def step_timings(
    ranks: int, steps: int, jobs: int = 1, slow_rank: bool = False, slow_in_turn_from: int | None = None
) -> StepLoad:
    """Step timings of jobs of tensor 8, pipeline 4 and as many replicas as there are ranks, one step a second.

    Args:
        ranks: of each job; a multiple of 32.
        steps: of each job.
        jobs: named `job-0`, `job-1`, ...
        slow_rank: whether one GPU of the first job is slowed by heat from a quarter of the run on.
        slow_in_turn_from: step from which on one GPU of the first job after the other is, each for 5 s of every 8 s.
    """
    nodes = ranks // GPUS_PER_NODE
    duration_s = steps * (1.1 if slow_in_turn_from is None else 1.8) + 3.0
    faults = [FaultPlan(kind="thermal", job="job-0", onset=0.25)] if slow_rank else []
    if slow_in_turn_from is not None:
        faults += _slow_in_turn(slow_in_turn_from, duration_s, nodes)
    scenario = Scenario(
        name="steps",
        nodes=nodes * jobs,
        # Frames are not wanted here: as few ticks as there can be.
        tick_s=min(60.0, duration_s),
        duration_s=duration_s,
        jobs=tuple(
            JobPlan(
                job_id=f"job-{number}",
                nodes_from=number * nodes,
                nodes_to=(number + 1) * nodes,
                tensor=_TENSOR,
                pipeline=_PIPELINE if ranks >= _TENSOR * _PIPELINE else 1,
                step_time_ms=1000.0,
                model=_MODEL,
                starts_s=0.0,
                warmup_steps=0,
                checkpoint_every_s=None,
            )
            for number in range(jobs)
        ),
        faults=tuple(faults),
    )
    reference: list[Record] = []
    wires, sent = [], []
    for at_ns, record in simulate(scenario, START_NS):
        if isinstance(record, Job | RankPlacement | Node):
            reference.append(record)
        elif isinstance(record, StepTiming) and record.step < steps:
            wires.append(message(record))
            sent.append(at_ns)
    assert len(wires) == nodes * jobs * steps, f"{len(wires)} reports of {nodes * jobs} nodes and {steps} steps"
    return StepLoad(tuple(reference), tuple(wires), tuple(sent), steps * jobs)


def _slow_in_turn(from_s: float, duration_s: float, nodes: int) -> list[FaultPlan]:
    found: list[FaultPlan] = []
    while (onset_s := from_s + len(found) * _SLOW_EVERY_S) + _SLOW_FOR_S < duration_s:
        place = len(found)
        found.append(
            FaultPlan(
                kind="thermal",
                job="job-0",
                onset=onset_s / duration_s,
                end=(onset_s + _SLOW_FOR_S) / duration_s,
                node=(7 + 11 * place) % nodes,
                gpu=place % GPUS_PER_NODE,
                slowdown=(1.8, 1.8),
            )
        )
    return found


def templates(load: StepLoad, nodes: int) -> list[list[StepTemplate]]:
    """The steps of a load of one job, each in the order in which its nodes report."""
    return [
        [
            StepTemplate(wire, sent_ns, load.sent_ns[first])
            for wire, sent_ns in zip(
                load.messages[first : first + nodes], load.sent_ns[first : first + nodes], strict=True
            )
        ]
        for first in range(0, len(load.messages), nodes)
    ]

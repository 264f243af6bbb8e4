"""A run: one case with one seed, as an iterable of arrivals and the truths behind them.

Pure and repeatable: iterating twice gives the same records. Steps of small runs are kept between uses; of large ones only
the window of time at hand is in memory.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from agents.simulation.benchmark.activity import Lifetimes
from agents.simulation.benchmark.drafts import Clocks, Draft, Sequences
from agents.simulation.benchmark.fault_places import STANDING_KINDS, PlacedFault, place_faults
from agents.simulation.benchmark.frames import FramePublisher
from agents.simulation.benchmark.inventory import Inventory
from agents.simulation.benchmark.job_steps import JobSteps, StepBlock
from agents.simulation.benchmark.kernel_lines import kernel_drafts
from agents.simulation.benchmark.layout import Segment, job_nodes, replica_count, shrunk
from agents.simulation.benchmark.own_times import nominal_times
from agents.simulation.benchmark.registry import job_record, placement_records
from agents.simulation.benchmark.step_records import SegmentRecords, missing_ranks
from agents.simulation.benchmark.truths import Timeline, truths_of
from agents.simulation.benchmark.way import Sent, arrivals
from agents.simulation.benchmark.whole_steps import whole_steps
from agents.simulation.errors import ScenarioError
from agents.simulation.noise import Noise
from schemas.events import KernelEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.labels import Truth
    from agents.simulation.benchmark.whole_steps import WholeStep
    from schemas.base import Record

__all__ = ["GeneratedRun", "generate"]

_KEPT_RANK_STEPS = 3_000_000
_BEFORE_NS = 1_000_000_000
"""Registrations and starts come this long before the first step."""


@dataclass(frozen=True)
class _Layout:
    """Who is where, resolved once."""

    inventory: Inventory
    segments: tuple[tuple[Segment, ...], ...]
    faults: tuple[PlacedFault, ...]


@dataclass(frozen=True)
class GeneratedRun:
    """What `generate` gives. Iterate it for (arrival_ns, record) by arrival.

    Attributes:
        case, seed: the arguments.
    """

    case: BenchmarkCase
    seed: int

    @cached_property
    def truths(self) -> tuple[Truth, ...]:
        """What is wrong, in the order of the case's faults; then heavy stages and varying lengths, which are no faults."""
        layout = self._layout
        return truths_of(self.case, layout.inventory, layout.segments, layout.faults, self._timelines)

    @property
    def end_ns(self) -> int:
        """True time of the end of the last step."""
        return self.case.start_ns + round(max(timeline.begin_us[-1] for timeline in self._timelines) * 1000)

    def step_ns(self, step: int, job: int = 0) -> int:
        """True time at which a step of a job begins; the end of the run for one that is never reached."""
        return self.case.start_ns + round(self._timelines[job].at_us(step) * 1000)

    def step_seconds(self, job: int = 0) -> tuple[float, ...]:
        """Time from one meeting of all ranks to the next, by step."""
        return tuple((after - before) * 1e-6 for before, after in pairwise(self._timelines[job].begin_us))

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """(arrival_ns, record) by arrival."""
        return arrivals(self._sent(), self.case.delivery, self._noise)

    def registrations(self) -> Iterator[Record]:
        """Nodes, jobs and where the ranks run, as registered before the first step."""
        layout, from_ns = self._layout, self.case.start_ns - _BEFORE_NS
        for machine in layout.inventory.machines:
            if machine.generation == 0:
                yield layout.inventory.node_record(machine, from_ns)
        for segments in layout.segments:
            yield job_record(self.case, segments[0], from_ns)
            yield from placement_records(segments[0], layout.inventory, from_ns)

    def whole_steps(self, job: int = 0) -> Iterator[WholeStep]:
        """The steps of a job as arrays, without messages: nothing of the run is kept but the block at hand."""
        return whole_steps(self.case, self._layout.inventory, self._steps(job).blocks())

    def published(self) -> Iterator[tuple[int, Record]]:
        """(published_ns, record), before delivery."""
        return ((sent.at_ns, sent.record) for sent in self._sent())

    @cached_property
    def _noise(self) -> Noise:
        return Noise(self.seed)

    @cached_property
    def _layout(self) -> _Layout:
        case, noise = self.case, self._noise
        if not case.jobs or case.steps < 1:
            raise ScenarioError(f"case {case.case_id}: it needs a job and a step at least")
        if sum(job.nodes for job in case.jobs) > case.fleet.nodes:
            raise ScenarioError(f"case {case.case_id}: its jobs have more nodes than its fleet of {case.fleet.nodes}")
        inventory = Inventory.of(case.fleet, noise)
        names = tuple(machine.node_id for machine in inventory.machines)
        first, start = [], 0
        for job in case.jobs:
            width = case.fleet.gpus_per_node
            replicas = replica_count(job, job.nodes, width)
            nodes = job_nodes(job, start, names, noise)
            first.append(Segment(job, 0, 0, case.steps, nodes, replicas, width))
            start += job.nodes
        faults = place_faults(case, inventory, first, noise)
        segments: list[tuple[Segment, ...]] = []
        for segment in first:
            resize = segment.plan.resize
            if resize is None:
                segments.append((segment,))
                continue
            before = replace(segment, stop_step=resize.at_step)
            if resize.kind == "shrink_and_renumber":
                keep = {fault.machine for fault in faults}
                segments.append((before, shrunk(segment, keep, resize.at_step)))
            else:
                inventory = inventory.with_replacement(faults[0].machine, noise)
                spare = len(inventory.machines) - 1
                nodes = tuple(spare if node == faults[0].machine else node for node in segment.nodes)
                after = replace(segment, epoch=1, first_step=resize.at_step, nodes=nodes)
                segments.append((before, after))
        return _Layout(inventory, tuple(segments), faults)

    def _steps(self, job: int) -> JobSteps:
        layout = self._layout
        return JobSteps(self.case, layout.segments[job], layout.inventory, layout.faults, self._noise, job)

    @cached_property
    def _kept(self) -> tuple[tuple[tuple[StepBlock, ...] | None, Timeline], ...]:
        kept = []
        for index, segments in enumerate(self._layout.segments):
            steps = self._steps(index)
            small = segments[0].world * self.case.steps <= _KEPT_RANK_STEPS
            begin: list[float] = []
            blocks: list[StepBlock] = []
            end = 0.0
            for block in steps.blocks():
                begin += block.begin_us.tolist()
                end = float(block.met_us[-1])
                if small:
                    blocks.append(block)
            costs = {name: (pair[0], pair[1]) for name, pair in steps.costs.items()}
            timeline = Timeline((*begin, end), costs)
            kept.append((tuple(blocks) if small else None, timeline))
        return tuple(kept)

    @property
    def _timelines(self) -> tuple[Timeline, ...]:
        return tuple(timeline for _, timeline in self._kept)

    def _blocks(self, job: int) -> Iterator[StepBlock]:
        blocks = self._kept[job][0]
        return iter(blocks) if blocks is not None else self._steps(job).blocks()

    def _sent(self) -> Iterator[Sent]:
        """Records in the order of publication, numbered."""
        sequences = Sequences()
        start_ns = self.case.start_ns
        for draft in _Drafts(self).by_time():
            record = sequences.record(draft)
            if draft.publisher:
                number = int(draft.fields["seq"])
                source = f"{draft.publisher}/{draft.topic}"
            elif isinstance(record, KernelEvent):
                number, source = record.kmsg_seq, f"{record.node_id}/kernel-events"
            else:
                number, source = 0, ""
            yield Sent(start_ns + draft.at_ns, source, number, record)


class _Drafts:
    """One pass over a run: all that is published, by time."""

    def __init__(self, run: GeneratedRun) -> None:
        self._run, self._case, self._noise = run, run.case, run._noise
        layout = self._layout = run._layout
        timelines = self._timelines = run._timelines
        inventory = layout.inventory
        end_us = max(timeline.begin_us[-1] for timeline in timelines)
        self._clocks = Clocks.of(
            self._case.noise, inventory, self._noise, self._case.start_ns, round(end_us / 2 * 1000)
        )
        self._lifetimes = self._living(end_us)
        math_us = {
            segments[0].plan.job_id: nominal_times(segments[0].plan, segments[0].replicas).compute
            for segments in layout.segments
        }
        self._frames = FramePublisher(
            self._case, inventory, layout.faults, self._lifetimes, self._clocks, self._noise, math_us
        )
        spared = {fault.machine for fault in layout.faults}
        self._records = {
            (segment.plan.job_id, segment.epoch): SegmentRecords(
                self._case,
                segment,
                inventory,
                self._clocks,
                self._noise,
                missing_ranks(segment, inventory, self._noise, spared),
            )
            for segments in layout.segments
            for segment in segments
        }

    def by_time(self) -> Iterator[Draft]:
        """All drafts."""
        waiting: list[tuple[int, int, Draft]] = []
        order = 0

        def put(drafts: Iterator[Draft]) -> None:
            nonlocal order
            for draft in drafts:
                order += 1
                heapq.heappush(waiting, (draft.at_ns, order, draft))

        put(self._beginning())
        put(self._happenings())
        streams = [self._run._blocks(job) for job in range(len(self._layout.segments))]
        horizons = [0.0] * len(streams)
        held: list[list[StepBlock]] = [[] for _ in streams]
        while True:
            job = int(np.argmin(horizons))
            block = None if horizons[job] == np.inf else next(streams[job], None)
            if block is None:
                if all(horizon == np.inf for horizon in horizons):
                    break
                horizons[job] = np.inf
            else:
                held[job].append(block)
                horizons[job] = float(block.met_us[-1])
                put(self._job_drafts(block))
            horizon = min(horizons)
            until = horizon if horizon != np.inf else max(timeline.begin_us[-1] for timeline in self._timelines)
            put(self._frames.window(until, [kept for blocks in held for kept in blocks]))
            # Ticks lag behind the horizon by one period at most.
            oldest = until - 2e6 * max(60.0, self._longest_period_s())
            held = [[kept for kept in blocks if kept.met_us[-1] >= oldest] for blocks in held]
            safe_ns = round((until - 1e6 * self._longest_period_s()) * 1000) if horizon != np.inf else None
            while waiting and (safe_ns is None or waiting[0][0] < safe_ns):
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _longest_period_s(self) -> float:
        sampling = self._case.sampling
        return max(sampling.gpu_s, sampling.fabric_s, sampling.switch_s, sampling.heartbeat_s, sampling.progress_s)

    def _living(self, end_us: float) -> Lifetimes:
        inventory = self._layout.inventory
        from_us = np.zeros(len(inventory.machines))
        to_us = np.full(len(inventory.machines), end_us + 1e12)
        for job, segments in enumerate(self._layout.segments):
            resize = segments[0].plan.resize
            if resize is not None and resize.kind == "swap_spare":
                spare = len(inventory.machines) - 1
                from_us[spare] = to_us[self._layout.faults[0].machine] = self._timelines[job].at_us(resize.at_step)
        for fault in self._layout.faults:
            if fault.kind == "machine_unreachable":
                to_us[fault.machine] = self._timelines[fault.plan.job].at_us(fault.plan.onset_step)
        return Lifetimes(from_us, to_us)

    def _registration(self, at_ns: int, record: Record) -> Draft:
        return Draft(at_ns, "", "jobs", record, {})

    def _beginning(self) -> Iterator[Draft]:
        for record in self._run.registrations():
            yield self._registration(-_BEFORE_NS, record)
        for index in range(len(self._layout.inventory.machines)):
            if self._lifetimes.from_us[index] == 0:
                yield self._frames.status(index, 0.0, "start")

    def _happenings(self) -> Iterator[Draft]:
        """Kernel lines, changes of membership, ends of jobs."""
        layout, start_ns = self._layout, self._case.start_ns
        onsets = {
            fault.truth_id: self._timelines[fault.plan.job].at_us(fault.plan.onset_step) for fault in layout.faults
        }
        onsets["application-xid"] = self._timelines[0].at_us(max(1, self._case.steps // 6))
        yield from kernel_drafts(self._case, layout.inventory, layout.faults, onsets, self._clocks, self._noise)
        for job, segments in enumerate(layout.segments):
            timeline = self._timelines[job]
            for version, segment in enumerate(segments[1:], 2):
                at_us = timeline.at_us(segment.first_step)
                at_ns = round(at_us * 1000)
                yield self._registration(at_ns, job_record(self._case, segment, start_ns + at_ns, version))
                for record in placement_records(segment, layout.inventory, start_ns + at_ns, version):
                    yield self._registration(at_ns, record)
                resize = segment.plan.resize
                if resize is not None and resize.kind == "swap_spare":
                    spare = len(layout.inventory.machines) - 1
                    node = layout.inventory.node_record(layout.inventory.machines[spare], start_ns + at_ns, 2)
                    yield self._registration(at_ns, node)
                    yield self._frames.status(layout.faults[0].machine, at_us - 5e4, "stop")
                    yield self._frames.status(spare, at_us + 5e4, "start")
            standing = [fault for fault in layout.faults if fault.kind in STANDING_KINDS and fault.plan.job == job]
            if not standing:
                end_ns = round(timeline.begin_us[-1] * 1000) + 1_000_000_000
                ended = job_record(self._case, segments[-1], start_ns + end_ns, len(segments) + 1, ended=True)
                yield self._registration(end_ns, ended)

    def _job_drafts(self, block: StepBlock) -> Iterator[Draft]:
        segment = block.segment
        if not segment.plan.timings_reported:
            return
        records = self._records[segment.plan.job_id, segment.epoch]
        yield from records.timings(block)
        period = self._case.sampling.progress_s * 1e6
        nodes, width = len(segment.nodes), segment.gpus_per_node
        ends = block.end_us.reshape(-1, nodes, width).max(axis=2)
        keys = self._layout.inventory.machine_keys[list(segment.nodes)]
        phases = self._noise.uniform("phase-progress", keys) * period
        culprit = next((fault.machine for fault in self._layout.faults), -1) if block.stands else None
        until = float(block.met_us[-1])
        for node in range(nodes):
            first = int(np.ceil((block.begin_us[0] - phases[node]) / period))
            moments = (
                np.arange(max(0, first), int(np.floor((until - phases[node]) / period)) + 1) * period + phases[node]
            )
            counts = np.searchsorted(ends[: len(ends) - block.stands, node], moments, side="right") + int(
                block.steps[0]
            )
            under_way = np.searchsorted(block.met_us, moments, side="right") == len(block.met_us) - 1
            alive_to = self._lifetimes.to_us[segment.nodes[node]]
            for at_us, count, last in zip(moments.tolist(), counts.tolist(), under_way.tolist(), strict=True):
                if at_us < alive_to:
                    standing = culprit if last and culprit is not None else None
                    yield records.progress(node, round(at_us * 1000), [count] * width, standing=standing)


def generate(case: BenchmarkCase, seed: int) -> GeneratedRun:
    """The run of a case with a seed.

    Raises:
        ScenarioError: when the run is used: the case contradicts itself, or its faults find no place in its fleet.
    """
    return GeneratedRun(case, seed)

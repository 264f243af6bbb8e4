"""The generator: a scenario as the stream of records that its nodes and switches would publish.

Pure: the same scenario and start give the same records in the same order, and no clock is read. Records come by the
time at which their agent publishes them; `delivery` makes of it when they arrive. A node's clock is off by some
milliseconds, so its event times are too. Within a tick, readings follow the last step completed before the tick.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.devices import LOST_TEXT, GpuTelemetry
from agents.simulation.fabric import FabricTelemetry
from agents.simulation.faults import FaultEffects, place_faults
from agents.simulation.fleet import Fleet
from agents.simulation.job_run import JobRun
from agents.simulation.kernel import kernel_event, kernel_lines
from agents.simulation.look_alikes import place_look_alikes
from agents.simulation.noise import Noise
from agents.simulation.step_records import JobRecords
from schemas.events import NodeStatus
from schemas.frames import FabricFrame, GpuFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agents.simulation.kernel import KernelLine
    from agents.simulation.scenario import Scenario
    from schemas.base import Record

__all__ = ["AGENT_RESTART_NS", "HEARTBEAT_NS", "simulate"]

HEARTBEAT_NS = 5_000_000_000
"""Interval of heartbeats and of rank progress."""

AGENT_RESTART_NS = 2_000_000_000
"""How long a restarted agent is away. Frames of that time are never taken; events wait for it."""

_FRAME_DELAY_NS = 2_000_000
_FIRST_BEAT_NS = 1_000_000_000  # the start itself is a sign of life
_DRIVER = "570.124.06"
_SOURCES = ("nvml", "kmsg", "nic-sysfs", "trainer-hook")

# (published at, in ns since the start; publisher; topic whose sequence it takes, or none; maker)
_Draft = tuple[int, int, str | None, "Callable[..., Record]"]


def simulate(scenario: Scenario, start_ns: int) -> Iterator[tuple[int, Record]]:
    """All records of a run, each with the time at which its agent publishes it, in that order.

    Args:
        scenario: what to simulate.
        start_ns: event time of the run's beginning, nanoseconds since the epoch.

    Raises:
        ScenarioError: the scenario's faults find no place in its fleet.
    """
    return _Run(scenario, start_ns).records()


class _Run:
    def __init__(self, scenario: Scenario, start_ns: int) -> None:
        self.scenario, self.start_ns = scenario, start_ns
        noise = self.noise = Noise(scenario.seed)
        fleet = self.fleet = Fleet.of(scenario, noise)
        faults = place_faults(fleet, noise)
        self.look_alikes = place_look_alikes(fleet, noise, faults)
        effects = self.effects = FaultEffects(fleet, faults)
        self.duration_ns = round(scenario.duration_s * 1e9)
        self.tick_ns = round(scenario.tick_s * 1e9)
        clocked = self.look_alikes.get("application_clocks")
        self.jobs = []
        for job in fleet.jobs:
            keys = fleet.gpu_keys.reshape(-1)[job.first_gpu : job.first_gpu + job.world]
            inside = clocked is not None and job.first_node <= clocked.node < job.stop_node
            rank = job.rank_of(clocked.node, clocked.gpu) if clocked is not None and inside else None
            self.jobs.append(JobRun(job, keys, noise, effects, scenario.look_alikes, rank, scenario.duration_s))
        self.job_records = [JobRecords(fleet, run) for run in self.jobs]
        self.gpus = GpuTelemetry(fleet, noise, effects, self.look_alikes)
        self.fabric = FabricTelemetry(fleet, noise, effects, self.look_alikes)
        self.node_ports = [self.fabric.port_rows(node, switch=False) for node in range(scenario.nodes)]
        self.leaf_ports = [self.fabric.port_rows(leaf, switch=True) for leaf in range(len(fleet.leaf_ids))]
        self.clock_ns = fleet.clock_offsets_ns(noise)
        self.boot_ids = [fleet.boot_id(node, noise) for node in range(scenario.nodes)]
        self.phase_ns = _phases(noise.uniform("phase", fleet.node_keys), self.tick_ns)
        self.leaf_phase_ns = _phases(noise.uniform("phase", fleet.leaf_keys), self.tick_ns)
        self.beat_ns = _phases(noise.uniform("heartbeat", fleet.node_keys), HEARTBEAT_NS).tolist()
        switch_sessions = [noise.identifier("session-0", leaf)[:18] for leaf in fleet.leaf_ids]
        self.sessions = fleet.sessions(noise) + switch_sessions
        self.sequences: list[dict[str, int]] = [{} for _ in self.sessions]
        self.restart = self.look_alikes.get("agent_restart")
        self.restarted = False
        self.kernel_events = self._kernel_events()
        self.ended_jobs: set[int] = set()

    def records(self) -> Iterator[tuple[int, Record]]:
        for index, record in enumerate(self.fleet.inventory(self.start_ns)):
            yield self.start_ns + index * 500, record
        waiting = self._starts()
        for tick in range(math.ceil(self.duration_ns / self.tick_ns)):
            horizon = (tick + 1) * self.tick_ns
            waiting += self._tick(tick)
            waiting.sort(key=itemgetter(0))
            ready = bisect_right(waiting, horizon - 1, key=itemgetter(0))
            yield from map(self._publish, waiting[:ready])
            waiting = waiting[ready:]
        yield from map(self._publish, waiting)

    def _publish(self, draft: _Draft) -> tuple[int, Record]:
        at_ns, publisher, topic, make = draft
        restart = self.restart
        if restart is not None and not self.restarted and publisher == restart.node and at_ns >= self._back_ns():
            self.restarted = True
            self.sessions[publisher] = self.fleet.sessions(self.noise, generation=1)[publisher]
            self.sequences[publisher] = {}
        if topic is None:
            return self.start_ns + at_ns, make(self.sessions[publisher])
        sequence = self.sequences[publisher].get(topic, 0)
        self.sequences[publisher][topic] = sequence + 1
        return self.start_ns + at_ns, make(agent_session=self.sessions[publisher], seq=sequence)

    def _back_ns(self) -> int:
        assert self.restart is not None
        return self.restart.at_ns + AGENT_RESTART_NS

    def _away(self, node: int, at_ns: int) -> bool:
        restart = self.restart
        return restart is not None and node == restart.node and restart.at_ns <= at_ns < self._back_ns()

    def _event(self, at_ns: int, node: int, topic: str | None, make: Callable[..., Record]) -> _Draft:
        """A draft of something that an agent does not lose while it is away."""
        if self._away(node, at_ns):
            # In order still: what happened during two seconds is sent within two milliseconds.
            assert self.restart is not None
            at_ns = self._back_ns() + 1_000_000 + (at_ns - self.restart.at_ns) // 1000
        return at_ns, node, topic, make

    def _node_time(self, node: int, at_ns: int) -> int:
        # A clock that is behind must not reach back beyond the epoch when a run begins there.
        return max(0, self.start_ns + at_ns + self.clock_ns[node])

    def _status(self, node: int, at_ns: int, state: str) -> _Draft:
        make = partial(
            NodeStatus,
            node_id=self.fleet.node_ids[node],
            event_time_ns=self._node_time(node, at_ns),
            state=state,
            boot_id=self.boot_ids[node],
            agent_version="simulated",
            sources=_SOURCES if state == "start" else (),
        )
        return at_ns, node, "node-status", make

    def _starts(self) -> list[_Draft]:
        count = self.scenario.nodes + len(self.jobs) + sum(len(records.nodes) for records in self.job_records)
        after_inventory = count * 500
        drafts = [self._status(node, after_inventory + node * 500, "start") for node in range(self.scenario.nodes)]
        if self.restart is not None:
            drafts.append(self._status(self.restart.node, self.restart.at_ns, "stop"))
            drafts.append(self._status(self.restart.node, self._back_ns(), "start"))
        drafts += self.kernel_events
        return drafts

    def _kernel_events(self) -> list[_Draft]:
        drafts: list[_Draft] = []
        counts: dict[int, int] = {}
        for line in kernel_lines(self.fleet, self.noise, self.effects.placed, self.look_alikes):
            number = counts[line.node] = counts.get(line.node, 0) + 1
            if line.code is None or line.at_ns >= self.duration_ns:
                continue
            at_ns = line.at_ns + 1_000_000
            drafts.append(self._event(at_ns, line.node, None, partial(self._kernel_event, line, number)))
        return drafts

    def _kernel_event(self, line: KernelLine, number: int, session: str) -> Record:
        at_ns = self._node_time(line.node, line.at_ns)
        return kernel_event(self.fleet, self.noise, line, number, at_ns, session)

    def _tick(self, tick: int) -> list[_Draft]:
        begin, end = tick * self.tick_ns, min((tick + 1) * self.tick_ns, self.duration_ns)
        restart = self.restart
        sampled = begin + self.phase_ns
        if restart is not None and sampled[restart.node] - self.tick_ns < self._back_ns() <= sampled[restart.node]:
            self.gpus.restart_counters(restart.node)
            self.fabric.restart_counters(restart.node)
        drafts = self._gpu_frames(tick, sampled) + self._fabric_frames(tick, begin, sampled)
        drafts += self._heartbeats(begin, end)
        for records, run in zip(self.job_records, self.jobs, strict=True):
            drafts += self._steps(records, run, begin, end)
        return drafts

    def _present(self, sampled: list[int]) -> list[tuple[int, int]]:
        return [
            (node, at_ns)
            for node, at_ns in enumerate(sampled)
            if at_ns < self.duration_ns and not self._away(node, at_ns)
        ]

    def _gpu_frames(self, tick: int, sampled: np.ndarray[Any, np.dtype[np.int64]]) -> list[_Draft]:
        columns = self.gpus.read(tick, sampled, self.jobs)
        fleet = self.fleet
        indices = tuple(range(self.scenario.gpus_per_node))
        skus = (self.scenario.sku,) * self.scenario.gpus_per_node
        drafts: list[_Draft] = []
        for node, at_ns in self._present(sampled.tolist()):
            row: dict[str, Any] = {name: column[node] for name, column in columns.items()}
            lost = self.gpus.lost_gpus(node, at_ns)
            if lost:
                row["read_error"] = tuple(LOST_TEXT if gpu in lost else None for gpu in indices)
            make = partial(
                GpuFrame,
                node_id=fleet.node_ids[node],
                event_time_ns=self._node_time(node, at_ns),
                boot_id=self.boot_ids[node],
                driver_version=_DRIVER,
                gpu_uuid=fleet.gpu_uuids[node],
                gpu_index=indices,
                pci_bus_id=fleet.pci_bus_ids,
                sku=skus,
                **row,
            )
            drafts.append((at_ns + _FRAME_DELAY_NS, node, "gpu-frames", make))
        return drafts

    def _fabric_frames(self, tick: int, begin: int, sampled: np.ndarray[Any, np.dtype[np.int64]]) -> list[_Draft]:
        hosts = self.fabric.read_hosts(tick, sampled, self.jobs)
        drafts: list[_Draft] = []
        for node, at_ns in self._present(sampled.tolist()):
            make = partial(
                FabricFrame,
                view="host",
                node_id=self.fleet.node_ids[node],
                event_time_ns=self._node_time(node, at_ns),
                **self.node_ports[node],
                **{name: column[node] for name, column in hosts.items()},
            )
            drafts.append((at_ns + _FRAME_DELAY_NS, node, "fabric-frames", make))
        leaf_sampled = begin + self.leaf_phase_ns
        leaves = self.fabric.read_leaves(tick, leaf_sampled, self.jobs)
        for leaf, at_ns in enumerate(leaf_sampled.tolist()):
            if at_ns >= self.duration_ns:
                continue
            make = partial(
                FabricFrame,
                view="switch",
                switch_id=self.fleet.leaf_ids[leaf],
                event_time_ns=self.start_ns + at_ns,
                **self.leaf_ports[leaf],
                **{name: column[leaf] for name, column in leaves.items()},
            )
            drafts.append((at_ns + _FRAME_DELAY_NS, self.scenario.nodes + leaf, "fabric-frames", make))
        return drafts

    def _beats(self, node: int, begin: int, end: int) -> Iterator[int]:
        phase = self.beat_ns[node]
        first = phase + max(0, -(-(begin - phase) // HEARTBEAT_NS)) * HEARTBEAT_NS
        for at_ns in range(first, end, HEARTBEAT_NS):
            if not self._away(node, at_ns):
                yield at_ns

    def _heartbeats(self, begin: int, end: int) -> list[_Draft]:
        return [
            self._status(node, at_ns, "heartbeat")
            for node in range(self.scenario.nodes)
            for at_ns in self._beats(node, begin, end)
            if at_ns >= _FIRST_BEAT_NS
        ]

    def _steps(self, records: JobRecords, run: JobRun, begin: int, end: int) -> list[_Draft]:
        drafts: list[_Draft] = []
        before = run.next_step
        completed = run.advance(end)
        keys = self.fleet.node_keys[run.job.first_node : run.job.stop_node]
        for step in completed:
            delays = (1e6 + 10e6 * self.noise.uniform("report-delay", keys, step.step)).astype(np.int64).tolist()
            for (node, at_ns, make), delay in zip(records.timings(step), delays, strict=True):
                timed = partial(make, event_time_ns=self._node_time(node, at_ns))
                drafts.append(self._event(at_ns + delay, node, "step-timings", timed))
        ends = [int(step.end_us.max()) * 1000 for step in completed]
        for node in records.nodes:
            for at_ns in self._beats(node, begin, end):
                if run.running(at_ns):
                    make = partial(
                        records.progress,
                        node,
                        before + bisect_right(ends, at_ns),
                        standing=run.standing(at_ns),
                        event_time_ns=self._node_time(node, at_ns),
                    )
                    drafts.append((at_ns + _FRAME_DELAY_NS, node, "step-timings", make))
        if run.ends_ns < self.duration_ns and begin <= run.ends_ns < end:
            ended = self.fleet.job_record(run.job, self.start_ns + run.ends_ns, ended=True)
            drafts.append((run.ends_ns, run.job.first_node, None, partial(_already, ended)))
        return drafts


def _already(record: Record, session: str) -> Record:  # noqa: ARG001
    return record


def _phases(uniform: np.ndarray[Any, np.dtype[np.float64]], period_ns: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (uniform * 0.98 * period_ns).astype(np.int64)

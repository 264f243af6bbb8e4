"""Step timings and rank progress of a job, as its nodes publish them: columns over the local ranks.

A node reports a step when the last of its ranks has ended it. `tokens` of a rank is what its replica processed, shared
among the ranks of the replica by nobody; with experts that are told apart it is what the rank's experts were given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.simulation.benchmark.drafts import Draft, derive, rows
from schemas.steps import CollectiveTiming, RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from agents.simulation.benchmark.case import BenchmarkCase
    from agents.simulation.benchmark.drafts import Clocks
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.benchmark.job_steps import StepBlock
    from agents.simulation.benchmark.layout import Segment
    from agents.simulation.noise import Noise

__all__ = ["OPERATIONS", "SegmentRecords", "missing_ranks", "step_columns", "tokens_per_replica", "told_groups"]

OPERATIONS = {"tp": "all_reduce", "ep": "all_to_all", "pp": "send_recv", "dp": "all_reduce", "mp": "all_reduce"}
_PROGRESS_DELAY_NS = 2_000_000


def tokens_per_replica(case: BenchmarkCase, segment: Segment) -> int:
    """Tokens of a replica's step: those at which the plan's MFU holds (6 N tokens over time, ranks and peak)."""
    plan = segment.plan
    flop = plan.mfu * case.fleet.peak_tflops * 1e12 * segment.world * plan.step_s
    whole = max(1, round(flop / (6.0 * plan.parameters * segment.replicas) / plan.microbatches))
    return whole * plan.microbatches


def missing_ranks(segment: Segment, inventory: Inventory, noise: Noise, spared: set[int]) -> frozenset[int]:
    """Ranks that report nothing: those of lowest draw, at least one where a share is asked for, none on `spared` machines."""
    share = segment.plan.missing_share
    if not share:
        return frozenset()
    draws = noise.uniform("missing", segment.device_keys(inventory)).reshape(-1)
    hardware = segment.hardware.reshape(-1)
    order = [rank for rank in np.argsort(draws, kind="stable").tolist() if int(hardware[rank]) not in spared]
    return frozenset(order[: max(1, round(share * segment.world))])


def step_columns(case: BenchmarkCase, segment: Segment, block: StepBlock) -> dict[str, NDArray[Any]]:
    """What the ranks report of a block's steps, by the field of a step timing, shape (steps, ranks)."""
    plan = segment.plan
    forward, backward = block.columns["forward"], block.columns["backward"]
    own = block.own_us
    wait = block.wait_us
    if plan.tensor > 1 and plan.tensor_view != "separated":
        # The sync of every layer is inside the passes: all members show the group's time.
        folded = block.collectives["tp"]
        total = np.maximum(forward + backward, 1)
        forward = forward + folded * forward // total
        backward = block.columns["backward"] + folded - (forward - block.columns["forward"])
        own, wait = own + folded, wait - folded
    per_replica = tokens_per_replica(case, segment)
    tokens = np.full((len(block.steps), segment.world), per_replica, dtype=np.int64)
    columns: dict[str, NDArray[Any]] = {
        "step_us": block.step_us,
        "compute_us": forward + backward + block.columns["optimizer"],
        "forward_us": forward,
        "backward_us": backward,
        "optimizer_us": block.columns["optimizer"],
        "host_us": block.columns["host"],
        "data_us": block.columns["data"],
        "wait_us": wait,
        "tokens": tokens if block.load is None else np.rint(tokens * block.load).astype(np.int64),
    }
    if plan.own_time_reported:
        columns["own_us"] = own
    if block.squares is not None and plan.lengths_reported:
        per_microbatch = per_replica / plan.microbatches
        squares = np.rint(block.squares * per_microbatch**2).astype(np.int64)
        columns["sum_squared_lengths"] = np.broadcast_to(squares[:, None, :, None], (len(block.steps), *segment.shape))
    return {name: values.reshape(len(block.steps), segment.world) for name, values in columns.items()}


def told_groups(segment: Segment) -> tuple[str, ...]:
    """Kinds of communicators whose times the ranks report."""
    return tuple(name for name in segment.instances if name != "tp" or segment.plan.tensor_view != "folded")


class SegmentRecords:
    """Makes the records of one segment of a job."""

    def __init__(
        self,
        case: BenchmarkCase,
        segment: Segment,
        inventory: Inventory,
        clocks: Clocks,
        noise: Noise,
        missing: frozenset[int],
    ) -> None:
        self._case, self._segment, self._inventory = case, segment, inventory
        self._clocks, self._noise, self._missing = clocks, noise, missing
        width = segment.gpus_per_node
        self._ranks = [tuple(range(place * width, (place + 1) * width)) for place in range(len(segment.nodes))]
        instances = {name: rows(number.reshape(-1, width)) for name, number in segment.instances.items()}
        self._recorded = told_groups(segment)
        self._collectives = {
            name: [
                CollectiveTiming(group=name, op=OPERATIONS[name], instance=row, duration_us=(0,) * width)
                for row in instances[name]
            ]
            for name in self._recorded
        }
        self._timings, self._progress = [], []
        for place, node in enumerate(segment.nodes):
            machine = inventory.machines[node]
            identity: dict[str, Any] = {
                "job_id": segment.plan.job_id,
                "epoch": segment.epoch,
                "node_id": machine.node_id,
                "agent_session": machine.session,
                "seq": 0,
                "event_time_ns": 0,
                "rank": self._ranks[place],
            }
            none = (None,) * width
            self._timings.append(StepTiming(step=0, step_us=none, **identity))
            self._progress.append(RankProgress(last_step=none, **identity))

    def timings(self, block: StepBlock) -> Iterator[Draft]:
        """All step timings of a block but those of a step that never ends; by step, then by node."""
        segment, width = self._segment, self._segment.gpus_per_node
        plan, nodes = segment.plan, len(segment.nodes)
        count = len(block.steps) - block.stands
        columns = {
            name: rows(values.reshape(-1, nodes, width))
            for name, values in step_columns(self._case, segment, block).items()
        }
        collectives = {name: rows(block.collectives[name].reshape(-1, nodes, width)) for name in self._recorded}
        machine_keys = self._inventory.machine_keys[list(segment.nodes)]
        delays = (1e6 + 10e6 * self._noise.uniform_steps("report-delay", machine_keys, block.steps)).astype(np.int64)
        ends = block.end_us.reshape(-1, nodes, width).max(axis=2) * 1000
        ends_ns, publish_ns = ends.tolist(), (ends + delays).tolist()
        publishers = [f"{template.node_id}/{template.agent_session}" for template in self._timings]
        steps = block.steps.tolist()
        for place in range(count):
            for node, machine in enumerate(segment.nodes):
                fields: dict[str, Any] = {name: column[place][node] for name, column in columns.items()}
                fields["event_time_ns"] = self._clocks.stamp(machine, ends_ns[place][node])
                fields["step"] = steps[place]
                fields["phase"] = block.phases[place]
                fields["collectives"] = tuple(
                    derive(self._collectives[name][node], {"duration_us": column[place][node]})
                    for name, column in collectives.items()
                )
                if self._missing and steps[place] >= plan.missing_from_step:
                    fields = self._without_missing(node, fields)
                    if not fields["rank"]:
                        continue
                yield Draft(publish_ns[place][node], publishers[node], "step-timings", self._timings[node], fields)

    def _without_missing(self, node: int, fields: dict[str, Any]) -> dict[str, Any]:
        ranks = self._ranks[node]
        kept = [place for place, rank in enumerate(ranks) if rank not in self._missing]
        if len(kept) == len(ranks):
            return {**fields, "rank": ranks}

        def cut(column: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(column[place] for place in kept)

        timings: tuple[CollectiveTiming, ...] = fields["collectives"]
        left: dict[str, Any] = {
            name: cut(value) if isinstance(value, tuple) and name != "collectives" else value
            for name, value in fields.items()
        }
        left["rank"] = cut(ranks)
        left["collectives"] = tuple(
            derive(
                timing,
                {
                    "duration_us": cut(timing.duration_us),
                    "instance": None if timing.instance is None else cut(timing.instance),
                },
            )
            for timing in timings
        )
        return left

    def progress(self, node: int, at_ns: int, done: list[int], *, standing: int | None) -> Draft:
        """Where a node's ranks stand at a moment.

        Args:
            node: place of the node in the segment.
            at_ns: since the start.
            done: by local rank, how many steps it has ended, counted from step 0.
            standing: hardware index of the culprit where the job stands, else null.
        """
        width = self._segment.gpus_per_node
        machine = self._segment.nodes[node]
        ahead = 0 if standing == machine else 1
        groups = {}
        if self._segment.replicas > 1:
            groups["dp"] = tuple(
                (count + ahead, count + ahead if standing is not None else count, count) for count in done
            )
        if self._segment.plan.tensor > 1:
            per_step = 2 * self._segment.plan.microbatches
            groups["tp"] = tuple((count * per_step + 1, count * per_step + 1, count * per_step) for count in done)
        fields = {
            "event_time_ns": self._clocks.stamp(machine, at_ns),
            "last_step": tuple(count - 1 if count else None for count in done[:width]),
            "groups": groups,
        }
        template = self._progress[node]
        publisher = f"{template.node_id}/{template.agent_session}"
        return Draft(at_ns + _PROGRESS_DELAY_NS, publisher, "step-timings", template, fields)

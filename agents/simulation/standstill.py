"""A job that trains and then stands still, as the agents of its nodes tell of it: steps, progress, and digests of dumps.

Every node publishes its share of each step, where its ranks stand every five seconds, and every second once nothing has moved
for ten, at a phase of its own; a rank whose process ended is told as gone. When dumps are asked for, each rank's digest
follows as an agent publishes it: the dump is written within half a second, and seen to stand still from one look to the next,
a second apart. Dumps are given (`recorder`). Guarantees: the records follow from the arguments alone. It knows no rule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING

from agents.decode.flight_recorder import dumps_in
from agents.decode.flight_recorder_dump import Dump
from agents.digest import collective_digest
from schemas.fleet import Job, Layout, RankPlacement
from schemas.steps import CollectiveDigest, RankProgress, StepTiming

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["Standstill"]

_PROGRESS_NS = 5_000_000_000
_STILL_NS = 10_000_000_000
_STILL_EVERY_NS = 1_000_000_000
_WRITING_NS = 500_000_000
_LOOK_EVERY_NS = 1_000_000_000
_STEP_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Standstill:
    """One job and its end.

    Attributes:
        job_id: its name; its nodes are called `<job_id>-node-<n>`.
        world_size: ranks, `ranks_of_node` a node.
        start_ns: event time of its first step's begin.
        steps: how many it makes before it stands still.
        step_ns: how long each takes, within 2 %.
        gone: ranks whose process ends when the job stands still.
        seed: of phases, noise and delays.
    """

    job_id: str
    world_size: int
    start_ns: int
    steps: int
    step_ns: int
    gone: frozenset[int] = frozenset()
    seed: int = 0
    ranks_of_node: int = 8

    @property
    def nodes(self) -> int:
        """How many nodes it runs on."""
        return -(-self.world_size // self.ranks_of_node)

    @property
    def last_progress_ns(self) -> int:
        """Event time of the last step's last report."""
        return max(timing.event_time_ns for timing in self._steps_of(self.steps - 1))

    def node_id(self, rank: int) -> str:
        """The node that a rank runs on."""
        return f"{self.job_id}-node-{rank // self.ranks_of_node:04d}"

    def reference(self) -> list[Record]:
        """The job and its placements."""
        job = Job(
            job_id=self.job_id,
            effective_from_ns=self.start_ns,
            world_size=self.world_size,
            layout=Layout(data=self.world_size),
        )
        placements = [
            RankPlacement(
                job_id=self.job_id,
                effective_from_ns=self.start_ns,
                node_id=self.node_id(ranks[0]),
                rank=tuple(ranks),
                gpu_uuid=tuple(f"GPU-{self.job_id}-{rank}" for rank in ranks),
            )
            for ranks in self._ranks()
        ]
        return [job, *placements]

    def records(self, until_ns: int) -> Iterator[StepTiming | RankProgress]:
        """Steps and progress in order of event time."""
        steps = (timing for step in range(self.steps) for timing in self._steps_of(step))
        told = [self._progress(node, until_ns) for node in range(self.nodes)]
        return merge(sorted(steps, key=_time_of), *told, key=_time_of)

    def digest(self, rank: int, dump: bytes) -> CollectiveDigest:
        """The digest of a rank's dump, without its times.

        Raises:
            ValueError: the bytes are no dump.
        """
        return _digest_of(dump, self.job_id, rank, self.node_id(rank))

    def published(self, digests: Mapping[int, CollectiveDigest], asked_ns: int) -> list[CollectiveDigest]:
        """The digests of dumps that were asked for at a time, in the order in which agents publish them.

        Args:
            digests: by rank; ranks without one write no dump, or it is lost.
            asked_ns: event time at which the dumps were asked for.
        """
        rng = random.Random(f"{self.seed}/dumps")
        looks = [rng.randrange(_LOOK_EVERY_NS) for _ in range(self.nodes)]
        found = []
        for rank, digest in sorted(digests.items()):
            written_ns = asked_ns + rng.randrange(_WRITING_NS)
            # The first look after it was written, and the next one: then it has not moved.
            wait_ns = (looks[rank // self.ranks_of_node] - written_ns) % _LOOK_EVERY_NS
            times = {"written_ns": written_ns, "event_time_ns": written_ns + wait_ns + _LOOK_EVERY_NS}
            found.append(digest.model_copy(update=times))
        return sorted(found, key=_time_of)

    def _ranks(self) -> list[range]:
        size = self.ranks_of_node
        return [range(first, min(first + size, self.world_size)) for first in range(0, self.world_size, size)]

    def _steps_of(self, step: int) -> list[StepTiming]:
        rng = random.Random(f"{self.seed}/{step}")
        step_us = round(self.step_ns / 1000 * rng.uniform(1 - _STEP_NOISE, 1 + _STEP_NOISE))
        end_ns = self.start_ns + (step + 1) * self.step_ns
        return [
            StepTiming(
                job_id=self.job_id,
                node_id=self.node_id(ranks[0]),
                agent_session="simulated",
                seq=step,
                event_time_ns=end_ns + rng.randrange(10_000_000),
                step=step,
                rank=tuple(ranks),
                step_us=(step_us,) * len(ranks),
                own_us=tuple(round(step_us * rng.uniform(0.78, 0.8)) for _ in ranks),
            )
            for ranks in self._ranks()
        ]

    def _progress(self, node: int, until_ns: int) -> Iterator[RankProgress]:
        rng = random.Random(f"{self.seed}/node/{node}")
        ranks = self._ranks()[node]
        at_ns = self.start_ns + rng.randrange(_PROGRESS_NS)
        stopped_ns = self.start_ns + self.steps * self.step_ns
        number = self.steps
        while at_ns < until_ns:
            done = max(0, min(self.steps, (at_ns - self.start_ns) // self.step_ns))
            is_stopped = at_ns >= stopped_ns
            yield RankProgress(
                job_id=self.job_id,
                node_id=self.node_id(ranks[0]),
                agent_session="simulated",
                seq=number,
                event_time_ns=at_ns,
                rank=tuple(ranks),
                last_step=((done - 1 if done else None),) * len(ranks),
                connected=tuple(not (is_stopped and rank in self.gone) for rank in ranks),
            )
            number += 1
            still_ns = stopped_ns + _STILL_NS
            if at_ns >= still_ns:
                at_ns += _STILL_EVERY_NS
            elif at_ns + _PROGRESS_NS > still_ns:
                # From then on each second, unless the last report is younger than that.
                at_ns = max(at_ns + _STILL_EVERY_NS, still_ns + rng.randrange(100_000_000))
            else:
                at_ns += _PROGRESS_NS


def _digest_of(data: bytes, job_id: str, rank: int, node_id: str) -> CollectiveDigest:
    path = f"/tmp/nccl_trace_rank_{rank}"  # noqa: S108 - where PyTorch writes them
    dump = next(iter(dumps_in(data, path)), None)
    if not isinstance(dump, Dump):  # the bytes are no dump, whatever was found in them
        raise ValueError(f"no dump of rank {rank}")  # noqa: TRY004
    return collective_digest(
        dump,
        job_id=job_id,
        epoch=0,
        node_id=node_id,
        agent_session="simulated",
        seq=rank,
        event_time_ns=0,
        dump_path=path,
        dump_sha256="0" * 64,
    )


def _time_of(record: StepTiming | RankProgress | CollectiveDigest) -> int:
    return record.event_time_ns

"""What the ranks of a training job call, step by step: tensor, pipeline, context, expert and data parallel in one.

Guarantees: all members of a group issue its operations in one order; stages send activations forward and gradients
back in a schedule of one forward and one backward, or interleaved with two chunks a rank, where stages at the ends have
fewer sends than those between; gradients are reduced while the backward pass goes on. Durations vary by a seeded draw. The
shapes are those of Megatron-style jobs, not of one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from agents.simulation.collective_run import Action

__all__ = ["JobGroup", "JobLayout", "job_groups", "program"]


@dataclass(frozen=True, slots=True)
class JobLayout:
    """How a job is divided.

    Attributes:
        tensor, context, data, pipeline: Ranks along each axis, the first ones next to each other.
        expert: Ranks of an expert group, over data and tensor ranks of a stage; 1 for none.
        chunks: Model chunks a rank, 2 for interleaved stages.
        is_host_bound: Hosts wait for the sizes of expert exchanges, as they do with tokens of changing number.
        is_batched: Sends and receives are launched in batches and the host waits for them.
        micro_batches: Of one step.
        layers: Of one chunk.
    """

    tensor: int = 2
    context: int = 1
    data: int = 2
    pipeline: int = 4
    expert: int = 1
    chunks: int = 1
    is_host_bound: bool = False
    is_batched: bool = False
    micro_batches: int = 4
    layers: int = 1

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.tensor * self.context * self.data * self.pipeline

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Tensor, context, data and pipeline coordinate."""
        tensor = rank % self.tensor
        context = rank // self.tensor % self.context
        data = rank // (self.tensor * self.context) % self.data
        return tensor, context, data, rank // (self.tensor * self.context * self.data)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """A process group: what it is for, and its members."""

    desc: str
    ranks: tuple[int, ...]


_AXES = {
    "DATA_PARALLEL_GROUP_WITH_CP": (1, 2),
    "CONTEXT_PARALLEL_GROUP": (1,),
    "MODEL_PARALLEL_GROUP": (0, 3),
    "TENSOR_MODEL_PARALLEL_GROUP": (0,),
    "PIPELINE_MODEL_PARALLEL_GROUP": (3,),
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": (0, 1),
}


def job_groups(layout: JobLayout) -> list[JobGroup]:
    """All groups of a job, in the order in which its processes make them."""
    ranks = range(layout.world)
    found = [JobGroup("default_pg", tuple(ranks))]
    for desc, axes in _AXES.items():
        buckets: dict[tuple[int, ...], list[int]] = {}
        for rank in ranks:
            place = layout.place(rank)
            buckets.setdefault(tuple(place[axis] for axis in range(4) if axis not in axes), []).append(rank)
        found += [JobGroup(desc, tuple(members)) for members in buckets.values()]
    stage = layout.tensor * layout.context * layout.data
    if layout.pipeline > 1:
        last = layout.world - stage
        found += [JobGroup("EMBEDDING_GROUP", (rank, rank + last)) for rank in range(stage)]
    if layout.expert > 1:
        found += [
            JobGroup("EXPERT_MODEL_PARALLEL_GROUP", tuple(range(first, first + layout.expert)))
            for first in range(0, layout.world, layout.expert)
        ]
    return found


class _Writer:
    """The calls of one rank."""

    def __init__(self, layout: JobLayout, groups: list[JobGroup], rank: int, seed: int) -> None:
        self.layout = layout
        self.rank = rank
        self.tensor, self.context, self.data, self.stage = layout.place(rank)
        self.groups = {
            group.desc: index for index, group in enumerate(groups) if rank in group.ranks and len(group.ranks) > 1
        }
        self.members = {index: group.ranks for index, group in enumerate(groups)}
        self._random = random.Random(f"{seed}/{rank}")
        self._batch = 0
        self.hidden = 4096

    def us(self, mean_us: float) -> float:
        return mean_us * self._random.uniform(0.9, 1.1)

    def work(self, mean_us: float) -> Action:
        return Action("work", us=self.us(mean_us))

    def collective(
        self,
        desc: str,
        op: str,
        elements: int,
        *,
        dtype: str = "BFloat16",
        is_async: bool = False,
        tag: str = "",
        is_root: bool = False,
    ) -> Iterator[Action]:
        group = self.groups.get(desc)
        if group is not None:
            yield Action(
                "collective",
                us=60.0,
                group=group,
                op=op,
                elements=elements,
                dtype=dtype,
                is_async=is_async,
                tag=tag,
                is_root=is_root,
            )

    def neighbour(self, step: int) -> int:
        stage = (self.stage + step) % self.layout.pipeline
        return self.rank + (stage - self.stage) * self.layout.tensor * self.layout.context * self.layout.data

    def pair(self, kind: str, step: int, tag: str = "") -> Action:
        # With two stages both neighbours are one rank: what odd stages send goes by another group, or the two
        # directions would hold each other up.
        sender = self.stage if kind == "send" else self.stage + step
        is_other = self.layout.pipeline == 2 and sender % 2 == 1
        return Action(
            kind,
            us=80.0,
            group=self.groups["default_pg" if is_other else "PIPELINE_MODEL_PARALLEL_GROUP"],
            op=kind,
            peer=self.neighbour(step),
            elements=self.hidden * 8,
            is_async=True,
            tag=tag,
            batch=self._batch,
        )

    def exchange(self, *pairs: tuple[str, int]) -> Iterator[Action]:
        """Sends and receives that belong together; the device waits for what is received."""
        if self.layout.is_batched:
            self._batch += 1
        tags = []
        for kind, step in pairs:
            tag = f"{kind}{step}" if kind == "recv" or self.layout.is_batched else ""
            yield self.pair(kind, step, tag)
            tags.append(tag)
        for tag in tags:
            if tag:
                yield Action("wait", tag=tag)
        if self.layout.is_batched:
            yield Action("sync")
            self._batch += 1

    def layer(self, weight: float) -> Iterator[Action]:
        hidden = self.hidden
        yield from self.collective("TENSOR_MODEL_PARALLEL_GROUP", "_all_gather_base", hidden)
        yield self.work(400 * weight)
        if self.layout.context > 1:
            yield from self.collective("CONTEXT_PARALLEL_GROUP", "_all_gather_base", hidden // 2)
            yield self.work(150 * weight)
        yield from self.collective("TENSOR_MODEL_PARALLEL_GROUP", "_reduce_scatter_base", 2 * hidden)
        if "EXPERT_MODEL_PARALLEL_GROUP" in self.groups:
            if self.layout.is_host_bound:
                yield from self.collective("EXPERT_MODEL_PARALLEL_GROUP", "_all_gather_base", 16, dtype="Long")
                yield Action("sync")
            yield from self.collective("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", hidden)
            yield self.work(300 * weight)
            yield from self.collective("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", hidden)

    def is_first(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        return self.stage == self.layout.pipeline - 1 and chunk == self.layout.chunks - 1

    def forward(self, chunk: int) -> Iterator[Action]:
        if self.is_first(chunk) or self.is_last(chunk):
            for dtype in ("Long", "Float"):
                yield from self.collective(
                    "TENSOR_MODEL_PARALLEL_GROUP", "broadcast", 8192, dtype=dtype, is_root=self.tensor == 0
                )
        for _ in range(self.layout.layers):
            yield from self.layer(1.0)

    def backward(self, is_final: bool) -> Iterator[Action]:
        for layer in range(self.layout.layers):
            yield from self.layer(1.8)
            if is_final:
                yield from self.collective(
                    "DATA_PARALLEL_GROUP_WITH_CP",
                    "_reduce_scatter_base",
                    100_000 + layer,
                    is_async=True,
                    tag="gradients",
                )

    def step(self, number: int) -> Iterator[Action]:
        yield Action("host", us=self.us(300.0))
        if self.layout.chunks == 1:
            yield from self.one_by_one()
        else:
            yield from self.interleaved()
        yield Action("wait", tag="gradients")
        if self.stage in {0, self.layout.pipeline - 1}:
            yield from self.collective("EMBEDDING_GROUP", "all_reduce", 50_000)
        yield from self.collective("MODEL_PARALLEL_GROUP", "all_reduce", 1, dtype="Float")
        yield Action("sync")
        yield self.work(500)
        yield from self.collective("DATA_PARALLEL_GROUP_WITH_CP", "_all_gather_base", 50_000)
        if number % 2 == 1:
            yield from self.collective("default_pg", "all_reduce", 4, dtype="Float")
            yield Action("sync")

    def one_by_one(self) -> Iterator[Action]:
        """Forward passes ahead, then one forward and one backward in turn; crossing messages go together."""
        count = self.layout.micro_batches
        ahead = min(self.layout.pipeline - self.stage - 1, count)
        above = [] if self.is_first(0) else [("recv", -1)]
        below = [] if self.is_last(0) else [("send", 1)]
        for _ in range(ahead):
            yield from self.exchange(*above)
            yield from self.forward(0)
            yield from self.exchange(*below)
        if ahead < count:
            yield from self.exchange(*above)
        for done in range(count - ahead):
            yield from self.forward(0)
            if below:
                yield from self.exchange(("send", 1), ("recv", 1))
            yield from self.backward(is_final=done == count - 1)
            if above and done < count - ahead - 1:
                yield from self.exchange(("recv", -1), ("send", -1))
            elif above:
                yield from self.exchange(("send", -1))
        for done in range(ahead):
            yield from self.exchange(("recv", 1))
            yield from self.backward(is_final=done == ahead - 1)
            if above:
                yield from self.exchange(("send", -1))

    def interleaved(self) -> Iterator[Action]:
        """All forward passes chunk by chunk, then all backward ones; the last stage sends on to the first."""
        chunks = range(self.layout.chunks)
        for chunk in chunks:
            for _ in range(self.layout.micro_batches):
                if not self.is_first(chunk):
                    yield from self.exchange(("recv", -1))
                yield from self.forward(chunk)
                if not self.is_last(chunk):
                    yield from self.exchange(("send", 1))
        for chunk in reversed(chunks):
            for done in range(self.layout.micro_batches):
                if not self.is_last(chunk):
                    yield from self.exchange(("recv", 1))
                yield from self.backward(is_final=chunk == 0 and done == self.layout.micro_batches - 1)
                if not self.is_first(chunk):
                    yield from self.exchange(("send", -1))


def program(layout: JobLayout, groups: list[JobGroup], rank: int, steps: int, seed: int) -> list[Action]:
    """What one rank calls over some steps."""
    writer = _Writer(layout, groups, rank, seed)
    found: list[Action] = []
    for number in range(steps):
        found += writer.step(number)
    return found

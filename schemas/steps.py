"""Step timings and the progress of a job's ranks, one message per node, columns over its local ranks."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Column, EventTimeNs, Identifier, Int64, Record, check_columns, of_lengths_alone

__all__ = ["CollectiveDigest", "CollectiveTiming", "RankProgress", "StepTiming"]

Phase = Literal["train", "warmup", "checkpoint", "evaluation", "compile"]


class CollectiveTiming(Record):
    """Time that each local rank spent in one communicator during one step, transfer and waiting together.

    `instance` tells communicators of one kind apart (`dp`, `3`): ranks with equal `group` and `instance` meet in it.
    """

    group: str
    instance: tuple[int | str, ...] | None = None
    op: str | None = None
    duration_us: tuple[int | None, ...]
    size_bytes: tuple[int | None, ...] | None = None
    """Of the larger buffers of the operations in that time, added up; null where one's is not known."""


class StepTiming(Record):
    """One node's share of one step of one job: one entry per local rank in every column.

    `own_us` is a rank's time with all waiting for others removed; where it is null it is the sum of `compute_us`,
    `host_us` and `data_us`. `wait_us` is time spent in collectives and receives. `phase` other than `train` masks the
    step: it is joined and counted, and no rule compares it.
    """

    record: Literal["step_timing"] = "step_timing"
    job_id: Identifier
    epoch: int = Field(default=0, ge=0)
    node_id: Identifier
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    step: int = Field(ge=0)
    phase: Phase = "train"

    rank: tuple[Int64, ...] = Field(min_length=1)
    step_us: tuple[int | None, ...]
    own_us: Column = None
    compute_us: Column = None
    forward_us: Column = None
    backward_us: Column = None
    optimizer_us: Column = None
    host_us: Column = None
    data_us: Column = None
    wait_us: Column = None
    tokens: Column = None
    sum_squared_lengths: Column = None
    collectives: tuple[CollectiveTiming, ...] = ()

    @model_validator(mode="after")
    @of_lengths_alone
    def _columns_agree(self) -> Self:
        check_columns(len(self.rank), self.__dict__, _STEP_COLUMNS)
        return self

    @model_validator(mode="after")
    def _collectives_agree(self) -> Self:
        ranks = len(self.rank)
        for column, told in (("duration_us", ""), ("size_bytes", ".size_bytes")):
            for i, collective in enumerate(self.collectives):
                entries = collective.__dict__[column]
                if entries is not None and len(entries) != ranks:
                    check_columns(ranks, {f"collectives[{i}]{told}": entries})
        return self

    @model_validator(mode="after")
    def _ranks_differ(self) -> Self:
        if len(set(self.rank)) != len(self.rank):
            raise ValueError("a rank stands twice in the rank column")
        return self


_STEP_COLUMNS = (
    "step_us",
    "own_us",
    "compute_us",
    "forward_us",
    "backward_us",
    "optimizer_us",
    "host_us",
    "data_us",
    "wait_us",
    "tokens",
    "sum_squared_lengths",
)


class RankProgress(Record):
    """Where a node's ranks of one job stand, step or no step: the clock of a job that hangs."""

    record: Literal["rank_progress"] = "rank_progress"
    job_id: Identifier
    epoch: int = Field(default=0, ge=0)
    node_id: Identifier
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    rank: tuple[Int64, ...]
    last_step: tuple[int | None, ...]
    groups: dict[str, tuple[tuple[int | None, int | None, int | None], ...]] = Field(default_factory=dict)
    """By group: (last enqueued, last started, last completed) per local rank."""
    phase: Phase | None = None
    """What the ranks are in now, where their trainer says so beforehand; a masked one of several ranks counts."""
    connected: tuple[bool, ...] | None = None
    """Whether each rank's process still talks to the agent: one that is gone writes no dump any more."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        check_columns(len(self.rank), self.__dict__, ("last_step", "connected"))
        check_columns(len(self.rank), self.groups)
        return self


class CollectiveDigest(Record):
    """What a rank's flight-recorder dump says, in at most 16 kB; the dump stays on its node.

    `groups` has a table per process group: `desc`, `ranks` (runs `[first, step, count]` of global ranks), `ordinal`,
    `id`, `is_unnamed`, `enqueued`, `started`, `completed`, `seen`, `is_p2p`, `pending` and `peers`. `pending` and `completed` have one per
    operation: `group` (index into `groups`), `op`, `seq`, `order`, `is_p2p`, `p2p_seq`, `src`, `dst`, `input_sizes`,
    `dtypes`, `overtaken`. What is not known is left out.
    """

    record: Literal["collective_digest"] = "collective_digest"
    job_id: Identifier
    epoch: int = Field(default=0, ge=0)
    node_id: Identifier
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    rank: int = Field(ge=0)
    version: str
    dump_path: str
    dump_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    groups: tuple[dict[str, Any], ...] = ()
    pending: tuple[dict[str, Any], ...] = ()
    completed: tuple[dict[str, Any], ...] = ()
    entry_count: int | None = Field(default=None, ge=0)
    """Entries of the dump, the ring's length at most."""
    written_ns: EventTimeNs | None = None
    """When the dump was last written; `event_time_ns` is when its agent read it."""
    pending_total: int | None = Field(default=None, ge=0)
    """Pending operations of the dump; `pending` holds fewer where there was no room."""

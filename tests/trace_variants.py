"""Recorded jobs as arrays, their max-plus replay, and records of a variant: what `real_traces` makes its cases from.

The replay is 1F1B with the simulator's recursion, then the data groups of each stage, then all ranks. Waits are outputs.
What no row records between a rank's last pass and the first all-reduce of gradients is taken at its shortest, because the
others wait there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.importers.op_trace import EPOCH_NS, op_trace_records
from agents.simulation.benchmark.pipeline import run_exact
from schemas.fleet import Job, RankPlacement
from schemas.steps import CollectiveTiming, StepTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from schemas.base import Record

TRACES = Path(__file__).parents[2] / "shared" / "data" / "step_traces"


@dataclass(frozen=True)
class Trace:
    """Own durations and transfers of a recorded job, seconds.

    Axes are steps, stages, replicas and microbatches. What all ranks share (the shortest of a transfer, of a gap) has no
    axis of replicas.
    """

    name: str
    header: tuple[tuple[int, Record], ...]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    observed_s: NDArray[np.float64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    optimizer: NDArray[np.float64]
    collection: NDArray[np.float64]
    send_forward: NDArray[np.float64]
    send_backward: NDArray[np.float64]
    gather: NDArray[np.float64]
    load: NDArray[np.float64]
    gap: NDArray[np.float64]
    norm: NDArray[np.float64]
    embedding: NDArray[np.float64]
    scatter: NDArray[np.float64]
    clip: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps, stages, replicas."""
        return self.forward.shape[:3]

    def place(self, rank: int) -> tuple[int, int]:
        """Stage and replica of a rank."""
        stage, replica = np.argwhere(self.rank == rank)[0]
        return int(stage), int(replica)

    def slowed(self, factor: NDArray[np.float64]) -> Trace:
        """The same job with own durations multiplied; `factor` has axes steps, stages, replicas."""
        each = factor[..., None]
        return replace(
            self,
            forward=self.forward * each,
            backward=self.backward * each,
            optimizer=self.optimizer * factor,
            collection=self.collection * factor,
        )

    def healthy(self, rank: int) -> Trace:
        """Without the slowness of one rank and of its stage's transfers."""
        stage, replica = self.place(rank)
        peer = (replica + 1) % self.shape[2]
        arrays = {}
        for name in ("forward", "backward", "optimizer", "collection"):
            array = getattr(self, name).copy()
            array[:, stage, replica] = np.roll(array[:, stage, peer], 1, axis=0)
            arrays[name] = array
        other = (stage + 1) % self.shape[1]
        for name in ("send_forward", "send_backward", "gather", "norm", "scatter", "clip"):
            array = getattr(self, name).copy()
            array[:, stage] = np.minimum(array[:, stage], array[:, other])
            arrays[name] = array
        return replace(self, **arrays)

    def repeated(self, times: int) -> Trace:
        """The recorded steps again and again, numbers going on."""
        span = int(self.step[-1] - self.step[0]) + 1
        arrays = {
            name: np.concatenate([getattr(self, name)] * times)
            for name in self.__dataclass_fields__
            if name not in {"name", "header", "rank", "step"}
        }
        step = np.concatenate([self.step + number * span for number in range(times)])
        return replace(self, step=step, **arrays)


@dataclass(frozen=True)
class Replayed:
    """What the recursion makes of a trace: step times, and waiting by rank, seconds."""

    step_s: NDArray[np.float64]
    point_to_point_s: NDArray[np.float64]
    data_s: NDArray[np.float64]
    embedding_s: NDArray[np.float64]


def is_there(name: str) -> bool:
    """Whether a trace can be read here."""
    return (TRACES / f"trace-{name}.parquet").exists()


def load(name: str) -> Trace:
    """Read one of the recorded jobs."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(TRACES / f"trace-{name}.parquet")
    rows = {
        column: np.array(table[column].to_pylist()) if column == "optype" else table[column].to_numpy()
        for column in ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
    }
    step, at = np.unique(rows["step"], return_inverse=True)
    stage, replica = rows["stage"].astype(int), rows["dp_rank"].astype(int)
    start, duration = rows["start_ts"].astype(float), rows["duration"].astype(float)
    end = start + duration
    steps, stages, replicas = len(step), int(stage.max()) + 1, int(replica.max()) + 1
    rank = np.zeros((stages, replicas), dtype=np.int64)
    rank[stage, replica] = rows["rank"]

    def each(kind: str) -> NDArray[np.float64]:
        array = np.zeros((steps, stages, replicas))
        chosen = rows["optype"] == kind
        np.add.at(array, (at[chosen], stage[chosen], replica[chosen]), duration[chosen])
        return array

    def passes(kind: str) -> NDArray[np.float64]:
        chosen = rows["optype"] == kind
        array = np.full((steps, stages, replicas, int(rows["seq_id"][chosen].max()) + 1), np.nan)
        array[at[chosen], stage[chosen], replica[chosen], rows["seq_id"][chosen]] = duration[chosen]
        assert not np.isnan(array).any(), kind
        return array

    def shortest(kind: str) -> NDArray[np.float64]:
        array = np.full((steps, stages), np.inf)
        chosen = rows["optype"] == kind
        np.minimum.at(array, (at[chosen], stage[chosen]), duration[chosen])
        return np.where(np.isinf(array), 0.0, array)

    def of_steps(
        values: NDArray[np.float64], which: NDArray[np.int64], take: np.ufunc, empty: float
    ) -> NDArray[np.float64]:
        array = np.full(steps, empty)
        take.at(array, which, values)
        return array

    observed = of_steps(end, at, np.maximum, -np.inf) - of_steps(start, at, np.minimum, np.inf)
    first = (rows["optype"] == "forward-compute") & (stage == 0)
    gathered = (rows["optype"] == "params-all-gather") & (stage == 0)
    load_s = of_steps(start[first], at[first], np.minimum, np.inf) - of_steps(
        end[gathered], at[gathered], np.minimum, np.inf
    )
    last_pass = np.full((steps, stages, replicas), -np.inf)
    chosen = np.isin(rows["optype"], ("forward-compute", "backward-compute"))
    np.maximum.at(last_pass, (at[chosen], stage[chosen], replica[chosen]), end[chosen])
    closes = rows["optype"] == "layernorm-grads-all-reduce"
    gap = of_steps(
        start[closes] - last_pass[at[closes], stage[closes], replica[closes]], at[closes], np.minimum, np.inf
    )
    records = op_trace_records(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml")
    header = tuple((when, record) for when, record in records if isinstance(record, Job | RankPlacement))
    return Trace(
        name=name,
        header=header,
        rank=rank,
        step=step,
        observed_s=observed,
        forward=passes("forward-compute"),
        backward=passes("backward-compute"),
        optimizer=each("optimizer"),
        collection=each("gc"),
        send_forward=shortest("forward-send"),
        send_backward=shortest("backward-send"),
        gather=shortest("params-all-gather"),
        load=np.maximum(load_s, 0.0),
        gap=np.maximum(gap, 0.0),
        norm=shortest("layernorm-grads-all-reduce"),
        embedding=shortest("embedding-grads-all-reduce"),
        scatter=shortest("grads-reduce-scatter"),
        clip=shortest("optimizer-clip-main-grad"),
    )


def replayed(trace: Trace) -> Replayed:
    """Own durations in, step times and waits out: 1F1B, then data groups by stage, then all ranks."""
    _, stages, replicas = trace.shape
    forward = trace.forward + trace.send_forward[:, :, None, None]
    backward = trace.backward + trace.send_backward[:, :, None, None]
    ready = np.repeat((trace.gather + trace.load[:, None])[:, :, None], replicas, axis=2)
    hop = np.zeros((len(trace.step), max(0, stages - 1), replicas))
    times = run_exact(ready, forward, backward, hop)
    arrived = times.done + trace.gap[:, None, None] + trace.collection
    met = arrived.max(axis=2, keepdims=True)
    ends = (met + (trace.norm + trace.embedding + trace.scatter)[:, :, None]).max(axis=1, keepdims=True)
    finished = ends + trace.clip.max(axis=1)[:, None, None] + trace.optimizer
    microbatches = trace.forward.shape[3]
    moved = microbatches * (trace.send_forward + trace.send_backward)[:, :, None]
    late = met - arrived
    data = (trace.norm + trace.scatter + trace.gather)[:, :, None] + np.zeros_like(late)
    embedding = trace.embedding[:, :, None] + np.zeros_like(late)
    # As recorded: the first stage waits where the embedding's gradients meet, the last stage where no row says so.
    inner = np.ones(stages, dtype=bool)
    inner[[0, -1]] = stages < 2
    data[:, inner] += late[:, inner]
    if stages > 1:
        embedding[:, 0] += late[:, 0]
    return Replayed(finished.max(axis=(1, 2)), times.waited + moved, data, embedding)


def replay_error(trace: Trace) -> tuple[float, float]:
    """Relative error of the replay against the recorded steps: median and 90th percentile."""
    error = np.abs(replayed(trace).step_s / trace.observed_s - 1.0)
    return float(np.median(error)), float(np.quantile(error, 0.9))


def records_of(trace: Trace, is_lost: Callable[[int, int], bool] | None = None) -> Iterator[tuple[int, Record]]:
    """The variant's records as the importer writes them, with their arrival.

    Args:
        trace: own durations.
        is_lost: (position of the step, rank) whose report never comes.
    """
    yield from trace.header
    nodes = {p.rank[0]: p.node_id for _, p in trace.header if isinstance(p, RankPlacement)}
    job_id = next(record.job_id for _, record in trace.header if isinstance(record, Job))
    made = replayed(trace)
    median_s = float(np.median(made.step_s))
    now_ns, previous = EPOCH_NS, None
    for at, step in enumerate(trace.step.tolist()):
        skipped = step - previous - 1 if previous is not None else 0
        now_ns += int(skipped * median_s * 1e9) + int(made.step_s[at] * 1e9)
        previous = step
        for (stage, replica), rank in sorted(np.ndenumerate(trace.rank), key=lambda pair: pair[1]):
            if is_lost is not None and is_lost(at, int(rank)):
                continue
            here = (at, stage, replica)
            forward, backward = (round(float(a[here].sum()) * 1e6) for a in (trace.forward, trace.backward))
            optimizer = round(float(trace.optimizer[here]) * 1e6)
            hops, data, embedding = (
                round(float(a[here]) * 1e6) for a in (made.point_to_point_s, made.data_s, made.embedding_s)
            )
            yield (
                now_ns,
                StepTiming(
                    job_id=job_id,
                    node_id=nodes[int(rank)],
                    agent_session="variant",
                    seq=at,
                    event_time_ns=now_ns,
                    step=step,
                    rank=(int(rank),),
                    step_us=(round(float(made.step_s[at]) * 1e6),),
                    compute_us=(forward + backward + optimizer,),
                    forward_us=(forward,),
                    backward_us=(backward,),
                    optimizer_us=(optimizer,),
                    host_us=(round(float(trace.collection[here]) * 1e6),),
                    wait_us=(hops + data + embedding,),
                    collectives=(
                        CollectiveTiming(group="dp", instance=(stage,), duration_us=(data,)),
                        CollectiveTiming(group="pp", instance=(replica,), duration_us=(hops,)),
                    ),
                ),
            )

"""`python -m tests.real_traces`: two recorded jobs and variants of them with a known culprit, and whom the engine names.

A variant takes the recorded own durations, multiplies those of chosen ranks in chosen steps, and lets a max-plus replay
of the step make all waits anew. The replay itself is held against the recorded steps first. Traces are read where they
are; without them there is nothing to show.

The recorded job AR has a slow worker; `healthy` gives that one the durations of a stage peer, one step apart. Recorded
steps are repeated where a case needs more of them than there are, so their noise repeats too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.importers.op_trace import EPOCH_NS, op_trace_records
from agents.simulation.benchmark.pipeline import run_exact
from schemas.findings import Finding
from schemas.fleet import Job, RankPlacement
from schemas.steps import CollectiveTiming, StepTiming
from schemas.topics import topic_of
from streams.core.position import Position
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schemas.base import Record

TRACES = Path(__file__).parents[2] / "shared" / "data" / "step_traces"
NAMES = ("AR", "SE")


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


@dataclass(frozen=True)
class Answer:
    """What the engine said of a run.

    Attributes:
        named: ranks of stragglers that were opened.
        standing: those that stand at the end.
        kinds: kinds of all findings that were opened.
        first_at: by rank, the position of the step in which it was first named.
    """

    named: frozenset[int]
    standing: frozenset[int]
    kinds: frozenset[str]
    first_at: dict[int, int]


def answer_to(trace: Trace, records: Iterator[tuple[int, Record]]) -> Answer:
    """The engines over records of a trace."""
    pipeline = Pipeline("traces")
    found: list[Record] = []
    offset = 0
    for arrival_ns, record in records:
        place = Position(topic_of(record).name, 0, offset, arrival_ns // 1_000_000)
        offset += isinstance(record, StepTiming)
        found += pipeline.on_record(record, place)
    found += pipeline.flush()
    named: set[int] = set()
    standing: set[int] = set()
    kinds: set[str] = set()
    first_at: dict[int, int] = {}
    positions = {step: at for at, step in enumerate(trace.step.tolist())}
    for finding in found:
        if not isinstance(finding, Finding):
            continue
        if finding.state == "open":
            kinds.add(finding.kind)
        if finding.kind != "straggler":
            continue
        ranks = set(finding.subject.ranks or ()) | (
            {finding.subject.rank} if finding.subject.rank is not None else set()
        )
        if finding.state == "open":
            named |= ranks
            standing |= ranks
            for rank in ranks:
                first_at.setdefault(rank, positions[finding.step or 0])
        else:
            standing -= ranks
    return Answer(frozenset(named), frozenset(standing), frozenset(kinds), first_at)


@dataclass(frozen=True)
class Case:
    """A variant and what is right.

    Attributes:
        name: what was done.
        base: of which job.
        make: the variant.
        severity: by how much own time was lengthened.
        culprits: whom to name, and nobody else.
        must_name: whether naming nobody is wrong too.
        onset: position of the first slow step.
        healed: whether nobody may stand at the end.
        is_lost: reports that never come.
        kind: a finding of the whole job that must be there too.
    """

    name: str
    base: str
    make: Callable[[Trace], Trace]
    severity: float = 0.0
    culprits: frozenset[int] = frozenset()
    must_name: bool = True
    onset: int = 0
    healed: bool = False
    is_lost: Callable[[int, int], bool] | None = field(default=None, repr=False)
    kind: str | None = None

    def wrong(self, answer: Answer) -> str:
        """What is wrong with an answer; empty where it is right."""
        if not answer.named <= self.culprits:
            return f"named {sorted(answer.named - self.culprits)}"
        if self.must_name and answer.named != self.culprits:
            return f"missed {sorted(self.culprits - answer.named)}"
        if self.healed and answer.standing:
            return f"{sorted(answer.standing)} still stand"
        if self.kind is not None and self.kind not in answer.kinds:
            return f"no {self.kind}"
        return ""


def _slow(
    ranks: tuple[int, ...], severity: float, when: Callable[[int], bool] = lambda at: True
) -> Callable[[Trace], Trace]:
    def make(trace: Trace) -> Trace:
        factor = np.ones(trace.shape)
        chosen = np.array([when(at) for at in range(trace.shape[0])])
        for rank in ranks:
            stage, replica = trace.place(rank)
            factor[chosen, stage, replica] += severity
        return trace.slowed(factor)

    return make


def _ar(then: Callable[[Trace], Trace] | None = None, times: int = 1) -> Callable[[Trace], Trace]:
    """AR without its slow worker, then something done to it."""

    def make(trace: Trace) -> Trace:
        base = trace.healthy(0)
        base = base.repeated(times) if times > 1 else base
        return then(base) if then is not None else base

    return make


def _whole(severity: float, since: int) -> Callable[[Trace], Trace]:
    def make(trace: Trace) -> Trace:
        factor = np.ones(trace.shape)
        factor[since:] += severity
        return trace.slowed(factor)

    return make


def _link(stage: int, times: float, since: int) -> Callable[[Trace], Trace]:
    """The gradients' scatter of one stage takes longer: a link that all of its data group share."""

    def make(trace: Trace) -> Trace:
        scatter, gather = trace.scatter.copy(), trace.gather.copy()
        scatter[since:, stage] *= times
        gather[since:, stage] *= times
        return replace(trace, scatter=scatter, gather=gather)

    return make


def _hop(stage: int, seconds: float, since: int) -> Callable[[Trace], Trace]:
    """Every hand-over from one stage to the next takes longer."""

    def make(trace: Trace) -> Trace:
        send = trace.send_forward.copy()
        send[since:, stage] += seconds
        return replace(trace, send_forward=send)

    return make


def _lost(share: float, seed: int, ranks: frozenset[int] | None = None) -> Callable[[int, int], bool]:
    def is_lost(at: int, rank: int) -> bool:
        told = ranks is None or rank in ranks
        return told and random.Random(f"{seed}/{at}/{rank}").random() < share

    return is_lost


SEVERITIES = (0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
MUST = 0.1
"""From here on the culprit of a job of fixed length must be named."""

AR_RANKS = (0, 12, 20, 40, 52, 60)
PAIRS = ((4, 8), (16, 28), (52, 56), (4, 36))
SE_RANKS = (6, 64, 100)


def cases() -> Iterator[Case]:
    """All variants; every one without a culprit must stay silent about ranks."""
    yield Case("as recorded, waits anew", "AR", lambda trace: trace, 1.36, frozenset({0}))
    yield Case("without its slow worker", "AR", _ar())
    yield Case("without it, three times over", "AR", _ar(times=3))
    yield Case("as recorded, waits anew", "SE", lambda trace: trace)
    yield Case("three times over", "SE", lambda trace: trace.repeated(3))
    for severity in SEVERITIES:
        must = severity >= MUST
        for rank in AR_RANKS:
            yield Case(f"rank {rank}", "AR", _ar(_slow((rank,), severity)), severity, frozenset({rank}), must)
    for severity in (0.1, 0.2, 0.5):
        for pair in PAIRS:
            yield Case(f"ranks {pair}", "AR", _ar(_slow(pair, severity)), severity, frozenset(pair))
        yield Case("rank 8 beside the slow one", "AR", _slow((8,), severity), severity, frozenset({0, 8}))
        for name, when in (
            ("3 of 10 steps", lambda at: at % 10 in {2, 5, 6}),
            ("10 of 37 steps", lambda at: at % 37 < 10),
        ):
            made = _ar(_slow((20,), severity, when), times=3)
            yield Case(f"rank 20 in {name}", "AR", made, severity, frozenset({20}))
        yield Case(
            "rank 20 from 20 to 60, then healed",
            "AR",
            _ar(_slow((20,), severity, lambda at: 20 <= at < 60), times=3),
            severity,
            frozenset({20}),
            onset=20,
            healed=True,
        )
        for share in (0.01, 0.05, 0.3):
            made = _ar(_slow((20,), severity), times=2)
            lost = _lost(share, 7)
            name = f"rank 20, {share:.0%} of reports lost"
            yield Case(name, "AR", made, severity, frozenset({20}), is_lost=lost)
        gone = _lost(1.0, 7, frozenset({24}))
        yield Case(
            "rank 20, rank 24 never reports", "AR", _ar(_slow((20,), severity)), severity, frozenset({20}), is_lost=gone
        )
        yield Case("all ranks from step 44", "AR", _ar(_whole(severity, 44), times=3), severity, kind="job_slowdown")
    for times in (2.0, 4.0, 8.0):
        yield Case(f"data group of stage 1 x{times:g} from 44", "AR", _ar(_link(1, times, 44), times=3), times - 1)
    for seconds in (0.02, 0.1):
        yield Case(f"hand-over of stage 1 +{seconds:g} s from 44", "AR", _ar(_hop(1, seconds, 44), times=3))
    for severity in (0.1, 0.2, 0.5, 1.0):
        for rank in SE_RANKS:
            made = _slow((rank,), severity)
            yield Case(f"rank {rank}", "SE", made, severity, frozenset({rank}), must_name=severity >= 0.5)
        yield Case("all ranks from step 43", "SE", _repeat_then(_whole(severity, 43)), severity)
    for times in (4.0, 8.0):
        yield Case(f"data group of stage 0 x{times:g} from 43", "SE", _repeat_then(_link(0, times, 43)), times - 1)


def _repeat_then(then: Callable[[Trace], Trace]) -> Callable[[Trace], Trace]:
    return lambda trace: then(trace.repeated(3))


def judged(case: Case, trace: Trace) -> Answer:
    """The engine's answer to a variant of a loaded trace."""
    made = case.make(trace)
    return answer_to(made, records_of(made, case.is_lost))


def main() -> int:
    """Print the table; status 1 when a case is wrong, 2 when there are no traces."""
    absent = [name for name in NAMES if not is_there(name)]
    if absent:
        print(f"no traces {', '.join(absent)} in {TRACES}", file=sys.stderr)
        return 2
    traces = {name: load(name) for name in NAMES}
    print("| trace | steps | replay error, median | p90 |\n|---|---:|---:|---:|")
    for name, trace in traces.items():
        middle, high = replay_error(trace)
        print(f"| {name} | {len(trace.step)} | {middle:.2%} | {high:.2%} |")
    print("\n| job | variant | d | step, S | to name | named | steps to it | also said | right |")
    print("|---|---|---:|---:|---|---|---:|---|---|")
    wrong = 0
    for case in cases():
        base = traces[case.base]
        made = case.make(base)
        answer = answer_to(made, records_of(made, case.is_lost))
        error = case.wrong(answer)
        wrong += bool(error)
        slowdown = np.median(replayed(made).step_s) / np.median(
            replayed(base.healthy(0) if case.base == "AR" else base).step_s
        )
        delay = max((at - case.onset + 1 for at in answer.first_at.values()), default=None)
        said = ", ".join(sorted(answer.kinds - {"straggler", "insufficient", "barrier_wait"})) or "-"
        print(
            f"| {case.base} | {case.name} | {case.severity:.0%} | {slowdown:.2f} | {_ranks(case.culprits)} | {_ranks(answer.named)} "
            f"| {delay if delay is not None else '-'} | {said} | {error or 'yes'} |",
            flush=True,
        )
    print(f"\n{wrong} wrong")
    return 1 if wrong else 0


def _ranks(ranks: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ranks))) or "nobody"


if __name__ == "__main__":
    sys.exit(main())

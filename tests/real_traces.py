"""`python -m tests.real_traces`: two recorded jobs and variants of them with a known culprit, and whom the engine names.

A variant takes the recorded own durations, multiplies those of chosen ranks in chosen steps, and lets a max-plus replay
of the step make all waits anew (trace_variants). The replay itself is held against the recorded steps first. Traces are
read where they are; without them there is nothing to show.

The recorded job AR has a slow worker; `healthy` gives that one the durations of a stage peer, one step apart. Recorded
steps are repeated where a case needs more of them than there are, so their noise repeats too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from schemas.findings import Finding
from schemas.steps import StepTiming
from schemas.topics import topic_of
from streams.core.position import Position
from streams.engines.pipeline import Pipeline
from tests.trace_variants import TRACES, Trace, is_there, load, records_of, replay_error, replayed

if TYPE_CHECKING:
    from schemas.base import Record

NAMES = ("AR", "SE")


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

"""One case through one or several detectors: records by arrival in, judged outcomes out.

Each detector gets the same records in the same order, in chunks whose processor time is taken apart from the generator's.
The engine runs as `paceline replay` runs it; what it gives out is stamped with the arrival of the record that made it do
so, because its own order by event time comes later than a reader of the topics would see it.
"""

from __future__ import annotations

import gc
import hashlib
import resource
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from agents.simulation.benchmark import HELD_OUT_SEEDS, generate
from agents.simulation.errors import ScenarioError
from paceline.evaluation.ablation import PARTS, policy_without, record_without
from paceline.evaluation.alerts import Heard
from paceline.evaluation.baselines import BASELINES, ORACLE, Baselines, oracle_alerts
from paceline.evaluation.matching import grace_ns, judge
from paceline.evaluation.outcome import Cost, about, outcome_of
from paceline.evaluation.places import describe
from paceline.evaluation.whole_steps import closed_steps
from schemas.findings import Finding
from schemas.remediation import Command, Decision, Incident
from schemas.steps import StepTiming
from schemas.topics import topic_of
from streams.core.position import Position
from streams.engines.decisions import DEFAULT_SETTLE_NS
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agents.simulation.benchmark import BenchmarkCase, Truth
    from paceline.evaluation.alerts import Alert, SaidCommand
    from paceline.evaluation.outcome import CaseOutcome
    from schemas.base import Record
    from streams.core.step_join import ClosedStep

__all__ = ["ENGINE", "WITHOUT", "EngineDetector", "StepClock", "run_case"]

ENGINE = "paceline"
WITHOUT = "without "
"""What the names of engines that lack a part begin with."""

_SITE = "benchmark"
_CHUNK = 1024
_CLOCK_NS = 2_000_000_000


class StepClock:
    """Which step a job is in at a time, from the timings that its ranks report."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[int, int]] = defaultdict(dict)

    def take(self, timing: StepTiming | ClosedStep) -> None:
        """Note one node's end of a step, or the end of a whole one."""
        ends = self._ends[timing.job_id]
        if timing.event_time_ns > ends.get(timing.step, 0):
            ends[timing.step] = timing.event_time_ns

    def step_at(self, job_id: str | None, at_ns: int) -> int | None:
        """The step that a job was in, of the only or first job where none is named; null where nothing was reported."""
        ends = self._ends.get(job_id or "") or (self._ends[min(self._ends)] if self._ends else None)
        if not ends:
            return None
        steps = sorted(ends)
        return steps[min(bisect_left([ends[step] for step in steps], at_ns), len(steps) - 1)]


class _Detector(Protocol):
    def take(self, arrived: Sequence[tuple[int, Record]]) -> None: ...
    def finish(self) -> None: ...


class _SpokenPipeline(Pipeline):
    """The engines, noting each output when it is made rather than when its turn by event time comes."""

    def __init__(self, site_id: str, without: frozenset[str]) -> None:
        super().__init__(site_id, policy_without(without, site_id))
        self.said: list[Record] = []

    def _hold(self, record: Record) -> None:
        if not isinstance(record, Decision):
            self.said.append(record)
        super()._hold(record)


class EngineDetector:
    """The project's own engines as a detector."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        self.heard = Heard()
        self.refused = 0
        self.late = 0
        self._without = without
        self._pipeline = _SpokenPipeline(_SITE, without)
        self._offsets: dict[str, int] = defaultdict(int)
        self._digest = hashlib.sha256()
        self._now_ns = 0

    @property
    def verdict_sha256(self) -> str:
        """Digest of the ids of all findings, incidents and commands, in order of event time.

        Ids follow from rule, subject and onset, culprit and cause. Places in topics are left out: a stream with
        duplicates has others and must give the same verdict.
        """
        return self._digest.hexdigest()

    @property
    def records(self) -> int:
        """How many records were taken."""
        return sum(self._offsets.values())

    def take(self, arrived: Sequence[tuple[int, Record]]) -> None:
        """Take records by arrival."""
        for arrival_ns, original in arrived:
            record = record_without(original, self._without) if self._without else original
            if record is None:
                continue
            topic = topic_of(record).name
            position = Position(topic, 0, self._offsets[topic], arrival_ns // 1_000_000)
            self._offsets[topic] += 1
            self._now_ns = arrival_ns
            self._give(self._pipeline.on_record(record, position))
            self._listen(0)

    def take_whole(self, step: ClosedStep) -> None:
        """Take a whole step, at the time at which it ended."""
        self._now_ns = step.event_time_ns
        self._give(self._pipeline.on_whole_step(step))
        self._listen(0)

    def finish(self) -> None:
        """The input has ended: what would have been said when its time had settled is said then."""
        self._give(self._pipeline.flush())
        self._listen(DEFAULT_SETTLE_NS)
        self.refused = self._pipeline.counts["refused_future"]
        self.late = self._pipeline.counts["late"]

    def _give(self, outputs: Iterable[Record]) -> None:
        for record in outputs:
            told = _identity(record)
            if told is not None:
                self._digest.update(told.encode() + b"\n")

    def _listen(self, settle_ns: int) -> None:
        for record in self._pipeline.said:
            said_ns = self._now_ns
            if settle_ns:
                said_ns = max(said_ns, _event_ns(record) + settle_ns)
            self.heard.take(said_ns, record)
        self._pipeline.said.clear()


def _event_ns(record: Record) -> int:
    at_ns = getattr(record, "decided_at_ns", None) or getattr(record, "event_time_ns", None)
    return at_ns if isinstance(at_ns, int) else 0


def _identity(record: Record) -> str | None:
    if isinstance(record, Finding):
        return f"{record.finding_id} {record.state}"
    if isinstance(record, Incident):
        culprit = record.culprit.key() if record.culprit is not None else "-"
        return f"{record.incident_id} {record.state} {record.cause_class} {culprit}"
    return record.command_id if isinstance(record, Command) else None


def run_case(
    case: BenchmarkCase,
    seed: int,
    baselines: bool = False,
    without: frozenset[str] = frozenset(),
    ablation: bool = False,
) -> list[CaseOutcome]:
    """Generate a case and judge every detector on it.

    Args:
        case: what to generate.
        seed: with which seed.
        baselines: whether the plain rules run beside the engine.
        without: parts of the engine to take away.
        ablation: whether further engines run that lack one part more each.

    Returns:
        One outcome per detector, the engine's first; of a case of whole steps the engine's alone.

    Raises:
        ScenarioError: the case contradicts itself.
    """
    with _collector_off():
        if case.form == "whole_steps":
            return [_run_whole_steps(case, seed, without)]
        return _run_case(case, seed, baselines, without, PARTS if ablation else ())


def _run_whole_steps(case: BenchmarkCase, seed: int, without: frozenset[str]) -> CaseOutcome:
    """A fault-free case without messages: every alert is false, and there is no truth to find."""
    if case.has_truth:
        raise ScenarioError(f"case {case.case_id}: whole steps are for runs without a fault")
    run = generate(case, seed)
    clock, engine = StepClock(), EngineDetector(without)
    engine.take([(case.start_ns, record) for record in run.registrations()])
    cpu_s, last_ns = 0.0, case.start_ns
    for step in closed_steps(run.whole_steps()):
        begin = time.process_time()
        engine.take_whole(step)
        cpu_s += time.process_time() - begin
        clock.take(step)
        last_ns = step.event_time_ns
    engine.finish()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    judged = _Judge(case, seed, (), clock, (last_ns - case.start_ns) / 1e9)
    return judged.outcome(ENGINE, engine.heard, Cost(cpu_s, peak), engine.verdict_sha256)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Records are trees and die when nobody holds them; the cycle collector would walk all of them for a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _run_case(
    case: BenchmarkCase, seed: int, baselines: bool, without: frozenset[str], parts: Sequence[str]
) -> list[CaseOutcome]:
    run = generate(case, seed)
    clock = StepClock()
    engines = {ENGINE: EngineDetector(without)}
    engines |= {f"{WITHOUT}{part}": EngineDetector(without | {part}) for part in parts if part not in without}
    rules = Baselines() if baselines else None
    detectors: list[_Detector] = [*engines.values(), *([rules] if rules is not None else [])]
    spent = [0.0] * len(detectors)
    chunk: list[tuple[int, Record]] = []
    first_ns = last_ns = None

    def hand_over() -> None:
        for number, detector in enumerate(detectors):
            begin = time.process_time()
            detector.take(chunk)
            spent[number] += time.process_time() - begin
        chunk.clear()

    for arrival_ns, record in run:
        if isinstance(record, StepTiming):
            clock.take(record)
        first_ns = arrival_ns if first_ns is None else first_ns
        last_ns = arrival_ns
        chunk.append((arrival_ns, record))
        if len(chunk) >= _CHUNK:
            hand_over()
    hand_over()
    for number, detector in enumerate(detectors):
        begin = time.process_time()
        detector.finish()
        spent[number] += time.process_time() - begin

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = ((last_ns or 0) - (first_ns or 0)) / 1e9
    judged = _Judge(case, seed, run.truths, clock, seconds)
    outcomes = [
        replace(
            judged.outcome(name, engine.heard, Cost(cpu_s, peak), engine.verdict_sha256),
            records=engine.records,
            late=engine.late,
        )
        for (name, engine), cpu_s in zip(engines.items(), spent, strict=False)
    ]
    if rules is not None:
        share = Cost(spent[-1] / len(BASELINES), peak)
        outcomes += [judged.of_alerts(name, rules.alerts(name), (), share) for name in BASELINES]
        outcomes.append(judged.of_alerts(ORACLE, oracle_alerts(run.truths, judged.step_ns), (), Cost(0.0, peak)))
    return outcomes


class _Judge:
    """Judges detectors on one run."""

    def __init__(
        self, case: BenchmarkCase, seed: int, truths: Sequence[Truth], clock: StepClock, seconds: float
    ) -> None:
        self._case, self._seed, self._truths, self._clock, self._seconds = case, seed, truths, clock, seconds
        self.step_ns = round(max(job.step_s for job in case.jobs) * 1e9)
        self._clock_ns = _CLOCK_NS + round(case.noise.clock_step_s * 1e9)

    def outcome(self, detector: str, heard: Heard, cost: Cost, digest: str) -> CaseOutcome:
        """Judge what was heard."""
        seen, others = self._findings([finding for _, finding in heard.findings.values()])
        warned = heard.finding_alerts(self._clock.step_at)
        return self.of_alerts(
            detector, heard.alerts(self._clock.step_at), heard.commands, cost, seen, others, digest, warned
        )

    def of_alerts(
        self,
        detector: str,
        alerts: Sequence[Alert],
        commands: Sequence[SaidCommand],
        cost: Cost,
        seen: dict[str, tuple[str, ...]] | None = None,
        others: tuple[str, ...] = (),
        digest: str = "",
        warned: Sequence[Alert] | None = None,
    ) -> CaseOutcome:
        """Judge alerts and commands, and by themselves findings that warn."""
        judged = judge(self._truths, alerts, commands, self.step_ns, seen, self._clock_ns)
        findings = judge(self._truths, warned, (), self.step_ns, None, self._clock_ns) if warned is not None else None
        is_held_out = self._seed in HELD_OUT_SEEDS
        return outcome_of(
            detector, self._case, self._seed, is_held_out, judged, cost, self._seconds, digest, others, findings
        )

    def _findings(self, findings: Sequence[Finding]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        """By truth, findings about its places in words; and the others, counted by kind and subject."""
        findings = sorted(findings, key=lambda f: (f.event_time_ns, f.finding_id))
        seen: dict[str, tuple[str, ...]] = {}
        used: set[str] = set()
        for truth in self._truths:
            its, _ = about(truth, findings, truth.end_ns + grace_ns(self.step_ns))
            used |= {finding.finding_id for finding in its}
            seen[truth.truth_id] = _lines(its, truth.onset_ns)
        start = min((truth.onset_ns for truth in self._truths), default=self._case.start_ns)
        return seen, _lines(
            [finding for finding in findings if finding.finding_id not in used], start, by_subject=False
        )


_MOST_LINES = 40


def _lines(findings: Sequence[Finding], since_ns: int, by_subject: bool = True) -> tuple[str, ...]:
    """Findings in words: the first of each kind (and subject), with how many more there were."""
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[(finding.kind, describe(finding.subject) if by_subject else "")].append(finding)
    lines = []
    for (kind, _), group in groups.items():
        first = group[0]
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        step = f" step {first.step}" if first.step is not None else ""
        after = (first.event_time_ns - since_ns) / 1e9
        who = describe(first.subject)
        lines.append(f"{after:+.1f} s{step} {kind} [{first.severity}] {who}: {first.explanation}{more}")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more"]
    return tuple(lines)

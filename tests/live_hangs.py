"""Hangs of simulated jobs in real time through a broker: what is said of each, when, and whether it is true.

The roles' workers run elsewhere. Here the jobs' agents publish steps and progress, each record at its event time; a reader takes
the findings, commands and incidents. When a job's `collect_evidence` stands on the actions topic, its ranks' digests follow,
as agents would publish them. Every wait is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from agents.simulation.collective_programs import JobLayout
from agents.simulation.standstill import Standstill
from schemas.codec import decode, message
from schemas.findings import Finding
from schemas.remediation import Command, Incident
from schemas.topics import topic_named
from tests import hang_cases
from tests.hang_cases import Truth

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from schemas.base import Record
    from schemas.steps import CollectiveDigest

FAULTS = (
    "python stuck",
    "gpu broken",
    "process killed, no dump",
    "size differs",
    "python stuck, two",
    "stuck, dumps lost",
    "operation differs",
    "link cut",
    "gpu frozen",
    "type differs",
    "messages in a circle",
    "operation left out",
    "gpu and python",
)
LAYOUTS = {
    "64: tp8 pp2 dp4": JobLayout(8, 1, 4, 2, micro_batches=3),
    "64: tp4 pp4 dp4": JobLayout(4, 1, 4, 4),
    "64: tp2 pp4 dp8": JobLayout(2, 1, 8, 4),
    "64: tp4 cp2 pp2 dp4": JobLayout(4, 2, 4, 2),
}
READ_TOPICS = tuple(topic_named(family).name for family in ("findings", "actions", "incidents"))
_STILL_TOLD_NS = 120_000_000_000


@dataclass
class Hang:
    """One job that will hang, and what is the truth about it.

    Attributes:
        digests: by rank, of the dumps that will be written.
    """

    fault: str
    layout: str
    standstill: Standstill
    digests: dict[int, CollectiveDigest]
    truth: Truth


@dataclass
class Outcome:
    """What was said of a hang; times are wall time when it was read, nanoseconds since the epoch."""

    suspicion: Finding | None = None
    suspected_ns: int = 0
    ordered_ns: int = 0
    verdict: Finding | None = None
    verdict_ns: int = 0
    verdicts: int = 0
    incidents: list[Incident] = field(default_factory=list)
    culprit_ns: int = 0

    @property
    def named(self) -> set[int]:
        """Ranks that the verdict names."""
        told: Any = self.verdict.values.get("culprit_ranks") if self.verdict is not None else ()
        return set(told or ())


def _cases(number: int, seed: int, layouts: Sequence[str]) -> Iterator[tuple[hang_cases.Case, frozenset[int]]]:
    """Faults by turns, each in another layout, and the ranks whose process is gone."""
    hang_cases.LAYOUTS.update(LAYOUTS)
    for index in range(number):
        fault, layout = FAULTS[index % len(FAULTS)], layouts[index % len(layouts)]
        for attempt in range(8):
            case = hang_cases.case(fault, layout, seed + index + 1000 * attempt)
            if any(one.stuck() for one in case.run.values()):  # a link that nobody used any more stops nobody
                break
        is_killed = fault.startswith("process killed")
        gone = frozenset(case.run) - frozenset(case.dumps) if is_killed else frozenset()
        yield case, gone


def prepared(number: int, seed: int, steps: int, step_ns: int, layouts: Sequence[str] = tuple(LAYOUTS)) -> list[Hang]:
    """Jobs with the digests of their dumps; `started_at` says when they begin."""
    found = []
    for index, (case, gone) in enumerate(_cases(number, seed, layouts)):
        standstill = Standstill(f"job-{index:03d}", len(case.run), 0, steps, step_ns, gone=gone, seed=seed + index)
        digests = {rank: standstill.digest(rank, dump) for rank, dump in case.dumps.items()}
        found.append(Hang(case.fault, case.layout, standstill, digests, case.truth))
    return found


def play(client: Producer, reader: Consumer, played: Sequence[Hang], patience_s: float) -> dict[str, Outcome]:
    """Play all jobs, and hear what is said of each until all have a verdict and a settled incident.

    Args:
        client: publishes; places keys as agents' producers do.
        reader: of `READ_TOPICS`, from their ends on.
        played: jobs; their reference records have been published.
        patience_s: after the last job's last progress.
    """
    outcomes = {hang.standstill.job_id: Outcome() for hang in played}
    by_job = {hang.standstill.job_id: hang for hang in played}
    numbers = count()
    due: list[tuple[int, int, Record, Iterator[Record] | None]] = []

    def schedule(records: Iterator[Any]) -> None:
        record = next(records, None)
        if record is not None:
            heappush(due, (record.event_time_ns, next(numbers), record, records))

    for hang in played:
        schedule(hang.standstill.records(hang.standstill.last_progress_ns + _STILL_TOLD_NS))
    end_ns = max(hang.standstill.last_progress_ns for hang in played) + round(patience_s * 1e9)
    while time.time_ns() < end_ns and not all(_is_settled(outcome) for outcome in outcomes.values()):
        while due and due[0][0] <= time.time_ns():
            _, _, record, more = heappop(due)
            wire = message(record)
            client.produce(wire.topic, wire.value, wire.key, headers=list(wire.headers))
            if more is not None:
                schedule(more)
        client.poll(0)
        received = reader.poll(0.004)
        if received is None or received.error() is not None:
            continue
        now_ns = time.time_ns()
        said = decode(received.topic() or "", received.value() or b"")
        job_id = _take(said, outcomes, now_ns)
        if job_id is not None:
            hang = by_job[job_id]
            for digest in hang.standstill.published(hang.digests, now_ns):
                heappush(due, (digest.event_time_ns, next(numbers), digest, None))
    return outcomes


def started_at(played: Sequence[Hang], start_ns: int, apart_ns: int) -> list[Hang]:
    """The same jobs, the first of which begins at a time."""
    return [
        replace(hang, standstill=replace(hang.standstill, start_ns=start_ns + index * apart_ns))
        for index, hang in enumerate(played)
    ]


def score(hang: Hang, outcome: Outcome) -> tuple[int, int, int]:
    """Ranks that were named rightly, named wrongly, and missed; what the dumps cannot show counts neither way."""
    named, truth = outcome.named, hang.truth
    return (
        len(named & truth.culprits),
        len(named - truth.culprits - truth.acceptable),
        len(truth.culprits - named),
    )


def _take(said: Record, outcomes: dict[str, Outcome], now_ns: int) -> str | None:
    """Note what was said; the job whose evidence was asked for."""
    if isinstance(said, Finding) and said.rule == "hang" and said.state == "open":
        outcome = outcomes[said.job_id or ""]
        if said.kind == "hang_suspected":
            outcome.suspicion, outcome.suspected_ns = said, now_ns
        else:
            outcome.verdict, outcome.verdict_ns = said, now_ns
            outcome.verdicts += 1
    elif isinstance(said, Incident) and said.job_id in outcomes:
        outcome = outcomes[said.job_id]
        outcome.incidents.append(said)
        if outcome.verdict is not None and outcome.verdict.finding_id in said.findings:
            outcome.culprit_ns = outcome.culprit_ns or now_ns
    elif isinstance(said, Command) and said.kind == "collect_evidence" and said.target.level == "job":
        outcome = outcomes[said.target.job_id or ""]
        if not outcome.ordered_ns:
            outcome.ordered_ns = now_ns
            return said.target.job_id
    return None


def _is_settled(outcome: Outcome) -> bool:
    return outcome.culprit_ns > 0

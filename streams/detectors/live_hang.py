"""A job that hangs, live: the suspicion, the digests that it asks for, and the verdict.

- `hang_suspected` (warning, the job; urgent): no progress for longer than the limit (`hang_suspicion`). It blames nobody, and asks
  for evidence.
- the verdict of the gathered digests (`hang_gathering`, `hang`), at the event time at which they could be judged: `hang` (critical)
  about the rank, or the ranks, that keep the others from going on; `hang_unplaced` (warning, the job) where it is a hang and
  nobody can be named; `hang_undecided` (info, the job) where the digests decide nothing, or there are none.

One suspicion an episode; with the first progress after it all is cleared. Digests that come after a verdict and change
whom it names clear it, and the new one is said. What a verdict costs anybody is for the decisions to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.findings import Evidence, Subject
from schemas.steps import StepTiming
from schemas.topics import topic_of
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.thresholds import is_enabled
from streams.detectors.hang_gathering import DigestGathering
from streams.detectors.hang_suspicion import HangThresholds, JobProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Finding
    from schemas.fleet import Policy
    from schemas.steps import CollectiveDigest, RankProgress
    from streams.core.roster import JobRoster
    from streams.detectors.hang_verdict import HangVerdict

__all__ = ["RULE", "LiveHang"]

RULE = "hang"
_STEPS = topic_of(StepTiming).name
_MOST_RANKS_TOLD = 512


class LiveHang:
    """Watches one epoch of one job."""

    def __init__(self, site_id: str, job_id: str, epoch: int, partition: int = 0) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(HangThresholds(), RULE)
        self._job_id = job_id
        self._epoch = epoch
        self._partition = partition
        self._progress = JobProgress()
        self._digests = DigestGathering()
        self._standing: list[Finding] = []
        """The suspicion, and the verdict if there is one."""

    def on_step(self, timing: StepTiming, at_ns: int, offset: int = 0) -> None:
        """A node's share of a step, at the event time that it counts for, and its place."""
        self._progress.on_step(timing, at_ns, offset)

    def on_progress(self, record: RankProgress, at_ns: int) -> None:
        """What a node says of its ranks, at the event time that it counts for."""
        self._progress.on_progress(record, at_ns)

    def on_digest(self, record: CollectiveDigest, offset: int, is_again: bool = False) -> None:
        """A rank's digest; `is_again` if it was taken before a restart."""
        self._digests.add(record, offset, is_again)

    @property
    def is_suspected(self) -> bool:
        """Whether a suspicion stands."""
        return self._progress.onset_ns is not None

    @property
    def fastest_ns(self) -> int:
        """Event time up to which anything is known of the job."""
        return self._progress.fastest_ns

    @property
    def first_digest_offset(self) -> int | None:
        """Lowest offset of a digest that is kept and stands in no snapshot."""
        return self._digests.first_offset

    def due_ns(self, roster: JobRoster, policy: Policy | None) -> int | None:
        """The event time of what would be said next if nothing came any more; None for nothing."""
        limits = self._limits.of(policy)
        if not self.is_suspected:
            return self._progress.due_ns(limits)
        return self._verdict_due_ns(roster, limits) if self._digests.is_waiting else None

    def may_say(self, policy: Policy | None) -> bool:
        """Whether `turn` may have anything to say or to forget: seldom, while a job makes progress."""
        return (
            self._progress.onset_ns is not None
            or len(self._digests) > 0
            or self._progress.still_for_ns >= self._limits.of(policy).margin_ns
        )

    def turn(
        self,
        roster: JobRoster,
        policy: Policy | None,
        *,
        is_over: bool = False,
        is_final: bool = False,
    ) -> Iterator[Finding]:
        """What is to be said now.

        Args:
            roster: who belongs to the job.
            policy: in force.
            is_over: a later attempt of the job runs.
            is_final: the input has ended: what is there is judged.
        """
        progress, limits = self._progress, self._limits.of(policy)
        if not is_enabled(policy, RULE):
            return
        is_over = is_over or (roster.job is not None and roster.job.state == "ended")
        edge = progress.turn(limits, is_over)
        if edge == "open":
            yield self._suspected(limits)
        elif edge == "cleared":
            yield from self._cleared()
        if not self.is_suspected:
            if len(self._digests):
                self._digests.forget_before(progress.last_ns)
            return
        if self._digests.is_waiting:
            due_ns = self._verdict_due_ns(roster, limits)
            is_all_in = self._digests.is_first and self._is_complete(roster)
            if is_final or progress.fastest_ns >= due_ns or is_all_in:
                yield from self._judged(due_ns, roster)

    def _verdict_due_ns(self, roster: JobRoster, limits: HangThresholds) -> int:
        return self._digests.due_ns(self._progress.suspected_ns, self._is_complete(roster), limits)

    def _is_complete(self, roster: JobRoster) -> bool:
        return self._digests.is_complete(_world_size(roster), self._progress)

    def _suspected(self, limits: HangThresholds) -> Finding:
        progress = self._progress
        assert progress.onset_ns is not None
        limit_ns = progress.suspected_ns - progress.onset_ns
        self._digests.forget_before(progress.onset_ns)
        self._digests.begin()
        finding = self._say(
            "hang_suspected",
            Subject(level="job", job_id=self._job_id),
            severity="warning",
            event_time_ns=progress.suspected_ns,
            onset_ns=progress.onset_ns,
            explanation=f"no progress for {limit_ns / 1e9:.1f} s",
            values={
                "limit_ms": limit_ns // 1_000_000,
                "median_step_us": progress.median_us,
                "p99_times": limits.p99_times,
                "margin_ms": limits.margin_ns // 1_000_000,
            },
            urgent=True,
        )
        self._standing = [finding]
        return finding

    def _judged(self, at_ns: int, roster: JobRoster) -> Iterator[Finding]:
        digests = len(self._digests)
        verdict = self._digests.judge(_world_size(roster))
        kind, subject = _about(verdict, self._job_id, roster, self._digests)
        last = self._standing[-1]
        if (last.kind, last.subject) == (kind, subject):
            return
        if len(self._standing) > 1:
            yield _clearing(self._standing.pop(), at_ns, "later dumps say otherwise")
        suspicion = self._standing[0]
        found = self._say(
            kind,
            subject,
            severity={"hang": "critical", "hang_unplaced": "warning"}.get(kind, "info"),
            event_time_ns=at_ns,
            onset_ns=suspicion.onset_ns,
            explanation=_sentence(verdict, digests),
            values={**_figures(verdict), "digests": digests},
        )
        self._standing.append(found)
        yield found

    def _cleared(self) -> Iterator[Finding]:
        _, at_ns = self._progress.close()
        self._digests.end()
        standing, self._standing = self._standing, []
        for finding in reversed(standing):
            yield _clearing(finding, at_ns, "the job goes on")

    def _say(self, kind: str, subject: Subject, **fields: Any) -> Finding:
        return self._rule.finding(
            kind,
            subject,
            state="open",
            job_id=self._job_id,
            epoch=self._epoch,
            step=self._progress.last_step,
            evidence=Evidence(topic=_STEPS, partition=self._partition, offset=self._progress.step_offset),
            **fields,
        )

    def snapshot(self, with_digests: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_digests: whether the digests are part of it; false where they will come again.
        """
        return {
            "progress": self._progress.snapshot(),
            "digests": self._digests.snapshot(with_digests),
            "standing": list(self._standing),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's; digests that are not in it come again."""
        self._progress.restore(snapshot["progress"])
        self._digests.restore(snapshot["digests"])
        self._standing = list(snapshot["standing"])


def _clearing(finding: Finding, at_ns: int, why: str) -> Finding:
    at_ns = max(at_ns, finding.event_time_ns)
    return finding.model_copy(
        update={"state": "cleared", "event_time_ns": at_ns, "explanation": why, "values": {}, "evidence": ()}
    )


def _world_size(roster: JobRoster) -> int | None:
    return roster.job.world_size if roster.job is not None else None


def _about(verdict: HangVerdict, job_id: str, roster: JobRoster, digests: DigestGathering) -> tuple[str, Subject]:
    """The kind of a verdict, and what it is about: the one rank, all of them, or the job."""
    ranks = verdict.culprit_ranks
    if not ranks:
        kind = "hang_unplaced" if verdict.verdict == "hang" else "hang_undecided"
        return kind, Subject(level="job", job_id=job_id)
    seats = {rank: roster.seats.get(rank) for rank in ranks}
    nodes = {seat.node_id if seat is not None else digests.node_of(rank) for rank, seat in seats.items()}
    node_id = nodes.pop() if len(nodes) == 1 else None
    if len(ranks) > 1:
        return "hang", Subject(level="rank_group", job_id=job_id, ranks=ranks[:_MOST_RANKS_TOLD], node_id=node_id)
    seat = seats[ranks[0]]
    return "hang", Subject(
        level="rank",
        job_id=job_id,
        rank=ranks[0],
        node_id=node_id,
        gpu_uuid=seat.gpu_uuid if seat is not None else None,
        pci_bus_id=seat.pci_bus_id if seat is not None else None,
    )


def _figures(verdict: HangVerdict) -> dict[str, Any]:
    operation = verdict.operation
    members = operation.group.members() if operation is not None else ()
    return {
        "cause": verdict.cause,
        "culprit_ranks": list(verdict.culprit_ranks[:_MOST_RANKS_TOLD]),
        "waiting": len(verdict.waiting_ranks),
        "group": operation.group.desc if operation is not None else None,
        "seq": operation.number if operation is not None else None,
        "op": operation.op if operation is not None else None,
        "stuck_ranks": list(members[:_MOST_RANKS_TOLD]),
        "without_dump": len(verdict.ranks_without_dump),
        "ranks_without_dump": list(verdict.ranks_without_dump[:_MOST_RANKS_TOLD]),
    }


def _sentence(verdict: HangVerdict, digests: int) -> str:
    where = ""
    if verdict.operation is not None:
        operation = verdict.operation
        where = f" in {operation.op} {operation.number} of {operation.group.desc}"
    if verdict.culprit_ranks:
        ranks = ", ".join(map(str, verdict.culprit_ranks[:8])) + (" and more" if len(verdict.culprit_ranks) > 8 else "")
        return (
            f"rank {ranks} keeps the job from going on: {verdict.cause}{where}; {len(verdict.waiting_ranks)} ranks wait"
        )
    if verdict.verdict == "hang":
        return f"the job hangs, {verdict.cause}{where}; nobody can be named"
    if verdict.verdict == "healthy" and digests:
        return f"nothing is pending in the dumps of {digests} ranks: the job stands still outside of collectives"
    return f"{digests} dumps do not tell who keeps the job from going on{where}" if digests else "there are no dumps"

"""Role jobs: timings, progress and dump digests of one partition in; step results, job findings and marks out.

Steps are joined per job and epoch, closed once and in order, then read by each rule. Only steps of phase `train` are
compared; masked ones are joined and counted. The partition's time comes from every node that reports on its jobs, step
or no step. Digests come on a topic of their own, in any order to the other: what is made of them goes by their times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.base import round_significant
from schemas.findings import Evidence, ProgressMark
from schemas.results import StepResult
from schemas.steps import CollectiveDigest, RankProgress, StepTiming
from schemas.topics import topic_of
from streams.core.bandwidth_windows import BandwidthWindows
from streams.core.known import are_known
from streams.core.medians import SORTED_BELOW
from streams.core.position import reached_ns
from streams.core.progress import MarkPacer, PartitionClock
from streams.core.step_join import ClosedStep, StepJoin, StepJoinConfig
from streams.core.thresholds import is_enabled
from streams.detectors.barrier_wait import BarrierWait
from streams.detectors.changed_ranks import ChangedRanks
from streams.detectors.job_pace import JobPace, MissingRanks
from streams.detectors.live_hang import LiveHang
from streams.detectors.mfu import MfuRules, step_utilisation
from streams.detectors.scattered_pauses import ScatteredPauses
from streams.detectors.slow_network import SlowNetwork
from streams.detectors.slow_storage import SlowStorage
from streams.detectors.straggler import Straggler
from streams.detectors.uneven_work import UnevenWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from schemas.base import Record
    from streams.core.position import Position
    from streams.core.roster import JobRoster, Roster

__all__ = ["JobsEngine"]

_SLOWEST = 5
_SWEEP_NS = 1_000_000_000
_TOPIC = topic_of(StepTiming).name
_DIGESTS = topic_of(CollectiveDigest).name

_HELD_NS = 10_000_000_000
"""No mark waits longer for what a hanging job has still to say: its nodes may all have gone."""

_GONE_NS = 600_000_000_000
"""A job of which no agent tells anything for so long hangs no more: it was ended."""


@dataclass(slots=True)
class _JobState:
    join: StepJoin
    straggler: Straggler
    mfu: MfuRules
    barrier_wait: BarrierWait
    pace: JobPace
    missing: MissingRanks
    network: SlowNetwork
    changed: ChangedRanks
    pauses: ScatteredPauses
    hang: LiveHang
    storage: SlowStorage
    uneven: UnevenWork
    bandwidth: BandwidthWindows
    rules: tuple[str, ...] = field(
        default=(
            "straggler",
            "mfu",
            "barrier_wait",
            "pace",
            "missing",
            "network",
            "changed",
            "pauses",
            "hang",
            "storage",
            "uneven",
            "bandwidth",
        )
    )

    def snapshot(self, with_waiting: bool) -> dict[str, Any]:
        """Plain data of the join and of the rules by name."""
        plain = {
            "join": self.join.snapshot(with_open=with_waiting),
            "hang": self.hang.snapshot(with_digests=with_waiting),
            "bandwidth": self.bandwidth.snapshot(with_open=with_waiting),
        }
        return plain | {name: getattr(self, name).snapshot() for name in self.rules if name not in plain}


class JobsEngine:
    """Job rules over the records of one partition."""

    def __init__(self, site_id: str, partition: int, roster: Roster, join: StepJoinConfig | None = None) -> None:
        self._site_id = site_id
        self._partition = partition
        self._roster = roster
        self._join_config = join or StepJoinConfig()
        self._jobs: dict[tuple[str, int], _JobState] = {}
        self._clock = PartitionClock()
        self._pacer = MarkPacer()
        self._late: list[tuple[Record, Position]] = []
        self._swept_ns = 0
        self._folded: Mapping[str, int] = {}
        self._digest_offset = -1
        """Of the last digest."""
        self._awaited_offset = -1
        """Until the digest of this offset has come again nothing is made of digests."""

    @property
    def repeats(self) -> int:
        """Step reports dropped because they had come before."""
        return sum(state.join.repeats for state in self._jobs.values())

    @property
    def time_ns(self) -> int:
        """Event time of the partition."""
        return self._clock.time_ns

    def on_record(self, record: Record, position: Position) -> list[Record]:
        """Take one record of the role's topics, and return results, findings and marks."""
        is_again = position.offset <= self._folded.get(position.topic, -1)
        # By type, not `isinstance`: of models that is a search in Python, and these are nearly all records.
        if type(record) is StepTiming or type(record) is RankProgress:
            return self._on_report(record, position, is_again)
        if isinstance(record, CollectiveDigest):
            return self._on_digest(record, position, is_again)
        return []

    def _on_report(self, record: StepTiming | RankProgress, position: Position, is_again: bool) -> list[Record]:
        state = self._state(record.job_id, record.epoch)
        at_ns = reached_ns(record.event_time_ns, position)
        timing = record if type(record) is StepTiming else None
        if timing is not None:
            if state.join.add(timing, position.offset, at_ns, 0 if is_again else self._clock.time_ns):
                state.bandwidth.on_timing(timing)
            else:
                self._late.append((timing, position))
        if is_again:
            # It was judged before the restart and comes again only because its step was open: the clock stands there.
            return []
        self._clock.observe(f"{record.job_id}/{record.node_id}", at_ns)
        if timing is not None:
            state.hang.on_step(timing, at_ns, position.offset)
        elif type(record) is RankProgress:
            state.hang.on_progress(record, at_ns)
        outputs: list[Record] = []
        time_ns = self._clock.time_ns
        if time_ns - self._swept_ns >= _SWEEP_NS:
            # A job that stopped closes no step of its own: the partition's time does it.
            self._swept_ns = time_ns
            for job_id, epoch in sorted(self._jobs):
                outputs += self._close(job_id, epoch)
                if self._jobs[(job_id, epoch)].hang.is_suspected:
                    outputs += self._look_at_hang(job_id, epoch, position)
        elif timing is not None:
            outputs = self._close(timing.job_id, timing.epoch)
        outputs += self._look_at_hang(record.job_id, record.epoch, position)
        return outputs + self._mark()

    def on_whole_step(self, step: ClosedStep) -> list[Record]:
        """Take a step that is joined already, in place of its reports: steps of one job come in order.

        What reports alone tell is left out: late and missing ones, and progress, so nothing is said of hangs.
        """
        state = self._state(step.job_id, step.epoch)
        self._clock.observe(step.job_id, step.event_time_ns)
        return self._judge(state, step, self._roster.job(step.job_id, step.epoch)) + self._mark()

    @property
    def has_late(self) -> bool:
        """Whether `take_late` has records."""
        return bool(self._late)

    def take_late(self) -> list[tuple[Record, Position]]:
        """Records for steps that were closed already; the caller publishes them as late."""
        late, self._late = self._late, []
        return late

    def flush(self) -> list[Record]:
        """Close every open step: the input has ended."""
        outputs: list[Record] = []
        for job_id, epoch in sorted(self._jobs):
            outputs += self._close(job_id, epoch, final=True)
            outputs += self._look_at_hang(job_id, epoch, None)
        return outputs

    def _on_digest(self, record: CollectiveDigest, position: Position, is_again: bool) -> list[Record]:
        self._state(record.job_id, record.epoch).hang.on_digest(record, position.offset, is_again)
        if position.offset >= self._awaited_offset:
            self._awaited_offset = -1
        if is_again:
            return []
        self._digest_offset = max(self._digest_offset, position.offset)
        return self._look_at_hang(record.job_id, record.epoch, position)

    def _look_at_hang(self, job_id: str, epoch: int, position: Position | None) -> list[Record]:
        """What is to be said of a job that makes no progress; without a position the input has ended."""
        hang = self._jobs[(job_id, epoch)].hang
        if (self._awaited_offset >= 0 and position is not None) or not hang.may_say(self._roster.policy):
            return []
        return list(
            hang.turn(
                self._roster.job(job_id, epoch),
                self._roster.policy,
                is_over=(job_id, epoch + 1) in self._jobs or self._clock.time_ns - hang.fastest_ns > _GONE_NS,
                is_final=position is None,
            )
        )

    def _state(self, job_id: str, epoch: int) -> _JobState:
        key = (job_id, epoch)
        state = self._jobs.get(key)
        if state is None:
            site = self._site_id
            state = self._jobs[key] = _JobState(
                StepJoin(self._join_config),
                Straggler(site),
                MfuRules(site),
                BarrierWait(site),
                JobPace(site),
                MissingRanks(site),
                SlowNetwork(site),
                ChangedRanks(site),
                ScatteredPauses(site),
                LiveHang(site, job_id, epoch, self._partition),
                SlowStorage(site),
                UnevenWork(site),
                BandwidthWindows(),
            )
        return state

    def _close(self, job_id: str, epoch: int, final: bool = False) -> list[Record]:
        state = self._jobs[(job_id, epoch)]
        roster = self._roster.job(job_id, epoch)
        outputs: list[Record] = []
        if not final and not state.join.may_close(self._clock.time_ns, roster.expected):
            return outputs
        for step in state.join.close(self._clock.time_ns, roster.expected, roster.members, final):
            outputs += self._judge(state, step, roster)
        return outputs

    def _judge(self, state: _JobState, step: ClosedStep, roster: JobRoster) -> list[Record]:
        policy = self._roster.policy
        evidence = Evidence(topic=_TOPIC, partition=self._partition, offset=step.first_offset)
        result, tokens, description_error = step_utilisation(step, roster)
        findings: list[Record] = []
        findings += state.missing.on_step(step, policy, evidence)
        if step.phase == "train":
            straggler = state.straggler
            if is_enabled(policy, "straggler"):
                findings += straggler.on_step(step, roster, policy, evidence)
                if is_enabled(policy, "scattered_pauses"):
                    findings += state.pauses.on_step(step, roster, straggler.pauses, policy, evidence)
                if is_enabled(policy, "uneven_work"):
                    findings += state.uneven.on_step(step, roster, straggler.explained, policy, evidence)
            findings += state.mfu.on_step(step, roster, result, policy, evidence)
            if is_enabled(policy, "barrier_wait"):
                findings += state.barrier_wait.on_step(step, policy, evidence)
            if is_enabled(policy, "slow_storage"):
                findings += state.storage.on_step(step, policy, evidence)
            if is_enabled(policy, "job_pace"):
                findings += state.pace.on_step(step, roster, straggler.noise_scale, evidence, state.storage.excess_us)
            if is_enabled(policy, "slow_network"):
                findings += state.network.on_step(step, policy, evidence)
            if is_enabled(policy, "changed_ranks"):
                is_slow = state.pace.is_job_slow or state.storage.excess_us > 0
                findings += state.changed.on_step(
                    step, straggler.noise_scale, straggler.named, is_slow, policy, evidence
                )
        with_mfu = is_enabled(policy, "mfu") and result is not None
        performance = state.bandwidth.on_step(step)
        return [_step_result(step, result if with_mfu else None, tokens, description_error), *performance, *findings]

    def _mark(self) -> list[Record]:
        """A mark promises that no finding at or before it follows: no open step may be older."""
        mark_ns = self._clock.time_ns
        if self._pacer.is_early(mark_ns):
            return []
        oldest = [at for state in self._jobs.values() if (at := state.join.oldest_open_ns) is not None]
        if oldest:
            mark_ns = min(mark_ns, min(oldest) - 1)
        if self._pacer.is_early(mark_ns):
            return []
        for (job_id, epoch), state in self._jobs.items():
            due_ns = state.hang.due_ns(self._roster.job(job_id, epoch), self._roster.policy)
            if due_ns is not None and 0 <= self._clock.time_ns - due_ns < _HELD_NS:
                mark_ns = min(mark_ns, due_ns - 1)
        if not self._pacer.due(mark_ns):
            return []
        self._clock.forget_idle()
        return [ProgressMark(site_id=self._site_id, role="jobs", partition=self._partition, mark_ns=mark_ns)]

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a record in an open step, or of a digest: not in the snapshot, and to come again."""
        open_offsets = [at for state in self._jobs.values() if (at := state.join.first_open_offset) is not None]
        digests = [at for state in self._jobs.values() if (at := state.hang.first_digest_offset) is not None]
        return {topic: min(offsets) for topic, offsets in ((_TOPIC, open_offsets), (_DIGESTS, digests)) if offsets}

    def snapshot(self, with_waiting: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_waiting: whether the records of open steps and the digests are part of it; false where they will come again.
        """
        return {
            "clock": self._clock.snapshot(),
            "pacer": self._pacer.snapshot(),
            "swept_ns": self._swept_ns,
            "digest_offset": self._digest_offset,
            "digests_kept": not with_waiting
            and any(state.hang.first_digest_offset is not None for state in self._jobs.values()),
            "jobs": {
                f"{job_id}\x1f{epoch}": state.snapshot(with_waiting)
                for (job_id, epoch), state in sorted(self._jobs.items())
            },
        }

    def restore(self, snapshot: dict[str, Any], folded: Mapping[str, int]) -> None:
        """Replace the state by a snapshot's.

        Args:
            snapshot: what `snapshot` gave.
            folded: by topic, the last offset that had been taken; records up to it fill open steps and no more.
        """
        self._folded = dict(folded)
        self._digest_offset = snapshot["digest_offset"]
        self._awaited_offset = self._digest_offset if snapshot["digests_kept"] else -1
        self._clock.restore(snapshot["clock"])
        self._pacer.restore(snapshot["pacer"])
        self._swept_ns = snapshot["swept_ns"]
        self._jobs = {}
        for key, value in snapshot["jobs"].items():
            job_id, _, epoch = key.rpartition("\x1f")
            state = self._state(job_id, int(epoch))
            state.join.restore(value["join"])
            for name in state.rules:
                if name in value:  # a rule that is newer than the snapshot begins anew
                    getattr(state, name).restore(value[name])


def _step_result(step: ClosedStep, result: Any, tokens: int | None, description_error: str | None) -> StepResult:
    own = step.own_us
    slowest = _slowest(own)
    slowest_ranks, slowest_us = tuple(step.rank[slowest].tolist()), tuple(map(int, own[slowest].tolist()))
    shares, own_median_us = step.wait_shares, step.own_median_us

    def rounded(value: float | None) -> float | None:
        return None if value is None else round_significant(value)

    return StepResult(
        job_id=step.job_id,
        epoch=step.epoch,
        step=step.step,
        event_time_ns=step.event_time_ns,
        phase=step.phase,
        ranks_expected=step.expected,
        ranks_reported=len(step.rank),
        missing_ranks=step.missing[:64],
        step_time_us=step.step_time_us,
        own_median_us=int(own_median_us) if own_median_us is not None else None,
        own_max_us=slowest_us[0] if slowest_us else None,
        own_max_rank=slowest_ranks[0] if slowest_ranks else None,
        wait_share_p50=rounded(shares[0]) if shares else None,
        wait_share_p99=rounded(shares[1]) if shares else None,
        tokens=tokens,
        mfu=rounded(result.mfu) if result else None,
        hfu=rounded(result.hfu) if result else None,
        waste=rounded(result.waste) if result else None,
        model_tflops_per_gpu=rounded(result.model_tflops_per_gpu) if result else None,
        recompute_tflops_per_gpu=rounded(result.recompute_tflops_per_gpu) if result else None,
        peak_tflops=rounded(result.peak_tflops) if result else None,
        flop_convention=result.convention if result else None,
        impossible=result.impossible if result else False,
        description_error=description_error,
        slowest_ranks=slowest_ranks,
        slowest_own_us=slowest_us,
    )


def _slowest(own_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of the longest known own times, the longest first, of equal ones the first."""
    if own_us.size < SORTED_BELOW and are_known(own_us):
        return (-own_us).argsort(kind="stable")[:_SLOWEST]
    shown = own_us
    if own_us.size > _SLOWEST:
        # Unknown ones are the least of all here, and fall out below.
        low = np.where(np.isnan(own_us), -np.inf, own_us)
        least = np.partition(low, own_us.size - _SLOWEST)[own_us.size - _SLOWEST]
        places = np.flatnonzero(low >= least)
        shown = own_us[places]
    else:
        places = np.arange(own_us.size)
    known = ~np.isnan(shown)
    places, shown = places[known], shown[known]
    return places[np.argsort(-shown, kind="stable")[:_SLOWEST]]

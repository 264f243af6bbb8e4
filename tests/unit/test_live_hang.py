"""A job that hangs, live: when it is suspected, what masks it, and what the gathered digests make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from factories import JOB, SITE, at, job, placement, policy, position_of, progress, step_timing
from recorder_dumps import digest_of, world

from schemas.findings import BLAMELESS_KINDS, Finding
from schemas.fleet import RulePolicy
from schemas.steps import CollectiveDigest
from streams.core.roster import Roster
from streams.detectors.hang_suspicion import HangThresholds, limit_of
from streams.engines.jobs import JobsEngine

if TYPE_CHECKING:
    from schemas.base import Record

NODES = ("node-0", "node-1")
STEP_S = 2.0
LIMIT_S = STEP_S + 15.0
"""Median step and margin: three times the 99th percentile is less."""


@dataclass
class Play:
    """A job of two nodes with two ranks each, fed in order of time."""

    engine: JobsEngine
    roster: Roster
    said: list[Finding] = field(default_factory=list)
    step: int = 0
    now_s: float = 0.0
    offsets: Any = field(default_factory=count)

    def give(self, record: Record) -> list[Finding]:
        found = [
            said
            for said in self.engine.on_record(record, position_of(record, next(self.offsets)))
            if said_by_hang(said)
        ]
        self.said += found
        return found

    def steps(self, number: int, *, step_s: float = STEP_S, **columns: Any) -> Play:
        for _ in range(number):
            self.now_s += step_s
            for index, node_id in enumerate(NODES):
                self.give(
                    step_timing(
                        self.step,
                        self.now_s + 0.1 * index,
                        [1000, 1000],
                        node_id=node_id,
                        first_rank=2 * index,
                        step_us=round(step_s * 1e6),
                        **columns,
                    )
                )
            self.step += 1
        return self

    def silence(self, seconds: int, nodes: tuple[str, ...] = NODES, **fields: Any) -> list[Finding]:
        """Both agents tell every second that nothing moves."""
        found = []
        for _ in range(seconds):
            self.now_s += 1
            for index, node_id in enumerate(nodes):
                told = progress(self.now_s + 0.1 * index, node_id=node_id, ranks=(2 * index, 2 * index + 1))
                found += self.give(told.model_copy(update={"last_step": (self.step - 1,) * 2, **fields}))
        return found

    def dump(self, rank: int, dump: dict[str, Any], seconds: float | None = None) -> list[Finding]:
        return self.give(digest(rank, dump, self.now_s if seconds is None else seconds))

    def kinds(self) -> list[tuple[str, str]]:
        return [(finding.kind, finding.state) for finding in self.said]


def said_by_hang(record: Record) -> bool:
    return isinstance(record, Finding) and record.rule == "hang"


def digest(rank: int, dump: dict[str, Any], seconds: float) -> CollectiveDigest:
    return digest_of(rank, dump).model_copy(
        update={"job_id": JOB, "node_id": f"node-{rank // 2}", "event_time_ns": at(seconds)}
    )


@pytest.fixture
def play() -> Play:
    roster = Roster()
    roster.take(job(4))
    for index, node_id in enumerate(NODES):
        roster.take(placement([2 * index, 2 * index + 1], node_id=node_id))
    return Play(JobsEngine(SITE, 0, roster), roster)


WAITS = world(4, enqueued=9, completed=8)
CULPRIT = world(4, enqueued=8, completed=8)


@pytest.mark.parametrize(
    ("times_us", "limit_s"),
    [
        ([2_000_000] * 10, 17.0),
        ([60_000_000] * 10, 180.0),
        ([2_000_000] * 98 + [30_000_000], 90.0),
        ([2_000_000] * 199 + [30_000_000], 17.0),
        ([2_000_000] * 4, None),
    ],
)
def test_the_limit_is_three_long_steps_or_fifteen_seconds_over_a_usual_one(
    times_us: list[int], limit_s: float | None
) -> None:
    found = limit_of(times_us, HangThresholds())
    assert found == (None if limit_s is None else round(limit_s * 1e9))


def test_a_job_without_progress_for_the_limit_is_suspected_once(play: Play) -> None:
    play.steps(10)
    last_ns = at(play.now_s + 0.1)
    assert play.silence(16) == []
    (suspicion,) = play.silence(2)
    assert (suspicion.kind, suspicion.state, suspicion.urgent) == ("hang_suspected", "open", True)
    assert suspicion.onset_ns == last_ns
    assert suspicion.event_time_ns == last_ns + round(LIMIT_S * 1e9)
    assert (suspicion.subject.level, suspicion.subject.job_id) == ("job", JOB)
    assert suspicion.kind in BLAMELESS_KINDS
    assert play.silence(20) == []


def test_the_suspicion_is_over_with_the_next_step_and_another_may_follow(play: Play) -> None:
    play.steps(10).silence(20)
    play.steps(5).silence(20)
    assert play.kinds() == [("hang_suspected", "open"), ("hang_suspected", "cleared"), ("hang_suspected", "open")]
    first, cleared, second = play.said
    assert cleared.finding_id == first.finding_id != second.finding_id
    assert cleared.event_time_ns == at(10 * STEP_S + 20 + STEP_S)


def test_collectives_that_complete_are_progress(play: Play) -> None:
    play.steps(10)
    for number in range(8):
        assert play.silence(10, groups={"dp": ((number + 2, None, number + 1), (number + 2, None, number))}) == []
    assert [finding.kind for finding in play.silence(30, groups={"dp": ((9, None, 8), (9, None, 7))})] == [
        "hang_suspected"
    ]


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile", "warmup"])
def test_a_masked_phase_is_no_hang_and_does_not_count(play: Play, phase: str) -> None:
    play.steps(10)
    assert play.silence(300, phase=phase) == []
    assert play.silence(16, phase="train") == []
    assert [finding.kind for finding in play.silence(3, phase="train")] == ["hang_suspected"]


def test_after_a_checkpoint_step_training_is_watched_and_after_an_evaluation_step_not(play: Play) -> None:
    play.steps(10).steps(1, phase="evaluation")
    assert play.silence(60) == []
    play.steps(1, phase="checkpoint")
    assert [finding.kind for finding in play.silence(20)] == ["hang_suspected"]


def test_long_masked_steps_do_not_make_the_limit_longer(play: Play) -> None:
    play.steps(10).steps(1, step_s=200.0, phase="checkpoint").steps(1)
    assert [finding.kind for finding in play.silence(18)] == ["hang_suspected"]


def test_nothing_is_suspected_before_five_training_steps(play: Play) -> None:
    play.steps(4)
    assert play.silence(100) == []


def test_a_job_that_has_ended_is_not_suspected_and_one_that_ends_is_cleared(play: Play) -> None:
    play.steps(10).silence(20)
    play.roster.take(job(4, version=2, state="ended"))
    assert [(f.kind, f.state) for f in play.silence(1)] == [("hang_suspected", "cleared")]
    assert play.silence(60) == []


def test_a_later_attempt_ends_the_suspicion_of_an_earlier_one(play: Play) -> None:
    play.steps(10).silence(20)
    play.give(step_timing(0, play.now_s, [1000], epoch=1, node_id="node-0"))
    assert [(f.kind, f.state) for f in play.silence(1)] == [("hang_suspected", "cleared")]


def test_a_job_whose_agents_fell_silent_is_not_suspected_for_it(play: Play) -> None:
    play.steps(10)
    for second in range(100):
        assert play.give(progress(play.now_s + second, job_id="another")) == []


def test_a_node_that_fell_silent_does_not_keep_the_others_from_being_suspected(play: Play) -> None:
    play.steps(10)
    assert [finding.kind for finding in play.silence(18, nodes=NODES[:1])] == ["hang_suspected"]


def test_a_rule_that_is_off_says_nothing(play: Play) -> None:
    play.roster.take(policy({"hang": RulePolicy(enabled=False)}))
    play.steps(10)
    assert play.silence(100) == []


def test_thresholds_are_the_policys(play: Play) -> None:
    play.roster.take(policy({"hang": RulePolicy(thresholds={"margin_ns": 30e9})}))
    play.steps(10)
    assert play.silence(31) == []
    assert len(play.silence(2)) == 1


def test_all_digests_in_give_a_verdict_at_once(play: Play) -> None:
    play.steps(10).silence(18)
    assert [play.dump(rank, WAITS) for rank in (0, 1, 3)] == [[], [], []]
    (verdict,) = play.dump(2, CULPRIT)
    assert (verdict.kind, verdict.severity, verdict.state) == ("hang", "critical", "open")
    assert (verdict.subject.level, verdict.subject.rank, verdict.subject.node_id) == ("rank", 2, "node-1")
    assert verdict.subject.gpu_uuid == "GPU-node-1-0"
    assert verdict.onset_ns == play.said[0].onset_ns
    assert verdict.event_time_ns == at(play.now_s)
    assert verdict.values["cause"] == "not_entered"
    assert verdict.values["digests"] == 4
    assert play.silence(60) == []


def test_the_verdict_is_cleared_with_the_suspicion(play: Play) -> None:
    play.steps(10).silence(18)
    for rank in range(4):
        play.dump(rank, CULPRIT if rank == 2 else WAITS)
    play.steps(3)
    assert play.kinds()[2:] == [("hang", "cleared"), ("hang_suspected", "cleared")]
    assert play.silence(18) == [play.said[-1]], "digests of the last hang say nothing of this one"


def test_missing_digests_are_missing_dumps_when_no_more_come(play: Play) -> None:
    play.steps(10).silence(18)
    for rank in (0, 1, 3):
        play.dump(rank, WAITS)
    (verdict,) = play.silence(2)
    assert (verdict.kind, verdict.subject.rank) == ("hang", 2)
    assert verdict.values["ranks_without_dump"] == [2]


def test_a_rank_whose_process_is_gone_is_not_waited_for(play: Play) -> None:
    play.steps(10).silence(18, connected=(False, True))
    found = [play.dump(rank, world(4, enqueued=9, completed=8)) for rank in (1, 3)]
    assert [len(one) for one in found] == [0, 1]
    assert found[1][0].values["ranks_without_dump"] == [0, 2]


def test_without_any_dump_the_answer_is_that_nothing_can_be_told(play: Play) -> None:
    play.steps(10).silence(18)
    (verdict,) = play.silence(32)
    assert (verdict.kind, verdict.severity) == ("hang_undecided", "info")
    assert verdict.event_time_ns == play.said[0].event_time_ns + 30_000_000_000
    assert verdict.kind in BLAMELESS_KINDS


def test_dumps_that_come_after_the_answer_change_it(play: Play) -> None:
    play.steps(10).silence(60)
    for rank in range(4):
        play.dump(rank, CULPRIT if rank == 2 else WAITS)
    play.silence(3)
    assert play.kinds()[1:] == [("hang_undecided", "open"), ("hang_undecided", "cleared"), ("hang", "open")]


def test_dumps_that_came_before_the_suspicion_count_unless_the_job_went_on_after_them(play: Play) -> None:
    play.steps(10)
    for rank in range(4):
        play.dump(rank, CULPRIT if rank == 1 else WAITS)
    play.steps(1)
    play.silence(10)
    for rank in range(4):
        assert play.dump(rank, CULPRIT if rank == 2 else WAITS) == []
    assert [(f.kind, f.subject.rank) for f in play.silence(8)] == [("hang_suspected", None), ("hang", 2)]


def test_dumps_in_which_nothing_is_pending_decide_nothing(play: Play) -> None:
    play.steps(10).silence(18)
    for rank in range(4):
        play.dump(rank, world(4, enqueued=8, completed=8))
    assert play.said[-1].kind == "hang_undecided"
    assert "outside of collectives" in play.said[-1].explanation


def test_a_digest_above_its_limit_is_not_kept(play: Play) -> None:
    play.steps(10).silence(18)
    large = digest(0, WAITS, play.now_s).model_copy(update={"dump_path": "x" * 20_000})
    play.give(large)
    for rank in (1, 2, 3):
        play.dump(rank, CULPRIT if rank == 2 else WAITS)
    (verdict,) = play.silence(3)
    assert verdict.values["digests"] == 3

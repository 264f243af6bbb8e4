"""Wrong clocks through the workers on a broker: an hour ahead, an hour behind, and a jump of ten minutes and back.

A clock that is behind is said after minutes, so the fleet's minutes are published at once: with topics that keep the
time of the producer, which says when each record arrives.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from bad_clocks import AHEAD, BEHIND, CLEAN_JOB, DURATION_S, JUMPING, arrivals, with_bad_clocks
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from worker_processes import ROLES, WorkerProcesses

from deploy.topics import apply_topics
from schemas.codec import decode, encode, message
from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, Node, Policy, RankPlacement
from schemas.results import StepResult
from schemas.topics import DEAD_LETTER, topic_named
from streams.core.position import MAX_AHEAD_NS, Position, event_time_of
from streams.engines.pipeline import Pipeline
from streams.faust_roles.app import INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from deploy.brokers import Broker
    from schemas.base import Record

SITE = "clocks"
S = 1_000_000_000
BAD_NODES = {AHEAD, BEHIND, JUMPING}


@dataclass(frozen=True)
class ClocksRun:
    """What lay in the topics at the end, and what the same fleet says with good clocks."""

    start_ns: int
    messages: dict[str, list[Message]]
    refused: Counter[bytes]
    statuses: dict[str, int]
    undisturbed: list[Record]

    def records(self, family: str) -> list[Any]:
        name = topic_named(family).name
        return [decode(name, found.value() or b"") for found in self.messages[name]]

    def findings_on(self, node_id: str, kind: str) -> list[Finding]:
        found = [r for r in self.records("findings") if isinstance(r, Finding) and r.kind == kind]
        return [r for r in found if r.subject.node_id == node_id]


def keep_the_producers_time(broker: Broker) -> None:
    if not broker.has_admin:
        return  # the embedded broker knows no other
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    inputs = [family for role in ("telemetry", "jobs") for family in INPUTS[role]]  # type: ignore[index]
    resources = [
        ConfigResource(ResourceType.TOPIC, topic_named(family).name, incremental_configs=[entry]) for family in inputs
    ]
    for done in admin.incremental_alter_configs(resources).values():
        done.result(timeout=30)


def undisturbed(start_ns: int) -> list[Record]:
    pipeline, offsets, outputs = Pipeline(SITE), Counter[str](), []
    for arrival_ns, record in arrivals(start_ns):
        topic = message(record).topic
        outputs += pipeline.on_record(record, Position(topic, 0, offsets[topic], arrival_ns // 1_000_000))
        offsets[topic] += 1
    return outputs + pipeline.flush()


@pytest.fixture(scope="module")
def clocks_run(
    own_kafka: Broker,
    wait_drained: Callable[..., None],
    sender_to: Any,
    read_topics: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> ClocksRun:
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    keep_the_producers_time(own_kafka)
    start_ns = time.time_ns() - int((DURATION_S + 10) * S)
    arriving = with_bad_clocks(start_ns)
    sender = sender_to(servers)
    sender.record(Policy(policy_version="test", site_id=SITE, effective_from_ns=1, settle_ns=3 * S))
    refused: Counter[bytes] = Counter()
    with WorkerProcesses(servers, SITE, tmp_path_factory.mktemp("clocks")) as workers:
        for _, record in arriving:
            if isinstance(record, Job | RankPlacement | Node):
                sender.record(record)
        sender.flush()
        workers.start(*ROLES)
        for arrival_ns, record in arriving:
            if isinstance(record, Job | RankPlacement | Node):
                continue
            sender.record(record, arrival_ns // 1_000_000)
            if (event_time_of(record) or 0) - arrival_ns > MAX_AHEAD_NS:
                refused[encode(record)] += 1
        sender.flush()
        for role in ROLES:
            topics = [topic_named(family).name for family in INPUTS[role]]  # type: ignore[index]
            wait_drained(servers, f"paceline-{role}", *topics, check=workers.check, timeout_s=120.0)
        statuses = workers.stop()
    names = [topic_named(family).name for family in ("findings", "step-results")] + [DEAD_LETTER.name]
    messages: dict[str, list[Message]] = {name: [] for name in names}
    for found in read_topics(servers, *names):
        messages[found.topic()].append(found)
    return ClocksRun(start_ns, messages, refused, statuses, undisturbed(start_ns))


def of_others(records: list[Record]) -> set[tuple[str, str]]:
    """Findings about nodes and jobs whose clocks are right."""
    return {
        (r.finding_id, r.state)
        for r in records
        if isinstance(r, Finding)
        and r.subject.node_id not in BAD_NODES
        and (r.job_id or r.subject.job_id) in {CLEAN_JOB, None}
    }


@pytest.mark.needs_broker
def test_what_is_found_about_others_is_what_is_found_with_good_clocks(clocks_run: ClocksRun) -> None:
    expected = of_others(clocks_run.undisturbed)
    assert len(expected) >= 4
    assert of_others(clocks_run.records("findings")) == expected


@pytest.mark.needs_broker
def test_the_steps_of_another_job_are_the_same_to_the_byte(clocks_run: ClocksRun) -> None:
    expected = {encode(r) for r in clocks_run.undisturbed if isinstance(r, StepResult) and r.job_id == CLEAN_JOB}
    said = {encode(r) for r in clocks_run.records("step-results") if r.job_id == CLEAN_JOB}
    assert len(expected) > 100
    assert said <= expected
    # The last steps are closed only when the input has ended, and here it goes on.
    assert len(said) >= len(expected) - 3


@pytest.mark.needs_broker
def test_what_is_an_hour_or_ten_minutes_ahead_is_refused_with_its_bytes(clocks_run: ClocksRun) -> None:
    letters = clocks_run.messages[DEAD_LETTER.name]
    assert Counter(letter.value() for letter in letters) == clocks_run.refused
    assert {letter.key() for letter in letters} >= {AHEAD.encode(), JUMPING.encode()}
    for letter in letters:
        text = dict(letter.headers() or ())["dlq.text"]
        assert b"ahead of its arrival" in text, text


@pytest.mark.needs_broker
@pytest.mark.parametrize(("node_id", "skew_s"), [(AHEAD, -3600), (BEHIND, 3600), (JUMPING, -600)])
def test_a_clock_that_is_wrong_is_said_to_be(clocks_run: ClocksRun, node_id: str, skew_s: int) -> None:
    said = clocks_run.findings_on(node_id, "clock_skew")
    assert [f.state for f in said][:1] == ["open"]
    assert len({f.finding_id for f in said}) == 1
    assert said[0].values["skew_s"] == pytest.approx(skew_s, abs=2)


@pytest.mark.needs_broker
def test_no_other_clock_is_said_to_be_wrong(clocks_run: ClocksRun) -> None:
    said = [r for r in clocks_run.records("findings") if isinstance(r, Finding) and r.kind == "clock_skew"]
    assert {f.subject.node_id for f in said} == BAD_NODES


@pytest.mark.needs_broker
def test_the_steps_of_a_job_with_a_node_that_is_behind_are_whole(clocks_run: ClocksRun) -> None:
    steps = [r for r in clocks_run.records("step-results") if r.job_id == "job-behind"]
    assert len(steps) > 100
    assert [r.step for r in steps] == sorted({r.step for r in steps})
    assert {(r.ranks_reported, r.ranks_expected) for r in steps} == {(16, 16)}


@pytest.mark.needs_broker
def test_no_mark_is_ahead_of_the_fleet_and_those_of_good_clocks_come_to_its_end(clocks_run: ClocksRun) -> None:
    marks: dict[tuple[str, int], int] = {}
    for record in clocks_run.records("findings"):
        if isinstance(record, ProgressMark):
            marks[(record.role, record.partition)] = max(record.mark_ns, marks.get((record.role, record.partition), 0))
    end_ns = clocks_run.start_ns + int(DURATION_S * S)
    assert max(marks.values()) <= end_ns + 3 * S
    late = {name: (end_ns - at) / S for name, at in marks.items() if end_ns - at > 20 * S}
    # A partition that has no other clock than the one that is behind goes by that one.
    assert all(abs(behind_s - 3600) < 20 for behind_s in late.values()), late
    assert len(late) <= 1


@pytest.mark.needs_broker
def test_the_workers_end_well_when_asked(clocks_run: ClocksRun) -> None:
    assert clocks_run.statuses == dict.fromkeys(ROLES, 0)

"""`paceline explain --bootstrap`: a finding and the records that it cites, read back from a broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from deploy.brokers import open_broker
from deploy.topics import apply_topics
from paceline.cli import app
from paceline.explanation import topic_source
from schemas.findings import Finding
from schemas.fleet import Job, Layout, Policy, RankPlacement, RulePolicy
from schemas.steps import StepTiming
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schemas.base import Record

START_NS = 1_760_000_000_000_000_000
RANKS = 6
SLOW = 4


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    broker = open_broker("embedded")
    broker.start()
    try:
        apply_topics(broker.bootstrap_servers, partitions=1, replication=1, has_admin=broker.has_admin)
        yield broker.bootstrap_servers
    finally:
        broker.stop()


def job() -> list[Record]:
    records: list[Record] = [
        Job(job_id="j", effective_from_ns=START_NS, world_size=RANKS, layout=Layout(data=RANKS)),
        RankPlacement(
            job_id="j", effective_from_ns=START_NS, node_id="n", rank=tuple(range(RANKS)), gpu_uuid=(None,) * RANKS
        ),
    ]
    for step in range(6):
        own = [100_000 + (step * 7 + rank * 11) % 50 + (30_000 if rank == SLOW else 0) for rank in range(RANKS)]
        records.append(
            StepTiming(
                job_id="j",
                node_id="n",
                agent_session="s",
                seq=step,
                event_time_ns=START_NS + step * 200_000_000,
                step=step,
                rank=tuple(range(RANKS)),
                step_us=(150_000,) * RANKS,
                own_us=tuple(own),
                wait_us=tuple(140_000 - entry for entry in own),
            )
        )
    return records


def finding_of(records: list[Record], places: list[tuple[str, int, int]]) -> Finding:
    """What a worker would publish: the engine over the same records at the same places."""
    roster = Roster()
    outputs: list[Record] = []
    engine = JobsEngine("site-1", places[-1][1], roster)
    for record, (topic, partition, offset) in zip(records, places, strict=True):
        if isinstance(record, StepTiming):
            outputs += engine.on_record(record, Position(topic, partition, offset, START_NS // 1_000_000))
        else:
            roster.take(record)
    outputs += engine.flush()
    return next(record for record in outputs if isinstance(record, Finding) and record.kind == "straggler")


def test_a_finding_is_explained_from_its_topic_and_the_records_it_cites(
    embedded: str, sender_to: type[Any], run_paceline: Callable[..., Any]
) -> None:
    records = job()
    sender = sender_to(embedded)
    numbers = []
    for record in records:
        numbers.append(sender.record(record, START_NS // 1_000_000))
        sender.flush()
    finding = finding_of(records, [sender.places[number] for number in numbers])
    sender.record(finding, START_NS // 1_000_000)
    unknown = RulePolicy(thresholds={"no_such_threshold": 1.0})
    sender.record(
        Policy(site_id="site-1", policy_version="refused", effective_from_ns=START_NS, rules={"straggler": unknown}),
        START_NS // 1_000_000,
    )
    sender.flush()
    done = run_paceline("explain", finding.finding_id, "--bootstrap", embedded, "--json", "--price-per-gpu-hour", "2")
    assert done.returncode == 0, done.stderr
    explanation = json.loads(done.stdout)
    comparison = explanation["comparison"]
    assert explanation["origin"] == "recorded"
    assert explanation["policy"] == "default", "a policy that workers refuse is not in force"
    assert comparison["rank"] == SLOW
    assert comparison["ratio"] == pytest.approx(finding.slowdown, rel=1e-5)
    assert [row["rank"] for row in comparison["rows"]] == list(range(RANKS))
    assert [row["step"] for row in explanation["persistence"]["rows"]] == [0, 1, 2, 3, 4]
    assert explanation["impact"]["money_lost_per_hour"] > 0
    assert [(e["topic"], e["offset"]) for e in explanation["evidence"]] == [
        (e.topic, e.offset) for e in finding.evidence
    ]


def test_a_finding_that_the_topic_does_not_hold_is_one_message_and_status_2(embedded: str) -> None:
    result = CliRunner().invoke(app, ["explain", "find-nosuch", "--bootstrap", embedded])
    assert result.exit_code == 2
    assert "no finding find-nosuch" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_brokers_that_do_not_answer_are_one_message_and_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_source, "_ANSWER_S", 0.5)
    result = CliRunner().invoke(app, ["explain", "find-nosuch", "--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.stderr
    assert isinstance(result.exception, SystemExit)

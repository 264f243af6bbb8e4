"""A thousand messages that no engine may see, among good ones, through the workers on a broker.

Each becomes one dead letter with its bytes, its place and a reason; no worker ends; and what is found is what is found
without them.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from factories import finding
from poison_records import KINDS, Poison, poisons, reference_poisons
from reference_records import is_reference
from worker_processes import ROLES, WorkerProcesses

from agents.simulation import deliver, load_scenario, simulate
from deploy.topics import apply_topics
from schemas.codec import decode, message
from schemas.findings import Finding, ProgressMark, Subject
from schemas.fleet import Policy
from schemas.remediation import ActionResult, Approval
from schemas.results import StepResult
from schemas.steps import CollectiveDigest
from schemas.topics import DEAD_LETTER, topic_named
from streams.core.position import Position
from streams.engines.pipeline import Pipeline
from streams.faust_roles.app import INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from deploy.brokers import Broker
    from schemas.base import Record

SITE = "poisoned"
COUNT, OF_REFERENCE = 1000, 60
SEED = 20
FINDINGS, RESULTS = (topic_named(family).name for family in ("findings", "step-results"))
S = 1_000_000_000


@dataclass(frozen=True)
class PoisonedRun:
    """What was sent, where the bad ones came to stand, and how the workers ended."""

    servers: str
    good: list[tuple[int, Record]]
    bad: dict[tuple[str, int, int], Poison]
    starts: dict[str, int]
    statuses: dict[str, int]
    said: dict[str, str]


def to_damage(good: list[Record], now_ns: int) -> list[Record]:
    """A few records of every family that the three roles read, also of those that the fleet does not publish."""
    fields: dict[str, Any] = {"job_id": "job-x", "node_id": "node-0000", "agent_session": "s", "event_time_ns": now_ns}
    where = {"rank": 0, "version": "2.10", "dump_path": "/d", "dump_sha256": "0" * 64}
    said: dict[str, Any] = {"command_id": "cmd-x", "site_id": SITE, "event_time_ns": now_ns}
    others: list[Record] = []
    for number in range(30):
        rank = Subject(level="rank", job_id="job-x", rank=number, node_id="node-0000")
        slow = finding("straggler", 0, rank, slowdown=1.5, values={"excess_us": number})
        others += [
            CollectiveDigest(**fields, **where, seq=number),
            ActionResult(**said, actuator_id="slurm", outcome="applied"),
            Approval(**said, approver="ada", expires_at_ns=now_ns + 60 * S),
            slow.model_copy(update={"site_id": SITE, "event_time_ns": now_ns, "onset_ns": now_ns}),
            ProgressMark(site_id=SITE, role="jobs", partition=number % 4, mark_ns=now_ns - (60 + number) * S),
        ]
    by_family: dict[type, list[Record]] = {}
    for record in good:
        by_family.setdefault(type(record), []).append(record)
    return others + [record for family in by_family.values() for record in family[:: max(1, len(family) // 40)]]


@pytest.fixture(scope="module")
def poisoned_run(
    own_kafka: Broker, wait_drained: Callable[..., None], sender_to: Any, tmp_path_factory: pytest.TempPathFactory
) -> PoisonedRun:
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    now_ns = time.time_ns()
    scenario = load_scenario("mixed", nodes=6, duration_s=40.0, seed=7)
    good = list(deliver(simulate(scenario, now_ns - 45 * S), seed=7))
    policy = Policy(policy_version="test", site_id=SITE, effective_from_ns=1, settle_ns=3 * S)
    reference = [(0, policy), *(pair for pair in good if is_reference(pair[1]))]
    rest = [pair for pair in good if not is_reference(pair[1])]
    bad = poisons(to_damage([record for _, record in rest], now_ns), now_ns, COUNT, SEED)
    bad_reference = reference_poisons([record for _, record in reference], now_ns, OF_REFERENCE, SEED)
    sender = sender_to(servers)
    for number, (_, record) in enumerate(reference):
        sender.record(record)
        for poison in bad_reference[number :: len(reference)]:
            sender.send(poison.topic, poison.key, poison.value, list(poison.headers))
    sender.flush()
    sent: dict[int, Poison] = {}
    directory = tmp_path_factory.mktemp("poisoned")
    with WorkerProcesses(servers, SITE, directory) as workers:
        workers.start(*ROLES)
        for number, (_, record) in enumerate(rest):
            for poison in bad[number * len(bad) // len(rest) : (number + 1) * len(bad) // len(rest)]:
                sent[sender.send(poison.topic, poison.key, poison.value, list(poison.headers))] = poison
            sender.record(record)
        sender.flush()
        for role in ROLES:  # in the order in which records flow
            topics = [topic_named(family).name for family in INPUTS[role]]  # type: ignore[index]
            wait_drained(servers, f"paceline-{role}", *topics, check=workers.check, timeout_s=120.0)
        statuses, starts = workers.stop(), dict(workers.starts)
        said = {role: (directory / f"{role}-1.err").read_text(errors="replace") for role in ROLES}
    assert len(sent) == COUNT
    places = {sender.places[number]: poison for number, poison in sent.items()}
    return PoisonedRun(servers, reference + rest, places, starts, statuses, said)


@pytest.fixture(scope="module")
def letters(poisoned_run: PoisonedRun, read_topics: Any) -> list[tuple[Message, dict[str, bytes]]]:
    found = read_topics(poisoned_run.servers, DEAD_LETTER.name)
    return [(letter, {str(name): bytes(value) for name, value in letter.headers()}) for letter in found]


def test_the_thousand_are_of_all_kinds_and_families() -> None:
    now_ns = time.time_ns()
    scenario = load_scenario("mixed", nodes=6, duration_s=20.0, seed=7)
    good = [record for _, record in simulate(scenario, now_ns - 45 * S) if not is_reference(record)]
    bad = poisons(to_damage(good, now_ns), now_ns, COUNT, SEED)
    assert len({poison.kind for poison in bad}) == KINDS
    topics = Counter(poison.topic for poison in bad)
    assert set(topics) == {topic_named(family).name for role in INPUTS.values() for family in role}
    assert min(topics.values()) >= 50
    assert len({(poison.kind, poison.topic) for poison in bad}) > 120
    assert len({(poison.key, poison.value, poison.headers) for poison in bad}) > 850


@pytest.mark.needs_broker
def test_each_is_one_dead_letter_with_its_bytes_its_place_and_its_reason(
    poisoned_run: PoisonedRun, letters: list[tuple[Message, dict[str, bytes]]]
) -> None:
    by_place = {
        (h["dlq.topic"].decode(), int(h["dlq.partition"]), int(h["dlq.offset"])): (letter, h) for letter, h in letters
    }
    strangers = {place: by_place[place][1]["dlq.text"] for place in by_place.keys() - poisoned_run.bad.keys()}
    assert strangers == {}, "good records are among the dead letters"
    missing = [poisoned_run.bad[place] for place in poisoned_run.bad.keys() - by_place.keys()]
    assert [(poison.kind, poison.topic, (poison.value or b"")[:300]) for poison in missing] == []
    assert len(letters) == COUNT, "a dead letter was written twice"
    for place, poison in poisoned_run.bad.items():
        letter, headers = by_place[place]
        what = (poison.kind, poison.topic, headers["dlq.text"])
        assert letter.value() == poison.value or (not letter.value() and not poison.value), what
        assert letter.key() == poison.key or (not letter.key() and not poison.key), what
        assert headers["dlq.reason"] == b"invalid_record", what
        assert poison.told in headers["dlq.text"].decode(), what
        assert headers["dlq.text"], what
        assert b"\n" not in headers["dlq.text"], what
        assert int(headers["dlq.timestamp_ms"]) > 0, what


@pytest.mark.needs_broker
def test_no_worker_ends_and_all_end_well_when_asked(poisoned_run: PoisonedRun) -> None:
    assert poisoned_run.starts == dict.fromkeys(ROLES, 1)
    assert poisoned_run.statuses == dict.fromkeys(ROLES, 0)


@pytest.mark.needs_broker
def test_reference_records_that_are_none_are_named_by_every_worker_and_change_nothing(
    poisoned_run: PoisonedRun,
) -> None:
    for role, said in poisoned_run.said.items():
        assert said.count("reference record refused") == OF_REFERENCE, (role, said[-3000:])
        assert "Traceback" not in said, (role, said[-3000:])


@pytest.mark.needs_broker
def test_what_is_found_and_joined_is_what_is_without_them(poisoned_run: PoisonedRun, read_topics: Any) -> None:
    pipeline, offsets, outputs = Pipeline(SITE), Counter[str](), []
    for arrival_ns, record in poisoned_run.good:
        topic = message(record).topic
        outputs += pipeline.on_record(record, Position(topic, 0, offsets[topic], arrival_ns // 1_000_000))
        offsets[topic] += 1
    outputs += pipeline.flush()
    live = [
        decode(found.topic(), found.value())
        for found in read_topics(poisoned_run.servers, FINDINGS, RESULTS)
        if (found.topic(), found.partition(), found.offset()) not in poisoned_run.bad
    ]

    def said(records: list[Record]) -> dict[str, set[Any]]:
        return {
            "findings": {(r.finding_id, r.state) for r in records if isinstance(r, Finding)},
            "steps": {(r.job_id, r.step) for r in records if isinstance(r, StepResult)},
        }

    expected = said(outputs)
    assert len(expected["findings"]) > 20
    assert said(live)["findings"] == expected["findings"]
    assert len(expected["steps"]) > 60
    # The last steps of each job are open while the input goes on.
    assert len(said(live)["steps"]) >= len(expected["steps"]) - 10
    assert said(live)["steps"] <= expected["steps"]
